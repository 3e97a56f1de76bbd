"""The consumer of one topic partition: the shell around the machine of a delivery.

It unpacks what arrives, tells `state.delivery.DeliveryMachine`, and performs what that answers: frames to the broker, messages
into the queue, timers. Here are also the requests that somebody waits for: acknowledgements in transactions or with a receipt,
seeks, and questions about the place of the subscription.

An acknowledgement in a transaction registers the subscription, looks for conflicts of our own, is sent, and waits for its
answer. It is sent again when the connection was lost before the answer came. A broker that has not seen the first one takes
the second. One that has says yes again, because it knows the key, or, as stock brokers do, refuses it: then nobody knows
whether the first one was taken, and the transaction cannot commit. In either case it has done with the first, so that an abort
cannot overtake that any more: a stock broker would keep the message as pending in a transaction that has ended. For the same
reason nothing is sent after the transaction is over, and a call that is cancelled ends with its answer.

Entries may wait here, in order, for a key (`_held`) or a schema (`writers`), before the machine is asked who gets their
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import attrs
from google.protobuf.message import DecodeError

from pulsar_txn.client.errors import (
    ConnectionLost,
    CryptoError,
    InvalidConfiguration,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    TransactionConflict,
    TransactionTimedOut,
)
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.retries import Retries
from pulsar_txn.client.receive.channel import Channel
from pulsar_txn.client.receive.committed import CommittedPosition, ask_committed
from pulsar_txn.client.receive.dead_letters import DeadLetters
from pulsar_txn.client.receive.entry_verification import BeyondUsError, checked, decompressed, permits_of, why_discarded
from pulsar_txn.client.receive.inbox import Inbox, Post
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID, Entry, Message, single_row
from pulsar_txn.client.receive.options import ConsumerOptions, ConsumerType, InitialPosition
from pulsar_txn.client.receive.subscribe_fields import message_id_of, order_of, seek_field, start_field, subscribe_fields
from pulsar_txn.client.receive.writer_schemas import WriterSchemas
from pulsar_txn.client.schema.base import PairSchema, Schema, WrittenSchema
from pulsar_txn.client.schema.crypto import CryptoFailureAction, Decryptor, KeyComing
from pulsar_txn.client.state import effects as do
from pulsar_txn.client.state.acknowledgements import Request, Share
from pulsar_txn.client.state.delivery import ACKS_PER_FRAME, DeliveryMachine, DeliveryOptions, Start
from pulsar_txn.client.state.effects import Timer
from pulsar_txn.client.state.owners import Delivery, Hold, MessagePosition, Owners, State
from pulsar_txn.client.state.redelivery import Bits
from pulsar_txn.client.state.rewinds import Turn
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import decode_batch
from pulsar_txn.wire.entries import BROKER_MAGIC, broker_metadata, split_entry
from pulsar_txn.wire.errors import MalformedBatch, WireError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import MessageId, Position, TxnAction, TxnId, ack_set_from_words

logger = logging.getLogger("pulsar_txn.client.consumer")

MAX_OVERRUN: Final = 10_000
"""Entries in a row (one more for each 50 KiB of theirs) that may come while the queue is full already."""

_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_SHARES: Final[WeakKeyDictionary[Unit, list[tuple[str, str, Owners, Share]]]] = WeakKeyDictionary()
"""Acknowledgements of each open transaction in every partition: topic, subscription, the table of a consumer. See `Units`."""


@attrs.frozen(kw_only=True)
class Common:
    """State that the partitions of one consumer share."""

    core: Core
    inbox: Inbox[Any]
    subscription: str
    consumer_name: str
    schema: Schema[Any]
    letters: DeadLetters | None
    failed: Callable[[PartitionConsumer, PulsarError], None]
    """Called with a partition that will never receive again."""


class _Answer:
    """Waiter for the answer to an acknowledgement: the machine has to know it before it sees what comes behind it."""

    __slots__ = ("_taken", "future")

    def __init__(self, taken: Callable[[], None]) -> None:
        self._taken = taken
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        """True if nobody waits any more."""
        return self.future.done()

    def set_result(self, body: Any, /) -> None:
        """The broker has taken it."""
        self._taken()
        self.future.set_result(body)

    def set_exception(self, error: PulsarError, /) -> None:
        """The broker has refused it, or nobody knows."""
        self.future.set_exception(error)


class _Asked:
    """One acknowledgement in a transaction, while it is carried out."""

    __slots__ = ("answer", "is_finished", "positions", "request", "share", "txn")

    def __init__(self, request: Request, positions: Sequence[MessagePosition], share: Share, txn: Unit) -> None:
        self.request = request
        self.positions = positions
        self.share = share
        self.txn = txn
        self.answer: asyncio.Future[Any] | None = None
        self.is_finished = False
        """True if the transaction was told how it ended."""


class PartitionConsumer:
    """Receives from one partition (or a topic without partitions, `partition` -1) into the inbox of its consumer."""

    def __init__(self, common: Common, topic: str, partition: int, options: ConsumerOptions) -> None:
        core = common.core
        self.topic = topic
        self.partition = partition
        self.schema = common.schema
        self.reached_end = False
        self.last: Message[Any] | None = None
        """Message that was handed out last."""
        self.taken_in_threads = 0
        """Messages that threads of the blocking client have taken, and whose permits nobody has given back yet."""
        self.inbox = common.inbox
        self.channel = Channel(
            core,
            topic,
            partition,
            common.subscription,
            options,
            self,
        )
        self.id = self.channel.id
        self.machine = DeliveryMachine(topic, partition, delivery_options(options))
        self.owners = self.machine.owners
        """Owner of each message; to be asked, not changed."""
        self._effects = self.machine.effects
        self._common = common
        self._options = options
        self._single = options.consumer_type.is_single
        self._monotonic = core.runtime.monotonic
        self._timers: dict[object, asyncio.Handle] = {}
        self._is_closed = False
        self._overrun = 0
        self._seeking: asyncio.Future[None] | None = None
        """Done when the subscription was moved."""
        self._moved_by_us = False
        self._warned_of_beyond = False
        self._shares: WeakKeyDictionary[Unit, Share] = WeakKeyDictionary()
        self._acknowledging: WeakSet[Unit] = WeakSet()
        """Transactions whose end is told here, because something was acknowledged in them."""
        self._decryptor = Decryptor(options.crypto_keys)
        self._held: deque[hot.Message] = deque()
        self.pairs: PairSchema | None = self.schema if isinstance(self.schema, PairSchema) else None
        self.writers: WriterSchemas[Any] | None = None
        if isinstance(self.schema, WrittenSchema):
            self.writers = WriterSchemas(self.channel, self.schema, self._queue)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe; raises the last error when the operation timeout is over."""
        try:
            await self._attach(Retries(self.channel.core, f"opening {self.topic}"))
        except BaseException:
            self.channel.close()
            raise

    @property
    def is_connected(self) -> bool:
        """True if the broker knows this consumer at this moment."""
        return self.channel.connection is not None

    @property
    def is_active(self) -> bool:
        """True if the broker delivers to this consumer; on Failover only to one of them."""
        return self.machine.redelivery.is_active

    @property
    def tenure(self) -> int:
        """Count of the moments at which others may have got messages of this subscription."""
        return self.machine.redelivery.tenure

    def stop(self) -> None:
        """Do nothing more by itself; closing brings back what would be asked for."""
        self._is_closed = True
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    async def close(self) -> None:
        """Send the acknowledgements that wait and leave the broker; idempotent."""
        self.machine.flush_acks()
        self._perform()
        connection = self.channel.close()
        self.stop()
        self.machine.close()
        self._perform()
        self._drop_held()
        if self.writers is not None:
            self.writers.drop()
        if connection is None or not connection.drop_consumer(self.id):
            return
        request = connection.request("close_consumer", self.channel.core.next_request_id(), consumer_id=self.id)
        await asyncio.wait([request])
        if not request.cancelled():
            request.exception()  # whatever it says: the consumer is gone, or its connection is

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription; raises the broker's error when other consumers use it."""
        connection = await self.channel.connected("unsubscribe")
        await self.channel.ask(connection, "unsubscribe", force=force)

    async def _attach(self, attempts: AbstractAsyncContextManager[None, bool]) -> None:
        while self.channel.is_wanted:
            async with attempts:
                async with self.channel.opening() as connection:
                    await self._subscribe(connection)
                if self.channel.connection is connection:
                    self.machine.opened()
                    self._perform()
                return

    async def _attach_again(self) -> None:
        try:
            await self._attach(self.channel.attempts())
        except PulsarError as error:
            self._fail(error)

    async def _subscribe(self, connection: Connection) -> None:
        if self._seeking is not None:
            await asyncio.shield(self._seeking)  # the broker refuses subscribers while it moves the subscription
        with self.inbox.guard:
            self.machine.subscribes_again(None if self.last is None else self.last.message_id)
            self._perform()
            self.taken_in_threads = 0
        moved, self._moved_by_us = self._moved_by_us, False
        connection.add_consumer(self.id, self)
        subscribed = False
        try:
            await connection.request("subscribe", self.channel.core.next_request_id(), **self._subscribe_fields())
            subscribed = True
            if not moved:
                await self._return_to_time(connection)
        except BaseException as error:
            connection.drop_consumer(self.id)
            if subscribed or isinstance(error, OperationTimeout) or not isinstance(error, PulsarError):
                # The broker may still do it, and an exclusive subscription would then stay taken by nobody.
                request_id = self.channel.core.next_request_id()
                connection.write([command("close_consumer", consumer_id=self.id, request_id=request_id)])
            raise
        if connection.closed or connection.consumers.get(self.id) is not self:
            raise ConnectionLost("the consumer was closed while it opened", endpoint=connection.endpoint)

    def _subscribe_fields(self) -> dict[str, Any]:
        channel, machine = self.channel, self.machine
        names = {"topic": channel.topic, "subscription": channel.subscription, "consumer_name": self._common.consumer_name}
        start = None if self._options.durable else start_field(machine.start or Start(LATEST_ID))
        epoch = {"consumer_epoch": machine.redelivery.epoch} if self._single else {}
        return names | {"consumer_id": self.id} | subscribe_fields(self._options, self.schema.info, start) | epoch

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection has ended."""
        del error
        if self.channel.lost(connection):
            self._lost()

    def _lost(self) -> None:
        self.machine.lost()
        self.channel.run(self._attach_again())

    def _fail(self, error: PulsarError) -> None:
        """End for ever."""
        if self.channel.fail(error):
            self.machine.close()
            self._perform()
            self._common.failed(self, error)

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the topic moves, or the subscription was moved; subscribe again."""
        self._moved_by_us = self._seeking is not None
        if self.channel.leave(planned=self._moved_by_us):
            self._lost()

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE."""
        self.machine.active_change(is_active=is_active)
        self._perform()

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC."""
        self.reached_end = True

    # --- receiving ----------------------------------------------------------------------------------------------------

    def on_message(self, frame: hot.Message) -> None:
        """MESSAGE: check, unpack, queue."""
        if self._held:
            self._hold(frame)
            return
        _, ledger_id, entry_id, _, redelivery_count, ack_words, epoch, data = frame
        position = (ledger_id, entry_id)
        try:
            broker = broker_metadata(data) if data[:2] == BROKER_MAGIC else None
            head, payload = split_entry(data)
            metadata = pb.MessageMetadata.FromString(head)
            batch_size = checked(metadata)
        except (WireError, DecodeError) as error:
            self._discard(position, why_discarded(error), 1, error)
            return
        count = batch_size or 1
        live = (1 << count) - 1
        if ack_words and batch_size:
            live &= ack_set_from_words(ack_words)
        size = len(data)
        self._on_overrun(size)
        now = self._monotonic() if self._single else 0.0
        turn = self.machine.came(position, live, count, size, epoch, now)
        if turn is Turn.REWOUND:
            logger.info("%s was rewound by the server; what was queued is dropped, it comes again", self.topic)
            self._perform()
            turn = self.machine.turn(position, live, count, now)
        if turn is Turn.NOW:
            self._unpack(frame, metadata, payload, Entry(self, position, metadata, batch_size, redelivery_count, broker), live)
        if self._effects:
            self._perform()

    def _unpack(
        self,
        frame: hot.Message,
        metadata: pb.MessageMetadata,
        payload: bytes | memoryview,
        entry: Entry,
        live: int,
    ) -> None:
        """Decrypt, put together, decompress and split an entry whose turn it is."""
        position, batch_size = entry.position, entry.batch_size
        count = batch_size or 1
        if metadata.encryption_keys:
            opened = self._decrypted(frame, entry, payload, count)
            if opened is None:
                return
            payload = opened
        if metadata.num_chunks_from_msg > 1:
            whole = self.machine.chunk(position, metadata, payload, self._monotonic())
            if whole is None:
                self.machine.give_permits_back(count)
                return
            payload = whole
        rows = self._rows(position, metadata, payload, batch_size)
        if rows is None:
            self.machine.give_permits_back(min(count, self._options.receiver_queue_size))
            return
        if self.writers is None or not self.writers.holds(entry, rows, live):
            self._queue(entry, rows, live)

    def _rows(
        self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview, batch_size: int
    ) -> Sequence[Any] | None:
        """The messages of an entry; None when it is damaged, and discarded, or not for us, and left."""
        try:
            plain = decompressed(metadata, payload, self._options.max_uncompressed_bytes)
            return decode_batch(plain, batch_size) if batch_size else [single_row(metadata, bytes(plain))]
        except BeyondUsError as error:
            self._leave(position, error)
        except (MalformedBatch, UnicodeDecodeError) as error:
            reason = pb.CommandAck.DecompressionError if metadata.compression else pb.CommandAck.BatchDeSerializeError
            self._discard(position, reason, 0, error)
        return None

    def _leave(self, position: Position, error: BeyondUsError) -> None:
        """An entry that is fine, but not for this program: it stays with the broker, for one that takes it."""
        self.machine.leave(position)
        level = logging.WARNING if self._warned_of_beyond else logging.ERROR
        self._warned_of_beyond = True
        text = "%s %s stays unacknowledged, and is not handed out: %s; or acknowledge its id to be rid of it"
        logger.log(level, text, self.topic, position, error)

    def _decrypted(self, frame: hot.Message, entry: Entry, payload: bytes | memoryview, count: int) -> bytes | None:
        """The payload; None when it has to wait for its key, or cannot be had."""
        try:
            return self._decryptor.open(entry.metadata, payload)
        except KeyComing as coming:
            self.machine.waits(entry.position)
            self._hold(frame)
            waiting = asyncio.gather(*coming.answers, return_exceptions=True)
            waiting.add_done_callback(functools.partial(self._release, self._held))
        except CryptoError as error:
            self._undecrypted(entry, payload, count, error)
        return None

    def _hold(self, frame: hot.Message) -> None:
        """A key is being fetched: this one and those after it wait, so that their order is kept."""
        self._held.append(frame)
        self._on_overrun(len(frame[7]))

    def _release(self, held: deque[hot.Message], _answers: object) -> None:
        if held is self._held:  # else they were dropped, and come again
            self._held = deque()
            self.machine.waited()
            for frame in held:
                self.on_message(frame)

    def _drop_held(self) -> int:
        """Forget what waits for a key; how many permits that were."""
        held, self._held = self._held, deque()
        return sum(permits_of(frame[7]) for frame in held)

    def _on_overrun(self, size: int) -> None:
        """More than was allowed. A little is usual, because brokers estimate; a lot would fill the memory."""
        queue_size = self._options.receiver_queue_size
        queued = len(self.inbox.queue) + len(self._held) + self.machine.debt
        if queued < queue_size or queued < queue_size * self.inbox.sources:
            self._overrun = 0
            return
        self._overrun += 1 + size // (50 * 1024)
        if self._overrun > MAX_OVERRUN and self.channel.connection is not None:
            self._overrun = 0
            endpoint = self.channel.connection.endpoint
            text = f"{self.topic}: the broker sends far more than it was allowed"
            self.channel.connection.close(RemoteProtocolError(text, endpoint=endpoint, retriable=True))

    def _undecrypted(self, entry: Entry, payload: bytes | memoryview, count: int, error: CryptoError) -> None:
        """An entry that cannot be decrypted, as `crypto_failure_action` says."""
        action = self._options.crypto_failure_action
        if action is CryptoFailureAction.DISCARD:
            self._discard(entry.position, pb.CommandAck.DecryptionError, count, error)
            return
        if action is CryptoFailureAction.CONSUME:
            whole = Entry(self, entry.position, entry.metadata, 0, entry.redelivery_count, undecrypted=True)
            self.machine.give_permits_back(count - 1)
            self._queue(whole, [single_row(entry.metadata, bytes(payload))], 1)
            return
        logger.error("message %s %s cannot be decrypted and stays unacknowledged: %s", self.topic, entry.position, error)
        self.machine.leave(entry.position)
        self.machine.give_permits_back(count)

    def _queue(self, entry: Entry, rows: Sequence[Any], live: int) -> None:
        """Queue the messages of an entry that nobody here has."""
        size = entry.batch_size
        delivery, live = self.machine.admit(entry.position, size, live)
        entry.admitted(delivery)
        if not size:
            messages: list[Message[Any]] = [Message(entry, -1, rows[0])] if live else []
        elif live == (1 << size) - 1:
            messages = [Message(entry, index, row) for index, row in enumerate(rows) if not row[7]]
        else:
            messages = [Message(entry, index, row) for index, row in enumerate(rows) if live >> index & 1 and not row[7]]
        if messages and self._is_buried(entry, messages):
            messages = []
        skipped = len(rows) - len(messages)
        if messages and self.machine.admits(entry.position, live, len(messages)):
            self.inbox.put(messages)
        if skipped:
            self.machine.give_permits_back(skipped)
        if self._effects:
            self._perform()

    def _is_buried(self, entry: Entry, messages: Sequence[Message[Any]]) -> bool:
        """True if these have come often enough, so that they are dead letters."""
        letters = self._common.letters
        if letters is None or entry.redelivery_count <= letters.limit:
            return False
        letters.bury_soon(self, entry.position, messages, functools.partial(self.acknowledge_answered, cumulative=False))
        if self.inbox.keys is not None:
            self.inbox.keys.left(messages)
        return True

    def _waiting(self) -> set[Position]:
        """Entries of this partition of which messages wait for the program, or for a key or a schema."""
        held = {(frame[1], frame[2]) for frame in self._held}
        return held | self.inbox.positions(self) | (set() if self.writers is None else self.writers.positions)

    def _discard(self, position: Position, reason: int, count: int, error: Exception) -> None:
        """An entry that cannot be read: tell the broker why, and go on."""
        logger.error("entry %s %s cannot be read and was discarded: %s", self.topic, position, error)
        if self.channel.connection is not None:
            named = {"ledgerId": position[0], "entryId": position[1]}
            self.channel.say("ack", ack_type=0, message_id=[named], validation_error=reason)
        self.machine.discarded(position)
        self.give_permits_back(count)

    # --- what the machine wants ---------------------------------------------------------------------------------------

    def _perform(self) -> None:
        """Perform the effects. What they bring about is performed as well, after them."""
        effects = self._effects
        while effects:
            effect = effects.pop(0)
            match effect:
                case do.SetTimer(timer, seconds):
                    self._set_timer(timer, seconds)
                case do.StopTimer(timer):
                    if (handle := self._timers.pop(timer, None)) is not None:
                        handle.cancel()
                case do.DropQueued():
                    self.drop_queued()
                case do.HandOut(messages):
                    self._hand_out_again(messages)
                case do.Missing(told, entries):
                    self.channel.core.runtime.call_later(0, told, entries)
                case do.Log(level, text, values):
                    logger.log(_LEVELS[level], text, *values)
                case _:
                    self._send(effect)

    def _send(self, effect: do.SendPermits | do.SendAcks | do.AskForAll | do.AskFor) -> None:
        connection = self.channel.connection
        if connection is None:
            return
        match effect:
            case do.SendPermits(permits):
                connection.write_now([hot.encode_flow(self.id, permits)])
            case do.SendAcks(individual, cumulative):
                self._send_acks(connection, individual, cumulative)
            case do.AskForAll(epoch):
                self.channel.say("redeliverUnacknowledgedMessages", **({} if epoch is None else {"consumer_epoch": epoch}))
            case do.AskFor(positions):
                ids = [{"ledgerId": each[0], "entryId": each[1]} for each in positions]
                self.channel.say("redeliverUnacknowledgedMessages", message_ids=ids)

    def _send_acks(self, connection: Connection, individual: Sequence[AckId], cumulative: Sequence[AckId]) -> None:
        if cumulative:
            connection.write([hot.encode_ack(self.id, True, cumulative)])
        for first in range(0, len(individual), ACKS_PER_FRAME):
            connection.write([hot.encode_ack(self.id, False, individual[first : first + ACKS_PER_FRAME])])

    def _set_timer(self, timer: object, seconds: float) -> None:
        before = self._timers.pop(timer, None)
        if before is not None:
            before.cancel()
        if not self._is_closed:
            self._timers[timer] = self.channel.core.runtime.call_later(seconds, self._expire, timer)

    def _expire(self, timer: object) -> None:
        del self._timers[timer]
        has_queued = timer is Timer.REWIND and bool(self._waiting())
        self.machine.expire(timer, self._monotonic(), has_queued=has_queued)
        self._perform()

    def drop_queued(self) -> None:
        """Drop what is queued or held, and say so to the machine."""
        waiting = self._waiting()
        dropped = self.inbox.drop(self) + self._drop_held()
        if self.writers is not None:
            dropped += self.writers.drop()
        self.machine.queue_dropped(waiting, dropped)

    def _hand_out_again(self, messages: Sequence[Message[Any]]) -> None:
        """Messages of an entry come again without the broker: one delivery more, after what is queued.

        They had given their permits back when they left the queue, and take them again.
        """
        entry = messages[0].entry.once_more()
        again = [message.of(entry) for message in messages]
        if not self._is_buried(entry, again):
            self.machine.give_permits_back(-len(again))
            self.inbox.put(again)

    # --- what the queue tells -----------------------------------------------------------------------------------------

    def handed_out(self, last: Message[Any], count: int) -> None:
        """The program gets so many messages of the queue, this one last."""
        self.last = last
        self.machine.give_permits_back(count)
        if self._effects:
            self._perform()

    def taken_in_thread(self, message: Message[Any], post: Post) -> None:
        """A thread of the blocking client has taken a message, and holds the queue's guard."""
        self.last = message
        self.taken_in_threads += 1
        enough = self.machine.flow_of
        if self.taken_in_threads == enough or (self._options.receiver_queue_bytes and self.taken_in_threads > enough):
            post(self.flush_permits)

    def give_permits_back(self, count: int) -> None:
        """Messages have left the queue; fewer than none have come into it without a permit."""
        self.machine.give_permits_back(count)
        if self._effects:
            self._perform()

    def flush_permits(self) -> None:
        """Send the permits that wait; at once, so that the broker goes on while the program works on what it took."""
        taken = 0
        if self.taken_in_threads:
            with self.inbox.guard:
                taken, self.taken_in_threads = self.taken_in_threads, 0
        self.machine.flush_permits(taken)
        if self._effects:
            self._perform()

    def received(self, messages: Iterable[Message[Any]]) -> None:
        """The program has these, and is to acknowledge them in time; see `ack_timeout`."""
        now, timeout, backoff = self._monotonic(), self._options.ack_timeout, self._options.ack_timeout_backoff
        for message in messages:
            entry = message.entry
            due = now + (timeout if backoff is None else backoff.delay(entry.redelivery_count))
            bits = (0, entry.batch_size, entry.delivery)
            self.machine.redelivery.received(entry.position, message.index, bits, message, due, now)
        self._perform()

    # --- having messages again ----------------------------------------------------------------------------------------

    def deliver_again(self, entries: Mapping[Position, Bits], copies: Iterable[Message[Any]] = ()) -> None:
        """Have messages again, see `Redelivery.these`; `copies` are those of them that are known here."""
        known: dict[Position, dict[int, Message[Any]]] = {}
        for message in copies:
            known.setdefault(message.entry.position, {})[message.index] = message
        self.machine.redelivery.these(entries, self._monotonic(), known)
        self._perform()

    def deliver_all_again(self) -> None:
        """Have everything again that is not acknowledged."""
        self.machine.redelivery.everything(self._monotonic())
        self._perform()

    def ask_for(self, positions: Sequence[Position]) -> int:
        """Ask for whole entries now; see `Redelivery.ask_for`."""
        tenure = self.machine.redelivery.ask_for(positions)
        self._perform()
        return tenure

    def keep_back_until(self, at: tuple[Position, int]) -> None:
        """Hand nothing out before this comes again."""
        self.machine.redelivery.keep_back_until(at)
        self._perform()

    def expect(self, entries: Mapping[Position, Bits], missing: Callable[[Mapping[Position, int]], None]) -> None:
        """Some of these come again after an abort: ask for them until they do. `missing` is called with those that do not."""
        self.machine.redelivery.expect(entries, missing)
        self._perform()

    def negatively_acknowledge(
        self, at: MessagePosition, delivery: Delivery, message: Message[Any] | None, seconds: float
    ) -> None:
        """Have a message again later; see `DeliveryMachine.negatively_acknowledge`."""
        self.machine.negatively_acknowledge(at, delivery, message, seconds, self._monotonic())
        self._perform()

    # --- acknowledging outside of transactions ------------------------------------------------------------------------

    def acknowledge_soon(self, positions: Sequence[MessagePosition]) -> None:
        """Acknowledge these with the next group."""
        self.machine.acknowledge(positions)
        if self._effects:
            self._perform()

    def acknowledge_up_to_soon(self, at: MessagePosition) -> None:
        """Acknowledge everything up to this with the next group."""
        self.machine.acknowledge_up_to(at)
        if self._effects:
            self._perform()

    async def acknowledge_answered(self, positions: Sequence[MessagePosition], *, cumulative: bool) -> None:
        """Acknowledge now and wait for ACK_RESPONSE. What is refused comes again when its time is over.

        Sent again when the consumer was closed, or its connection lost, before the answer came.
        """
        await self.channel.connected("acknowledge")
        ids, up_to = self.machine.acknowledge_now(positions, cumulative=cumulative)
        self._perform()
        await self.channel.until_answered("acknowledge", lambda each: self.channel.ask_ack(each, ids, cumulative=up_to))
        self.machine.acknowledged(positions, cumulative=cumulative)

    # --- what joins a transaction -------------------------------------------------------------------------------------

    def hold(self, hold: Hold, run: Sequence[Message[Any]], bits: int) -> int:
        """A loop has received neighbours of one entry; see `DeliveryMachine.hold`."""
        entry = run[0].entry
        return self.machine.hold(hold, entry.position, bits, entry.batch_size, entry.delivery)

    def share(self, txn: Unit) -> Share:
        """Return the share of a transaction in this partition."""
        share = self._shares.get(txn)
        if share is None:
            share = self._shares[txn] = Share()
        return share

    def join(self, share: Share, run: Sequence[Message[Any]], keeper: Hold | None) -> int:
        """Messages of one entry that were just received join; see `Units.join`."""
        entry = run[0].entry
        indexed = {message.index: message for message in run}
        return self.machine.units.join(share, entry.position, entry.batch_size, entry.delivery, indexed, keeper)

    def acknowledge_rest(self, share: Share, txn: Unit) -> None:
        """The commit begins: acknowledge what joined and is not acknowledged yet. Raises as `Unit.enlist_ack`."""
        portions = self.machine.units.rest(share)
        for positions in portions:
            with contextlib.suppress(TransactionConflict):  # the transaction knows
                asked, work = self._begin(positions, txn, share, cumulative=False, rest=len(portions) == 1)
                task = self.channel.core.spawn(_quietly(work))
                task.add_done_callback(functools.partial(self._never_begun, asked))

    def _never_begun(self, asked: _Asked, _task: object) -> None:
        self._finish(asked, asyncio.CancelledError())

    def bring_back(self, share: Share, seconds_left: float | None, *, keep: bool) -> None:
        """The transaction cannot commit any more; see `Units.bring_back`."""
        self.machine.units.bring_back(share, seconds_left, self._monotonic(), keep=keep)
        self._perform()

    # --- acknowledging in a transaction -------------------------------------------------------------------------------

    async def acknowledge_in(self, txn: Unit, positions: Sequence[MessagePosition], *, cumulative: bool) -> None:
        """Acknowledge in a transaction. Raises TransactionConflict, and as `Unit.enlist_ack`."""
        if cumulative and self.machine.chunks.holds_before(positions[-1][0]):
            raise InvalidConfiguration(
                "a message in chunks that is not complete yet would be acknowledged along", hint="acknowledge a list"
            )
        share = self.share(txn)
        if not cumulative:
            positions = self.machine.units.not_done(share, positions)
        if positions:
            _, work = self._begin(positions, txn, share, cumulative=cumulative)
            await work

    def _begin(
        self, positions: Sequence[MessagePosition], txn: Unit, share: Share, *, cumulative: bool, rest: bool = False
    ) -> tuple[_Asked, Coroutine[Any, Any, None]]:
        """Start an acknowledgement: what is returned has to be awaited. `rest`: all that joined and is not acknowledged yet."""
        channel, units = self.channel, self.machine.units
        _, index, size = positions[-1]
        if cumulative and 0 <= index < size - 1:
            channel.core.defect_warnings.on_cumulative_in_batch(channel.server_version, channel.topic, channel.subscription)
        registered = txn.enlist_ack(channel.core, channel.target, channel.subscription, len(positions), cumulative=cumulative)
        try:
            if cumulative:
                request = units.claim_up_to(share, positions[-1])
            elif rest:
                request = units.claim_rest(share, self._others(txn))
            else:
                request = units.claim(share, positions, self._others(txn))
        except BaseException as error:
            txn.ack_finished(channel.target, channel.subscription, len(positions), error)
            raise
        if txn not in self._acknowledging:
            self._acknowledging.add(txn)
            txn.when_ended(functools.partial(self._on_txn_ended, share))
            # Whoever attached to a transaction may leave its end to others, and is not told of it then.
            weakref.finalize(txn, self.owners.abandon, share.requests).atexit = False
            _SHARES.setdefault(txn, []).append((channel.target, channel.subscription, self.owners, share))
        asked = _Asked(request, positions, share, txn)
        return asked, self._carry_out(asked, registered)

    def _others(self, txn: Unit) -> list[tuple[Owners, Share]]:
        """The shares of a transaction in other consumers of this subscription."""
        here = (self.channel.target, self.channel.subscription)
        return [
            (owners, share)
            for topic, subscription, owners, share in _SHARES.get(txn, ())
            if owners is not self.owners and (topic, subscription) == here
        ]

    async def _carry_out(self, asked: _Asked, registered: TxnId | asyncio.Future[TxnId]) -> None:
        try:
            if not isinstance(registered, TxnId):
                # Shared with other operations: cancelling this one must not cancel the registration.
                registered = await asyncio.shield(registered)
            await self._ask_until_answered(asked, registered)
        except BaseException as error:
            if asked.answer is None or asked.answer.done():
                self._finish(asked, error)
            else:  # cancelled; an abort that overtook what is on its way would leave it pending for ever
                asked.answer.add_done_callback(functools.partial(self._answered_late, asked, error))
            raise
        self._finish(asked, None)

    def _answered_late(self, asked: _Asked, error: BaseException, _answer: object) -> None:
        self._finish(asked, error)

    def _finish(self, asked: _Asked, error: BaseException | None) -> None:
        """The broker has said its outcome, or has never seen it; `error` is the error that the program got."""
        if asked.is_finished or (asked.answer is not None and not asked.answer.done()):
            return  # its answer will finish it
        asked.is_finished = True
        if asked.request.state is not State.TAKEN:
            self.machine.units.refused(asked.request, asked.share, self._monotonic())
            self._perform()
        asked.txn.ack_finished(self.channel.target, self.channel.subscription, len(asked.positions), error)

    async def _ask_until_answered(self, asked: _Asked, txn_id: TxnId) -> None:
        """Send it, and again when the connection was lost before the answer came. If cancelled, the request goes on."""
        channel, txn, cumulative = self.channel, asked.txn, asked.request.up_to is not None
        ids = self.machine.asks(asked.request, asked.positions)
        self._perform()
        key = channel.next_ack_key()
        end = self._monotonic() + channel.core.settings.operation_timeout
        lost: ConnectionLost | None = None
        while True:
            try:
                connection = await channel.connected("acknowledge")
                if not txn.in_time():
                    text = "the transaction was over before the acknowledgement could leave"
                    raise TransactionTimedOut(text, txn_id=txn_id) from lost
                self.machine.flush_acks()  # what the program acknowledged plainly before is settled before, and conflicts
                self._perform()
                answer = _Answer(functools.partial(self._taken, asked))
                asked.answer = answer.future
                channel.ask_ack_by(answer, connection, ids, cumulative=cumulative, txn_id=txn_id, key=key)
                await asyncio.shield(asked.answer)
            except ConnectionLost as error:
                if not error.maybe_processed or self._monotonic() >= end:
                    raise
                lost = error
                txn.sent_again()
                asked.answer = None
            except TransactionConflict as error:
                if not self._single and len(ids) > 1:
                    await self._ask_one_by_one(asked, ids, txn_id)
                if lost is None:
                    raise
                raise lost from error
            else:
                return

    def _taken(self, asked: _Asked) -> None:
        self.machine.answered(asked.request, asked.positions, asked.share)

    async def _ask_one_by_one(self, asked: _Asked, ids: Sequence[AckId], txn_id: TxnId) -> None:
        """After a conflict about some of these: take what can be had into the transaction, for its abort to bring back.

        A stock dispatcher of Shared and Key_Shared has forgotten all of them when it says that one is in conflict, and does
        not deliver again what it has forgotten.
        """
        channel, connection = self.channel, self.channel.connection
        if connection is not None:
            keys = [(each, channel.next_ack_key()) for each in ids]
            answers = [channel.ask_ack(connection, [each], cumulative=False, txn_id=txn_id, key=key) for each, key in keys]
            asked.answer = asyncio.gather(*answers, return_exceptions=True)
            await asyncio.shield(asked.answer)

    def _on_txn_ended(self, share: Share, outcome: TxnAction | None) -> None:
        channel = self.channel
        self.machine.ended(share, outcome, self._monotonic())
        self._perform()
        if not self._single and outcome is not TxnAction.COMMIT:  # when its time is over, its coordinator aborts it
            channel.core.defect_warnings.on_abort(channel.server_version, channel.topic, channel.subscription)

    # --- the place of the subscription --------------------------------------------------------------------------------

    async def seek(
        self, *, message_id: MessageId | None = None, publish_time_ms: int | None = None, inclusive: bool = False
    ) -> None:
        """Move the subscription. See `Consumer.seek`."""
        connection = await self.channel.connected("seek")
        request_id = self.channel.core.next_request_id()
        fields: dict[str, Any] = {"consumer_id": self.id, "request_id": request_id}
        try:  # before anything is dropped
            if message_id is not None:
                fields["message_id"] = seek_field(message_id, inclusive=inclusive)
            else:
                fields["message_publish_time"] = publish_time_ms
            frame = command("seek", **fields)
        except (TypeError, ValueError) as error:
            raise InvalidConfiguration(f"{message_id} is no message's place: {error}") from error
        if self._seeking is not None:
            raise InvalidConfiguration(f"{self.topic} is being moved already", hint="wait until the first seek has returned")
        self._seeking = asyncio.get_running_loop().create_future()
        self.machine.seek(message_id, publish_time_ms, inclusive=inclusive)
        self._perform()  # from then on no other thread can take what sets `last`
        last, self.last = self.last, None
        try:
            await connection.request_frames("seek", request_id, [frame])
        except PulsarError:
            self.machine.seek_failed()
            self.last = last
            raise
        finally:
            self._sought()

    def _sought(self) -> None:
        self.machine.sought()
        if self._seeking is not None:
            self._seeking.set_result(None)
            self._seeking = None

    async def _return_to_time(self, connection: Connection) -> None:
        """After a new SUBSCRIBE: go back to the time that was sought, if nothing was handed out since."""
        time_ms = self.machine.returns_to_time(has_handed_out=self.last is not None)
        if time_ms is None:
            return
        self._seeking = asyncio.get_running_loop().create_future()
        try:
            time = {"consumer_id": self.id, "message_publish_time": time_ms}
            await connection.request("seek", self.channel.core.next_request_id(), **time)
        finally:
            self._sought()

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The id of the last message that can be read now, and the subscription's mark-delete position if told."""
        answer = await self.channel.ask_until_answered("get_last_message_id", "getLastMessageId")
        last = message_id_of(answer.last_message_id, self.partition)
        if not answer.HasField("consumer_mark_delete_position"):
            return last, None
        return last, message_id_of(answer.consumer_mark_delete_position, self.partition)

    async def committed(self, *, require_stable: bool) -> CommittedPosition:
        """The subscription's committed position here; see `Consumer.committed`."""
        return await ask_committed(self.channel, require_stable=require_stable)

    async def has_more(self) -> bool:
        """True if there is a message after what was handed out, or after the start."""
        start = self.machine.start  # of now, because the answer knows of no acknowledgement that leaves after the request
        last, mark_delete = await self.last_message_id()
        if last.entry_id < 0:
            return False
        if self.last is not None:
            return order_of(last) > order_of(self.last.message_id)
        is_moved_to_time = self.machine.sought_ms is not None and mark_delete is not None
        if start is None or start.message_id == LATEST_ID or is_moved_to_time:
            return mark_delete is not None and last.position > mark_delete.position
        first = order_of(start.message_id)
        return order_of(last) >= first if start.inclusive else order_of(last) > first


def delivery_options(options: ConsumerOptions) -> DeliveryOptions:
    """The options of a consumer that the machine obeys."""
    first = None if options.durable else options.start_message_id
    if first is None and not options.durable and options.initial_position is InitialPosition.EARLIEST:
        first = EARLIEST_ID
    return DeliveryOptions(
        keeps_order=options.consumer_type.is_single,
        is_failover=options.consumer_type is ConsumerType.FAILOVER,
        is_durable=options.durable,
        start=None if first is None else Start(first, options.start_message_id_inclusive),
        queue_size=options.receiver_queue_size,
        queue_bytes=options.receiver_queue_bytes,
        ack_group_delay=options.ack_group_delay,
        negative_ack_delay=options.negative_ack_delay,
        max_pending_chunked_messages=options.max_pending_chunked_messages,
        max_uncompressed_bytes=options.max_uncompressed_bytes,
        auto_ack_oldest_chunked_message=options.auto_ack_oldest_chunked_message,
        expire_incomplete_chunks=options.expire_incomplete_chunks,
    )


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """Carry out an acknowledgement of which the transaction hears by itself."""
    with contextlib.suppress(Exception):
        await work
