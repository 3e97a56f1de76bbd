"""The sink: tasks stage batches (`staged`), the driver publishes a micro-batch in one transaction (`committer`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_txn.client.inside import Epoch, act_as
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.connecting import connection_of
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.acks import check_checkpoint, places_to_acknowledge
from pulsar_txn.pipeline.spark.sink.checkpoint import check_not_read, offsets_digest, source_ends
from pulsar_txn.pipeline.spark.sink.committer import Outcome, SinkCommitter, Work
from pulsar_txn.pipeline.spark.sink.delivery import end_grouped_runs, epoch_and_gate
from pulsar_txn.pipeline.spark.sink.grouped import GroupedCommitter, GroupWork
from pulsar_txn.pipeline.spark.sink.grouped_store import GroupedSinkStore
from pulsar_txn.pipeline.spark.sink.kept import KeptSinks
from pulsar_txn.pipeline.spark.sink.names import control_topic_of, sink_id, staging_topic_of
from pulsar_txn.pipeline.spark.sink.partitions import counted
from pulsar_txn.pipeline.spark.sink.retention import warn_if_nobody_keeps
from pulsar_txn.pipeline.spark.sink.sending import Sent, give_up, rows_sent
from pulsar_txn.pipeline.spark.sink.staged import (
    Routed,
    Staged,
    check_partitions,
    handed_over,
    rows_by_topic,
    schema_of,
)
from pulsar_txn.pipeline.spark.sink.store import PulsarSinkStore
from pulsar_txn.pipeline.spark.sink.tasks import Encoding, send, stage, task_context
from pulsar_txn.pipeline.spark.sink.typed import written_type
from pulsar_txn.pipeline.spark.steps import OnStep, reached, reached_before

logger = logging.getLogger(__name__)

sinks: Final[KeptSinks[SinkCommitter, PulsarSinkStore]] = KeptSinks()
"""The sinks of streams, by cluster, control topic, query and protocol."""


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch: `write` in each task, `commit` or `abort` on the driver, each on its own copy.

    `checkpoint` is the query's folder, as far as the sink is told. `columns` are those of the rows, for their schema.
    """

    def __init__(
        self,
        options: Options,
        checkpoint: str | None = None,
        on_step: OnStep = None,
        columns: StructType | None = None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._typed: TopicType | None = None
        self._checkpoint = checkpoint
        self._on_step = on_step
        self._partitions: dict[str, int] | None = None
        self._epoch: Epoch | None = None
        self._gate: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles a writer once per micro-batch, before its tasks: they all get one number of partitions.

        With an epoch they send their rows themselves (`grouped`).
        """
        if self._partitions is None:
            check_checkpoint(self._options, self._checkpoint)
            self._typed = written_type(self._options, self._columns or StructType())
            self._epoch, self._gate = epoch_and_gate(self._options, self._checkpoint)
            self._partitions = counted(self._options)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> Staged | Sent:
        """Encode the rows of a task. Nothing becomes visible here, and a task's end means nothing (see `commit`)."""
        context = task_context()
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        watch = partial(reached_before, self._on_step, "sink.write.before_send", batch_id=int(batch_id or -1))
        encoding = Encoding(self._options, context.partitionId(), self._partitions or {}, batch_id, watch, self._typed)
        written: Staged | Sent
        if self._epoch is not None:
            written = send(encoding, iterator, self._epoch, self._gate, query_id)
        else:
            staging_topic = staging_topic_of(self._options, sink_id(self._options, query_id))
            written = stage(encoding, iterator, staging_topic, query_id)
        reached(self._on_step, "sink.write.end", batch_id=int(batch_id or -1))
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish the micro-batch once. A SinkError ends the query; after a restart Spark commits the same batch again."""
        sent = [message for message in messages if isinstance(message, Sent)]
        staged = [message for message in messages if isinstance(message, Staged)]
        written: list[Routed] = [*staged, *sent]
        check_partitions(written)
        query_id = next((message.query_id for message in written), "")
        payloads, parked = handed_over(staged)
        ends = source_ends(self._checkpoint, batchId)
        rows = rows_sent(sent) if sent else rows_by_topic(payloads, parked)
        if not self._options.allow_self_write:
            check_not_read(rows, ends)
        acks = places_to_acknowledge(self._options, self._checkpoint, batchId)
        digest = offsets_digest(self._checkpoint, batchId)
        if sent:
            delivered = [message.txn_id for message in sent if message.txn_id is not None]
            work: Work = GroupWork(batchId, rows, [], ends, acks, offsets=digest, delivered=delivered)
        else:
            work = Work(batchId, rows, [each.place for each in parked], ends, acks, offsets=digest)
        epoch = sent[0].epoch if sent else None
        outcome = background().run(self._commit(query_id, work, staged, epoch))
        level = logging.INFO if outcome is Outcome.PUBLISHED else logging.WARNING
        logger.log(level, "micro-batch %d: %s", batchId, outcome.value)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Abort what tasks have sent: the coordinator refuses it for what is committed, so a commit in doubt may be replayed.

        Of what tasks have staged there is nothing to undo: it is named by nobody.
        """
        epoch = next((message.epoch for message in messages if isinstance(message, Sent)), None)
        if epoch is not None:
            background().run(give_up(self._options, epoch))

    async def _commit(self, query_id: str, work: Work, staged: list[Staged], epoch: Epoch | None) -> Outcome:
        options = self._options
        name = sink_id(options, query_id)
        control_topic = control_topic_of(options, name)

        async def make() -> tuple[SinkCommitter, PulsarSinkStore]:
            client = await background().client(options, None if epoch is None else epoch.name)
            if epoch is None:
                await end_grouped_runs(client, options, name)
            make_committer, make_store = (
                (SinkCommitter, PulsarSinkStore) if epoch is None else (GroupedCommitter, GroupedSinkStore)
            )
            committer = make_committer(name, query_id, adopt=options.adopt_checkpoint)
            return committer, make_store(client, control_topic, staging_topic_of(options, name), options, self._on_step)

        key = (connection_of(options), control_topic, query_id, epoch is None)

        async def commit(committer: SinkCommitter, store: PulsarSinkStore) -> Outcome:
            steps = committer.commit(work)
            outcome: Outcome = await store.carry_out(steps, work.batch_id, *handed_over(staged), schema_of(staged))
            return outcome

        if epoch is not None:
            await act_as((await background().client(options, epoch.name)).inside, epoch)
        if work.batch_id == 0:
            await warn_if_nobody_keeps(work.rows, options)
        return await sinks.commit(*key, make=make, work=commit)
