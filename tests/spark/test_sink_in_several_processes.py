"""A query whose micro-batches are planned and committed by several processes in turn, as Spark's pool of workers does it.

Each process has an event loop, clients and kept sinks of its own; here they change places within one process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from targets import Target
from visible import read_all

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.pipeline.spark import connecting as background_module
from pulsar_txn.pipeline.spark.connecting import Background
from pulsar_txn.pipeline.spark.errors import SinkFenced
from pulsar_txn.pipeline.spark.options import Query, read_options
from pulsar_txn.pipeline.spark.sink import delivery as delivery_module
from pulsar_txn.pipeline.spark.sink import writer as writer_module
from pulsar_txn.pipeline.spark.sink.committer import KeptSinks
from pulsar_txn.pipeline.spark.sink.staged import Payload, Staged
from pulsar_txn.pipeline.spark.sink.tasks import Sent, TaskSending
from pulsar_txn.pipeline.spark.sink.writer import PulsarStreamWriter
from pulsar_txn.pipeline.spark.source.offsets import to_offset

BATCHES = 8


class Process:
    """What one process keeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._background = Background()
        self.sinks: KeptSinks[Any, Any] = KeptSinks()
        self._epochs: dict[Any, Any] = {}

    def enter(self) -> None:
        """Be this process."""
        self._patch.setitem(background_module._by_pid, os.getpid(), self._background)
        self._patch.setattr(writer_module, "sinks", self.sinks)
        self._patch.setattr(delivery_module, "_epochs", self._epochs)

    def end(self) -> None:
        self._background.run(self.sinks.close())
        self._background.run(self._background.close_clients())


class Stream:
    """A query and its processes."""

    def __init__(self, url: str, topic: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.url, self.source, self.target, self.folder = url, topic, f"{topic}-out", folder
        self.given = {"service.url": url, "sinkId": topic.rpartition("/")[2], "topic": self.target}
        self.processes = [Process(patch) for _ in range(3)]
        (folder / "offsets").mkdir()
        (folder / "metadata").write_text('{"id":"query"}')
        self.places = asyncio.run(self._fill())

    async def _fill(self) -> list[Any]:
        async with AsyncClient(self.url) as client, await client.create_producer(self.source, batching=False) as producer:
            async with await client.subscribe(self.source, "acks"):
                pass
            return [(await producer.send(b"%d" % number)).position for number in range(BATCHES)]

    def commit(self, batch: int, planner: int, committer: int, *, note: bool = True, **options: str) -> None:
        """One micro-batch, planned by one process and committed by another."""
        if note:
            offset = str(to_offset({self.source: self.places[batch]})).replace("'", '"')
            (self.folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")
        self.processes[planner].enter()
        made = PulsarStreamWriter(
            read_options({**self.given, **options}, Query.STREAM_WRITE), str(self.folder) if note else None
        )
        message = self._written(pickle.loads(pickle.dumps(made)), batch)
        self.processes[committer].enter()
        made.commit([message], batch)

    def _written(self, writer: PulsarStreamWriter, batch: int) -> Any:
        payload = Payload(self.target, -1, encode_batch([row(b"%d" % batch)]))
        if writer._epoch is None:
            return Staged("query", 0, [payload])
        sending = TaskSending(writer._options, writer._epoch, writer._gate)
        sending.put(payload)
        sending.finish()
        sending.close()
        return Sent("query", 0, writer._epoch, sending.txn_id, sending.rows)

    def rows(self) -> list[bytes]:
        return list(asyncio.run(read_all(self.url, self.target)))


@pytest.fixture
def stream(pulsar: Target, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    made = Stream(pulsar.service_url, topic, tmp_path, monkeypatch)
    yield made
    for process in made.processes:
        process.end()


# planner and committer of each micro-batch: every order of processes that have seen all, some or nothing of what came before
ORDER = [(0, 0), (1, 1), (0, 0), (0, 1), (1, 0), (2, 2), (2, 0), (1, 2)]


def test_micro_batches_that_processes_commit_in_turn_are_published_once_and_end_no_query(stream: Stream) -> None:
    for batch, (planner, committer) in enumerate(ORDER):
        stream.commit(batch, planner, committer, ackSubscription="acks")
    stream.commit(BATCHES - 1, 0, 1, ackSubscription="acks")  # a restart that Spark has not noted the last one for
    assert [int(each) for each in stream.rows()] == list(range(BATCHES))


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize("delivery", ["grouped", "auto"])
def test_tasks_send_for_whichever_process_has_planned_them(stream: Stream, delivery: str) -> None:
    for batch, (planner, committer) in enumerate(ORDER):
        stream.commit(batch, planner, committer, delivery=delivery if batch != 5 else "staged")
    stream.commit(BATCHES - 1, 0, 1, delivery=delivery)
    assert [int(each) for each in stream.rows()] == list(range(BATCHES))


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_a_micro_batch_that_another_run_has_published_meanwhile_is_not_taken_for_done_without_proof(stream: Stream) -> None:
    stream.commit(0, 0, 0, note=False)
    stream.commit(1, 1, 1, note=False)
    with pytest.raises(SinkFenced, match=r"another run of sink .* has published micro-batch 1 meanwhile"):
        stream.commit(1, 0, 0, note=False)
    assert [int(each) for each in stream.rows()] == [0, 1]
