"""Tasks of the sink: they encode their rows, and stage them for the driver or send them in a transaction (`grouped`).

The end of a task means nothing (Spark ends the rows of a task normally when what is before it fails), so a task never
commits. A task of `grouped` waits for all receipts, and hands the id of its transaction to the driver. An attempt that begins
after the commit (it lost against a twin) finds the gate of its micro-batch shut and sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncTransaction, PulsarError
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.client.inside import Epoch, abort_all, act_as, is_open, open_for_others
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.errors import StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.delivery import known_or_asked
from pulsar_txn.pipeline.spark.sink.staged import Carrier, Payload, Staged, Stager, TaskStaging, create_target

logger = logging.getLogger(__name__)


@attrs.frozen
class Sent(WriterCommitMessage):
    """Result of one task for the commit: the transaction that its rows are in (None without rows), and how many they are.

    `partitions` are the numbers by which keys were routed.
    """

    query_id: str
    partition: int
    epoch: Epoch
    txn_id: str | None
    rows: dict[str, int]
    partitions: dict[str, int] = attrs.field(factory=dict)


class TaskSending:
    """The rows of one attempt of a task: in a transaction of its own, opened by its first payload under `epoch`.

    It sends only while `gate` is open (`delivery`).
    """

    def __init__(self, options: Options, epoch: Epoch, gate: str | None = None, schema: SchemaInfo | None = None) -> None:
        self._schema = schema
        self._options = options
        self._epoch = epoch
        self._gate = gate
        self._txn: AsyncTransaction | None = None
        self._producers: dict[str, AsyncProducer[bytes]] = {}
        self._tickets: list[asyncio.Future[Any]] = []
        self.rows: dict[str, int] = {}

    @property
    def txn_id(self) -> str | None:
        """The id of the transaction, if there were rows."""
        return None if self._txn is None else str(self._txn.id)

    def put(self, payload: Payload) -> None:
        """Begin to send a payload; waits while too much is on its way."""
        background().run(self._put(payload))

    def finish(self) -> None:
        """Wait for all receipts. StoreFailed when a row was not stored; then Spark tries the task again."""
        background().run(self._finish())

    def give_up(self) -> None:
        """The attempt failed: abort what it has sent, so that readers need not wait for the commit or a timeout."""
        background().run(self._give_up())

    def close(self) -> None:
        """Close the producers; the transaction stays open."""
        background().run(self._close())

    async def _put(self, payload: Payload) -> None:
        client = await background().client(self._options, self._epoch.name)
        try:
            if self._txn is None:
                self._txn = await self._join(client)
                await self._check_gate(client)
            producer = await self._producer(client, payload.topic)
            await producer.wait_for_room()
            partition = None if payload.partition < 0 else payload.partition
            self._tickets.append(producer.send_encoded_nowait(payload.batch, txn=self._txn, partition=partition))
        except PulsarError as error:
            raise StoreFailed(f"sending rows to {payload.topic}: {error}") from error
        self.rows[payload.topic] = self.rows.get(payload.topic, 0) + payload.batch.num_messages

    async def _join(self, client: AsyncClient) -> AsyncTransaction:
        await act_as(client, self._epoch)
        return client.attach_transaction(await open_for_others(client, self._options.transaction_timeout_ms))

    async def _check_gate(self, client: AsyncClient) -> None:
        """Asked after the transaction is open: if the commit comes later than this, it ends the transaction."""
        if self._gate is not None and not await is_open(client, self._gate):
            raise StoreFailed(
                "this micro-batch is over, so this attempt sends nothing: it lost against another attempt, its query has "
                "failed, or its micro-batch takes longer than an hour and than transactionTimeoutMs"
            )

    async def _producer(self, client: AsyncClient, topic: str) -> AsyncProducer[bytes]:
        found = self._producers.get(topic)
        if found is None:
            found = self._producers[topic] = await create_target(client, topic, self._schema)
        return found

    async def _finish(self) -> None:
        try:
            for producer in self._producers.values():
                await producer.flush()
            await asyncio.gather(*self._tickets)
        except PulsarError as error:
            raise StoreFailed(f"sending the rows of a task: {error}") from error
        if self._txn is not None and self._txn.doomed:
            raise StoreFailed(f"sending the rows of a task: {self._txn.doom_cause}")

    async def _give_up(self) -> None:
        await asyncio.gather(*self._tickets, return_exceptions=True)
        if self._txn is None:
            return
        try:
            await self._txn.abort()
        except PulsarError as error:
            logger.warning(
                "transaction %s of a failed task was not aborted (%s); the next commit or its timeout ends it",
                self.txn_id,
                error,
            )

    async def _close(self) -> None:
        for producer in self._producers.values():
            await producer.close()
        self._producers.clear()


def rows_sent(messages: Iterable[Sent]) -> dict[str, int]:
    """Number of rows sent to each topic, by the attempts that count."""
    counts: dict[str, int] = {}
    for message in messages:
        for topic, count in message.rows.items():
            counts[topic] = counts.get(topic, 0) + count
    return counts


async def give_up(options: Options, epoch: Epoch) -> None:
    """Abort all open transactions of a run. A failure is logged: the next run, or their timeouts, end them."""
    client = await background().client(options, epoch.name)
    try:
        await act_as(client, epoch)
        await abort_all(client)
    except PulsarError as error:
        logger.warning("the transactions of the tasks of %s were not aborted (%s); their timeout ends them", epoch.name, error)


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
        """Schema of the payloads, as the broker is told."""
        return None if self._typed is None else self._typed.info

    def encode(self, batches: Iterable[Any], put: Put) -> dict[str, int]:
        """Hand all rows to `put`, encoded; the numbers of partitions by which keys were routed."""
        stager = Stager(
            self.options,
            known_or_asked(self.options, self._known),
            properties=self._properties,
            spread=self.number,
            where=self._where,
            typed=self._typed,
            time_zone=_session_time_zone(),
        )
        take = put if self._watch is None else self._watch(put)
        for batch in batches:
            for payload in stager.add(batch):
                take(payload)
        for payload in stager.finish():
            take(payload)
        return stager.partitions


def stage(encoding: Encoding, batches: Iterator[Any], staging_topic: str, query_id: str = "") -> Staged:
    """Stage a task's rows for the commit: encoded here, or on the staging topic."""
    staging = TaskStaging(encoding.options, staging_topic)
    carrier = Carrier(encoding.options.inline_max_bytes, lambda: staging)
    try:
        partitions = encoding.encode(batches, carrier.put)
        return Staged(query_id, encoding.number, carrier.payloads, carrier.parked(), partitions, encoding.schema)
    finally:
        staging.close()


def send(encoding: Encoding, batches: Iterator[Any], epoch: Epoch, gate: str | None, query_id: str) -> Sent:
    """The rows of a task, sent to their topics in a transaction of this attempt, while `gate` is open."""
    sending = TaskSending(encoding.options, epoch, gate, encoding.schema)
    try:
        partitions = encoding.encode(batches, sending.put)
        sending.finish()
    except BaseException:
        sending.give_up()
        raise
    finally:
        sending.close()
    return Sent(query_id, encoding.number, epoch, sending.txn_id, sending.rows, partitions)


def _session_time_zone() -> str | None:
    """The time zone of the session, as Spark tells its tasks."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty("spark.sql.session.timeZone")


def task_context() -> TaskContext:
    """Context of the task that this runs in."""
    context = TaskContext.get()
    assert context is not None  # noqa: S101  # Spark calls `write` inside a task
    return context
