"""`option("schema", "topic")`: the column `value` has the type of the topic's schema."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType
from targets import Target
from typed_rows import read as rows_of
from typed_rows import struct

from pulsar_txn.client import AsyncClient, AvroSchema, JsonSchema, Schema, StringSchema
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.client.schemas import INT64_SCHEMA
from pulsar_txn.pipeline.spark import OptionError, PulsarDataSource, UndecodableValue
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.schemas.parts import spark_type

FIELDS: list[dict[str, Any]] = [
    {"name": "carrier", "type": "string"},
    {"name": "cents", "type": ["null", "long"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "legs", "type": {"type": "array", "items": "int"}},
    {"name": "tags", "type": {"type": "map", "values": "double"}},
]
FLIGHT = {"type": "record", "name": "Flight", "fields": FIELDS}
OPTIONAL = [each | {"type": ["null", each["type"]]} for each in FIELDS if each["name"] != "cents"]
NULLABLE = {"type": "record", "name": "Flight", "fields": OPTIONAL + FIELDS[1:2]}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def send(url: str, topic: str, schema: Schema[Any] | None, *values: Any) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client, await client.create_producer(topic, schema=schema) as producer:
            for value in values:
                await producer.send(value)

    background().run(work())


def source(pulsar: Target, topic: str, **options: str) -> PulsarDataSource:
    return PulsarDataSource({"service.url": pulsar.service_url, "topic": topic, "schema": "topic", **options})


def read(pulsar: Target, topic: str, **options: str) -> list[Any]:
    made = source(pulsar, topic, **options)
    reader = made.reader(made.schema())
    return [value for work in reader.partitions() for batch in reader.read(work) for value in batch.column(1).to_pylist()]


def test_avro_records_are_structs_and_older_versions_are_resolved(pulsar: Target, topic: str) -> None:
    old = FLIGHT | {"fields": [FIELDS[0], *FIELDS[2:]]}
    send(pulsar.service_url, topic, AvroSchema(old), {"carrier": "AA", "at": AT, "legs": [1], "tags": {"x": 0.5}})
    send(pulsar.service_url, topic, AvroSchema(FLIGHT), {"carrier": "DL", "cents": 5, "at": AT, "legs": [], "tags": {}}, None)
    expected = "struct<carrier:string,cents:bigint,at:timestamp,legs:array<int>,tags:map<string,double>>"
    assert source(pulsar, topic).schema()["value"].dataType.simpleString() == expected
    first, second, tombstone = read(pulsar, topic)
    assert (first["carrier"], first["cents"], first["legs"], first["tags"]) == ("AA", None, [1], [("x", 0.5)])
    assert first["at"] == AT
    assert (second["carrier"], second["cents"], tombstone) == ("DL", 5, None)


def test_json_records_are_structs(pulsar: Target, topic: str) -> None:
    values = [{"carrier": "AA", "cents": 1, "at": 7, "legs": [1, 2], "tags": {}}, {"carrier": "DL", "at": 8, "more": "x"}]
    send(pulsar.service_url, topic, JsonSchema(json.dumps(NULLABLE)), *values)
    first, second = read(pulsar, topic)
    assert (first["carrier"], first["at"].timestamp(), first["legs"]) == ("AA", 0.007, [1, 2]), "by the logical type"
    assert (second["carrier"], second["cents"], second["legs"]) == ("DL", None, None)


def test_strings_and_numbers_are_values(pulsar: Target, topic: str) -> None:
    send(pulsar.service_url, topic, StringSchema(), "one", "zwölf")
    assert read(pulsar, topic) == ["one", "zwölf"]
    send(pulsar.service_url, topic + "-n", INT64_SCHEMA, 1, -(2**40))
    assert source(pulsar, topic + "-n").schema()["value"].dataType == LongType()
    assert read(pulsar, topic + "-n") == [1, -(2**40)]


def test_a_value_that_does_not_fit_ends_the_query_or_is_null(
    pulsar: Target, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema: JsonSchema[Any] = JsonSchema(json.dumps(NULLABLE))
    send(pulsar.service_url, topic, schema, {"carrier": "AA"}, {"carrier": 5}, ["no record"], {"carrier": "DL"})
    with pytest.raises(UndecodableValue, match="does not fit the query's columns"):
        read(pulsar, topic)
    with caplog.at_level(logging.WARNING):
        found = read(pulsar, topic, mode="PERMISSIVE")
    assert [value and value["carrier"] for value in found] == ["AA", None, None, "DL"]
    assert "is read as null" in caplog.text
    with caplog.at_level(logging.WARNING):
        found = read(pulsar, topic, mode="DROPMALFORMED")
    assert [value["carrier"] for value in found] == ["AA", "DL"]
    assert "2 messages of this range do not fit the query's columns, and were left out" in caplog.text
    kept = rows_of(pulsar.service_url, topic, schema="topic", mode="PERMISSIVE", columnNameOfCorruptRecord="bad")
    assert [row["bad"] for row in kept] == [None, b'{"carrier":5}', b'["no record"]', None]


# --- what the user chooses ---------------------------------------------------------------------------------------------------


def test_a_schema_of_the_user_chooses_orders_and_casts_columns(pulsar: Target, topic: str) -> None:
    schema: JsonSchema[Any] = JsonSchema(json.dumps(NULLABLE))
    send(pulsar.service_url, topic, schema, {"carrier": "AA", "cents": 5, "legs": [1]})
    wanted = struct(Topic=StringType(), value=struct(legs=ArrayType(LongType()), cents=IntegerType()), partition=LongType())
    expected = {"Topic": topic, "value": {"legs": [1], "cents": 5}, "partition": -1}
    assert rows_of(pulsar.service_url, topic, wanted, schema="topic") == [expected]
    assert rows_of(pulsar.service_url, topic, struct(value=StringType()))[0]["value"].startswith('{"carrier":"AA"')


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (struct(carrier=StringType()), "'carrier' is a field of the column value: .* select value.carrier"),
        (struct(price=StringType()), "no column 'price'; the columns are"),
        (struct(value=struct(price=StringType())), "value.price; there are carrier, at"),
        (struct(value=LongType()), "'value' is struct.* cannot be read as bigint"),
    ],
)
def test_columns_that_are_not_there_are_refused_by_name(pulsar: Target, topic: str, wanted: StructType, message: str) -> None:
    send(pulsar.service_url, topic, JsonSchema(json.dumps(NULLABLE)))
    with pytest.raises(OptionError, match=message):
        rows_of(pulsar.service_url, topic, wanted, schema="topic")


def test_a_value_that_a_cast_would_cut_does_not_fit(pulsar: Target, topic: str) -> None:
    send(pulsar.service_url, topic, INT64_SCHEMA, 5, 2**40, 7)
    wanted = struct(value=IntegerType())
    with pytest.raises(UndecodableValue, match=r"the message \d+:1:-1:-1 does not fit"):
        rows_of(pulsar.service_url, topic, wanted, schema="topic")
    found = rows_of(pulsar.service_url, topic, wanted, schema="topic", mode="PERMISSIVE")
    assert [row["value"] for row in found] == [5, None, 7]
    send(pulsar.service_url, topic + "-b", None, b"text", b"\xff")
    with pytest.raises(UndecodableValue):
        rows_of(pulsar.service_url, topic + "-b", struct(value=StringType()))


def test_a_topic_without_a_schema_is_read_by_the_one_that_is_given(pulsar: Target, topic: str) -> None:
    send(pulsar.service_url, topic, None, b'{"carrier":"AA","cents":3}')
    with pytest.raises(OptionError, match=r"say with .*schemaType"):
        read(pulsar, topic, schema=json.dumps(NULLABLE))
    assert read(pulsar, topic, schema=json.dumps(NULLABLE), schemaType="json")[0]["cents"] == 3
    assert read(pulsar, topic, schema="string") == ['{"carrier":"AA","cents":3}']
    with pytest.raises(OptionError, match="give the option schema an Avro definition"):
        read(pulsar, topic, schema="json")
    with pytest.raises(OptionError, match="columnNameOfCorruptRecord is a name of its own"):
        read(pulsar, topic, schema="string", columnNameOfCorruptRecord="bad")


def test_topics_without_one_common_schema_are_refused(pulsar: Target, topic: str) -> None:
    send(pulsar.service_url, topic, None, b"x")
    with pytest.raises(OptionError, match="has no schema"):
        source(pulsar, topic).schema()
    send(pulsar.service_url, topic + "-s", StringSchema(), "x")
    send(pulsar.service_url, topic + "-n", INT64_SCHEMA, 1)
    with pytest.raises(OptionError, match="have different schemas, string and bigint"):
        source(pulsar, f"{topic}-s,{topic}-n").schema()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (["int", "string"], "a union of several types"),
        ({"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}, "contains itself"),
        ("duration", "no type for 'duration'"),
    ],
)
def test_what_spark_has_no_type_for_is_refused(definition: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        spark_type("t", SchemaInfo(4, json.dumps(definition).encode(), "AVRO"))


def test_names_of_types_may_be_used_again() -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    line = {"type": "record", "name": "L", "fields": [{"name": "a", "type": point}, {"name": "b", "type": ["null", "P"]}]}
    found = spark_type("t", SchemaInfo(4, json.dumps(line).encode(), "AVRO"))
    assert found.simpleString() == "struct<a:struct<x:int>,b:struct<x:int>>"
    assert spark_type("t", SchemaInfo(1)) == StringType()
