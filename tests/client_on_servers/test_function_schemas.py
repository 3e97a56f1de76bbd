"""Functions with schemas: JSON, Avro, primitives, records of the official package, and schemas of one's own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from pulsar.schema import Integer, Record, String

from pulsar_txn.client import AsyncClient, AvroSchema, JsonSchema, StringSchema
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schemas import INT64_SCHEMA, AutoSchema
from pulsar_txn.pipeline import functions
from pulsar_txn.pipeline.functions._loading import schema_of


@dataclass
class Order:
    id: int
    note: str = ""


class OrderRecord(Record):
    id = Integer()
    note = String()


class Upper(StringSchema):
    def encode(self, value):
        return super().encode(value.upper())


@pytest.fixture
async def client(pulsar):
    async with AsyncClient(pulsar.service_url) as connected:
        yield connected


async def run(client, told, function, count=1, kind="processed"):
    stop, seen = asyncio.Event(), []

    def observer(event):
        seen.append(event)
        if sum(len(each.messages) for each in seen if each.kind == kind) >= count:
            stop.set()

    async with asyncio.timeout(40):
        await functions.run(client, told, function, stop=stop, observer=observer, negative_ack_delay=0.1)
    return seen


def config(topic, **keys):
    told = {"inputs": [topic], "output": f"{topic}-out", "subName": "s", "subscriptionPosition": "EARLIEST"}
    return told | {"name": "f", "transaction": {"transactionMode": "MANAGED"}} | keys


@pytest.mark.parametrize(("kind", "schema"), [("json", JsonSchema), ("avro", AvroSchema)])
async def test_values_of_a_class_come_in_and_go_out(client, topic, kind, schema):
    name = f"{__name__}.Order"
    source = await client.create_producer(topic, schema=schema(Order))
    await source.send(Order(1, "a"))

    def process(order):
        assert isinstance(order, Order)
        return Order(order.id + 1, order.note)

    keys = {"customSchemaInputs": {topic: kind}, "inputTypeClassName": name}
    await run(client, config(topic, outputSchemaType=kind, outputTypeClassName=name, **keys), process)
    reader = await client.create_reader(f"{topic}-out", schema=schema(Order))
    assert (await reader.read_next(10)).value == Order(2, "a")
    told = await client.create_reader(f"{topic}-out", schema=AutoSchema())  # as the broker says that it was written
    assert (await told.read_next(10)).value == {"id": 2, "note": "a"}


async def test_numbers_texts_and_a_schema_of_ones_own(client, topic):
    source = await client.create_producer(topic, schema=INT64_SCHEMA)
    await source.send(41)
    keys = {"inputs": [], "inputSpecs": {topic: {"schemaType": "int64"}}, "outputSchemaType": f"{__name__}.Upper"}
    await run(client, config(topic, **keys), lambda number: f"n{number + 1}")
    reader = await client.create_reader(f"{topic}-out", schema=StringSchema())
    assert (await reader.read_next(10)).value == "N42"


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize("kind", ["json", "avro"])
async def test_records_of_the_official_package_are_values_as_well(client, topic, kind):
    name = f"{__name__}.OrderRecord"
    schema = schema_of(kind, name, None)
    source = await client.create_producer(topic, schema=schema)
    await source.send(OrderRecord(id=1, note="a"))
    keys = {"customSchemaInputs": {topic: kind}, "inputTypeClassName": name}
    told = config(topic, outputSchemaType=kind, outputTypeClassName=name, **keys)
    await run(client, told, lambda order: OrderRecord(id=order.id + 1, note=order.note))
    reader = await client.create_reader(f"{topic}-out", schema=schema)
    found = (await reader.read_next(10)).value
    assert (found.id, found.note) == (2, "a")


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_an_output_that_does_not_fit_fails_the_call_and_nothing_is_acknowledged(client, topic):
    source = await client.create_producer(topic)
    await source.send(b"x")
    seen = await run(client, config(topic, outputSchemaType="int64"), lambda text: text, kind="failed")
    assert isinstance(seen[0].error, SchemaMismatch)
    consumer = await client.subscribe(topic, "s")
    assert (await consumer.receive(10)).data == b"x"


@pytest.mark.parametrize(
    ("kind", "said"), [("avro", "needs the class"), ("protobuf", "there is no schema type"), ("asyncio.Event", "is no schema")]
)
def test_a_schema_that_cannot_be_is_refused_with_a_sentence(kind, said):
    with pytest.raises(InvalidConfiguration, match=said):
        schema_of(kind, None, None)
