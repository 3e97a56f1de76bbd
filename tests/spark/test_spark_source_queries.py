"""The source in a Spark session: what users see of it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from targets import Target

from pulsar_txn.client import AsyncClient, AvroSchema
from pulsar_txn.pipeline.spark.background import background

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
on_ours = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
FLIGHT = '{"type": "record", "name": "F", "fields": [{"name": "carrier", "type": "string"}, {"name": "cents", "type": "long"}]}'


def fill(url: str, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(url) as client:
            schema: AvroSchema[Any] = AvroSchema(FLIGHT)
            async with await client.create_producer(topic, schema=schema) as producer:
                for number in range(20):
                    producer.send_nowait({"carrier": f"C{number % 2}", "cents": number}, key=str(number), properties={"n": "x"})
                await producer.flush()

    background().run(work())


@on_ours
def test_a_topic_with_a_schema_is_a_table_and_a_stream(spark: Any, pulsar: Target, topic: str, tmp_path: Path) -> None:
    fill(pulsar.service_url, topic)

    def options(reader: Any) -> Any:
        reader = reader.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic)
        return reader.option("schema", "topic").option("startingOffsets", "earliest").load()

    totals = options(spark.read).groupBy("value.carrier").sum("value.cents").collect()
    assert {row[0]: row[1] for row in totals} == {"C0": 90, "C1": 100}
    stream = options(spark.readStream).selectExpr("value.cents", "key", "properties", "message_id")
    query = stream.writeStream.format("memory").queryName("flights").option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert [row.cents for row in spark.sql("select * from flights order by cents").collect()] == list(range(20))


@on_ours
def test_no_plan_shows_a_secret(spark: Any, pulsar: Target, topic: str) -> None:
    fill(pulsar.service_url, topic)
    secret = "eyJhbGciOiJIUzI1NiJ9c2VjcmV0"
    frame = spark.read.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic)
    frame = frame.option("token", secret).load()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain("extended")
        frame.explain("formatted")
    assert "pulsar" in said.getvalue()
    assert secret not in said.getvalue()
    assert frame.count() == 20


@on_ours
def test_a_wrong_option_is_said_before_anything_runs(spark: Any, pulsar: Target, topic: str) -> None:
    with pytest.raises(Exception, match=r'unknown option .subscribe.: use "topic"'):
        spark.readStream.format("pulsar").option("service.url", pulsar.service_url).option("subscribe", topic).load()
