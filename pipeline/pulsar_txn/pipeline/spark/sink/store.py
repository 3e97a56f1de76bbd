"""Carries out what the committer asks for, with a Pulsar client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from pulsar_txn.client import (
    EARLIEST_ID,
    AccessMode,
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AsyncTransaction,
    CommitOutcomeUnknown,
    InitialPosition,
    MessageId,
    PulsarError,
    TransactionAborted,
    TransactionState,
)
from pulsar_txn.client.encoded import SchemaInfo
from pulsar_txn.client.errors import ConsumerBusy, InvalidTransactionStatus, TransactionFenced, TransactionNotFound
from pulsar_txn.pipeline.spark.errors import OptionError, SinkError, SinkFenced, StoreFailed
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.acks import SourceAcks
from pulsar_txn.pipeline.spark.sink.committer import Steps
from pulsar_txn.pipeline.spark.sink.control import (
    Acknowledge,
    EndReply,
    EndTxn,
    Fence,
    Forward,
    Intent,
    NewTxn,
    OpenStaging,
    Pause,
    Publish,
    ReadRecords,
    ReadStaging,
    Receipts,
    Record,
    ReleaseStaging,
    Request,
    WriteRecord,
    decode_record,
    encode_record,
)
from pulsar_txn.pipeline.spark.sink.rows import RowRequest, Rows
from pulsar_txn.pipeline.spark.sink.staged import Parked, Payload
from pulsar_txn.pipeline.spark.steps import OnStep, reached

logger = logging.getLogger(__name__)

SUBSCRIPTION: Final = "__spark_sink"
_PAUSE_SECONDS: Final = 0.05
_READ_SECONDS: Final = 1.0
_COMMITS_PER_TRIM: Final = 50


class PulsarSinkStore:
    """One sink's place in a cluster. All methods run on the loop of its client; one commit at a time."""

    def __init__(
        self, client: AsyncClient, control_topic: str, staging_topic: str, options: Options, on_step: OnStep = None
    ) -> None:
        self._client = client
        self._control_topic = control_topic
        self._options = options
        self._on_step = on_step
        self._control: AsyncProducer[bytes] | None = None
        self._reader: AsyncReader[bytes] | None = None
        self._rows = Rows(client, staging_topic, options)
        self._acks = SourceAcks(client, options.ack_subscription)
        self._transactions: dict[str, AsyncTransaction] = {}
        self._batch_id = -1
        self._deadline = 0.0
        self._intent_id: MessageId | None = None
        self._commits = 0

    async def carry_out(
        self,
        steps: Steps,
        batch_id: int,
        payloads: Sequence[Payload],
        parked: Sequence[Parked] = (),
        schema: SchemaInfo | None = None,
    ) -> Any:
        """Drive a commit to its end; returns what it returns. SinkError, or the client's error when nothing can be done."""
        self._batch_id = batch_id
        self._rows.expect(payloads, parked, schema)
        self._deadline = asyncio.get_running_loop().time() + self._options.commit_timeout_ms / 1000
        reached(self._on_step, "sink.commit.begin", batch_id=batch_id)
        reply: Any = None
        error: SinkError | None = None
        while True:
            try:
                request = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as done:
                reached(self._on_step, "sink.commit.end", batch_id=batch_id)
                await self._let_go()
                return done.value
            try:
                reply, error = await self._perform(request), None
            except SinkError as refused:
                error = refused

    async def _perform(self, request: Request) -> Any:
        match request:
            case Fence():
                return await self._fence()
            case WriteRecord(record, txn_id):
                return await self._write(record, txn_id)
            case ReadRecords():
                return await self._read()
            case NewTxn():
                return await self._new_txn()
            case Publish() | OpenStaging() | ReadStaging() | Forward() | Receipts():
                return await self._send(request)
            case ReleaseStaging(last):
                return await self._rows.release(last)
            case Acknowledge(txn_id, places):
                return await self._acks.acknowledge(dict(places), self._transactions[txn_id])
            case EndTxn(txn_id, commit):
                return await (self._commit(txn_id) if commit else self._abort(txn_id))
            case Pause():
                await asyncio.sleep(_PAUSE_SECONDS)
                return asyncio.get_running_loop().time() < self._deadline

    async def close(self) -> None:
        """Give up the control topic, the staging topic and the targets."""
        for resource in (self._reader, self._control, self._rows):
            if resource is not None:
                await resource.close()
        self._reader = self._control = None

    # --- the control topic ----------------------------------------------------------------------------------------------

    async def _fence(self) -> int:
        await self.close()
        if (await self._client.get_topic_partitions(self._control_topic))[0] != self._control_topic:
            raise OptionError(
                f"{self._control_topic} is partitioned or no full name; nobody can own it as a whole: set controlTopic to the "
                "full name of a topic without partitions"
            )
        async with self._subscription() as consumer:
            del consumer  # from now on it exists, and Pulsar keeps the records that it has not acknowledged
        self._control = await self._client.create_producer(
            self._control_topic, access_mode=AccessMode.EXCLUSIVE_WITH_FENCING, batching=False
        )
        self._reader = await self._client.create_reader(self._control_topic, EARLIEST_ID, receiver_queue_size=1000)
        self._commits = 0
        epoch = self._control.topic_epoch or 0
        reached(self._on_step, "sink.commit.after_fence", batch_id=self._batch_id, epoch=epoch)
        return epoch

    @asynccontextmanager
    async def _subscription(self) -> AsyncIterator[AsyncConsumer[bytes] | None]:
        """The durable subscription that keeps the records; None while another run has it at this moment."""
        try:
            consumer = await self._client.subscribe(
                self._control_topic, SUBSCRIPTION, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1
            )
        except ConsumerBusy:
            yield None
            return
        async with consumer:
            yield consumer

    async def _let_go(self) -> None:
        """Now and then allow Pulsar to delete what comes before the last marker. The micro-batch is published by now."""
        intent_id, self._intent_id = self._intent_id, None
        if intent_id is None:
            return
        self._commits += 1
        if self._commits % _COMMITS_PER_TRIM != 1:
            return
        try:
            async with self._subscription() as consumer:
                if consumer is not None:
                    await consumer.acknowledge_cumulative(intent_id, receipt=True)
        except PulsarError as error:
            logger.warning("%s: old records could not be acknowledged: %s", self._control_topic, error)

    async def _write(self, record: Record, txn_id: str | None) -> None:
        assert self._control is not None  # noqa: S101  # Fence comes first
        txn = None if txn_id is None else self._transactions[txn_id]
        try:
            message_id = await self._control.send(encode_record(record), txn=txn)
        except PulsarError as error:
            raise self._failed(f"writing to {self._control_topic}", error) from error
        if isinstance(record, Intent):
            self._intent_id = message_id
        if txn_id is not None:
            reached(self._on_step, "sink.commit.after_marker", batch_id=self._batch_id, txn_id=txn_id)

    def _failed(self, what: str, error: Exception) -> SinkError:
        causes = [error, *getattr(error, "failures", ()), error.__cause__]
        if any(isinstance(cause, TransactionFenced) for cause in causes):
            return SinkFenced(
                f"a newer run of this sink owns {self._control_topic}: two queries on one checkpoint, or one sinkId twice "
                f"({error})"
            )
        return StoreFailed(f"{what}: {error}")

    async def _read(self) -> list[Record]:
        assert self._reader is not None  # noqa: S101  # Fence comes first
        records: list[Record] = []
        while await self._reader.has_message_available():
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    messages = await self._reader.read_many(1000)
            except TimeoutError:
                break  # what is there cannot be read yet
            records += [decode_record(message.data) for message in messages]
        return records

    # --- transactions ---------------------------------------------------------------------------------------------------

    async def _new_txn(self) -> str:
        self._transactions.clear()
        timeout = self._options.transaction_timeout_ms / 1000
        txn = await self._client.begin_transaction(
            timeout=timeout, commit_timeout=self._options.operation_timeout_ms / 1000, name=f"micro-batch {self._batch_id}"
        )
        txn_id = str(txn.id)
        self._transactions[txn_id] = txn
        reached(self._on_step, "sink.commit.after_new_txn", batch_id=self._batch_id, txn_id=txn_id)
        return txn_id

    async def _send(self, request: RowRequest) -> Any:
        (txn_id,) = self._transactions  # one per attempt
        try:
            reply = await self._rows.perform(request, self._transactions[txn_id])
        except (PulsarError, TimeoutError) as error:
            raise self._failed("sending the rows", error) from error
        if isinstance(request, Publish | Receipts):
            step = "after_publish" if isinstance(request, Publish) else "after_forward"
            reached(self._on_step, f"sink.commit.{step}", batch_id=self._batch_id, txn_id=txn_id)
        return reply

    async def _abort(self, txn_id: str) -> EndReply:
        try:
            await self._client.attach_transaction(txn_id).abort()
        except InvalidTransactionStatus:
            return EndReply.BUSY
        except (TransactionNotFound, TransactionFenced):
            return EndReply.OVER
        except PulsarError:
            return EndReply.UNKNOWN
        return EndReply.DONE

    async def _commit(self, txn_id: str) -> EndReply:
        txn = self._transactions[txn_id]
        work = asyncio.ensure_future(txn.commit())
        if self._on_step is not None:
            await _written(txn)
            self._on_step("sink.commit.after_end_txn_sent", batch_id=self._batch_id, txn_id=txn_id, answered=work.done())
        try:
            await work
        except TransactionAborted:
            return EndReply.OVER
        except (CommitOutcomeUnknown, PulsarError):
            return EndReply.UNKNOWN
        reached(self._on_step, "sink.commit.after_end_txn", batch_id=self._batch_id, txn_id=txn_id)
        return EndReply.DONE


async def _written(txn: AsyncTransaction) -> None:
    """Until END_TXN is in the socket and its answer cannot have been looked at, however slow the loop's turns are.

    All sends have their receipts, so the turn in which the state becomes COMMITTING asks for END_TXN, and the next one
    writes it before it looks at what that turn's poll has found, which was before the write.
    """
    while txn.state is TransactionState.OPEN:  # noqa: ASYNC110 - it is the loop's turns that count
        await asyncio.sleep(0)  # our place is after the commit's task, which was made first
    await asyncio.sleep(0)
