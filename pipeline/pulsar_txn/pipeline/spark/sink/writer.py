"""The sink: tasks stage batches (`staged`), the driver publishes a micro-batch in one transaction (`committer`)."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pulsar_txn.client import TransactionAborted
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.committer import Outcome, SinkCommitter
from pulsar_txn.pipeline.spark.sink.staged import Payload, Staged, Stager, ordered, rows_by_topic
from pulsar_txn.pipeline.spark.sink.store import PulsarSinkStore
from pulsar_txn.pipeline.spark.steps import OnStep, reached

logger = logging.getLogger(__name__)

_partitions: dict[tuple[int, str, str], int] = {}
"""Partitions of topics by (process, cluster, topic): looked up once per worker. More are found by the next worker."""

_sinks: dict[tuple[int, str, str], tuple[SinkCommitter, PulsarSinkStore]] = {}
"""What this process knows of its sinks, by (process, cluster, control topic); Spark makes a new writer per commit."""


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch: `write` in each task, `commit` or `abort` on the driver, each on its own copy."""

    def __init__(self, options: Options, on_step: OnStep = None) -> None:
        self._options = options
        self._on_step = on_step

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Encode the rows of a task. Nothing becomes visible here, and a task's end means nothing (see `commit`)."""
        context = _task()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        name = self._options.batch_id_property
        properties = {name: batch_id} if name and batch_id is not None else {}
        payloads = stage(self._options, iterator, properties=properties, spread=context.partitionId())
        reached(self._on_step, "sink.write.end", batch_id=int(batch_id or -1))
        return Staged(query_id or "", context.partitionId(), payloads)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish the micro-batch once. A SinkError ends the query; after a restart Spark commits the same batch again."""
        staged = [message for message in messages if isinstance(message, Staged)]
        query_id = next((message.query_id for message in staged), "")
        outcome = background().run(self._commit(sink_id(self._options, query_id), list(ordered(staged)), batchId))
        level = logging.INFO if outcome is Outcome.PUBLISHED else logging.WARNING
        logger.log(level, "micro-batch %d: %s", batchId, outcome.value)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Nothing to undo: staged rows are nowhere but in the messages, and a commit in doubt must be left to the replay."""

    async def _commit(self, name: str, payloads: list[Payload], batch_id: int) -> Outcome:
        control_topic = self._options.control_topic or default_control_topic(name)
        key = (os.getpid(), self._options.service_url, control_topic)
        found = _sinks.pop(key, None)
        if found is None:
            client = await background().client(self._options)
            committer = SinkCommitter(name, adopt=self._options.adopt_checkpoint)
            found = (committer, PulsarSinkStore(client, control_topic, self._options, self._on_step))
        committer, store = found
        steps = committer.commit(batch_id, rows_by_topic(payloads))
        try:
            outcome: Outcome = await store.carry_out(steps, batch_id, payloads)
        except BaseException:
            await store.close()
            raise
        _sinks[key] = found
        return outcome


class PulsarBatchWriter(DataSourceArrowWriter):
    """`df.write.format("pulsar").mode("append").save()`: one transaction per job. A job run again writes again."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Staged:
        """Encode the rows of a task."""
        partition = _task().partitionId()
        return Staged("", partition, stage(self._options, iterator, properties={}, spread=partition))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows in one transaction: visible together, or (with an exception) not at all or in doubt."""
        staged = [message for message in messages if isinstance(message, Staged)]
        background().run(self._publish(list(ordered(staged))))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: see PulsarStreamWriter.abort."""

    async def _publish(self, payloads: list[Payload]) -> None:
        client = await background().client(self._options)
        async with client.transaction(timeout=self._options.transaction_timeout_ms / 1000, name="spark write") as txn:
            for topic in rows_by_topic(payloads):
                producer = await client.create_producer(topic)
                for payload in payloads:
                    if payload.topic == topic:
                        await producer.wait_for_room()
                        partition = None if payload.partition < 0 else payload.partition
                        producer.send_encoded_nowait(payload.batch, txn=txn, partition=partition)
                await producer.close()
            if txn.doomed:
                raise TransactionAborted(f"sending the rows failed: {txn.doom_cause}", txn_id=txn.id)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # noqa: S101  # Spark calls `write` inside a task
    return context


def stage(options: Options, batches: Iterator[Any], *, properties: dict[str, str], spread: int) -> list[Payload]:
    """The rows of a task as payloads; `spread` is the partition where rows without a key begin."""
    stager = Stager(options, partition_counter(options), properties=properties, spread=spread)
    for batch in batches:
        stager.add(batch)
    return stager.finish()


def partition_counter(options: Options) -> Callable[[str], int]:
    """A function that answers how many partitions a topic has, 0 for one without."""

    def count(topic: str) -> int:
        key = (os.getpid(), options.service_url, topic)
        found = _partitions.get(key)
        if found is None:
            found = _partitions[key] = background().run(_count(options, topic))
        return found

    return count


async def _count(options: Options, topic: str) -> int:
    client = await background().client(options)
    names = await client.get_topic_partitions(topic)
    return len(names) if names[0].endswith("-partition-0") and not topic.endswith("-partition-0") else 0


def sink_id(options: Options, query_id: str) -> str:
    """The sink's identity over restarts: the option, or the query (its id is in the checkpoint) and the sink's name."""
    return options.sink_id or f"{query_id or uuid.uuid4()}/{options.sink_name}"


def default_control_topic(name: str) -> str:
    """The control topic of a sink without the option `controlTopic`."""
    return f"persistent://public/default/__spark_sink-{name.replace('/', '-')}"
