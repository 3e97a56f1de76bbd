"""`option("schema", "topic")`: the column `value` has the type of the topic's schema."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType
from targets import Target

from pulsar_txn.client import INT64_SCHEMA, AsyncClient, AvroSchema, JsonSchema, Schema, StringSchema
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.pipeline.spark import OptionError, PulsarDataSource, UndecodableValue
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.source.values import spark_type

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
    assert (first["carrier"], first["at"], first["legs"]) == ("AA", 7, [1, 2])
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
    with pytest.raises(UndecodableValue, match="does not fit the topic's schema"):
        read(pulsar, topic)
    with caplog.at_level(logging.WARNING):
        found = read(pulsar, topic, mode="PERMISSIVE")
    assert [value and value["carrier"] for value in found] == ["AA", None, None, "DL"]
    assert "is read as null" in caplog.text


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
