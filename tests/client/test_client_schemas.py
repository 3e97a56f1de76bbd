"""Schemas: which definition a class becomes, values there and back, and what a message was written with."""

import asyncio
import contextlib
import enum
import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs
import fastavro
import pytest
from fake_broker import SILENCE, FakeBroker, fake_client, sent_entry
from google.protobuf import struct_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from schema_samples import AttrsOrder, DataLeg, DataOrder, Kind, Leg, ModelLeg, ModelOrder, Point, PointWithName, Tree

from pulsar_txn.client import AvroSchema, JsonSchema, StringSchema
from pulsar_txn.client.errors import InvalidConfiguration, SchemaMismatch
from pulsar_txn.client.schema.base import SchemaInfo, WrittenSchema
from pulsar_txn.client.schema.types import definition_of
from pulsar_txn.client.schemas import (
    BOOLEAN_SCHEMA,
    DOUBLE_SCHEMA,
    FLOAT_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    AutoSchema,
    ProtobufNativeSchema,
)
from pulsar_txn.wire.frames import command

PLAIN = {
    "id": 2**40,
    "kind": Kind.BUY,
    "raw": b"\x00\xff",
    "at": datetime(2026, 2, 3, 4, 5, 6, 789_123, tzinfo=UTC),
    "day": date(1969, 7, 20),
    "clock": time(23, 59, 59, 999_999),
    "ref": UUID(int=7),
    "tags": {"a": 1},
    "choice": "text",
}
ORDERS = [
    AttrsOrder(**PLAIN, legs=[Leg("a"), Leg("b", -1.0)], names=("x", "y"), nested=Leg("n")),
    DataOrder(**PLAIN, legs=[DataLeg("a"), DataLeg("b", -1.0)], names=["x", "y"], nested=DataLeg("n")),
    ModelOrder(**PLAIN, legs=[ModelLeg(symbol="a")], names=["x"], nested=ModelLeg(symbol="n")),
]
by_class = pytest.mark.parametrize("order", ORDERS, ids=["attrs", "dataclass", "pydantic"])
both = pytest.mark.parametrize("make", [AvroSchema, JsonSchema])


@by_class
@both
def test_a_value_of_a_class_comes_back_equal(order, make):
    schema = make(type(order))
    assert schema.decode(schema.encode(order)) == order
    assert schema.info.name == ("AVRO" if make is AvroSchema else "JSON")


@by_class
def test_a_definition_is_avro_that_other_readers_understand(order):
    definition = definition_of(type(order))
    assert fastavro.parse_schema(definition)
    fields = {field["name"]: field for field in definition["fields"]}
    assert fields["id"] == {"name": "id", "type": "long"}
    assert fields["kind"]["type"] == {"type": "enum", "name": "Kind", "symbols": ["BUY", "SELL"]}
    assert fields["default_kind"] == {"name": "default_kind", "type": "Kind", "default": "SELL"}
    assert fields["at"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert fields["legs"]["type"]["items"]["type"] == "record"
    assert fields["nested"]["type"] == ["null", fields["legs"]["type"]["items"]["name"]]
    assert fields["tags"]["type"] == {"type": "map", "values": "long"}
    assert fields["note"] == {"name": "note", "type": ["null", "string"], "default": None}
    assert fields["choice"] == {"name": "choice", "type": ["long", "string"], "default": 7}
    assert fields["small"] == {"name": "small", "type": "int", "default": 3}
    assert fields["ratio"] == {"name": "ratio", "type": "float", "default": 0.5}
    assert fields["names"] == {"name": "names", "type": {"type": "array", "items": "string"}, "default": []}
    assert fields["flag"] == {"name": "flag", "type": "boolean", "default": True}


def test_json_payloads_hold_what_the_definition_says():
    document = json.loads(JsonSchema(AttrsOrder).encode(ORDERS[0]))
    assert document["at"] == 1_770_091_506_789_123
    assert document["day"] == -165
    assert document["clock"] == 86_399_999_999
    assert document["kind"] == "BUY"
    assert document["raw"] == "AP8="
    assert document["ref"] == str(UUID(int=7))


@both
def test_classes_may_hold_themselves(make):
    tree = Tree(1, [Tree(2), Tree(3, [Tree(4)])])
    schema = make(Tree)
    assert schema.decode(schema.encode(tree)) == tree


@both
@pytest.mark.parametrize("offset", [-11, 0, 5.5])
def test_a_moment_is_the_same_moment_whatever_its_zone_and_one_without_is_refused(make, offset):
    @attrs.frozen
    class Moment:
        at: datetime

    schema = make(Moment)
    at = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=offset)))
    assert schema.decode(schema.encode(Moment(at))).at == at
    with pytest.raises(SchemaMismatch, match="time zone"):
        schema.encode(Moment(datetime(2026, 1, 1)))  # noqa: DTZ001 - that is the point


@both
@given(
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
    texts=st.dictionaries(st.text(max_size=5), st.none() | st.text(max_size=5), max_size=3),
    real=st.floats(allow_nan=False, allow_infinity=False),
    raw=st.binary(max_size=20),
)
def test_any_value_comes_back(make, numbers, texts, real, raw):
    value = MANY(numbers, texts, real, raw)
    schema = SCHEMAS_OF_MANY[make]
    assert schema.decode(schema.encode(value)) == value


@attrs.frozen
class MANY:
    numbers: list[int]
    texts: dict[str, str | None]
    real: float
    raw: bytes


SCHEMAS_OF_MANY = {AvroSchema: AvroSchema(MANY), JsonSchema: JsonSchema(MANY)}


@both
@pytest.mark.parametrize("value", [Leg("a"), {"x": 1, "y": 2}, None, 7])
def test_a_value_of_another_class_is_refused(make, value):
    with pytest.raises(SchemaMismatch, match="Point is needed"):
        make(Point).encode(value)


@pytest.mark.parametrize("point", [Point("1", 2), Point(None, 2), Point(2**63, 2)])
def test_a_field_of_the_wrong_type_is_refused_by_avro(point):
    with pytest.raises(SchemaMismatch, match="definition"):
        AvroSchema(Point).encode(point)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b'{"x":1}', b'{"x":"1","y":2}', b'{"x":true,"y":2}', b"7", b"null", b"\xff"]
)
def test_a_payload_that_is_no_such_document_is_a_schema_mismatch(payload):
    with pytest.raises(SchemaMismatch):
        JsonSchema(Point).decode(payload)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_avro_are_a_schema_mismatch_or_a_value(payload):
    with contextlib.suppress(SchemaMismatch):
        assert isinstance(SCHEMA_OF_ORDERS.decode(payload), AttrsOrder)


SCHEMA_OF_ORDERS = AvroSchema(AttrsOrder)


def test_numbers_that_json_cannot_carry_are_refused_for_classes():
    with pytest.raises(SchemaMismatch, match="JSON"):
        JsonSchema(Leg).encode(Leg("a", math.nan))


def test_types_without_an_avro_type_are_refused_with_their_field():
    @attrs.frozen
    class Price:
        amount: Decimal

    @attrs.frozen
    class Offer:
        prices: list[Price]
        anything: Any

    with pytest.raises(InvalidConfiguration, match=r"Offer\.prices: Price\.amount"):
        AvroSchema(Offer)
    with pytest.raises(InvalidConfiguration, match="not an attrs class"):
        JsonSchema(int)


def test_two_classes_of_one_name_in_one_schema_are_refused():
    class Other(enum.Enum):
        A = 1

    Other.__name__ = "Leg"

    @attrs.frozen
    class Both:
        leg: Leg
        other: Other

    with pytest.raises(InvalidConfiguration, match="called Leg"):
        AvroSchema(Both)


def test_a_definition_as_text_or_mapping_goes_with_dicts():
    definition = definition_of(Point)
    for given_as in (definition, json.dumps(definition)):
        schema = AvroSchema(given_as)
        assert schema.decode(schema.encode({"x": 1, "y": 2})) == {"x": 1, "y": 2}
        with pytest.raises(SchemaMismatch):
            schema.encode({"x": 1})


@pytest.mark.parametrize("definition", ["", "[]", "7", '{"type": "record"}', '{"type": "unheard of"}'])
def test_a_definition_that_is_none_is_refused(definition):
    with pytest.raises(InvalidConfiguration):
        AvroSchema(definition)


def test_avro_reads_with_the_definition_of_the_writer_whatever_its_record_is_called():
    old, new = AvroSchema(Point), AvroSchema(PointWithName)
    payload = old.encode(Point(1, 2))
    assert new.decode_written(payload, old.info) == PointWithName(1, 2, "none")
    assert old.decode_written(new.encode(PointWithName(1, 2, "n")), new.info) == Point(1, 2)
    with pytest.raises(SchemaMismatch):
        new.decode(payload)


@pytest.mark.parametrize(
    "writer", [SchemaInfo(2, b"{}", "JSON"), SchemaInfo(4, b"{", "AVRO"), SchemaInfo(4, b'"string"', "AVRO")]
)
def test_a_writer_that_was_not_of_this_kind_is_a_schema_mismatch(writer):
    with pytest.raises(SchemaMismatch):
        AvroSchema(Point).decode_written(b"\x02\x04", writer)


# --- the small ones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "value", "payload", "number"),
    [
        (BOOLEAN_SCHEMA, True, b"\x01", 5),
        (INT8_SCHEMA, -1, b"\xff", 6),
        (INT16_SCHEMA, 258, b"\x01\x02", 7),
        (INT32_SCHEMA, -(2**31), b"\x80\0\0\0", 8),
        (INT64_SCHEMA, 2**40, b"\0\0\x01\0\0\0\0\0", 9),
        (FLOAT_SCHEMA, 0.5, b"\x3f\0\0\0", 10),
        (DOUBLE_SCHEMA, -2.0, b"\xc0" + bytes(7), 11),
    ],
)
def test_numbers_are_big_endian(schema, value, payload, number):
    assert (schema.encode(value), schema.decode(payload), schema.info.type) == (payload, value, number)
    with pytest.raises(SchemaMismatch, match="bytes"):
        schema.decode(payload + b"\0")
    with pytest.raises(SchemaMismatch):
        schema.encode("1")


@pytest.mark.parametrize(
    ("schema", "value"), [(INT8_SCHEMA, 128), (INT64_SCHEMA, 2**63), (FLOAT_SCHEMA, 1e39), (INT32_SCHEMA, True)]
)
def test_a_number_that_does_not_fit_is_refused(schema, value):
    with pytest.raises(SchemaMismatch):
        schema.encode(value)


def test_protobuf_messages_go_with_their_descriptors():
    schema = ProtobufNativeSchema(struct_pb2.Struct)
    message = struct_pb2.Struct()
    message["a"] = 1.0
    assert schema.decode(schema.encode(message)) == message
    definition = json.loads(schema.info.data)
    assert list(definition) == ["fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName"]
    assert definition["rootMessageTypeName"] == "google.protobuf.Struct"
    with pytest.raises(SchemaMismatch, match="Struct is needed"):
        schema.encode(timestamp_pb2.Timestamp())
    with pytest.raises(SchemaMismatch, match="no Struct"):
        schema.decode(b"\xff\xff")
    with pytest.raises(InvalidConfiguration, match="protobuf class"):
        ProtobufNativeSchema(Point)


# --- versions -------------------------------------------------------------------------------------------------------


def written_with(broker, *schemas):
    """Have the broker know these versions: b"\\x00", b"\\x01", …"""

    def answer(_pipe, body):
        info = schemas[body.schema_version[0]]
        schema = {"name": info.name, "type": info.type, "schema_data": info.data}
        return command("getSchemaResponse", request_id=body.request_id, schema=schema, schema_version=body.schema_version)

    broker.on["getSchema"] = answer


OLD, NEW = AvroSchema(Point), AvroSchema(PointWithName)


async def test_a_consumer_reads_each_message_with_its_writers_definition_and_asks_once():
    broker = FakeBroker()
    written_with(broker, OLD.info, NEW.info)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", schema=NEW)
        for entry_id in range(4):
            point = Point(entry_id, 0) if entry_id % 2 == 0 else PointWithName(entry_id, 0, "n")
            payload = (OLD, NEW)[entry_id % 2].encode(point)
            broker.deliver(1, entry_id, payload, payload, schema_version=bytes([entry_id % 2]))
        values = [(await consumer.receive(timeout=2)).value for _ in range(8)]
    assert [(value.x, value.name) for value in values] == [(i, n) for i, n in enumerate(["none", "n"] * 2) for _ in "ab"]
    assert [body.schema_version for body in broker.all("getSchema")] == [b"\x00", b"\x01"]


async def test_what_comes_behind_an_unknown_version_waits_so_the_order_stays():
    broker = FakeBroker()
    broker.on["getSchema"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=5) as client:
        consumer = await client.subscribe("t", "s", schema=NEW)
        broker.deliver(1, 0, OLD.encode(Point(1, 1)), schema_version=b"\x00")
        broker.deliver(1, 1, NEW.encode(PointWithName(2, 2)))
        await broker.until(lambda: broker.all("getSchema"))
        await asyncio.sleep(0.01)
        assert consumer.queued == 0
        written_with(broker, OLD.info)
        request_id = broker.all("getSchema")[0].request_id
        schema = {"name": "AVRO", "type": 4, "schema_data": OLD.info.data}
        broker.say("getSchemaResponse", request_id=request_id, schema=schema, schema_version=b"\x00")
        assert [(await consumer.receive(timeout=2)).value.x for _ in range(2)] == [1, 2]


async def test_a_version_that_the_broker_does_not_know_spoils_only_its_messages():
    broker = FakeBroker()
    broker.on["getSchema"] = lambda _pipe, body: command(
        "getSchemaResponse", request_id=body.request_id, error_code=11, error_message="no such schema"
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", schema=NEW)
        broker.deliver(1, 0, b"\x02\x04", schema_version=b"\x09")
        broker.deliver(1, 1, NEW.encode(PointWithName(2, 2)))
        first, second = [await consumer.receive(timeout=2) for _ in range(2)]
        with pytest.raises(SchemaMismatch, match="no such schema"):
            _ = first.value
        assert first.data == b"\x02\x04"
        assert second.value.x == 2


async def test_held_messages_are_dropped_with_the_queue_and_their_permits_come_back():
    broker = FakeBroker()
    broker.on["getSchema"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=5) as client:
        consumer = await client.subscribe("t", "s", schema=NEW, receiver_queue_size=4)
        payload = OLD.encode(Point(1, 1))
        broker.deliver(1, 0, payload, payload, payload, schema_version=b"\x00")
        await broker.until(lambda: broker.all("getSchema"))
        consumer.redeliver_unacknowledged()
        await broker.until(lambda: broker.permits[broker.consumer_id] >= 7)
        assert consumer.queued == 0


async def test_a_connection_that_breaks_while_a_version_is_asked_for_only_delays():
    broker = FakeBroker()

    def cut_once(pipe, _body):
        written_with(broker, OLD.info)
        pipe.cut()

    broker.on["getSchema"] = cut_once
    async with fake_client(broker, operation_timeout=5) as client:
        consumer = await client.subscribe("t", "s", schema=NEW)
        broker.deliver(1, 0, OLD.encode(Point(1, 1)), schema_version=b"\x00")
        await broker.until(lambda: len(broker.all("flow")) == 2)
        broker.deliver(1, 0, OLD.encode(Point(1, 1)), schema_version=b"\x00")
        assert (await consumer.receive(timeout=2)).value == PointWithName(1, 1)
        assert consumer.queued == 0


MESSAGE = struct_pb2.Struct()
MESSAGE["a"] = 1.0


@pytest.mark.parametrize(
    ("schema", "value", "seen"),
    [
        (StringSchema(), "text", "text"),
        (INT32_SCHEMA, 7, 7),
        (BOOLEAN_SCHEMA, True, True),
        (JsonSchema(Point), Point(1, 2), {"x": 1, "y": 2}),
        (AvroSchema(Point), Point(1, 2), {"x": 1, "y": 2}),
        (ProtobufNativeSchema(struct_pb2.Struct), MESSAGE, MESSAGE),
    ],
)
def test_auto_reads_by_what_the_writer_said(schema, value, seen):
    decoded = AutoSchema().decode_written(schema.encode(value), schema.info)
    if isinstance(seen, struct_pb2.Struct):
        assert type(decoded) is not struct_pb2.Struct
        decoded = struct_pb2.Struct.FromString(decoded.SerializeToString())
    assert decoded == seen


@pytest.mark.parametrize("info", [SchemaInfo(4, b"{", "AVRO"), SchemaInfo(4, b"\xff", "AVRO"), SchemaInfo(20, b"{}", "P")])
def test_auto_says_so_when_a_writers_schema_cannot_be_used(info):
    with pytest.raises(SchemaMismatch, match="cannot be used"):
        AutoSchema().decode_written(b"x", info)


def test_auto_hands_out_bytes_where_nothing_is_known_and_never_writes():
    assert AutoSchema().decode(b"x") == b"x"
    assert AutoSchema().decode_written(b"x", SchemaInfo(15, b"", "KeyValue")) == b"x"
    with pytest.raises(SchemaMismatch, match="only reads"):
        AutoSchema().encode("x")


async def test_a_tombstone_has_no_value_and_a_schema_that_needs_no_versions_asks_for_none():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", schema=JsonSchema(Point))
        broker.deliver(1, 0, b'{"x":1,"y":2}', schema_version=b"\x05")
        broker.deliver(1, 1, b"", null_value=True)
        assert [(await consumer.receive(timeout=2)).value for _ in range(2)] == [Point(1, 2), None]
    assert not broker.all("getSchema")
    assert not isinstance(JsonSchema(), WrittenSchema)


async def test_a_producer_tells_its_schema_and_stamps_the_version_that_the_broker_answers():
    broker = FakeBroker()
    broker.on["producer"] = lambda _pipe, body: command(
        "producer_success", request_id=body.request_id, producer_name="p", last_sequence_id=-1, schema_version=b"\x07"
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", schema=OLD)
        await producer.send(Point(1, 2))
        with pytest.raises(SchemaMismatch):
            await producer.send(Leg("a"))
    (told,) = broker.all("producer")
    assert (told.schema.type, told.schema.name) == (4, "AVRO")
    metadata, payload = sent_entry(broker.all("send")[0])
    assert (metadata.schema_version, payload) == (b"\x07", OLD.encode(Point(1, 2)))
