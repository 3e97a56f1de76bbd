"""Schemas on servers, with the official client at the other end."""

from __future__ import annotations

import asyncio

import attrs
import pulsar as official
import pytest
from google.protobuf import struct_pb2
from pulsar.schema import (
    Array,
    Boolean,
    CustomEnum,
    Double,
    Long,
    Map,
    Record,
    String,
)
from pulsar.schema import (
    AvroSchema as OfficialAvroSchema,
)
from pulsar.schema import (
    JsonSchema as OfficialJsonSchema,
)
from pulsar.schema import (
    ProtobufNativeSchema as OfficialProtobufNativeSchema,
)
from schema_samples import Kind, Point, PointWithName

from pulsar_txn.client import AvroSchema, InitialPosition, JsonSchema, StringSchema
from pulsar_txn.client.errors import IncompatibleSchema, SchemaMismatch
from pulsar_txn.client.schemas import INT64_SCHEMA, AutoSchema, ProtobufNativeSchema

EARLIEST = InitialPosition.EARLIEST
WAIT_MS = 20_000
stock_only = pytest.mark.parametrize("pulsar", [pytest.param("stock-4.2.4", marks=pytest.mark.stock)], indirect=True)
newest = pytest.mark.parametrize("pulsar", ["ours", pytest.param("stock-4.2.4", marks=pytest.mark.stock)], indirect=True)


@attrs.frozen
class Leg:
    symbol: str | None = None
    amount: float | None = None


@attrs.frozen
class Order:
    id: int | None = None
    kind: Kind | None = None
    open: bool | None = None
    legs: list[Leg] | None = None
    tags: dict[str, int] | None = None
    note: str | None = None


class OfficialLeg(Record):
    _avro_namespace = "org.example"
    symbol = String()
    amount = Double()


OfficialLeg.__name__ = "Leg"


class OfficialOrder(Record):
    id = Long()
    kind = CustomEnum(Kind)
    open = Boolean()
    legs = Array(OfficialLeg())
    tags = Map(Long())
    note = String()


@pytest.fixture
def theirs(pulsar):
    """The official client, in this process."""
    connected = official.Client(pulsar.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    yield connected
    connected.close()


OURS = Order(7, Kind.SELL, True, [Leg("a", 0.5), Leg("b", 1.5)], {"x": 1}, None)


def official_order():
    return OfficialOrder(id=7, kind=Kind.SELL, open=True, legs=[OfficialLeg(symbol="a", amount=0.5)], tags={"x": 1})


async def in_thread(function, *arguments, **options):
    return await asyncio.to_thread(function, *arguments, **options)


@newest
async def test_avro_from_us_is_read_by_the_official_client(client, theirs, topic):
    producer = await client.create_producer(topic, schema=AvroSchema(Order))
    await asyncio.gather(*(producer.send(attrs.evolve(OURS, id=number)) for number in range(3)))
    reader = await in_thread(theirs.create_reader, topic, official.MessageId.earliest, schema=OfficialAvroSchema(OfficialOrder))
    for number in range(3):
        value = (await in_thread(reader.read_next, WAIT_MS)).value()
        assert (value.id, value.kind, value.open, value.tags, value.note) == (number, Kind.SELL, True, {"x": 1}, None)
        assert [(leg.symbol, leg.amount) for leg in value.legs] == [("a", 0.5), ("b", 1.5)]
    await in_thread(reader.close)


@newest
async def test_avro_of_the_official_client_is_read_by_us(client, theirs, topic):
    producer = await in_thread(theirs.create_producer, topic, schema=OfficialAvroSchema(OfficialOrder))
    await in_thread(producer.send, official_order())
    consumer = await client.subscribe(topic, "s", schema=AvroSchema(Order), initial_position=EARLIEST)
    value = (await consumer.receive(timeout=20)).value
    assert value == Order(7, Kind.SELL, True, [Leg("a", 0.5)], {"x": 1}, None)
    await in_thread(producer.close)


@newest
async def test_json_goes_both_ways(client, theirs, topic):
    producer = await client.create_producer(topic, schema=JsonSchema(Leg))
    await producer.send(Leg("a", 0.5))
    reader = await in_thread(theirs.create_reader, topic, official.MessageId.earliest, schema=OfficialJsonSchema(OfficialLeg))
    value = (await in_thread(reader.read_next, WAIT_MS)).value()
    assert (value.symbol, value.amount) == ("a", 0.5)
    await in_thread(reader.close)
    other = await in_thread(theirs.create_producer, topic, schema=OfficialJsonSchema(OfficialLeg))
    await in_thread(other.send, OfficialLeg(symbol="b", amount=2.5))
    consumer = await client.subscribe(topic, "s", schema=JsonSchema(Leg), initial_position=EARLIEST)
    assert [(await consumer.receive(timeout=20)).value for _ in range(2)] == [Leg("a", 0.5), Leg("b", 2.5)]
    await in_thread(other.close)


@newest
async def test_protobuf_goes_both_ways(client, theirs, topic):
    message = struct_pb2.Struct()
    message["a"] = 1.0
    producer = await client.create_producer(topic, schema=ProtobufNativeSchema(struct_pb2.Struct))
    await producer.send(message)
    their_schema = OfficialProtobufNativeSchema(struct_pb2.Struct)
    reader = await in_thread(theirs.create_reader, topic, official.MessageId.earliest, schema=their_schema)
    assert (await in_thread(reader.read_next, WAIT_MS)).value() == message
    await in_thread(reader.close)
    other = await in_thread(theirs.create_producer, topic, schema=their_schema)
    await in_thread(other.send, message)
    consumer = await client.subscribe(topic, "s", schema=ProtobufNativeSchema(struct_pb2.Struct), initial_position=EARLIEST)
    assert [(await consumer.receive(timeout=20)).value for _ in range(2)] == [message, message]
    await in_thread(other.close)


@newest
async def test_a_schema_that_grows_is_read_by_its_oldest_and_newest_definitions_in_transactions_too(client, topic):
    old = await client.create_producer(topic, schema=AvroSchema(Point))
    await old.send(Point(1, 2))
    new = await client.create_producer(topic, schema=AvroSchema(PointWithName))
    async with client.transaction() as txn:
        await asyncio.gather(old.send(Point(3, 4), txn=txn), new.send(PointWithName(5, 6, "p"), txn=txn))
    consumer = await client.subscribe(topic, "new", schema=AvroSchema(PointWithName), initial_position=EARLIEST)
    messages = [await consumer.receive(timeout=20) for _ in range(3)]
    values = sorted((message.value for message in messages), key=lambda value: value.x)
    assert values == [PointWithName(1, 2, "none"), PointWithName(3, 4, "none"), PointWithName(5, 6, "p")]
    assert len({message.schema_version for message in messages}) == 2


@newest
async def test_auto_reads_whatever_is_there(client, theirs, topic):
    ours = await client.create_producer(topic, schema=AvroSchema(Leg))
    await ours.send(Leg("a", 0.5))
    other = await in_thread(theirs.create_producer, f"{topic}-json", schema=OfficialJsonSchema(OfficialLeg))
    await in_thread(other.send, OfficialLeg(symbol="b", amount=2.5))
    plain = await client.create_producer(f"{topic}-plain")
    await plain.send(b"bytes")
    topics = [topic, f"{topic}-json", f"{topic}-plain"]
    consumer = await client.subscribe(topics, "s", schema=AutoSchema(), initial_position=EARLIEST)
    values = [(await consumer.receive(timeout=20)).value for _ in topics]
    assert sorted(values, key=str) == [b"bytes", {"symbol": "a", "amount": 0.5}, {"symbol": "b", "amount": 2.5}]
    await in_thread(other.close)


@stock_only
async def test_a_schema_that_does_not_fit_is_refused_when_producer_and_consumer_are_made(client, topic):
    await client.create_producer(topic, schema=AvroSchema(Point))
    with pytest.raises(IncompatibleSchema):
        await client.create_producer(topic, schema=StringSchema())
    with pytest.raises(IncompatibleSchema):
        await client.subscribe(topic, "s", schema=INT64_SCHEMA)


@newest
async def test_numbers_are_kept_and_bytes_of_strangers_are_a_schema_mismatch(client, topic):
    producer = await client.create_producer(topic, schema=INT64_SCHEMA)
    await producer.send(2**40)
    consumer = await client.subscribe(topic, "s", schema=INT64_SCHEMA, initial_position=EARLIEST)
    assert (await consumer.receive(timeout=20)).value == 2**40
    plain = await client.create_producer(f"{topic}-plain")
    await plain.send(b"no avro")
    reader = await client.create_reader(f"{topic}-plain", schema=JsonSchema())
    message = await reader.read_next(timeout=20)
    with pytest.raises(SchemaMismatch):
        _ = message.value
