"""Rows with a schema from the sink to the source, and to programs that know nothing of Spark."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pulsar as official
import pytest
import stock_install
from google.protobuf.descriptor_pb2 import (
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MessageOptions,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct
from other_languages import java_program
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)
from targets import Target
from typed_rows import read, struct, write

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.schemas import ProtobufNativeSchema
from pulsar_txn.pipeline.spark import OptionError
from pulsar_txn.pipeline.spark.connecting import background

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
WIDE = struct(
    small=ByteType(),
    short=ShortType(),
    whole=IntegerType(),
    long=LongType(),
    single=FloatType(),
    double=DoubleType(),
    text=StringType(),
    raw=BinaryType(),
    flag=BooleanType(),
    money=DecimalType(10, 2),
    day=DateType(),
    at=TimestampType(),
    wall=TimestampNTZType(),
    clock=TimeType(),
    legs=ArrayType(struct(stop=StringType())),
    tags=MapType(StringType(), ArrayType(IntegerType())),
    inner=struct(deep=struct(x=IntegerType())),
)
FULL: dict[str, Any] = {
    "small": -1,
    "short": 300,
    "whole": -(2**31),
    "long": 2**63 - 1,
    "single": 1.5,
    "double": 0.1,
    "text": "zwölf",
    "raw": b"\x00\xff",
    "flag": True,
    "money": Decimal("-12345678.90"),
    "day": date(1969, 12, 31),
    "at": AT,
    "wall": AT.replace(tzinfo=None),
    "clock": time(23, 59, 59, 999999),
    "legs": [{"stop": "JFK"}, None, {"stop": None}],
    "tags": {"a": [1, None], "b": None},
    "inner": {"deep": {"x": 7}},
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL)


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_structs_come_back_as_they_were_written(pulsar: Target, topic: str, kind: str) -> None:
    rows = [{"key": "a", "value": FULL}, {"key": None, "value": EMPTY}, {"key": "gone", "value": None}]
    write(pulsar.service_url, topic, struct(key=StringType(), value=WIDE), rows, schema=kind)
    found = read(pulsar.service_url, topic, schema="topic")
    assert [(row["key"], row["value"]) for row in found] == [(b"a", FULL), (None, EMPTY), (b"gone", None)]


PRIMITIVES: list[tuple[str, DataType, list[Any]]] = [
    ("string", StringType(), ["", "ä"]),
    ("boolean", BooleanType(), [True, False]),
    ("int8", ByteType(), [-128, 127]),
    ("int16", ShortType(), [-(2**15), 5]),
    ("int32", IntegerType(), [-(2**31), 5]),
    ("int64", LongType(), [-(2**63), 5]),
    ("float", FloatType(), [1.5]),
    ("double", DoubleType(), [0.1]),
    ("timestamp", TimestampType(), [AT.replace(microsecond=678000)]),
    ("instant", TimestampType(), [AT, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
    ("local_date", DateType(), [date(1, 1, 1), date(9999, 12, 31)]),
    ("local_time", TimeType(), [time(0), time(23, 59, 59, 999999)]),
    ("local_date_time", TimestampNTZType(), [AT.replace(tzinfo=None)]),
]


def test_primitive_values_come_back_as_they_were_written(pulsar: Target, topic: str) -> None:
    for name, kind, values in PRIMITIVES:
        rows = [{"value": value} for value in (*values, None)]
        write(pulsar.service_url, f"{topic}-{name}", struct(value=kind), rows, schema=name)
        assert [row["value"] for row in read(pulsar.service_url, f"{topic}-{name}", schema="topic")] == [*values, None], name


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_have_typed_keys(pulsar: Target, topic: str, encoding: str) -> None:
    columns = struct(key=struct(id=IntegerType()), value=LongType())
    rows = [{"key": {"id": 5}, "value": 7}, {"key": None, "value": 8}, {"key": {"id": 6}, "value": None}]
    chosen = {"schema": "int64", "keySchema": "avro", "keyValueEncoding": encoding}
    write(pulsar.service_url, topic, columns, rows, **chosen)
    found = [{"key": row["key"], "value": row["value"]} for row in read(pulsar.service_url, topic, schema="topic")]
    assert found == rows
    write(pulsar.service_url, topic, columns, rows, schema="topic")
    assert len(read(pulsar.service_url, topic, schema="topic")) == 6, "and by the schema that the topic has"


def test_a_new_optional_column_appears_and_old_messages_have_null(pulsar: Target, topic: str) -> None:
    old, new = struct(a=IntegerType()), struct(a=IntegerType(), b=StringType())
    write(pulsar.service_url, topic, struct(value=old), [{"value": {"a": 1}}], schema="avro")
    write(pulsar.service_url, topic, struct(value=new), [{"value": {"a": 2, "b": "x"}}], schema="avro")
    write(pulsar.service_url, topic, struct(value=old), [{"value": {"a": 3}}], schema="avro")
    assert [row["value"] for row in read(pulsar.service_url, topic, schema="topic")] == [
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        {"a": 3, "b": None},
    ]


# --- what is refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (struct(a=IntegerType(), c=StringType()), {"schema": "topic"}, "'value.c': the schema has no such field"),
        (struct(b=StringType()), {"schema": "topic"}, "has no field 'a', which the schema requires"),
        (struct(a=StringType()), {"schema": "topic"}, "'value.a' is string; the schema needs int: cast it"),
        (StringType(), {"schema": "avro"}, "a JSON or Avro schema needs a struct"),
        (struct(**{"a b": StringType()}), {"schema": "avro"}, "Avro's names have letters"),
        (struct(a=MapType(IntegerType(), StringType())), {"schema": "json"}, "Avro has no type for"),
        (StringType(), {"schema": "string", "schemaType": "AVRO"}, "give the definition as option schema"),
        (LongType(), {"schema": "topic", "keySchema": "int64"}, "the topic says what its keys are"),
        (LongType(), {"schema": "int64", "keySchema": "int64"}, "needs a column 'key'"),
        (struct(a=IntegerType()), {"schema": '{"type":"int"}'}, "say with .*schemaType"),
    ],
)
def test_columns_that_do_not_fit_their_schema_are_refused_before_any_task(
    pulsar: Target, topic: str, value: DataType, options: dict[str, str], message: str
) -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"], "default": None}]
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    if options.get("schema") == "topic":
        first = [{"value": {"a": 1, "b": None}}]
        columns = struct(value=struct(a=IntegerType(), b=StringType()))
        write(pulsar.service_url, topic, columns, first, schema=definition, schemaType="AVRO")
    with pytest.raises(OptionError, match=message):
        write(pulsar.service_url, topic, struct(value=value), [], **options)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_value_that_the_schema_does_not_take_is_named_with_its_row(pulsar: Target, topic: str, kind: str) -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["x", "y"]}
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": symbols}]})
    for bad in (None, "z"):
        rows = [{"value": {"a": "x"}}, {"value": {"a": bad}}]
        with pytest.raises(OptionError, match=r"row 1, column 'value': it does not fit the schema"):
            write(pulsar.service_url, topic, struct(value=struct(a=StringType())), rows, schema=definition, schemaType=kind)


def test_numbers_that_are_too_large_for_the_schema_are_named(pulsar: Target, topic: str) -> None:
    with pytest.raises(OptionError, match=r"row 1, column 'value': it does not fit the schema"):
        write(pulsar.service_url, topic, struct(value=LongType()), [{"value": 1}, {"value": 2**40}], schema="int32")


# --- the official client judges ----------------------------------------------------------------------------------------------


class Flight(official.schema.Record):  # type: ignore[misc]
    """As its users write it."""

    carrier = official.schema.String()
    cents = official.schema.Long()
    legs = official.schema.Array(official.schema.String())
    tags = official.schema.Map(official.schema.Integer())
    late = official.schema.Boolean()
    ratio = official.schema.Double()


FLIGHT = struct(
    carrier=StringType(),
    cents=LongType(),
    legs=ArrayType(StringType()),
    tags=MapType(StringType(), IntegerType()),
    late=BooleanType(),
    ratio=DoubleType(),
)
SENT = {"carrier": "AA", "cents": 2**40, "legs": ["JFK", "LAX"], "tags": {"x": 1}, "late": True, "ratio": 0.5}


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_the_official_client_reads_what_the_sink_writes_and_writes_what_the_source_reads(
    pulsar: Target, topic: str, kind: str
) -> None:
    make = official.schema.AvroSchema if kind == "avro" else official.schema.JsonSchema
    client = official.Client(pulsar.service_url)
    try:
        producer = client.create_producer(topic, schema=make(Flight))
        producer.send(Flight(**SENT))
        write(pulsar.service_url, topic, struct(value=FLIGHT), [{"value": SENT}], schema="topic")
        assert [row["value"] for row in read(pulsar.service_url, topic, schema="topic")] == [SENT, SENT]
        consumer = client.subscribe(topic, "s", schema=make(Flight), initial_position=official.InitialPosition.Earliest)
        for _ in range(2):
            found = consumer.receive(20_000).value()
            assert {name: getattr(found, name) for name in SENT} == SENT
    finally:
        client.close()


def protobuf_class() -> Any:
    """A message with a field of each kind that is special."""
    field = FieldDescriptorProto
    file = FileDescriptorProto(name="typed.proto", package="typed", syntax="proto3")
    message = file.message_type.add(name="M")
    message.enum_type.add(name="E").value.extend([EnumValueDescriptorProto(name="ZERO", number=0)])
    message.enum_type[0].value.add(name="ONE", number=1)
    inner = message.nested_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=field.TYPE_SINT32, label=field.LABEL_OPTIONAL)
    entry = message.nested_type.add(name="TagsEntry", options=MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, type_name=".typed.M.Inner", label=field.LABEL_OPTIONAL)
    for number, (name, kind, type_name, label) in enumerate(
        [
            ("huge", field.TYPE_UINT64, "", field.LABEL_OPTIONAL),
            ("choice", field.TYPE_ENUM, ".typed.M.E", field.LABEL_OPTIONAL),
            ("inner", field.TYPE_MESSAGE, ".typed.M.Inner", field.LABEL_OPTIONAL),
            ("many", field.TYPE_MESSAGE, ".typed.M.Inner", field.LABEL_REPEATED),
            ("words", field.TYPE_STRING, "", field.LABEL_REPEATED),
            ("tags", field.TYPE_MESSAGE, ".typed.M.TagsEntry", field.LABEL_REPEATED),
            ("raw", field.TYPE_BYTES, "", field.LABEL_OPTIONAL),
        ],
        1,
    ):
        message.field.add(name=name, number=number, type=kind, type_name=type_name or None, label=label)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("typed.M"))


def test_messages_of_protobuf_are_structs(pulsar: Target, topic: str) -> None:
    kind = protobuf_class()
    sent = kind(huge=2**64 - 1, choice=1, inner={"x": -5}, many=[{"x": 1}], words=["a"], tags={"k": {"x": 2}}, raw=b"\xff")

    async def send(to: str, value: Any) -> None:
        schema = ProtobufNativeSchema(type(value))
        async with AsyncClient(pulsar.service_url) as client, await client.create_producer(to, schema=schema) as producer:
            await producer.send(value)

    background().run(send(topic, sent))
    one = struct(x=IntegerType())
    columns = struct(
        huge=DecimalType(20, 0),
        choice=StringType(),
        inner=one,
        many=ArrayType(one),
        words=ArrayType(StringType()),
        tags=MapType(StringType(), one),
        raw=BinaryType(),
    )
    full = {"huge": Decimal(2**64 - 1), "choice": "ONE", "inner": {"x": -5}, "many": [{"x": 1}], "words": ["a"]}
    full |= {"tags": {"k": {"x": 2}}, "raw": b"\xff"}
    empty = {"huge": Decimal(0), "choice": "ZERO", "inner": None, "many": [], "words": [], "tags": {}, "raw": b""}
    rows = [{"value": full}, {"value": dict.fromkeys(full)}]
    write(pulsar.service_url, topic, struct(value=columns), rows, schema="topic")
    assert [row["value"] for row in read(pulsar.service_url, topic, schema="topic")] == [full, full, empty]
    background().run(send(topic + "-r", Struct()))
    with pytest.raises(OptionError, match=r"google.protobuf.Struct contains itself"):
        read(pulsar.service_url, topic + "-r", schema="topic")


# --- Java's client judges ----------------------------------------------------------------------------------------------------

PROBE = Path(__file__).parents[1] / "support" / "SchemaProbe.java"
LEG = struct(stop=StringType(), minutes=IntegerType())
JAVAS_FLIGHT = struct(
    carrier=StringType(),
    cents=LongType(),
    ratio=DoubleType(),
    kind=StringType(),
    legs=ArrayType(LEG),
    tags=MapType(StringType(), IntegerType()),
    raw=BinaryType(),
)
JAVAS: dict[str, Any] = {"carrier": "zwölf", "cents": 2**40, "ratio": 0.5, "kind": "SECOND", "tags": {"x": 1}, "raw": b"\xff\0"}
JAVAS |= {"legs": [{"stop": "JFK", "minutes": 7}]}
AT_MS = AT.replace(microsecond=678000)
OF_JAVA: list[tuple[str, DataType, Any]] = [
    ("string", StringType(), "zwölf"),
    ("boolean", BooleanType(), True),
    ("int8", ByteType(), -5),
    ("int16", ShortType(), -300),
    ("int32", IntegerType(), -70000),
    ("int64", LongType(), 2**40),
    ("float", FloatType(), 1.5),
    ("double", DoubleType(), 0.1),
    ("date", TimestampType(), AT_MS),
    ("time", TimestampType(), AT_MS),
    ("timestamp", TimestampType(), AT_MS),
    ("instant", TimestampType(), AT),
    ("local_date", DateType(), AT.date()),
    ("local_time", TimeType(), AT.time()),
    ("local_date_time", TimestampNTZType(), AT.replace(tzinfo=None)),
    ("avro", JAVAS_FLIGHT, JAVAS),
    ("json", JAVAS_FLIGHT, JAVAS),
    ("inline", LongType(), 8),
    ("separated", JAVAS_FLIGHT, JAVAS),
]
"""What the probe sends; the keys of the pairs are below."""

KEYS: dict[str, tuple[DataType, Any]] = {"inline": (LEG, JAVAS["legs"][0]), "separated": (IntegerType(), 9)}


@pytest.mark.timeout(180)
def test_javas_client_reads_what_the_sink_writes_and_writes_what_the_source_reads(pulsar: Target, topic: str) -> None:
    command = java_program(PROBE, stock_install.VERSIONS[-1])

    def java(what: str) -> list[str]:
        done = subprocess.run(
            [*command, pulsar.service_url, what, topic], check=True, capture_output=True, text=True, encoding="utf-8"
        )
        return [line for line in done.stdout.splitlines() if line.partition(" ")[0] in {name for name, _, _ in OF_JAVA}]

    java("send")
    for name, kind, value in OF_JAVA:
        (found,) = read(pulsar.service_url, f"{topic}-{name}", schema="topic")
        assert found["value"] == value, name
        row, columns = {"value": value}, struct(value=kind)
        if name in KEYS:
            row, columns = {"key": KEYS[name][1], "value": value}, struct(key=KEYS[name][0], value=kind)
            assert found["key"] == KEYS[name][1]
        write(pulsar.service_url, f"{topic}-{name}", columns, [row], schema="topic")
    assert java("read") == [f"{name} ok" for name, _, _ in OF_JAVA for _ in range(2)]
