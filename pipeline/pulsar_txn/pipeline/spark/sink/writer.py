"""Writers of the sink, for streams and for batch jobs.

The driver publishes each micro-batch of a stream in one transaction (`committer`). The rows of a batch job, `df.write`, go
through the driver (`staged`) or straight from the tasks (`grouped`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_txn.client import TransactionAborted
from pulsar_txn.client.inside import Epoch, act_as, commit_together
from pulsar_txn.pipeline.spark.connecting import background, connection_of
from pulsar_txn.pipeline.spark.errors import GroupRefused
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.columns import written_type
from pulsar_txn.pipeline.spark.sink.committer import (
    ANY_TOPIC,
    GroupedCommitter,
    GroupWork,
    KeptSinks,
    PublishResult,
    SinkCommitter,
    Work,
    fill,
    full_name,
)
from pulsar_txn.pipeline.spark.sink.delivery import (
    check_not_read,
    control_topic_of,
    counted,
    end_grouped_runs,
    epoch_and_gate,
    job_epoch,
    job_id,
    offsets_digest,
    open_gate,
    sink_id,
    source_ends,
    staging_topic_of,
    warn_if_nobody_keeps,
)
from pulsar_txn.pipeline.spark.sink.staged import (
    Routed,
    Rows,
    Staged,
    check_partitions,
    handed_over,
    remove_subscription,
    rows_by_topic,
    schema_of,
)
from pulsar_txn.pipeline.spark.sink.store import (
    GroupedSinkStore,
    PulsarSinkStore,
    VersionCommitter,
    check_checkpoint,
    places_to_acknowledge,
    version_of,
)
from pulsar_txn.pipeline.spark.sink.tasks import Encoding, Sent, give_up, rows_sent, send, stage, task_context
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
        result = background().run(self._commit(query_id, work, staged, epoch))
        level = logging.INFO if result is PublishResult.PUBLISHED else logging.WARNING
        logger.log(level, "micro-batch %d: %s", batchId, result.value)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Abort what tasks have sent: the coordinator refuses it for what is committed, so a commit in doubt may be replayed.

        Of what tasks have staged there is nothing to undo: it is named by nobody.
        """
        epoch = next((message.epoch for message in messages if isinstance(message, Sent)), None)
        if epoch is not None:
            background().run(give_up(self._options, epoch))

    async def _commit(self, query_id: str, work: Work, staged: list[Staged], epoch: Epoch | None) -> PublishResult:
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

        async def commit(committer: SinkCommitter, store: PulsarSinkStore) -> PublishResult:
            return await store.publish(committer, work, staged)

        if epoch is not None:
            await act_as(await background().client(options, epoch.name), epoch)
        if work.batch_id == 0:
            await warn_if_nobody_keeps(work.rows, options)
        key = (connection_of(options), control_topic, query_id, epoch is None)
        return await sinks.commit(*key, make=make, work=commit)


class PulsarBatchWriter(DataSourceArrowWriter):
    """`df.write.format("pulsar").mode("append").save()`: its rows become visible together.

    A job that is run again writes again, unless it has a version (`versions`). With `grouped`, the gate of the job
    (`docs/adr/0027`) is the transaction that the commit ends together with those of the tasks.
    """

    def __init__(self, options: Options, columns: StructType | None = None) -> None:
        self._options = options
        self._columns = columns
        self._typed: TopicType | None = None
        self._version = version_of(options)
        self.staging_topic = staging_topic_of(options, job_id(self._version))
        """Goes with the job. When its driver dies, it stays until the next run of the version, or until somebody deletes it."""
        self._partitions: dict[str, int] | None = None
        self._epoch: Epoch | None = None
        self._gate: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """As for streams: all tasks of the job get one number of partitions, and one way to send."""
        if self._partitions is None:
            self._typed = written_type(self._options, self._columns or StructType())
            self._epoch = job_epoch(self._options, str(uuid.uuid4()))
            self._gate = None if self._epoch is None else open_gate(self._options, self._epoch)
            self._partitions = counted(self._options)
        return self.__dict__

    def write(self, iterator: Iterator[Any]) -> Staged | Sent:
        """Encode the rows of a task."""
        encoding = Encoding(self._options, task_context().partitionId(), self._partitions or {}, typed=self._typed)
        if self._epoch is None:
            return stage(encoding, iterator, self.staging_topic)
        try:
            return send(encoding, iterator, self._epoch, self._gate, "")
        finally:
            self._leave(self._epoch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows: visible together, or (with an exception) not at all or in doubt."""
        staged = [message for message in messages if isinstance(message, Staged)]
        sent = [message for message in messages if isinstance(message, Sent)]
        written: list[Routed] = [*staged, *sent]
        check_partitions(written)
        if self._epoch is None:
            background().run(self._publish(staged) if self._version is None else self._publish_version(*self._version, staged))
            return
        try:
            background().run(self._publish_group(sent, self._epoch))
        finally:
            self._leave(self._epoch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort what tasks have sent, and remove what they have staged for this job."""
        if self._epoch is not None:
            background().run(give_up(self._options, self._epoch))
            self._leave(self._epoch)
        if any(isinstance(message, Staged) and message.parked for message in messages):
            background().run(self._clean())

    def _leave(self, epoch: Epoch) -> None:
        """A job has a transactional id of its own, so its client is of no use to the next."""
        background().run(background().close_client(self._options, epoch.name))

    async def _publish_group(self, sent: list[Sent], epoch: Epoch) -> None:
        if self._options.admin_url is not None:
            await warn_if_nobody_keeps(rows_sent(sent), self._options)
        client = await background().client(self._options, epoch.name)
        await act_as(client, epoch)
        assert self._gate is not None  # noqa: S101  # it comes with the epoch
        gate = client.attach_transaction(self._gate)
        try:
            delivered = [message.txn_id for message in sent if message.txn_id is not None]
            await commit_together(client, gate, delivered, abort_rest=True)
        except TransactionAborted as error:
            raise GroupRefused(
                "the transactions of this job's tasks were over before its commit, and nothing was published: run it again, "
                f"and set transactionTimeoutMs above the time that the job takes ({error})"
            ) from error

    async def _publish(self, staged: list[Staged]) -> None:
        client = await background().client(self._options)
        rows = Rows(client, self.staging_topic, self._options)
        payloads, parked = handed_over(staged)
        if self._options.admin_url is not None:
            await warn_if_nobody_keeps(rows_by_topic(payloads, parked), self._options)
        timeout = self._options.transaction_timeout_ms / 1000
        async with client.transaction(timeout=timeout, name="spark write") as txn:
            rows.expect(payloads, parked, schema_of(staged))
            try:
                places = [each.place for each in parked]
                await rows.fill(fill("this job", str(txn.id), rows_by_topic(payloads, parked), places), txn)
            finally:
                await rows.close()
            if txn.doomed:
                raise TransactionAborted(f"sending the rows failed: {txn.doom_cause}", txn_id=txn.id)
        if parked:
            await remove_subscription(client, self.staging_topic)

    async def _publish_version(self, name: str, version: int, staged: list[Staged]) -> None:
        client = await background().client(self._options)
        payloads, parked = handed_over(staged)
        control_topic = control_topic_of(self._options, name)
        store = PulsarSinkStore(client, control_topic, self.staging_topic, self._options)
        target = full_name(self._options.topics[0]) if self._options.topics else ANY_TOPIC
        work = Work(version, rows_by_topic(payloads, parked), [each.place for each in parked], target=target)
        try:
            result = await store.publish(VersionCommitter(name), work, staged)
        finally:
            await store.close()
        if result is PublishResult.SKIPPED:
            text = "%s: version %d was published before, so this job writes nothing"
            logger.warning(text, self._options.txn_app_id, version)
        if parked:
            await remove_subscription(client, self.staging_topic)

    async def _clean(self) -> None:
        await remove_subscription(await background().client(self._options), self.staging_topic)
