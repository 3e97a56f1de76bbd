"""Whole queries with schemas, as a Spark user types them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  # its usual name
from spark_local import ended
from targets import Target
from typed_rows import read

from pulsar_txn.pipeline.spark import write_batch

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]


def load(spark: Any, url: str, topic: str, **options: str) -> Any:
    return spark.read.format("pulsar").options(**{"service.url": url, "topic": topic, **options}).load()


def test_a_table_is_written_with_a_schema_and_read_back_as_columns(spark: Any, pulsar: Target, topic: str) -> None:
    url = pulsar.service_url
    flights = spark.createDataFrame([("AA", 5), ("DL", 7)], "carrier string, cents bigint").coalesce(1)
    rows = flights.select(F.struct("carrier", "cents").alias("value"))
    rows.write.format("pulsar").options(**{"service.url": url, "topic": topic, "schema": "avro"}).mode("append").save()
    found = load(spark, url, topic, schema="topic")
    assert found.select("value.*").schema == flights.schema
    assert sorted(found.select("value.carrier", "value.cents").collect()) == [("AA", 5), ("DL", 7)]
    narrow = spark.read.format("pulsar").schema("value struct<cents int>, partition bigint")
    narrow = narrow.options(**{"service.url": url, "topic": topic, "schema": "topic"}).load()
    assert sorted(narrow.select("value.cents", "partition").collect()) == [(5, -1), (7, -1)]


def test_all_types_pass_through_spark(spark: Any, pulsar: Target, topic: str) -> None:
    url = pulsar.service_url
    row = spark.sql(
        "select named_struct('at', timestamp'2026-01-02 03:04:05.678901', 'wall', timestamp_ntz'2026-01-02 03:04:05', 'day', "
        "date'2026-01-02', 'clock', time'03:04:05.5', 'money', cast(1.50 as decimal(10,2)), 'raw', X'FF', 'list', "
        "array(named_struct('x', 1)), 'map', map('a', array(1))) as value"
    )
    for kind in ("avro", "json"):
        options = {"service.url": url, "topic": f"{topic}-{kind}", "schema": kind}
        row.write.format("pulsar").options(**options).mode("append").save()
        assert load(spark, url, f"{topic}-{kind}", schema="topic").select("value").collect() == row.collect()


@pytest.mark.parametrize("delivery", ["staged", "grouped", "write_batch"])
def test_a_stream_from_topic_to_topic_keeps_its_schema(
    spark: Any, pulsar: Target, topic: str, tmp_path: Path, delivery: str
) -> None:
    url = pulsar.service_url
    pairs = spark.createDataFrame([(1, 5), (2, 7)], "key int, value bigint")
    options = {"service.url": url, "topic": topic, "schema": "int64", "keySchema": "int32"}
    pairs.write.format("pulsar").options(**options).mode("append").save()
    stream = spark.readStream.format("pulsar").options(**{"service.url": url, "topic": topic, "schema": "topic"})
    rows = stream.option("startingOffsets", "earliest").load().selectExpr("key", "struct(value as doubled) as value")
    made = {"topic": f"{topic}-out", "schema": "json", "keySchema": "int32", "keyValueEncoding": "SEPARATED"}
    checkpoint = str(tmp_path / "checkpoint")
    if delivery == "write_batch":
        writer = rows.writeStream.foreachBatch(lambda df, batch: write_batch(df, batch, serviceUrl=url, **made))
    else:
        writer = rows.writeStream.format("pulsar").options(**{"service.url": url, "delivery": delivery, **made})
    ended(writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start)
    found = read(url, f"{topic}-out", schema="topic")
    assert sorted((row["key"], row["value"]["doubled"]) for row in found) == [(1, 5), (2, 7)]


def test_a_user_reads_what_to_do_in_the_last_line(spark: Any, pulsar: Target, topic: str) -> None:
    rows = spark.createDataFrame([(1,)], "cents int")
    writer = rows.selectExpr("struct(cents) as value").write.format("pulsar").mode("append")
    with pytest.raises(Exception, match=r"has no schema: say which with"):
        writer.options(**{"service.url": pulsar.service_url, "topic": topic, "schema": "topic"}).save()
