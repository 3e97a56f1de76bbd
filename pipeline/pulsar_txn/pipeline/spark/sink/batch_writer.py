"""A batch job, `df.write`: its rows go through the driver (`staged`) or straight from the tasks (`grouped`)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_txn.client import TransactionAborted
from pulsar_txn.client.inside import Epoch, act_as, commit_together
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import GroupRefused
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.committer import ANY_TOPIC, Outcome, Work, fill, full_name
from pulsar_txn.pipeline.spark.sink.delivery import job_epoch, open_gate
from pulsar_txn.pipeline.spark.sink.names import control_topic_of, job_id, staging_topic_of
from pulsar_txn.pipeline.spark.sink.partitions import counted
from pulsar_txn.pipeline.spark.sink.retention import warn_if_nobody_keeps
from pulsar_txn.pipeline.spark.sink.rows import Rows
from pulsar_txn.pipeline.spark.sink.sending import Sent, give_up, rows_sent
from pulsar_txn.pipeline.spark.sink.staged import Routed, Staged, check_partitions, handed_over, rows_by_topic, schema_of
from pulsar_txn.pipeline.spark.sink.staging import remove_subscription
from pulsar_txn.pipeline.spark.sink.store import PulsarSinkStore
from pulsar_txn.pipeline.spark.sink.tasks import Encoding, send, stage, task_context
from pulsar_txn.pipeline.spark.sink.typed import written_type
from pulsar_txn.pipeline.spark.sink.versions import VersionCommitter, version_of

logger = logging.getLogger(__name__)


class PulsarBatchWriter(DataSourceArrowWriter):
    """`df.write.format("pulsar").mode("append").save()`: its rows become visible together.

    A job that is run again writes again, unless it has a version (`versions`). With `grouped`, the gate of the job
    (`docs/adr/0030`) is the transaction that the commit ends together with those of the tasks.
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
        await act_as(client.inside, epoch)
        assert self._gate is not None  # noqa: S101  # it comes with the epoch
        gate = client.attach_transaction(self._gate)
        try:
            delivered = [message.txn_id for message in sent if message.txn_id is not None]
            await commit_together(client.inside, gate, delivered, abort_rest=True)
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
            steps = VersionCommitter(name).commit(work)
            outcome: Outcome = await store.carry_out(steps, version, payloads, parked, schema_of(staged))
        finally:
            await store.close()
        if outcome is Outcome.SKIPPED:
            text = "%s: version %d was published before, so this job writes nothing"
            logger.warning(text, self._options.txn_app_id, version)
        if parked:
            await remove_subscription(client, self.staging_topic)

    async def _clean(self) -> None:
        await remove_subscription(await background().client(self._options), self.staging_topic)
