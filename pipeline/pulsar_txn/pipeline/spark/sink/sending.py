"""A task of the protocol `grouped`: its rows go straight to their topics, in a transaction that the driver may commit.

The end of a task means nothing (Spark ends the rows of a task normally when what is before it fails), so a task never
commits. It waits for all receipts, and hands the id of its transaction to the driver. An attempt that begins after the
commit (it lost against a twin) finds the gate of its micro-batch shut and sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import attrs
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncTransaction, PulsarError
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.client.inside import Epoch, abort_all, act_as, is_open, open_for_others
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.rows import create_target
from pulsar_txn.pipeline.spark.sink.staged import Payload

logger = logging.getLogger(__name__)


@attrs.frozen
class Sent(WriterCommitMessage):
    """Message of one task to the commit: the transaction that its rows are in (None without rows), and how many they are.

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

    It sends only while `gate` is open (`delivery`). Or, with `txn_id`, in one that the driver has opened for all tasks.
    """

    def __init__(
        self,
        options: Options,
        epoch: Epoch | None = None,
        gate: str | None = None,
        *,
        txn_id: str | None = None,
        schema: SchemaInfo | None = None,
    ) -> None:
        self._schema = schema
        self._options = options
        self._epoch = epoch
        self._gate = gate
        self._shared = txn_id
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
        client = await background().client(self._options, None if self._epoch is None else self._epoch.name)
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
        if self._shared is not None:
            return client.attach_transaction(self._shared)
        assert self._epoch is not None  # noqa: S101  # one of the two is given
        await act_as(client.inside, self._epoch)
        return client.attach_transaction(await open_for_others(client.inside, self._options.transaction_timeout_ms))

    async def _check_gate(self, client: AsyncClient) -> None:
        """Asked after the transaction is open: if the commit comes later than this, it ends the transaction."""
        if self._gate is not None and not await is_open(client.inside, self._gate):
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
            logger.warning("transaction %s of a failed task is left to the next commit, or its timeout: %s", self.txn_id, error)

    async def _close(self) -> None:
        for producer in self._producers.values():
            await producer.close()
        self._producers.clear()


def rows_sent(messages: Iterable[Sent]) -> dict[str, int]:
    """Return how many rows were sent to each topic, by the attempts that count."""
    counts: dict[str, int] = {}
    for message in messages:
        for topic, count in message.rows.items():
            counts[topic] = counts.get(topic, 0) + count
    return counts


async def give_up(options: Options, epoch: Epoch) -> None:
    """Abort all that a run has open. A failure is logged: the next run, or the timeouts, do it as well."""
    client = await background().client(options, epoch.name)
    try:
        await act_as(client.inside, epoch)
        await abort_all(client.inside)
    except PulsarError as error:
        logger.warning("what the tasks of %s have sent is left to its timeout: %s", epoch.name, error)
