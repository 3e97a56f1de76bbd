"""What a commit does besides its rows: it acknowledges the input in the same transaction, and knows versions of batch jobs."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from targets import Target

from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.pipeline.spark.errors import AckConflict, CheckpointOlderThanSink, OptionError, RowsMissing, SkipRefused
from pulsar_txn.pipeline.spark.options import Options, Query, read_options
from pulsar_txn.pipeline.spark.sink.staged import Carrier, Payload, Staged, TaskStaging
from pulsar_txn.pipeline.spark.sink.store import check_checkpoint, places_to_acknowledge
from pulsar_txn.pipeline.spark.sink.writer import PulsarBatchWriter, PulsarStreamWriter
from pulsar_txn.pipeline.spark.source.offsets import to_offset

SUBSCRIPTION = "results"


class Checkpoint:
    """A query's folder as Spark writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "offsets").mkdir(parents=True)
        (folder / "metadata").write_text('{"id":"query"}')

    def note(self, batch: int, *places: dict[str, tuple[int, int]]) -> None:
        """The end of a micro-batch, one offset for each source of ours, beside one of somebody else."""
        lines = ["v1", "{}", '{"logOffset":3}', *(json.dumps(to_offset(each)) for each in places)]
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


def asked(**more: str) -> Options:
    return read_options({"service.url": "pulsar://h", "ackSubscription": SUBSCRIPTION, **more}, Query.STREAM_WRITE)


# --- what is acknowledged --------------------------------------------------------------------------------------------------


def test_each_partition_is_acknowledged_as_far_as_it_was_read_and_only_when_it_was_read(checkpoint: Checkpoint) -> None:
    checkpoint.note(0, {"a": (1, 5), "b": (-1, -1)}, {"c": (3, 0)})
    checkpoint.note(1, {"a": (1, 5), "b": (2, 0)}, {"c": (3, 9)})
    folder = str(checkpoint.folder)
    assert places_to_acknowledge(asked(), folder, 0) == {"a": (1, 5), "c": (3, 0)}
    assert places_to_acknowledge(asked(), folder, 1) == {"b": (2, 0), "c": (3, 9)}
    without = read_options({"service.url": "pulsar://h"}, Query.STREAM_WRITE)
    assert places_to_acknowledge(without, folder, 1) == {}


def test_what_cannot_work_is_said_before_any_task_runs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    check_checkpoint(asked(), str(checkpoint.folder))
    for folder in (None, str(tmp_path / "nowhere"), "nosuchscheme://bucket/folder"):
        with pytest.raises(OptionError, match="needs the option checkpointLocation"):
            check_checkpoint(asked(), folder)
    with pytest.raises(OptionError, match="needs the option checkpointLocation"):
        PulsarStreamWriter(asked(), None).__getstate__()
    checkpoint.note(0)
    with pytest.raises(OptionError, match="nothing to acknowledge"):
        places_to_acknowledge(asked(), str(checkpoint.folder), 0)


@pytest.mark.parametrize("given", [{"txnAppId": "a"}, {"txnVersion": "1"}])
def test_an_application_and_its_version_go_together(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="go together"):
        PulsarBatchWriter(read_options({"service.url": "pulsar://h", **given}, Query.BATCH_WRITE))


# --- on servers ------------------------------------------------------------------------------------------------------------


class Sink:
    """A sink, a source topic with ten messages, and a view of both."""

    def __init__(self, service_url: str, topic: str, checkpoint: Checkpoint) -> None:
        self.service_url = service_url
        self.source, self.target = topic, f"{topic}-out"
        self.checkpoint = checkpoint
        self.name = topic.rpartition("/")[2]
        self.places: list[tuple[int, int]] = asyncio.run(self._fill())

    async def _fill(self) -> list[tuple[int, int]]:
        async with AsyncClient(self.service_url) as client:
            async with await client.subscribe(self.source, SUBSCRIPTION):
                pass  # from now on Pulsar keeps what is sent
            async with await client.create_producer(self.source, batching=False) as producer:
                return [(await producer.send(b"%d" % number)).position for number in range(10)]

    def staged(self, *values: str) -> list[Any]:
        """What a task hands to the commit."""
        return [Staged("query", 0, [Payload(self.target, -1, encode_batch([row(value.encode()) for value in values]))])]

    def commit(self, batch: int, upto: int, **options: str) -> None:
        """A micro-batch that has read up to message number `upto`."""
        self.checkpoint.note(batch, {self.source: self.places[upto]})
        given = {"service.url": self.service_url, "ackSubscription": SUBSCRIPTION, "sinkId": self.name, **options}
        writer = PulsarStreamWriter(read_options(given, Query.STREAM_WRITE), str(self.checkpoint.folder))
        writer.commit(self.staged(f"batch {batch}"), batch)

    def write(self, version: int, value: str, **options: str) -> None:
        """A batch job of a version."""
        given = {"service.url": self.service_url, "txnAppId": self.name, "txnVersion": str(version), **options}
        PulsarBatchWriter(read_options(given, Query.BATCH_WRITE)).commit(self.staged(value))

    def backlog(self) -> list[bytes]:
        """What the subscription has not acknowledged."""
        return asyncio.run(self._backlog())

    async def _backlog(self) -> list[bytes]:
        async with AsyncClient(self.service_url) as client:
            async with await client.create_producer(self.source) as producer:
                await producer.send(b"end")
            async with await client.subscribe(self.source, SUBSCRIPTION) as consumer:
                found = []
                while not found or found[-1] != b"end":
                    found.append((await consumer.receive(10)).data)
        return [value for value in found if value != b"end"]

    def read(self) -> list[bytes]:
        """The results."""
        return asyncio.run(self._read())

    async def _read(self) -> list[bytes]:
        async with AsyncClient(self.service_url) as client, await client.create_reader(self.target) as reader:
            found = []
            while await reader.has_message_available():
                found.append((await reader.read_next(10)).data)
            return found


@pytest.fixture
def sink(pulsar: Target, topic: str, checkpoint: Checkpoint) -> Iterator[Sink]:
    yield Sink(pulsar.service_url, topic, checkpoint)
    close_sinks()


def close_sinks() -> None:
    """The consumers that a sink keeps for its next commit would hold the subscription."""
    from pulsar_txn.pipeline.spark.connecting import background
    from pulsar_txn.pipeline.spark.sink.writer import sinks

    background().run(sinks.close())


def test_the_cursor_moves_with_the_results(sink: Sink) -> None:
    sink.commit(0, 3)
    sink.commit(1, 6)
    sink.commit(1, 6)  # again, as after a restart
    close_sinks()
    assert sink.read() == [b"batch 0", b"batch 1"]
    assert sink.backlog() == [b"7", b"8", b"9"]


def test_a_commit_that_fails_moves_no_cursor(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_txn.pipeline.spark.sink.writer.rows_by_topic", lambda *_: {sink.target: 99})
    with pytest.raises(RowsMissing):
        sink.commit(0, 3)
    monkeypatch.undo()
    assert sink.read() == []
    assert len(sink.backlog()) == 10


def test_a_subscription_of_somebody_else_ends_the_query_and_publishes_nothing(sink: Sink) -> None:
    async def taken() -> None:
        async with AsyncClient(sink.service_url) as client, await client.subscribe(sink.source, SUBSCRIPTION):
            with pytest.raises(AckConflict, match="ackSubscription of its own"):
                await asyncio.to_thread(sink.commit, 0, 3)

    asyncio.run(taken())
    assert sink.read() == []
    sink.commit(0, 3)
    close_sinks()
    assert len(sink.backlog()) == 6


def test_a_subscription_that_was_made_at_latest_has_nothing_to_acknowledge_before_it(sink: Sink) -> None:
    async def at_latest() -> None:
        async with AsyncClient(sink.service_url) as client:
            await (await client.subscribe(sink.source, "late", initial_position=InitialPosition.LATEST)).close()

    asyncio.run(at_latest())
    sink.commit(0, 3, ackSubscription="late")
    sink.commit(1, 9, ackSubscription="late")
    assert sink.read() == [b"batch 0", b"batch 1"]


def test_a_version_of_a_batch_job_is_written_once_and_what_may_never_have_been_written_is_refused(sink: Sink) -> None:
    for version, value in ((5, "five"), (5, "five again"), (9, "nine"), (5, "five, once more"), (10, "ten")):
        sink.write(version, value)
    with pytest.raises(SkipRefused, match="the last one is 10: versions grow, and that 7 was written is not known"):
        sink.write(7, "seven, late")
    assert sink.read() == [b"five", b"nine", b"ten"]


def test_a_version_that_went_to_another_topic_is_no_reason_to_skip(sink: Sink) -> None:
    sink.write(1, "one", topic=sink.target)
    sink.write(2, "two", topic=sink.target)
    for version in (1, 2):
        with pytest.raises(SkipRefused, match=f"published version {version}, and that went to .*, while this call writes to"):
            sink.write(version, "another frame", topic=sink.target + "-other")
        sink.write(version, "again", topic=sink.target)
    assert sink.read() == [b"one", b"two"]


def test_what_a_dead_batch_job_has_staged_goes_with_the_next_run_of_its_version(sink: Sink, pulsar: Target) -> None:
    def staged() -> tuple[PulsarBatchWriter, Staged]:
        given = {"service.url": sink.service_url, "txnAppId": sink.name, "txnVersion": "1", "inlineMaxBytes": "1"}
        options = read_options(given, Query.BATCH_WRITE)
        writer = PulsarBatchWriter(options)
        carrier = Carrier(1, lambda: TaskStaging(options, writer.staging_topic))
        carrier.put(Payload(sink.target, -1, encode_batch([row(b"a row that is larger than a byte")])))
        return writer, Staged("", 0, [], carrier.parked())

    dead, _ = staged()  # its driver is killed before the commit
    assert subscriptions(pulsar, dead.staging_topic) == ["__spark_sink"]
    writer, message = staged()
    writer.commit([message])
    assert sink.read() == [b"a row that is larger than a byte"]
    assert subscriptions(pulsar, dead.staging_topic) == []


def test_jobs_without_a_version_never_share_a_staging_topic() -> None:
    options = read_options({"service.url": "pulsar://h"}, Query.BATCH_WRITE)
    assert PulsarBatchWriter(options).staging_topic != PulsarBatchWriter(options).staging_topic


def subscriptions(pulsar: Target, topic: str) -> list[str]:
    """Those of a topic; none when there is no such topic."""
    try:
        with urllib.request.urlopen(f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/subscriptions") as answer:
            found: list[str] = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return []
    return found


def test_a_stream_knows_no_versions_between_its_batches(sink: Sink) -> None:
    sink.commit(0, 3)
    sink.commit(1, 4)
    close_sinks()
    with pytest.raises(CheckpointOlderThanSink):
        sink.commit(0, 3)
