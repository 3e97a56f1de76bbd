"""What a stream says of open transactions and of its lag: in Spark's progress, and in the log. No Spark session."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncTransaction
from pulsar_txn.pipeline.spark import PartitionProgress, PulsarDataSource, source_progress
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.source import topics as hidden
from pulsar_txn.pipeline.spark.source.layout import SCHEMA
from pulsar_txn.pipeline.spark.source.reader import PulsarStreamReader

ALL = ReadAllAvailable()


class Writer:
    """Sends messages one by one, so that each is an entry."""

    def __init__(self, pulsar: Target, topic: str) -> None:
        self._pulsar = pulsar
        self._topic = topic

    async def _make(self) -> None:
        self.client = AsyncClient(self._pulsar.service_url)
        self._producer = await self.client.create_producer(self._topic, batching=False)

    def send(self, count: int, txn: AsyncTransaction | None = None) -> None:
        async def work() -> None:
            for _ in range(count):
                await self._producer.send(b"x", txn=txn)

        background().run(work())

    def begin(self) -> AsyncTransaction:
        return background().run(self.client.begin_transaction())


@pytest.fixture
def writer(pulsar: Target, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    monkeypatch.setattr(hidden, "_EVERY_SECONDS", 0.0)
    writer = Writer(pulsar, topic)
    background().run(writer._make())
    yield writer
    background().run(writer.client.close())


def stream(pulsar: Target, topic: str, **options: str) -> PulsarStreamReader:
    given = {"service.url": pulsar.service_url, "topic": topic, "startingOffsets": "earliest", "admin.url": pulsar.admin_url}
    return PulsarDataSource({**given, **options}).streamReader(SCHEMA)


def shown(txn: AsyncTransaction) -> str:
    assert txn.id is not None
    return f"({txn.id.most},{txn.id.least})"


def said(reader: PulsarStreamReader, end: dict[str, Any]) -> Any:
    """What `source_progress` makes of it, once it has looked after this moment."""

    async def looked() -> None:
        open_transactions = reader._open().hidden
        for _ in range(2):  # one that is under way may have begun before
            if open_transactions._look is not None:
                await open_transactions._look
            await open_transactions.watch(end["p"], 10)

    background().run(looked())
    text = json.dumps({"sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(reader.reportLatestOffset())}]})
    (found,) = source_progress(text)
    return found


def test_the_progress_shows_what_an_open_transaction_hides(pulsar: Target, topic: str, writer: Writer) -> None:
    writer.send(2)
    reader = stream(pulsar, topic)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert said(reader, end).partitions == {
        topic: PartitionProgress(lag_entries=0, lag_entries_to_end=0, hidden_entries=0, open_transactions=0)
    }
    txn = writer.begin()
    writer.send(2, txn)
    writer.send(3)
    other = writer.begin()
    writer.send(1, other)
    end = reader.latestOffset(end, ALL)
    now = said(reader, end)
    of_topic = now.partitions[topic]
    assert (of_topic.lag_entries, of_topic.lag_entries_to_end, of_topic.hidden_entries) == (0, 6, 6)
    assert of_topic.open_transactions == 2
    assert of_topic.oldest_transaction == shown(txn)
    assert 0 <= of_topic.oldest_open_ms < 60_000
    assert now.total.hidden_entries == 6
    assert now.total.oldest_open_ms >= of_topic.oldest_open_ms
    background().run(txn.commit())
    after = said(reader, end).partitions[topic]
    assert after.oldest_transaction == shown(other), "the next one hides less"
    assert after.hidden_entries < 6
    background().run(other.commit())
    ended = said(reader, reader.latestOffset(end, ALL))
    assert (ended.total.hidden_entries, ended.total.open_transactions, ended.total.lag_entries) == (0, 0, 0)
    assert ended.total.oldest_open_ms is None
    reader.stop()


def test_a_transaction_that_is_open_for_long_is_said_once(
    pulsar: Target, topic: str, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.send(1)
    reader = stream(pulsar, topic, warnOpenTransactionAfterMs="1")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    first, second = writer.begin(), writer.begin()
    writer.send(2, first)
    writer.send(1, second)
    for _ in range(3):
        said(reader, end)
    patient = stream(pulsar, topic)
    patient.latestOffset(patient.initialOffset(), ALL)
    said(patient, end)

    def warned() -> list[str]:
        return [record.getMessage() for record in caplog.records if "has been open" in record.getMessage()]

    (text,) = warned()
    assert text.startswith(f"{topic}: the transaction {shown(first)} has been open for 0 s")
    assert "hides 3 entries" in text
    background().run(first.abort())
    said(reader, end)
    assert shown(second) in warned()[-1]
    assert len(warned()) == 2
    background().run(second.abort())
    for each in (reader, patient):
        each.stop()


def test_without_the_admin_api_the_progress_shows_the_lag_alone(pulsar: Target, topic: str, writer: Writer) -> None:
    writer.send(4)
    given = {"service.url": pulsar.service_url, "topic": topic, "startingOffsets": "earliest"}
    reader = PulsarDataSource(given).streamReader(SCHEMA)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    writer.send(3)
    later = reader.latestOffset(end, ALL)
    while later == end:
        later = reader.latestOffset(end, ALL)
    assert reader.reportLatestOffset() == later
    assert said(reader, end).partitions == {topic: PartitionProgress(lag_entries=3)}
    assert said(reader, later).total == PartitionProgress(lag_entries=0)
    reader.stop()


def test_an_admin_api_that_does_not_answer_ends_no_query_and_is_said_once(
    pulsar: Target, topic: str, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.send(1)
    reader = stream(pulsar, topic, **{"admin.url": "http://127.0.0.1:1"})
    end = reader.latestOffset(reader.initialOffset(), ALL)
    for _ in range(3):
        assert said(reader, end).total == PartitionProgress(lag_entries=0)
    (warning,) = [
        record.getMessage() for record in caplog.records if "did not list the open transactions" in record.getMessage()
    ]
    assert "127.0.0.1:1" in warning
    reader.stop()


def test_a_transaction_that_begins_a_ledger_is_found_after_the_end_of_the_one_before(
    pulsar: Target, topic: str, writer: Writer
) -> None:
    writer.send(3)
    unload = urllib.request.Request(f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/unload", method="PUT", data=b"")
    urllib.request.urlopen(unload).close()
    txn = writer.begin()
    writer.send(2, txn)
    reader = stream(pulsar, topic)
    start = reader.initialOffset()
    assert said(reader, start).partitions[topic].lag_entries_to_end == 5
    now = said(reader, reader.latestOffset(start, ALL)).partitions[topic]
    assert (now.lag_entries, now.lag_entries_to_end, now.hidden_entries) == (0, 2, 2)
    assert now.oldest_transaction == shown(txn)
    background().run(txn.commit())
    reader.stop()
