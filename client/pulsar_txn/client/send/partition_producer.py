"""The producer of one topic partition: the shell around the machine `state.outgoing`, which says how messages leave.

It performs the machine's effects: it encodes batches, writes to the connection, answers the futures of the program, counts the
operations of transactions, and keeps the one timer. It attaches the producer to its broker, and tells the machine when it did.
There is no task, lock or timer per message.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from weakref import WeakKeyDictionary

from pulsar_txn.client.errors import (
    AlreadyClosed,
    ConnectionLost,
    InvalidConfiguration,
    MessageTooLarge,
    NotAllowedError,
    OperationTimeout,
    PulsarError,
    TransactionAborted,
    TransactionTimedOut,
)
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.net.timer import NearestTimer
from pulsar_txn.client.schema.base import SchemaInfo
from pulsar_txn.client.schema.crypto import Encryptor
from pulsar_txn.client.send import batching
from pulsar_txn.client.send.batching import Alone, EncodedBatch, EntryFactory, SendTicket
from pulsar_txn.client.send.budget import Budget
from pulsar_txn.client.send.options import AccessMode, BatchingType, ProducerOptions, encryptor_for, fields_of
from pulsar_txn.client.state.outgoing import Batch, Effect, Group, Outgoing, Row, Todo, UnitSends, Way, row_payload
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import MAX_MESSAGE_SIZE, command
from pulsar_txn.wire.ids import MessageId, TxnAction, TxnId
from pulsar_txn.wire.lone import LoneSends

logger: Final = logging.getLogger("pulsar_txn.client.producer")

_WRITE: Final = Way.WRITE
_WRITE_NOW: Final = Way.WRITE_NOW
_TURN: Final = Todo.TURN
_new_tuple: Final[Callable[..., Any]] = tuple.__new__


ENTRY_OVERHEAD: Final = 10_000
"""Bytes that metadata may add to a message of the largest size."""

LONE_BYTES: Final = 32 * 1024
"""A payload up to this size is copied after its command, so that one buffer leaves; for a larger one that costs more."""


class Sealer:
    """Encoder of one producer's batches, which have their sequence ids already."""

    def __init__(self, producer_id: int, options: ProducerOptions, encryptor: Encryptor | None) -> None:
        self.max_message_size = MAX_MESSAGE_SIZE
        self._producer_id = producer_id
        self._options = options
        self._encryptor = encryptor
        self._entries = EntryFactory(options.producer_name or "", int(options.compression), b"", encryptor)
        self._lone: LoneSends | None = None
        self._lone_bytes = 0

    def opened(self, producer_name: str, schema_version: bytes, max_message_size: int) -> None:
        """Take over what the broker said when it made the producer."""
        options = self._options
        self._entries = EntryFactory(producer_name, int(options.compression), schema_version, self._encryptor)
        self.max_message_size = max_message_size
        if not (options.compression or options.chunking or self._encryptor):
            self._lone = LoneSends(self._producer_id, producer_name, schema_version)
            self._lone_bytes = min(max_message_size, LONE_BYTES)

    def lone(self, batch: Batch, wall_ms: int) -> bytes | None:
        """The SEND of one message that is nothing but its payload; None for others."""
        rows, lone = batch.rows, self._lone
        if lone is None or len(rows) != 1 or batch.alone is not None:
            return None
        payload = rows[0]
        if not isinstance(payload, bytes) or len(payload) > self._lone_bytes:
            return None
        unit = batch.group.unit
        return lone.encode(batch.sequence_id, wall_ms, payload, None if unit is None else unit.txn_id)

    def sends(self, batch: Batch, wall_ms: int) -> list[list[bytes]]:
        """The buffers of one SEND, or of those of all chunks of a large message.

        Raises MessageTooLarge, CryptoError, and InvalidConfiguration for what cannot be encoded.
        """
        try:
            if (frame := self.lone(batch, wall_ms)) is not None:
                return [[frame]]
            unit = batch.group.unit
            txn_id = None if unit is None else unit.txn_id
            entries = self._entries_of(batch, txn_id, wall_ms)
            return [self._send(batch, txn_id, entry, is_chunk=len(entries) > 1) for entry in entries]
        except PulsarError:
            raise
        except Exception as error:
            text = f"a message cannot be encoded: {error!r}"
            raise InvalidConfiguration(text, hint="every message of its batch fails with it") from error

    def _send(self, batch: Batch, txn_id: TxnId | None, entry: bytes, *, is_chunk: bool) -> list[bytes]:
        return hot.encode_send(
            self._producer_id,
            batch.sequence_id,
            batch.messages,
            entry,
            txn=txn_id,
            highest_sequence_id=batch.highest if batch.highest != batch.sequence_id else None,
            is_chunk=is_chunk,
        )

    def _entries_of(self, batch: Batch, txn_id: TxnId | None, wall_ms: int) -> list[bytes]:
        options, rows = self._options, batch.rows
        limit = min(options.chunk_max_bytes or self.max_message_size, self.max_message_size)
        if not options.chunking or len(rows) != 1 or len(row_payload(rows[0])) < limit // 2:
            return [self._entry(batch, txn_id, wall_ms)]
        return self._entries.chunks(rows[0], batch.sequence_id, wall_ms, txn_id, batch.alone, limit)

    def _entry(self, batch: Batch, txn_id: TxnId | None, wall_ms: int) -> bytes:
        rows, first, last = batch.rows, batch.sequence_id, batch.highest
        if batch.encoded is not None:
            entry = self._entries.encoded(batch.encoded, first, last, wall_ms, txn_id)
        elif len(rows) == 1:
            entry = self._entries.single(rows[0], first, wall_ms, txn_id, batch.alone)
        else:
            entry = self._entries.batch(rows, first, last, wall_ms, txn_id, batch.group.name)
        if len(entry) > self.max_message_size + ENTRY_OVERHEAD:
            raise MessageTooLarge(f"{len(entry)} bytes; the broker takes {self.max_message_size}", hint="split the message")
        return entry


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
        self.topic_epoch: int | None = None
        self._core = core
        self._options = options
        self._budget = budget
        self._schema = schema
        self._keyed = options.batching and options.batching_type is BatchingType.KEY_BASED
        self._machine = Outgoing(
            topic,
            max_messages=options.batching_max_messages if options.batching else 1,
            max_bytes=options.batching_max_bytes,
            delay=options.batching_max_delay,
            send_timeout=options.send_timeout,
            keyed=self._keyed,
            first_sequence_id=options.initial_sequence_id,
        )
        self._performs = False
        self._epoch = 0
        self._connection: Connection | None = None
        self._sealer = Sealer(self.id, options, encryptor_for(options, core.runtime))
        self._units: WeakKeyDictionary[Unit, UnitSends] = WeakKeyDictionary()
        self._registering: set[UnitSends] = set()
        self._timer = NearestTimer(core.runtime, self._on_due)
        self._loop = asyncio.get_running_loop()
        self._attachment = Attachment(core, topic, self)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Create the producer at its broker. With WAIT_FOR_EXCLUSIVE this waits for as long as it takes."""
        waits = self._options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
        try:
            await self._attach(Retries(self._core, f"opening {self.topic}", math.inf if waits else None))
        except BaseException:
            self._attachment.close()
            raise

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that has a receipt; -1 before the first."""
        return self._machine.last_sequence_id

    @property
    def is_connected(self) -> bool:
        """True while the broker knows this producer."""
        return self._connection is not None

    async def close(self) -> None:
        """Send what waits, wait for the receipts (at most the operation timeout), leave the broker. Idempotent."""
        if isinstance(self._machine.failure, AlreadyClosed):
            return
        outstanding = self.outstanding()
        self._machine.refuse(AlreadyClosed(f"the producer of {self.topic} is closed"))
        try:
            if outstanding:
                await asyncio.wait(outstanding, timeout=self._core.settings.operation_timeout)
        finally:  # also when cancelled: nobody would close it again
            connection, self._connection = self._connection, None
            self._attachment.close()
            self._timer.cancel()
            left = None if connection is None else self._close_on(connection)
            self._fail(AlreadyClosed("the producer was closed before the receipt came"))
        if left is not None:
            await asyncio.wait([left])

    def _close_on(self, connection: Connection) -> asyncio.Future[Any]:
        """Say goodbye; whatever the answer is: the producer is gone, or its connection is."""
        connection.drop_producer(self.id)
        request = connection.request("close_producer", self._core.next_request_id(), producer_id=self.id)
        request.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return request

    async def _attach(self, attempts: AbstractAsyncContextManager[None, bool]) -> None:
        while self._attachment.is_wanted:
            async with attempts:
                async with self._attachment.opening() as connection:
                    answer = await self._create(connection)
                if self._attachment.connection is connection:
                    self._opened(connection, answer)
                return

    async def _attach_again(self) -> None:
        try:
            await self._attach(self._attachment.attempts())
        except PulsarError as error:
            self._give_up(error)

    async def _create(self, connection: Connection) -> Any:
        """The broker's answer to PRODUCER."""
        connection.add_producer(self.id, self)
        self._epoch += 1
        try:
            # The deadline is the attachment's; WAIT_FOR_EXCLUSIVE lifts it once the broker has put us in the queue.
            request_id = self._core.next_request_id()
            if self._options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
                connection.wait_for_exclusive(request_id)
            fields = fields_of(self._options, self._schema, self.name, self.topic_epoch)
            fields |= {"topic": self.topic, "producer_id": self.id, "epoch": self._epoch - 1, "txn_enabled": True}
            answer = await connection.request("producer", request_id, **fields)
            self._check_gaps(connection, answer)
        except BaseException as error:
            connection.drop_producer(self.id)
            if isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                # The broker may still create it, and would then refuse its own name to us.
                connection.write([command("close_producer", producer_id=self.id, request_id=self._core.next_request_id())])
            raise
        if connection.closed or connection.producers.get(self.id) is not self:
            raise ConnectionLost("the producer was closed while it opened", endpoint=connection.endpoint)
        return answer

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
        self._sealer.opened(self.name, answer.schema_version, connection.max_message_size)
        self._connection = connection
        for group in self._machine.in_transactions():
            self._look_at(group)
        self._machine.opened(
            answer.last_sequence_id,
            min(self._options.batching_max_bytes, connection.max_message_size),
            deduplicates=answer.last_sequence_id >= 0 or connection.features.supports_txn_deduplication,
        )
        self._perform()

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection has ended."""
        del error
        if self._attachment.lost(connection):
            self._lost()

    def _lost(self) -> None:
        self._connection = None
        self._machine.lost()
        self._attachment.run(self._attach_again())

    def on_closed_by_broker(self) -> None:
        """CLOSE_PRODUCER: the topic moves; look it up again."""
        if self._attachment.leave():
            self._lost()

    def _give_up(self, error: PulsarError) -> None:
        """End for ever."""
        if self._attachment.fail(error):
            self._connection = None
            self._fail(error)

    def _fail(self, error: PulsarError) -> None:
        self._machine.fail(error)
        self._perform()
        self._budget.wake_all()

    def takes(self, size: int) -> bool:
        """True when a message of so many bytes would be queued."""
        return self._machine.failure is None and size <= self._sealer.max_message_size

    # --- adding -----------------------------------------------------------------------------------------------------

    def add(self, message: Row, txn: Unit | None, alone: Alone | None = None, future: SendTicket | None = None) -> SendTicket:
        """Queue one message, with its future if that is there already.

        Raises its failure, MessageTooLarge, or the transaction's refusal; then nothing is queued. A failure (except for being
        closed) and MessageTooLarge doom the transaction, as a refusal by the broker would.
        """
        machine = self._machine
        if machine.failure is not None:
            raise self._refused(machine.failure, 1, txn)
        message, size = (message, len(message)) if isinstance(message, bytes) else batching.sized(message)
        if size > self._sealer.max_message_size and not self._options.compression and not self._options.chunking:
            text = f"{size} bytes; the broker takes {self._sealer.max_message_size}"
            raise self._refused(MessageTooLarge(text, hint="use chunking=True, split it, or compress"), 1, txn)
        if machine.max_messages == 1 and txn is None and alone is None:
            return self._send_lone(message, size, future or self._loop.create_future())
        unit = None if txn is None else self._units.get(txn) or self._unit(txn)
        if not isinstance(message, bytes):
            try:
                machine.check(message, unit)
            except NotAllowedError as error:
                raise self._refused(error, 1, txn) from None
            self._perform()
        group = machine.group(message, unit, txn)
        if alone is not None:
            return self._add_apart(group, [message], future, 1, size, alone)
        if not machine.has_room(group, size):
            self._leave(group)
            group = machine.group(message, unit, txn)  # another one when what it held could not be sent
        if txn is not None and (group.batch is None or not txn.usable):
            self._enlist(group, 1, size)
        future = future or self._loop.create_future()
        self._budget.take(1, size)
        todo = machine.add(group, message, size, future)
        if todo is _TURN:
            self._loop.call_soon(self._on_turn)
        elif todo:
            self._follow(todo, group)
        return future

    def _follow(self, todo: Todo, group: Group) -> None:
        if todo is Todo.LEAVE:
            self._leave(group)
        else:
            self._machine.collects(group, self._core.runtime.monotonic())
            self._perform()

    def _send_lone(self, message: Row, size: int, future: SendTicket) -> SendTicket:
        """Send a message that waits neither for others nor for a transaction."""
        self._budget.take(1, size)
        batch = self._machine.lone(message, size, future)
        frame = self._sealer.lone(batch, self._core.runtime.wall_ms())
        if frame is None:
            self._seal(batch)
        else:
            self._write(batch, [frame])
        if self._machine.effects:
            self._perform()
        return future

    def add_encoded(self, batch: EncodedBatch, txn: Unit | None) -> SendTicket:
        """Queue a batch built elsewhere, after what was queued before in the same transaction (or in none)."""
        machine = self._machine
        if machine.failure is not None:
            raise self._refused(machine.failure, batch.num_messages, txn)
        size = len(batch.payload)
        if size > self._sealer.max_message_size:
            text = f"a batch of {size} bytes; the broker takes {self._sealer.max_message_size}"
            raise self._refused(MessageTooLarge(text, hint="split it"), batch.num_messages, txn)
        unit = None if txn is None else self._units.get(txn) or self._unit(txn)
        group = machine.group_of_encoded(unit, txn)
        return self._add_apart(group, [], None, batch.num_messages, size, encoded=batch)

    def _add_apart(
        self,
        group: Group,
        rows: list[Row],
        future: SendTicket | None,
        messages: int,
        size: int,
        alone: Alone | None = None,
        encoded: EncodedBatch | None = None,
    ) -> SendTicket:
        """Queue what shares no batch, after what was queued before."""
        if group.unit is not None:
            self._enlist(group, messages, size)
        if not self._keyed or encoded is not None:
            self.flush_nowait()
        future = future or self._loop.create_future()
        self._budget.take(messages, size)
        self._machine.apart(group, rows, future, messages, size, alone, encoded)
        self._perform()
        return future

    def _unit(self, txn: Unit) -> UnitSends:
        unit = self._units[txn] = UnitSends()  # which does not hold it: what the program drops is collected
        txn.when_ended(functools.partial(self._on_ended, unit))
        return unit

    def _on_ended(self, unit: UnitSends, _outcome: TxnAction | None) -> None:
        """A transaction has ended, or can no longer be used; its sends are answered before a commit."""
        error = TransactionAborted("the transaction was over before the message could leave", txn_id=unit.txn_id)
        self._machine.over(unit, error)

    def _look_at(self, group: Group) -> None:
        """See whether the time of a group's transaction is over; a program that computes holds its timer up."""
        unit = group.unit
        if unit is not None and not group.txn.in_time():
            text = "the transaction was over before the message could leave"
            self._machine.over(unit, TransactionTimedOut(text, txn_id=unit.txn_id))

    def _enlist(self, group: Group, messages: int, size: int) -> None:
        """Tell the transaction of the first message of a batch; nothing is queued when it refuses."""
        registered, unit = group.txn.enlist_send(self._core, self._target, messages, size, self), group.unit
        if unit is None or unit.txn_id is not None:
            return
        if isinstance(registered, TxnId):
            self._machine.registered(unit, registered)
        elif unit not in self._registering:
            self._registering.add(unit)
            registered.add_done_callback(functools.partial(self._on_registered, unit))

    def _on_registered(self, unit: UnitSends, registered: asyncio.Future[TxnId]) -> None:
        self._registering.discard(unit)
        error = AlreadyClosed("the transaction was given up") if registered.cancelled() else registered.exception()
        if error is not None:
            self._machine.unregistered(unit, error)
        else:
            self._machine.registered(unit, registered.result())
        self._perform()

    def _refused(self, error: PulsarError, messages: int, txn: Unit | None) -> PulsarError:
        """The error of messages that never leave; part of a unit is not committed, so their transaction fails with it."""
        if txn is not None and not isinstance(error, AlreadyClosed):
            txn.enlist_send(self._core, self._target, messages, 0, self)
            txn.send_finished(self._target, messages, error)
        return error.with_traceback(None)  # else a failure that is raised again and again holds more and more frames

    def flush_nowait(self) -> None:
        """Send what waits in open batches; messages whose transaction is still registering follow by themselves."""
        self._machine.flush()
        self._perform()

    def count_sends(self, txn: object) -> None:
        """See `enlist.Flushable`."""
        unit = self._units.get(txn)  # type: ignore[call-overload]  # `Flushable` says only that it is one
        if unit is not None:
            self._machine.count(unit)
            self._perform()

    def outstanding(self) -> list[asyncio.Future[BaseException | None]]:
        """Send what waits; one future per batch that had no receipt before, of its error or None."""
        watchers: list[asyncio.Future[BaseException | None]] = []
        for batch in self._machine.outstanding():
            watchers.append(self._loop.create_future())
            self._machine.watch(batch, watchers[-1])
        self.flush_nowait()
        return watchers

    # --- the machine's effects --------------------------------------------------------------------------------------

    def _leave(self, group: Group) -> None:
        """Encode and send everything that a group holds, if its transaction is registered."""
        self._seal_all(group)
        self._perform()

    def _seal_all(self, group: Group) -> None:
        if group.unit is not None:
            self._look_at(group)
        while (batch := self._machine.seal(group)) is not None:
            self._seal(batch)
            if not group.full:
                break

    def _try_to_seal(self, group: Group) -> None:
        try:
            self._seal_all(group)
        except Exception:
            logger.exception("%s: a batch could not be sent", self.topic)  # those after it can

    def _seal(self, batch: Batch) -> None:
        machine = self._machine
        try:
            sends = self._sealer.sends(batch, self._core.runtime.wall_ms())
        except PulsarError as error:
            machine.unsealable(batch, error)
            return
        if len(sends) > 1:
            for chunk, buffers in zip(machine.chunks(batch, len(sends) - 1), sends, strict=False):
                self._write(chunk, buffers)
        self._write(batch, sends[-1])

    def _write(self, batch: Batch, buffers: list[bytes]) -> None:
        way = self._machine.leaves(batch, buffers, self._core.runtime.monotonic())
        if way is _WRITE_NOW:
            self._connection.write_now(buffers)  # type: ignore[union-attr]  # the machine says so only while there is one
        elif way is _WRITE:
            self._connection.write(buffers)  # type: ignore[union-attr]  # the same

    def _perform(self) -> None:
        """Perform the effects in their order; those that come meanwhile follow."""
        machine = self._machine
        if self._performs or not machine.effects:
            return
        self._performs = True
        try:
            while machine.effects:
                for effect in machine.taken():
                    self._do(effect)
        finally:
            self._performs = False

    def _do(self, effect: tuple[Any, ...]) -> None:
        kind = effect[0]
        if kind is Effect.WRITE:
            if self._connection is not None:
                self._connection.write(effect[1])
        elif kind is Effect.ENDED:
            self._failed(effect[1], effect[2])
        elif kind is Effect.LEAVE:
            self._try_to_seal(effect[1])
        elif kind is Effect.AT:
            self._timer.set(effect[1])
        elif kind is Effect.COUNT:
            effect[1].txn.enlist_more(self._target, effect[2], effect[3])
        else:
            self._do_rarely(kind, *effect[1:])

    def _do_rarely(self, kind: Effect, about: Any, error: Any = None) -> None:
        if kind is Effect.AGAIN:
            about.txn.sent_again()
        elif kind is Effect.WATCHED:
            about.set_result(error)
        elif kind is Effect.ASK:
            if about.group.txn.may_be_fenced:
                self._core.spawn(self._find_out(about, about.group.txn, error))
            else:
                self._machine.told(about, error)
        elif kind is Effect.STOP:
            self._give_up(about)
        elif self._connection is not None:
            about.endpoint = self._connection.endpoint
            self._connection.close(about)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Give every message the error; a transaction reports that, and asyncio need not complain of it."""
        messages, txn = batch.messages, batch.group.txn
        for future in batch.futures:
            if not future.done():
                future.set_exception(error)
                if txn is not None:
                    future.exception()
        self._budget.count_failed(messages)
        self._budget.give_back(messages, batch.size)
        if txn is not None and messages:
            txn.send_finished(self._target, messages, error)

    def _succeed(self, futures: list[SendTicket], size: int, ledger_id: int, entry_id: int) -> None:
        partition = self.partition
        if len(futures) == 1:  # one message, or a batch built elsewhere
            if not futures[0].done():
                futures[0].set_result(_new_tuple(MessageId, (ledger_id, entry_id, partition, -1, size if size > 1 else 0)))
            return
        for index, future in enumerate(futures):
            if not future.done():
                future.set_result(_new_tuple(MessageId, (ledger_id, entry_id, partition, index, size)))

    async def _find_out(self, batch: Batch, txn: Unit, error: NotAllowedError) -> None:
        told: PulsarError = error
        try:
            told = await txn.why_refused(error)
        finally:
            self._machine.told(batch, told)
            self._perform()

    # --- what the connection and the loop say -------------------------------------------------------------------------

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """SEND_RECEIPT: always for the oldest that is in flight, or for one that was given up before."""
        machine = self._machine
        batch = machine.receipt(sequence_id)
        if batch is not None:
            messages, txn = batch.messages, batch.group.txn
            if messages:
                self._succeed(batch.futures, messages, ledger_id, entry_id)
            self._budget.give_back(messages, batch.size)
            if txn is not None and messages:
                txn.send_finished(self._target, messages, None)
        if machine.effects:
            self._perform()

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """SEND_ERROR: the one message fails, or the producer ends, or the connection is made again and all is sent again."""
        self._machine.refused(sequence_id, error, self._core.runtime.monotonic())
        self._perform()

    def _on_turn(self) -> None:
        for group in self._machine.turn_ends():
            self._try_to_seal(group)
        self._perform()

    def _on_due(self, now: float) -> None:
        self._machine.expire(now)
        self._perform()
