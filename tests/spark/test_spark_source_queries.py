"""The source in a Spark session: what users see of it."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from spark_local import ended
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncTransaction, AvroSchema
from pulsar_txn.pipeline.spark import source_progress
from pulsar_txn.pipeline.spark.connecting import background

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
    ended(query.trigger(availableNow=True).start)
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


@on_ours
def test_the_progress_of_a_query_shows_what_open_transactions_hide(
    spark: Any, pulsar: Target, topic: str, tmp_path: Path
) -> None:
    fill(pulsar.service_url, topic)

    async def begin() -> AsyncTransaction:
        txn = await client.begin_transaction()
        async with await client.create_producer(topic, batching=False) as producer:
            await producer.send(b"1", txn=txn)
            await producer.send(b"2")
        return txn

    async def made() -> AsyncClient:
        return AsyncClient(pulsar.service_url)

    client = background().run(made())
    txn = background().run(begin())
    reader = spark.readStream.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic)
    frame = reader.option("admin.url", pulsar.admin_url).option("startingOffsets", "earliest").load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    )
    query.awaitTermination()
    assert query.lastProgress.numInputRows == 20
    (found,) = source_progress(query.lastProgress)
    assert (found.total.hidden_entries, found.total.open_transactions, found.total.lag_entries) == (2, 1, 0)
    assert found.partitions[topic].oldest_transaction == f"({txn.id.most},{txn.id.least})"  # type: ignore[union-attr]  # it has sent
    background().run(client.close())


@on_ours
def test_a_refused_option_of_a_stream_is_the_last_line_of_its_error(
    spark: Any, pulsar: Target, topic: str, tmp_path: Path
) -> None:
    """Spark's own clean-up failed after our error, and its error hid ours."""
    fill(pulsar.service_url, topic)
    reader = spark.readStream.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic)
    frame = reader.option("endingOffsets", "latest").load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    )
    with pytest.raises(Exception, match=r"has no effect on spark\.readStream") as caught:
        query.awaitTermination()
    trace = str(caught.value).partition("=== Streaming Query")[0]
    last = [line for line in trace.splitlines() if "Error: " in line][-1]
    assert "OptionError: option 'endingOffsets' is for spark.read" in last
