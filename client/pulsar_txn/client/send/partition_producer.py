"""The producer of one topic partition: open batches, what is in flight, reconnecting and resending.

Order: what leaves has ascending sequence ids, and is answered in that order. After a reconnect everything without a
receipt is sent again, in the same order and with the same sequence ids, except sends of a transaction that is over, and for
those that would be in their transaction twice if the broker has them (`not_again`).

A batch leaves at the end of the loop's turn when no earlier batch of its transaction (or of none) is in flight; else when
it is full, when the receipt of the earlier one comes in, or after `batching_max_delay`. So a lone send is not delayed, and
batches grow by themselves under load. There is no task, lock or timer per message. Open batches leave first where a message
is alone, or has a sequence id of the program's own and goes to another batch.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import deque
from typing import Any, Final
from weakref import WeakKeyDictionary

from pulsar_txn.client.errors import (
    AlreadyClosed,
    ChecksumError,
    ConnectionLost,
    MessageTooLarge,
    NotAllowedError,
    OperationTimeout,
    ProducerFenced,
    PulsarError,
    TopicTerminatedError,
)
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.timer import NearestTimer
from pulsar_txn.client.schema.base import SchemaInfo
from pulsar_txn.client.send import batching
from pulsar_txn.client.send.batching import (
    Alone,
    Builder,
    EncodedBatch,
    Fate,
    Pending,
    Row,
    SendTicket,
    not_again,
    row_sequence_id,
)
from pulsar_txn.client.send.budget import Budget
from pulsar_txn.client.send.options import AccessMode, BatchingType, ProducerOptions, encryptor_for, fields_of
from pulsar_txn.client.send.sealing import Sealer
from pulsar_txn.client.txn.enlist import Enlisting
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnId

logger: Final = logging.getLogger("pulsar_txn.client.producer")


class PartitionProducer:
    """Sends to one partition (or to a topic without partitions, `partition` -1)."""

    def __init__(
        self, core: Core, topic: str, partition: int, options: ProducerOptions, budget: Budget, schema: SchemaInfo | None
    ) -> None:
        self.topic = topic
        self._target = core.target(topic)
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
        self._last_refusal: tuple[float, PulsarError | None] = (0.0, None)
        """When the broker refused a send that is sent again, and why."""
        self._sealer = Sealer(self.id, options, encryptor_for(options, core.runtime))
        self._builders: dict[object, Builder] = {}  # those with an open batch in the order of their first messages
        self._fates: WeakKeyDictionary[Enlisting, Fate] = WeakKeyDictionary()
        self._ready: list[Builder] = []
        self._unbatched = Builder(None, None)
        self._pending: deque[Pending] = deque()
        self._asked: dict[Pending, NotAllowedError] = {}
        """Refused sends of which the coordinator is asked whether their transaction was fenced."""
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
        outstanding = self.outstanding()
        self._failure = AlreadyClosed(f"the producer of {self.topic} is closed")
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
            fields = fields_of(self._options, self._schema, self.name, self.topic_epoch)
            fields |= {"topic": self.topic, "producer_id": self.id, "epoch": self._epoch - 1, "txn_enabled": True}
            answer = await connection.request("producer", request_id, **fields)
            self._check_gaps(connection, answer)
        except BaseException as error:
            connection.producers.pop(self.id, None)
            if isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                # The broker may still create it, and would then refuse its own name to us.
                connection.write([command("close_producer", producer_id=self.id, request_id=self._core.next_request_id())])
            raise
        if connection.closed or connection.producers.get(self.id) is not self:
            raise ConnectionLost("the producer was closed while it opened", endpoint=connection.endpoint)
        self._opened(connection, answer)

    def _check_gaps(self, connection: Connection, answer: Any) -> None:
        """NotAllowedError when the broker would not do what `refuse_sequence_gaps` asks for."""
        if self._options.refuse_sequence_gaps and not answer.refuses_gaps:
            connection.write([command("close_producer", producer_id=self.id, request_id=self._core.next_request_id())])
            text = f"the broker of {self.topic} does not look for gaps in sequence ids"
            hint = "leave refuse_sequence_gaps out; it needs a broker of pulsar-txn with brokerDeduplicationEnabled=true"
            raise NotAllowedError(text, endpoint=connection.endpoint, hint=hint)

    def _opened(self, connection: Connection, answer: Any) -> None:
        self.name = answer.producer_name
        if answer.HasField("topic_epoch"):
            self.topic_epoch = answer.topic_epoch
        if self._sealer.next_sequence_id is None:
            self._sealer.next_sequence_id = answer.last_sequence_id + 1
            self.last_sequence_id = answer.last_sequence_id
        self._sealer.opened(self.name, answer.schema_version, connection.max_message_size)
        self._max_bytes = min(self._options.batching_max_bytes, connection.max_message_size)
        self._connection = connection
        deduplicates = answer.last_sequence_id >= 0 or connection.features.supports_txn_deduplication
        given_up = not_again(self._pending, self.topic, deduplicates=deduplicates)
        self._pending = deque(each for each in self._pending if each not in given_up)
        for pending in self._pending:
            if pending.written and pending.builder.txn is not None:
                pending.builder.txn.sent_again()
            pending.written = True
            connection.write(pending.buffers)
        for pending, error in given_up.items():
            self._settle(pending, error)

    def _on_lost(self, _error: PulsarError) -> None:
        self._connection = None

    def on_closed_by_broker(self) -> None:
        """CLOSE_PRODUCER: the topic moves; look it up again."""
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

        Raises its failure, MessageTooLarge, or the transaction's refusal; then nothing is queued. A failure (except for being
        closed) and MessageTooLarge doom the transaction, as a refusal by the broker would.
        """
        if self._failure is not None:
            raise self._refused(self._failure, 1, txn)
        message, size = (message, len(message)) if isinstance(message, bytes) else batching.sized(message)
        if size > self._sealer.max_message_size and not self._options.compression and not self._options.chunking:
            text = f"{size} bytes; the broker takes {self._sealer.max_message_size}"
            raise self._refused(MessageTooLarge(text, hint="use chunking=True, split it, or compress"), 1, txn)
        if self._max_messages == 1 and txn is None and alone is None:
            return self._send_unbatched(message, size, future or self._loop.create_future())
        key: object = txn
        group = None
        if not isinstance(message, bytes):
            key, group = self._place(message, txn)
        if alone is not None:
            return self._add_apart(Pending(self._builder(key, txn, group), [message], [], 1, size, alone), future)
        builder = self._builders.get(key)
        if builder is not None and builder.size and builder.size + size > self._max_bytes:
            self._complete(builder)
            builder = self._builders.get(key)  # gone when what it held could not be sent
        if txn is not None:
            if builder is None or not builder.futures or not txn.usable:
                builder = self._enlisted(txn, 1, size, builder or Builder(key, txn, group))
                builder.counted, builder.counted_size = 1, size
        elif builder is None:
            builder = self._builders[key] = Builder(key, txn, group)
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

    def _send_unbatched(self, message: Row, size: int, future: SendTicket) -> SendTicket:
        """What `add` comes to for a message that neither waits for others nor for a transaction."""
        self._budget.take(1, size)
        self._unbatched.in_flight += 1
        pending = Pending(self._unbatched, [message], [future], 1, size)
        frame = self._sealer.lone(pending, self._core.runtime.wall_ms())
        if frame is None:
            self._send_complete(pending)
        else:
            self._send(pending, [frame])
        return future

    def _place(self, message: tuple[Any, ...], txn: Enlisting | None) -> tuple[object, str | bytes | None]:
        """The key and the group of the builder of a message that is more than its payload; what has to leave first, leaves."""
        given = row_sequence_id(message)
        if given is not None and txn is not None:
            self._give_id(given, txn)
        if self._keyed:
            group = message[1] if message[5] is None else message[5]
            return (txn if group is None else (txn, group)), group
        if given is not None and (len(self._builders) > 1 or txn not in self._builders):
            others = [each for each in self._builders.values() if each.futures and each.key is not txn]
            if not all(each.waits_for_registration for each in others):
                self.flush_nowait()  # a broker that looks for duplicates drops what comes after a higher sequence id
        return txn, None

    def _builder(self, key: object, txn: Enlisting | None, group: str | bytes | None = None) -> Builder:
        return self._builders.get(key) or Builder(key, txn, group)

    def _enlisted(self, txn: Enlisting, messages: int, size: int, builder: Builder) -> Builder:
        """Start the first send of a transaction's batch; the builder is kept unless it refuses."""
        registered = txn.enlist_send(self._core, self._target, messages, size, self)
        self._builders[builder.key] = builder
        builder.sends = txn.sends_to(self._target)
        if builder.fate is None:
            builder.fate = self._fate_of(txn)
        if isinstance(registered, TxnId):
            builder.txn_id = registered
        elif builder.txn_id is None and builder.registering is None:
            builder.registering = registered
            registered.add_done_callback(functools.partial(self._on_registered, builder))
        return builder

    def _fate_of(self, txn: Enlisting) -> Fate:
        fate = self._fates.get(txn)
        if fate is None:
            fate = self._fates[txn] = Fate()
            txn.when_ended(fate.end)
        return fate

    def _give_id(self, sequence_id: int, txn: Enlisting) -> None:
        """The program gives an id to a message; NotAllowedError for a second one of a transaction.

        A broker that looks for repeats would drop it, or refuse it, by what the two contain.
        """
        given = self._fate_of(txn).given
        if sequence_id in given:
            text = f"another message of this transaction has sequence id {sequence_id} on {self.topic}"
            raise self._refused(NotAllowedError(text, hint="give each message an id of its own, or none"), 1, txn)
        given.add(sequence_id)

    def _refused(self, error: PulsarError, messages: int, txn: Enlisting | None) -> PulsarError:
        """The error of messages that never leave; part of a unit is not committed, so their transaction fails with it."""
        if txn is not None and not isinstance(error, AlreadyClosed):
            txn.enlist_send(self._core, self._target, messages, 0, self)
            txn.send_finished(self._target, messages, error)
        return error.with_traceback(None)  # else a failure that is raised again and again holds more and more frames

    def add_encoded(self, batch: EncodedBatch, txn: Enlisting | None) -> SendTicket:
        """Queue a batch built elsewhere, after what was queued before in the same transaction (or in none)."""
        if self._failure is not None:
            raise self._refused(self._failure, batch.num_messages, txn)
        size = len(batch.payload)
        if size > self._sealer.max_message_size:
            text = f"a batch of {size} bytes; the broker takes {self._sealer.max_message_size}"
            raise self._refused(MessageTooLarge(text, hint="split it"), batch.num_messages, txn)
        key = object() if self._keyed else txn
        return self._add_apart(Pending(self._builder(key, txn), [], [], batch.num_messages, size, encoded=batch))

    def _add_apart(self, pending: Pending, future: SendTicket | None = None) -> SendTicket:
        """Queue what shares no batch, after what was queued before."""
        builder, txn = pending.builder, pending.builder.txn
        if txn is not None:
            self._enlisted(txn, pending.messages, pending.size, builder)
            for each in self._builders.values() if self._keyed else ():
                if each.txn is txn:
                    each.txn_id = builder.txn_id  # they may not have been told yet
        if not self._keyed or pending.encoded is not None:
            self.flush_nowait()
        self._builders[builder.key] = builder  # flushing forgets one that is idle then
        if builder.futures:
            builder.complete()
        future = future or self._loop.create_future()
        pending.futures.append(future)
        builder.full.append(pending)
        self._budget.take(pending.messages, pending.size)
        self._seal(builder)
        return future

    def _on_registered(self, builder: Builder, registered: asyncio.Future[TxnId]) -> None:
        builder.registering = None
        error = AlreadyClosed("the transaction was given up") if registered.cancelled() else registered.exception()
        if error is not None:
            self._drop(builder, error)
            return
        builder.txn_id = registered.result()
        self._seal(builder)

    def _schedule(self, builder: Builder) -> None:
        """Its open batch has its first message: have it leave."""
        if builder.waits_for_registration:
            return
        self._builders[builder.key] = self._builders.pop(builder.key)
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
            try:
                self._seal(builder)
            except Exception:
                logger.exception("%s: a batch could not be sent", self.topic)  # those after it can

    def flush_nowait(self) -> None:
        """Send what waits in open batches; messages whose transaction is still registering follow by themselves."""
        for builder in [builder for builder in self._builders.values() if builder.futures or builder.full]:
            self._seal(builder)

    def count_sends(self, txn: object) -> None:
        """See `_enlist.Flushable`."""
        for builder in self._builders.values():
            if builder.txn is txn:
                builder.count()

    def outstanding(self) -> list[asyncio.Future[BaseException | None]]:
        """Send what waits; one future per batch that had no receipt before, of its error or None."""
        for builder in self._builders.values():
            if builder.futures:
                builder.complete()
        batches = [each for each in (*self._asked, *self._pending) if each.messages]
        batches += [each for builder in self._builders.values() for each in builder.full]
        watchers = [each.watch(self._loop) for each in batches]
        self.flush_nowait()
        return watchers

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
            builder.in_flight += 1
            self._send_complete(builder.full.popleft())

    def _send_complete(self, pending: Pending) -> None:
        """Turn it into entries and send them; into two halves, which are the builder's again, when it is too large."""
        builder = pending.builder
        error: Exception | None = builder.lateness()
        if error is None:
            try:
                *chunks, last = self._sealer.sends(pending, self._core.runtime.wall_ms())
            except PulsarError as refused:
                if isinstance(refused, MessageTooLarge) and len(pending.rows) > 1:
                    builder.in_flight -= 1  # what is said of the messages counts for nothing before it is encoded
                    builder.full.extendleft(reversed(pending.halves()))
                    return
                error = refused
        if error is not None:
            self._settle(pending, error)
            return
        for chunk in chunks:
            self._send(pending.chunk(), chunk)
        self._send(pending, last)

    def _send(self, pending: Pending, buffers: list[bytes]) -> None:
        pending.buffers, pending.rows, pending.encoded = buffers, [], None
        alone = not self._pending
        self._pending.append(pending)
        if self._connection is not None:
            pending.written = True
            if alone:  # somebody may wait for just this one; what follows leaves together
                self._connection.write_now(buffers)
            else:
                self._connection.write(buffers)
        timeout = self._options.send_timeout
        pending.deadline = self._core.runtime.monotonic() + timeout if timeout else math.inf
        if alone:
            self._timer.set(pending.deadline)

    # --- answers --------------------------------------------------------------------------------------------------------

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """SEND_RECEIPT: always for the oldest that is in flight, or for one that was given up before."""
        if not self._pending or self._pending[0].sequence_id != sequence_id:
            self._on_odd_receipt(sequence_id)
            return
        pending = self._pending.popleft()
        if pending.messages:
            self.last_sequence_id = pending.highest
            pending.succeed(ledger_id, entry_id, self.partition)
        self._settle(pending, None)

    def _on_odd_receipt(self, sequence_id: int) -> None:
        if any(pending.sequence_id == sequence_id for pending in self._pending) and self._connection is not None:
            # An earlier receipt is missing: only sending all again in order can tell what the broker has.
            self._connection.close(ConnectionLost("a receipt was skipped", endpoint=self._connection.endpoint))

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """SEND_ERROR: the one message fails, or the producer ends, or the connection is made again and all is sent again."""
        if isinstance(error, (ProducerFenced, TopicTerminatedError)):
            self._attachment.fail(error)
        elif error.retriable or isinstance(error, ChecksumError):
            self._last_refusal = self._core.runtime.monotonic(), error
            if self._connection is not None:
                self._connection.close(ConnectionLost(f"a send was refused: {error}", endpoint=self._connection.endpoint))
        else:
            for pending in [each for each in self._pending if each.sequence_id == sequence_id]:  # all chunks of a message
                self._pending.remove(pending)
                txn = pending.builder.txn
                if type(error) is NotAllowedError and txn is not None and txn.may_be_fenced:
                    self._asked[pending] = error
                    self._core.spawn(self._settle_asked(pending, txn, error))
                else:
                    self._settle(pending, error)

    async def _settle_asked(self, pending: Pending, txn: Enlisting, error: NotAllowedError) -> None:
        told: PulsarError = error
        try:
            told = await txn.why_refused(error)
        finally:
            if self._asked.pop(pending, None) is not None:
                self._settle(pending, told)

    def _settle(self, pending: Pending, error: BaseException | None) -> None:
        """The batch is done: futures (on failure), bounds, transaction, and the next batch that waited for this one."""
        builder = pending.builder
        if error is not None:
            pending.fail(error)
            self._budget.failed += pending.messages
        self._budget.give_back(pending.messages, pending.size)
        builder.in_flight -= 1
        for tell in pending.watchers:
            tell(error)
        if builder.txn is not None and pending.messages:
            builder.txn.send_finished(self._target, pending.messages, error)
        if builder.in_flight == 0:
            if builder.futures:
                self._seal(builder)
            elif not builder.full and builder.key is not None and self._builders.get(builder.key) is builder:
                del self._builders[builder.key]

    def _drop(self, builder: Builder, error: BaseException) -> None:
        """Fail what it holds; used when that can never be sent."""
        if (whole := builder.give_up()) is not None:
            self._settle(whole, error)

    def _fail_all(self, error: PulsarError) -> None:
        held = [builder.give_up() for builder in self._builders.values()]  # first: settling what is in flight would send it
        pending, self._pending = self._pending, deque()
        asked, self._asked = self._asked, {}
        for refused, why in asked.items():
            self._settle(refused, why)
        for each in (*pending, *held):
            if each is not None:
                self._settle(each, error)
        self._budget.wake_all()

    def _no_receipt(self, since: float) -> str:
        """The text of a timeout, with what the broker has said meanwhile."""
        text = f"no receipt from {self.topic} within {self._options.send_timeout:g} s"
        refused_at, refusal = self._last_refusal
        return text if refusal is None or refused_at < since else f"{text}; the broker's last answer: {refusal}"

    # --- the one timer ------------------------------------------------------------------------------------------------

    def _on_due(self, now: float) -> None:
        while self._pending and self._pending[0].deadline <= now:
            seconds = self._options.send_timeout
            pending, error = self._pending.popleft(), OperationTimeout(self._no_receipt(now - seconds), maybe_processed=True)
            self._settle(pending, error)
        following = self._pending[0].deadline if self._pending else math.inf
        for builder in list(self._builders.values()):
            if builder.futures and not builder.waits_for_registration:
                if builder.due <= now:
                    self._seal(builder)
                else:
                    following = min(following, builder.due)
        self._timer.set(following)
