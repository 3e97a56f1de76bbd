"""Tasks of the sink: they encode their rows, and stage or send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from pyspark import TaskContext

from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.client.inside import Epoch
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.partitions import known_or_asked
from pulsar_txn.pipeline.spark.sink.sending import Sent, TaskSending
from pulsar_txn.pipeline.spark.sink.staged import Carrier, Payload, Staged, Stager
from pulsar_txn.pipeline.spark.sink.staging import TaskStaging

Put: TypeAlias = Callable[[Payload], None]


class Encoding:
    """Encoding of one task's rows as payloads. `number` is the task's partition in Spark, `known` the partitions of topics.

    `batch_id` is the micro-batch's, for the rows' properties and for errors; None for a batch job. `watch` makes of what takes
    payloads a function that does the same and tells who watches. With `typed`, values and keys are encoded by its schema.
    """

    def __init__(
        self,
        options: Options,
        number: int,
        known: Mapping[str, int],
        batch_id: str | None = None,
        watch: Callable[[Put], Put] | None = None,
        typed: TopicType | None = None,
    ) -> None:
        self.options = options
        self.number = number
        name = options.batch_id_property
        self._known = known
        self._watch = watch
        self._typed = typed
        self._properties = {name: batch_id} if name and batch_id is not None else {}
        self._where = f"task {number}, " if batch_id is None else f"micro-batch {batch_id}, task {number}, "

    @property
    def schema(self) -> SchemaInfo | None:
        """Return what the broker is told of the payloads."""
        return None if self._typed is None else self._typed.info

    def encode(self, batches: Iterable[Any], put: Put) -> dict[str, int]:
        """Hand all rows to `put`, encoded; the numbers of partitions by which keys were routed."""
        stager = Stager(
            self.options,
            known_or_asked(self.options, self._known),
            put if self._watch is None else self._watch(put),
            properties=self._properties,
            spread=self.number,
            where=self._where,
            typed=self._typed,
            time_zone=_session_time_zone(),
        )
        for batch in batches:
            stager.add(batch)
        stager.finish()
        return stager.partitions


def stage(encoding: Encoding, batches: Iterator[Any], staging_topic: str, query_id: str = "") -> Staged:
    """Return what a task hands to the commit: its encoded rows, or where they are on the staging topic."""
    staging = TaskStaging(encoding.options, staging_topic)
    carrier = Carrier(encoding.options.inline_max_bytes, lambda: staging)
    try:
        partitions = encoding.encode(batches, carrier.put)
        return Staged(query_id, encoding.number, carrier.payloads, carrier.parked(), partitions, encoding.schema)
    finally:
        staging.close()


def send(encoding: Encoding, batches: Iterator[Any], epoch: Epoch, gate: str | None, query_id: str) -> Sent:
    """The rows of a task, sent to their topics in a transaction of this attempt, while `gate` is open."""
    sending = TaskSending(encoding.options, epoch, gate, schema=encoding.schema)
    try:
        partitions = encoding.encode(batches, sending.put)
        sending.finish()
    except BaseException:
        sending.give_up()
        raise
    finally:
        sending.close()
    return Sent(query_id, encoding.number, epoch, sending.txn_id, sending.rows, partitions)


def send_shared(encoding: Encoding, batches: Iterator[Any], txn_id: str) -> dict[str, int]:
    """The rows of a task, sent in a transaction that the driver has opened for all tasks; how many to each topic."""
    sending = TaskSending(encoding.options, txn_id=txn_id, schema=encoding.schema)
    try:
        encoding.encode(batches, sending.put)
        sending.finish()
    finally:
        sending.close()
    return sending.rows


def _session_time_zone() -> str | None:
    """The time zone of the session, as Spark tells its tasks."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.sql.session.timeZone")


def task_context() -> TaskContext:
    """Of the task that this runs in."""
    context = TaskContext.get()
    assert context is not None  # noqa: S101  # Spark calls `write` inside a task
    return context
