"""The producer of one topic partition: open batches, what is in flight, reconnecting and resending.

Order: what leaves has ascending sequence ids, and is answered in that order. After a reconnect everything without a
receipt is sent again, in the same order and with the same sequence ids.

A batch leaves at the end of the loop's turn when no earlier batch of its transaction (or of none) is in flight; else when
it is full, when the receipt of the earlier one comes in, or after `batching_max_delay`. So a lone send is not delayed, and
batches grow by themselves under load. There is no task, lock or timer per message.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.client._attachment import Attachment
from pulsar_txn.client._budget import Budget
from pulsar_txn.client._core import Core
from pulsar_txn.client._enlist import Enlisting
from pulsar_txn.client._sealing import Sealer
from pulsar_txn.client._timer import NearestTimer
from pulsar_txn.client.batching import (
    Alone,
    Builder,
    EncodedBatch,
    Pending,
    Row,
    SendTicket,
    fail_tickets,
)
from pulsar_txn.client.connection import Connection
from pulsar_txn.client.errors import (
    AlreadyClosed,
    ChecksumError,
    ConnectionLost,
    MessageTooLarge,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    TopicTerminatedError,
)
from pulsar_txn.client.producer_options import AccessMode, BatchingType, ProducerOptions, encryptor_for, fields_of
from pulsar_txn.client.schema import SchemaInfo
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import MessageId, TxnId

_new_tuple: Final[Callable[..., Any]] = tuple.__new__


class PartitionProducer:
    """Sends to one partition (or to a topic without partitions, `partition` -1)."""

    def __init__(
        self, core: Core, topic: str, partition: int, options: ProducerOptions, budget: Budget, schema: SchemaInfo | None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.id = core.next_resource_id()
        self.name = options.producer_name or ""
        self.last_sequence_id = -1
        self.topic_epoch: int | None = None
        self._core = core
        self._options = options
        self._budget = budget
        self._schema = schema
        self._max_messages = options.batching_max_messages if options.batching else 1
        self._max_bytes = options.batching_max_bytes
        self._keyed = options.batching and options.batching_type is BatchingType.KEY_BASED
        self._failure: PulsarError | None = None
        self._epoch = 0
        self._connection: Connection | None = None
        self._sealer = Sealer(options, encryptor_for(options, core.runtime))
        self._builders: dict[object, Builder] = {}
        self._ready: list[Builder] = []
        self._pending: deque[Pending] = deque()
        self._timer = NearestTimer(core.runtime, self._on_due)
        self._loop = asyncio.get_running_loop()
        self._attachment = Attachment(
            core, self.id, topic, open_on=self._open_on, on_lost=self._on_lost, on_failed=self._on_failed
        )

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the producer at its broker. With WAIT_FOR_EXCLUSIVE this waits for as long as it takes."""
        waits = self._options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
        try:
            await self._attachment.start(math.inf if waits else None)
        except BaseException:
            self._attachment.close()
            raise

    @property
    def is_connected(self) -> bool:
        """Whether the broker knows this producer at this moment."""
        return self._connection is not None

    async def close(self) -> None:
        """Send what waits, wait for the receipts (at most the operation timeout), leave the broker. Idempotent."""
        if isinstance(self._failure, AlreadyClosed):
            return
        self.flush_nowait()
        self._failure = AlreadyClosed(f"the producer of {self.topic} is closed")
        outstanding = self.outstanding()
        try:
            if outstanding:
                await asyncio.wait(outstanding, timeout=self._core.settings.operation_timeout)
        finally:  # also when cancelled: nobody would close it again
            connection, self._connection = self._connection, None
            self._attachment.close()
            self._timer.cancel()
            left = None if connection is None else self._leave(connection)
            self._fail_all(AlreadyClosed("the producer was closed before the receipt came"))
        if left is not None:
            await asyncio.wait([left])

    def _leave(self, connection: Connection) -> asyncio.Future[Any]:
        """Say goodbye; whatever the answer is: the producer is gone, or its connection is."""
        connection.producers.pop(self.id, None)
        request = connection.request("close_producer", self._core.next_request_id(), producer_id=self.id)
        request.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return request

    async def _open_on(self, connection: Connection) -> None:
        connection.producers[self.id] = self
        self._epoch += 1
        try:
            # The deadline is the attachment's; WAIT_FOR_EXCLUSIVE lifts it once the broker has put us in the queue.
            request_id = self._core.next_request_id()
            if self._options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
                connection.waiting_for_exclusive.add(request_id)
            answer = await connection.request("producer", request_id, **self._producer_fields())
        except BaseException as error:
            connection.producers.pop(self.id, None)
            if isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                # The broker may still create it, and would then refuse its own name to us.
                request_id = self._core.next_request_id()
                connection.write([command("close_producer", producer_id=self.id, request_id=request_id)])
            raise
        if connection.closed or connection.producers.get(self.id) is not self:
            raise ConnectionLost("the producer was closed while it opened", endpoint=connection.endpoint)
        self._opened(connection, answer)

    def _producer_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"topic": self.topic, "producer_id": self.id, "epoch": self._epoch - 1, "txn_enabled": True}
        if self.name:
            fields["producer_name"] = self.name
        if self._schema is not None:
            fields["schema"] = self._schema.field()
        if self.topic_epoch is not None:
            fields["topic_epoch"] = self.topic_epoch
        return fields | fields_of(self._options)

    def _opened(self, connection: Connection, answer: Any) -> None:
        self.name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self.topic_epoch = answer.topic_epoch
        if self._sealer.next_sequence_id is None:
            self._sealer.next_sequence_id = answer.last_sequence_id + 1
            self.last_sequence_id = answer.last_sequence_id
        self._sealer.opened(self.name, answer.schema_version, connection.max_message_size)
        self._connection = connection
        for pending in self._pending:
            connection.write(pending.buffers)

    def _on_lost(self, _error: PulsarError) -> None:
        self._connection = None

    def on_closed_by_broker(self) -> None:
        """CLOSE_PRODUCER: the topic moves; look it up anew."""
        self._attachment.detach(ConnectionLost("the broker closed the producer"))

    def _on_failed(self, error: PulsarError) -> None:
        self._connection = None
        self._failure = self._failure or error
        self._fail_all(error)

    def takes(self, size: int) -> bool:
        """Whether a message of so many bytes would be queued."""
        return self._failure is None and size <= self._sealer.max_message_size

    # --- adding -----------------------------------------------------------------------------------------------------

    def add(
        self, message: Row, txn: Enlisting | None, alone: Alone | None = None, future: SendTicket | None = None
    ) -> SendTicket:
        """Queue one message, with its future if that is there already.

        Raises its failure, MessageTooLarge, or the transaction's refusal; then nothing is queued. A failure (but for being
        closed) and MessageTooLarge doom the transaction, as a refusal by the broker would.
        """
        if self._failure is not None:
            raise self._refused(self._failure, 1, txn)
        size = len(message if isinstance(message, bytes) else message[0])
        if size > self._sealer.max_message_size and not self._options.compression and not self._options.chunking:
            text = f"{size} bytes; the broker takes {self._sealer.max_message_size}"
            raise self._refused(MessageTooLarge(text, hint="use chunking=True, split it, or compress"), 1, txn)
        key: object = txn
        group = None
        if alone is not None:
            key = (txn, alone)
        elif self._keyed and isinstance(message, tuple):
            group = message[1] if message[5] is None else message[5]
            key = txn if group is None else (txn, group)
        builder = self._builders.get(key)
        if builder is not None and builder.size and builder.size + size > self._max_bytes:
            self._complete(builder)
            builder = self._builders.get(key)  # gone when what it held could not be sent
        if txn is not None:
            if builder is None or not builder.futures or not txn.usable:
                builder = self._enlisted(txn, size, Builder(key, txn, group, alone) if builder is None else builder)
        elif builder is None:
            builder = self._builders[key] = Builder(key, txn, group, alone)
        future = future or self._loop.create_future()
        builder.rows.append(message)
        builder.futures.append(future)
        builder.size += size
        self._budget.take(1, size)
        count = len(builder.rows)
        if count >= self._max_messages or (builder.size >= self._max_bytes and count > 1):
            self._complete(builder)
        elif count == 1:
            self._schedule(builder)
        return future

    def _enlisted(self, txn: Enlisting, size: int, builder: Builder) -> Builder:
        """Start the first send of a transaction's batch; the builder is kept unless it refuses."""
        registered = txn.enlist_send(self._core, self.topic, 1, size, self)
        self._builders[builder.key] = builder
        builder.sends, builder.counted, builder.counted_size = txn.sends_to(self.topic), 1, size
        if builder.txn_id is None:
            self._register(builder, registered)
        return builder

    def _refused(self, error: PulsarError, messages: int, txn: Enlisting | None) -> PulsarError:
        """The error of messages that never leave; part of a unit is not committed, so their transaction fails with it."""
        if txn is not None and not isinstance(error, AlreadyClosed):
            txn.enlist_send(self._core, self.topic, messages, 0, self)
            txn.send_finished(self.topic, messages, error)
        return error

    def add_encoded(self, batch: EncodedBatch, txn: Enlisting | None) -> SendTicket:
        """Queue a batch built elsewhere, behind what was queued before in the same transaction (or in none)."""
        if self._failure is not None:
            raise self._refused(self._failure, batch.num_messages, txn)
        size = len(batch.payload)
        if size > self._sealer.max_message_size:
            text = f"a batch of {size} bytes; the broker takes {self._sealer.max_message_size}"
            raise self._refused(MessageTooLarge(text, hint="split it"), batch.num_messages, txn)
        registered = None
        if txn is not None:
            registered = txn.enlist_send(self._core, self.topic, batch.num_messages, size, self)
        before = self._builders.get(txn)
        if before is not None:
            self._seal(before)
        key = object()
        builder = self._builders[key] = Builder(key, txn)
        builder.encoded = batch
        future: SendTicket = self._loop.create_future()
        builder.futures.append(future)
        builder.size = size
        self._budget.take(batch.num_messages, size)
        if registered is not None:
            self._register(builder, registered)
        self._seal(builder)
        return future

    def _register(self, builder: Builder, registered: TxnId | asyncio.Future[TxnId]) -> None:
        if isinstance(registered, TxnId):
            builder.txn_id = registered
        elif builder.registering is None:
            builder.registering = registered
            registered.add_done_callback(functools.partial(self._on_registered, builder))

    def _on_registered(self, builder: Builder, registered: asyncio.Future[TxnId]) -> None:
        builder.registering = None
        if registered.cancelled():
            self._drop(builder, AlreadyClosed("the transaction was given up"))
            return
        error = registered.exception()
        if error is not None:
            self._drop(builder, error)
            return
        builder.txn_id = registered.result()
        self._seal(builder)

    def _schedule(self, builder: Builder) -> None:
        if builder.waits_for_registration:
            return
        if builder.in_flight == 0:
            if not self._ready:
                self._loop.call_soon(self._flush_ready)
            self._ready.append(builder)
        else:
            builder.due = self._core.runtime.monotonic() + self._options.batching_max_delay
            self._timer.set(builder.due)

    def _flush_ready(self) -> None:
        ready, self._ready = self._ready, []
        for builder in ready:
            self._seal(builder)

    def flush_nowait(self) -> None:
        """Send what waits in open batches; messages whose transaction is still registering follow by themselves."""
        for builder in [builder for builder in self._builders.values() if builder.futures]:
            self._seal(builder)

    def count_sends(self, txn: object) -> None:
        """See `_enlist.Flushable`."""
        for builder in self._builders.values():
            if builder.txn is txn:
                builder.count()

    def outstanding(self) -> list[SendTicket]:
        """One future per batch that has no receipt yet, open ones included; done when the batch is."""
        futures = [each.futures for each in self._pending]
        futures += [batch for each in self._builders.values() for batch in each.tickets()]
        return [asyncio.wrap_future(each[-1], loop=self._loop) for each in futures]  # those of the sync client are for threads

    # --- sealing ------------------------------------------------------------------------------------------------------

    def _seal(self, builder: Builder) -> None:
        """Send everything that the builder holds; once registered, if it waits for that."""
        if not builder.waits_for_registration:
            if builder.futures:
                builder.complete()
            self._send_full(builder)

    def _complete(self, builder: Builder) -> None:
        """Its open batch takes no more."""
        builder.complete()
        if not builder.waits_for_registration:
            self._send_full(builder)

    def _send_full(self, builder: Builder) -> None:
        """Turn complete batches into entries and send them."""
        while builder.full:
            rows, futures, size = builder.full.popleft()
            pending = Pending(builder, futures, builder.messages_of(rows), size)
            builder.in_flight += 1
            try:
                *chunks, entry = self._sealer.entries(pending, rows, self._core.runtime.wall_ms())
            except PulsarError as error:
                self._settle(pending, error)
                continue
            for chunk in chunks:
                self._send_chunk(pending, chunk)
            self._send(pending, entry, is_chunk=bool(chunks))

    def _send_chunk(self, whole: Pending, entry: bytes) -> None:
        """A chunk that is not the last: it counts for nothing, and when it fails so does the message."""
        pending = Pending(whole.builder, whole.futures, 0, 0)
        pending.sequence_id = pending.highest = whole.sequence_id
        whole.builder.in_flight += 1
        self._send(pending, entry, is_chunk=True)

    def _send(self, pending: Pending, entry: bytes, *, is_chunk: bool = False) -> None:
        builder = pending.builder
        pending.buffers = hot.encode_send(
            self.id,
            pending.sequence_id,
            pending.messages,
            entry,
            txn=builder.txn_id,
            highest_sequence_id=pending.highest if pending.highest != pending.sequence_id else None,
            is_chunk=is_chunk,
        )
        timeout = self._options.send_timeout
        pending.deadline = self._core.runtime.monotonic() + timeout if timeout else math.inf
        if not self._pending:
            self._timer.set(pending.deadline)
        self._pending.append(pending)
        if self._connection is not None:
            self._connection.write(pending.buffers)

    # --- answers --------------------------------------------------------------------------------------------------------

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int, _highest: int) -> None:
        """SEND_RECEIPT: always for the oldest that is in flight, or for one that was given up before."""
        if not self._pending or self._pending[0].sequence_id != sequence_id:
            self._on_odd_receipt(sequence_id)
            return
        pending = self._pending.popleft()
        if not pending.messages:
            self._settle(pending, None)
            return
        self.last_sequence_id = pending.highest
        partition, size = self.partition, pending.messages
        if size == 1 or pending.builder.encoded is not None:
            future = pending.futures[0]
            if not future.done():
                future.set_result(MessageId(ledger_id, entry_id, partition, -1, size if size > 1 else 0))
        else:
            for index, future in enumerate(pending.futures):
                if not future.done():
                    future.set_result(_new_tuple(MessageId, (ledger_id, entry_id, partition, index, size)))
        self._settle(pending, None)

    def _on_odd_receipt(self, sequence_id: int) -> None:
        if any(pending.sequence_id == sequence_id for pending in self._pending) and self._connection is not None:
            # An earlier receipt is missing: only sending all again in order can tell what the broker has.
            self._connection.close(ConnectionLost("a receipt was skipped", endpoint=self._connection.endpoint))

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """SEND_ERROR: the one message fails, or the producer ends, or the connection is made anew and all is sent again."""
        if isinstance(error, (ProducerFenced, TopicTerminatedError)):
            self._attachment.fail(error)
        elif error.retriable or isinstance(error, ChecksumError):
            if self._connection is not None:
                self._connection.close(ConnectionLost(f"a send was refused: {error}", endpoint=self._connection.endpoint))
        else:
            for pending in [each for each in self._pending if each.sequence_id == sequence_id]:  # all chunks of a message
                self._pending.remove(pending)
                self._settle(pending, error)

    def _settle(self, pending: Pending, error: BaseException | None) -> None:
        """The batch is done: futures (on failure), bounds, transaction, and the next batch that waited for this one."""
        builder = pending.builder
        if error is not None:
            fail_tickets(pending.futures, error, looked_at=builder.txn is not None)
            self._budget.failed += pending.messages
        self._budget.give_back(pending.messages, pending.size)
        builder.in_flight -= 1
        if builder.txn is not None and pending.messages:
            builder.txn.send_finished(self.topic, pending.messages, error)
        if builder.in_flight == 0:
            if builder.futures:
                self._seal(builder)
            elif builder.key is not None and self._builders.get(builder.key) is builder:
                del self._builders[builder.key]

    def _drop(self, builder: Builder, error: BaseException) -> None:
        """Fail what it holds; used when that can never be sent."""
        futures, messages, size = builder.give_up()
        if futures:
            builder.in_flight += 1
            self._settle(Pending(builder, futures, messages, size), error)

    def _fail_all(self, error: PulsarError) -> None:
        pending, self._pending = self._pending, deque()
        for each in pending:
            self._settle(each, error)
        for builder in list(self._builders.values()):
            self._drop(builder, error)
        self._budget.wake_all()

    # --- the one timer ------------------------------------------------------------------------------------------------

    def _on_due(self, now: float) -> None:
        while self._pending and self._pending[0].deadline <= now:
            seconds = self._options.send_timeout
            error = OperationTimeout(f"no receipt from {self.topic} within {seconds:g} s", maybe_processed=True)
            self._settle(self._pending.popleft(), error)
        following = self._pending[0].deadline if self._pending else math.inf
        for builder in list(self._builders.values()):
            if builder.futures and not builder.waits_for_registration:
                if builder.due <= now:
                    self._seal(builder)
                else:
                    following = min(following, builder.due)
        self._timer.set(following)
