"""The delivery of one topic partition to one consumer: from the entry that a broker sends to the acknowledgement that it gets.

This machine decides what is handed out and what is dropped, what is asked for again and when, how many permits the broker has,
and how acknowledgements are named. It never decodes, writes, waits or looks at a clock: the shell
(`receive/partition_consumer.py`) tells it what happened, and performs the `effects` in their order.

Its state stands in five parts, each without a way back to this one:

* `owners`: who has each message. Its table is the heart of the machine; read its prose first.
* `ack_group`: what is acknowledged outside of units, until it leaves.
* `chunks`: messages in chunks, and entries that stay unsettled.
* `redelivery`: what is to come again and since when, what was asked; with `rewinds`, which knows how stock brokers go back.
* `units`: what each transaction has of the partition, and its acknowledgements.

The rest stands here: the permits, and the place of the subscription.

**Permits** count messages. The broker may send `receiver_queue_size` of them; every message that leaves the queue, however it
leaves, gives its permit back, and half a queue of them travel in one FLOW. With a bound of bytes the sizes that have come say
how many are given.

**The queue starts over**, which means that all of it comes again, after a reconnect, after our own request for everything (told
by the consumer epoch), after a seek, and when an Exclusive or Failover subscription is rewound by the server without a word.
Stock brokers do so when a transaction with acknowledgements aborts. It shows as a position that is not beyond the last one.

**The place.** A subscription without memory goes on after what was handed out last. If it was moved to a time, it is moved
there again when it has to subscribe again before its first message was handed out: the broker has forgotten the place, and a
time is no place that SUBSCRIBE could name. On a subscription with memory the broker counts the start of a seek as unread, so
what is to be skipped of it is acknowledged.

An entry passes in this order: `came` (is it of before a request, and is it its turn), `chunk` for a part of a message, `admit`
(which of its messages somebody has), `admits` (whether something has to come first).

Sources: CommandMessage, CommandFlow, CommandSeek, CommandSubscribe; PIP-37, PIP-54, PIP-84.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.state.ack_group import AckGroup, cumulative_id, named_ids
from pulsar_txn.client.state.acknowledgements import Request, Share, Units
from pulsar_txn.client.state.chunks import ChunkedMessages
from pulsar_txn.client.state.effects import Effects, SendAcks, SendPermits, SetTimer, StopTimer, Timer
from pulsar_txn.client.state.owners import UNKNOWN, Delivery, Hold, MessagePosition, Owners, bit_of, merged
from pulsar_txn.client.state.permits import Permits
from pulsar_txn.client.state.redelivery import Redelivery
from pulsar_txn.client.state.rewinds import Turn
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import EARLIEST, MessageId, Position, TxnAction, full_ack_set

ACKS_PER_FRAME: Final = 1000

LEAST_PAUSE: Final = 0.1
"""Seconds at least before chunks that were given up are asked for again: there is no room for them yet."""

EVICTED_TOGETHER: Final = 10_000
"""Chunks that were given up and are asked for in one request."""


@attrs.frozen(kw_only=True)
class DeliveryOptions:
    """Options of a consumer as far as this machine obeys them; seconds and bytes."""

    keeps_order: bool
    """One consumer at a time gets everything: Exclusive and Failover."""
    is_failover: bool
    is_durable: bool
    start: Start | None
    """Start of a subscription without memory."""
    queue_size: int
    queue_bytes: int
    """0 is no bound."""
    ack_group_delay: float
    negative_ack_delay: float
    max_pending_chunked_messages: int
    max_uncompressed_bytes: int
    auto_ack_oldest_chunked_message: bool
    expire_incomplete_chunks: float


class Start:
    """Place where a subscription was told to start: after a message, or at it."""

    __slots__ = ("inclusive", "message_id", "position")

    def __init__(self, message_id: MessageId, inclusive: bool = False) -> None:
        self.message_id = message_id
        self.position = message_id.position
        self.inclusive = inclusive

    def wanted(self, batch_size: int) -> int:
        """The indexes of the batch it points into that are to be handed out, as bits."""
        index = self.message_id.batch_index
        if index < 0:
            return full_ack_set(batch_size) if self.inclusive else 0
        return full_ack_set(batch_size) & ~full_ack_set(index if self.inclusive else index + 1)


class DeliveryMachine:
    """The state of one partition's consumer. Each method is an event; what is to be done stands in `effects` afterwards."""

    def __init__(self, topic: str, partition: int, options: DeliveryOptions) -> None:
        order = options.keeps_order
        self.effects: Effects = []
        self.owners = Owners()
        self.chunks = ChunkedMessages(
            topic,
            self.effects,
            max_pending=options.max_pending_chunked_messages,
            max_bytes=options.max_uncompressed_bytes,
            watches_unsettled=order and options.is_durable,
        )
        self.group = AckGroup()
        self.redelivery = Redelivery(
            topic,
            self.effects,
            self.owners,
            self.group,
            self.chunks,
            keeps_order=order,
            is_durable=options.is_durable,
            is_failover=options.is_failover,
        )
        self.units = Units(self.owners, self.redelivery, partition, topic, keeps_order=order)
        self.start = options.start
        """Start of a subscription without memory, or position that one with memory was just moved to."""
        self.passed: Start | None = None
        """Message handed out last, when the subscription starts before it for the sake of chunks."""
        self.sought_ms: int | None = None
        """The time that the subscription was moved to last."""
        self.is_seeking = False
        self._before_seek: tuple[Start | None, Start | None, int | None] = (self.start, None, None)
        self._options = options
        self._keeps_order = order
        self._permits_back = 0
        self.flow_of = max(1, options.queue_size // 2)
        """Permits that are worth a FLOW: half of the room."""
        self._flow_at = self.flow_of
        self._sizes = Permits(options.queue_size, options.queue_bytes) if options.queue_bytes else None
        """Number of messages that may be here by their size, with a bound of bytes."""
        self._kept_back = 0
        """Permits that the broker is not given, because messages are too large for all of them."""
        self._evicted: list[Position] = []
        self._evicted_is_timed = self._expiry_is_timed = self._acks_are_timed = False
        self._keep_back()

    # --- life ---------------------------------------------------------------------------------------------------------

    def subscribes_again(self, last: MessageId | None) -> None:
        """A subscriber is about to begin: all that is queued will come again. `last` was handed out last."""
        if not self._options.is_durable and last is not None:
            self._go_on_after(last)
        self.redelivery.subscribes_again()
        self._evicted.clear()

    def _go_on_after(self, last: MessageId) -> None:
        """Chunks that were here are not here any more: those of messages that end after `last` must come again."""
        begin = self.chunks.begin(last.position)
        if begin is not None:
            self.start, self.passed = Start(MessageId(*begin), inclusive=True), Start(last)
        elif self.passed is None or self.passed.message_id != last:  # else the connection broke before they had come again
            self.start, self.passed = Start(last), None

    def opened(self) -> None:
        """The broker knows the consumer."""
        self.redelivery.opened()
        self._permits_back = self._kept_back
        self.effects.append(SendPermits(self.room))
        self.flush_acks()

    def lost(self) -> None:
        """The broker does not know the consumer any more, or nobody knows whether it does."""
        self.redelivery.lost()

    def active_change(self, *, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE."""
        self.redelivery.active_change(is_active=is_active)

    def close(self) -> None:
        """Nothing is delivered here any more."""
        self.redelivery.close()

    def expire(self, timer: object, now: float, *, has_queued: bool) -> None:
        """A timer is due. `has_queued`: messages of the partition wait for the program, or for a key or a schema."""
        match timer:
            case Timer.ACKS:
                self._acks_are_timed = False
                self.redelivery.flush_acks()
            case Timer.INCOMPLETE_CHUNKS:
                self._expire_chunks(now)
            case Timer.EVICTED_CHUNKS:
                self._ask_for_evicted(now)
            case _:
                self.redelivery.expire(timer, now, has_queued=has_queued)

    def queue_dropped(self, positions: Iterable[Position], permits: int) -> None:
        """The queue was dropped, as `DropQueued` says: these entries, and so many messages."""
        self.give_permits_back(permits + self.redelivery.queue_dropped(positions))

    # --- an entry comes -----------------------------------------------------------------------------------------------

    def came(self, position: Position, live: int, count: int, size: int, epoch: int | None, now: float) -> Turn:
        """MESSAGE, an entry of `count` messages and `size` bytes: is it handed out? On REWOUND, ask `turn` as well."""
        if self._sizes is not None:
            self._sizes.arrived(count, size)
            self._keep_back()
        redelivery = self.redelivery
        if self.is_seeking or (epoch is not None and epoch < redelivery.epoch):
            if redelivery.keeps_account and not self.is_seeking:
                redelivery.rewinds.came_too_early(position, live, now)
            self.give_permits_back(count)
            return Turn.PAST
        if self._keeps_order:
            if position in self.owners.wanted.entries:
                redelivery.rewinds.come_again([position])
            last = redelivery.last_position
            if last is not None and position <= last:
                if redelivery.keeps_account:
                    redelivery.rewinds.went_back(now)
                if not redelivery.rewinds.has_past(position, live):
                    redelivery.drop_queued()
                    return Turn.REWOUND
            turn = redelivery.came(position, live, count, now)
            if turn is Turn.PAST:
                self.give_permits_back(count)
            return turn
        return Turn.NOW

    def turn(self, position: Position, live: int, count: int, now: float) -> Turn:
        """Is it the turn of an entry, or is something missing before it?"""
        turn = self.redelivery.came(position, live, count, now)
        if turn is Turn.PAST:
            self.give_permits_back(count)
        return turn

    def chunk(self, position: Position, metadata: pb.MessageMetadata, payload: bytes | memoryview, now: float) -> bytes | None:
        """Part of a message: all of it when this was the last one. What stays incomplete for too long is acknowledged."""
        begins_here = self.start is None or self.passed is not None
        if not begins_here and not self._wanted(position, 0):
            return None
        whole, given_up = self.chunks.add(position, metadata, payload, now)
        if given_up:
            self._give_up_chunks(given_up, now)
        period = self._options.expire_incomplete_chunks
        if not self._expiry_is_timed and self.chunks.incomplete and period:
            self._expiry_is_timed = True
            self.effects.append(SetTimer(Timer.INCOMPLETE_CHUNKS, period))
        return whole

    def _give_up_chunks(self, positions: Sequence[Position], now: float) -> None:
        """Chunks for which there was no room: with the option acknowledged; else asked for again where that is possible."""
        if self._options.auto_ack_oldest_chunked_message:
            self.acknowledge([(position, -1, 0) for position in positions])
            return
        self.chunks.unsettled.add(positions)
        if self._keeps_order:  # asking would bring everything back, in the same order
            return
        self._evicted += positions
        if len(self._evicted) >= EVICTED_TOGETHER:
            self._ask_for_evicted(now)
        elif not self._evicted_is_timed:
            self._evicted_is_timed = True
            self.effects.append(SetTimer(Timer.EVICTED_CHUNKS, max(self._options.negative_ack_delay, LEAST_PAUSE)))

    def _ask_for_evicted(self, now: float) -> None:
        if self._evicted_is_timed:
            self._evicted_is_timed = False
            self.effects.append(StopTimer(Timer.EVICTED_CHUNKS))
        positions, self._evicted = self._evicted, []
        if positions and self.redelivery.is_connected:
            self.redelivery.these(dict.fromkeys(positions, (0, 0, UNKNOWN)), now)

    def _expire_chunks(self, now: float) -> None:
        period = self._options.expire_incomplete_chunks
        late = self.chunks.expire(now - period)
        if late:
            self.acknowledge([(position, -1, 0) for position in late])
        self._expiry_is_timed = bool(self.chunks.incomplete)
        if self._expiry_is_timed:
            self.effects.append(SetTimer(Timer.INCOMPLETE_CHUNKS, period))

    def admit(self, position: Position, size: int, live: int) -> tuple[Delivery, int]:
        """The delivery of an entry, and those of its messages that are handed out."""
        if self.start is not None:
            live &= self._wanted(position, size)
        delivery = (self.owners.generation, live)
        if self.owners:
            live = self.owners.admit(position, live, size)
            if self.owners.arrived:
                self.redelivery.stop_waiting()
            if not live:
                self.redelivery.rewinds.forget(position)  # acknowledged, or on its way to be
        return delivery, live

    def admits(self, position: Position, bits: int, count: int) -> bool:
        """True if these messages of an entry may be handed out; else they come again."""
        return self.redelivery.admits(position, bits, count)

    def waits(self, position: Position) -> None:
        """An entry waits for its key, and comes once more from here."""
        self.redelivery.rewinds.forget(position)

    def waited(self) -> None:
        """Entries that waited come now: the position of the first of them is no rewind."""
        self.redelivery.expect_any()

    def discarded(self, position: Position) -> None:
        """An entry cannot be read, and the broker is told."""
        if self.redelivery.is_connected:
            self.redelivery.rewinds.forget(position)

    def leave(self, position: Position) -> None:
        """An entry is not for this program, and stays with the broker, with all chunks of its message."""
        self.chunks.unsettled.add(self.chunks.with_chunks([position]))

    # --- permits ------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """The number of messages that may be here."""
        return self._options.queue_size - self._kept_back

    def give_permits_back(self, count: int) -> None:
        """Messages have left the queue; fewer than none have come into it without a permit."""
        self._permits_back += count
        if self._permits_back >= self._flow_at:
            self.flush_permits()

    def flush_permits(self, more: int = 0) -> None:
        """Send the permits that wait, and some more, so that the broker goes on while the program works on what it took."""
        self._permits_back += more
        if self._permits_back > self._kept_back and self.redelivery.is_connected:
            self.effects.append(SendPermits(self._permits_back - self._kept_back))
            self._permits_back = self._kept_back

    @property
    def debt(self) -> int:
        """The number of messages, as a negative number, that have come into the queue without a permit."""
        return min(self._permits_back, 0)

    def _keep_back(self) -> None:
        """Let as many messages come as there is room for, by the sizes that came."""
        if self._sizes is not None:
            allowed = self._sizes.allowed
            self._kept_back = self._options.queue_size - allowed
            self.flow_of = max(1, allowed // 2)
            self._flow_at = self._kept_back + self.flow_of

    # --- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Sequence[MessagePosition]) -> None:
        """Acknowledge these with the next group, outside of units: the broker is told soon, and nobody waits."""
        self._settle(positions, cumulative=False)
        self.group.add(self.chunks.positions(positions) if self.chunks.remembers_any else positions)
        self._collect()

    def acknowledge_up_to(self, at: MessagePosition) -> None:
        """Acknowledge everything up to this with the next group.

        If an incomplete message before it would be lost by that, only the message itself is acknowledged.
        """
        if self.chunks.holds_before(at[0]):
            self.acknowledge([at])
            return
        self._settle([at], cumulative=True)
        self.group.add_cumulative(at)
        self._collect()

    def acknowledge_now(self, positions: Sequence[MessagePosition], *, cumulative: bool) -> tuple[list[AckId], bool]:
        """Acknowledge these and all that was collected: the ids that are to be answered, and whether they are cumulative."""
        self._note_settled(positions, cumulative=cumulative)
        if cumulative and not self.chunks.holds_before(positions[-1][0]):
            for at in positions:
                self.group.add_cumulative(at)
            individual, up_to = self.redelivery.take_acks()
            if individual:
                self.effects.append(SendAcks(individual, []))
            return list(up_to), True
        self.group.add(self.chunks.positions(positions) if self.chunks.remembers_any else positions)
        individual, up_to = self.redelivery.take_acks()
        if up_to:
            self.effects.append(SendAcks([], up_to))
        return list(individual), False

    def acknowledged(self, positions: Sequence[MessagePosition], *, cumulative: bool) -> None:
        """The broker has answered an acknowledgement."""
        self.redelivery.is_settled(positions, cumulative=cumulative)

    def _settle(self, positions: Sequence[MessagePosition], *, cumulative: bool) -> None:
        """The program acknowledges these: they are not late, and need not come again."""
        self.redelivery.is_settled(positions, cumulative=cumulative)
        self._note_settled(positions, cumulative=cumulative)

    def _note_settled(self, positions: Sequence[MessagePosition], *, cumulative: bool) -> None:
        if self.owners:
            self.owners.settle_outside(positions)
            if cumulative:
                self.owners.settle_up_to(positions[-1][:2])
            if self.owners.arrived:
                self.redelivery.stop_waiting()
        self.redelivery.rewinds.settled(positions, cumulative=cumulative)
        self.redelivery.settled(positions, cumulative=cumulative)

    def _collect(self) -> None:
        delay = self._options.ack_group_delay
        if len(self.group.positions) >= ACKS_PER_FRAME or not delay:
            self.redelivery.flush_acks()
        elif not self._acks_are_timed:
            self._acks_are_timed = True
            self.effects.append(SetTimer(Timer.ACKS, delay))

    def flush_acks(self) -> None:
        """Send the acknowledgements that were collected."""
        self.redelivery.flush_acks()

    # --- having messages again ----------------------------------------------------------------------------------------

    def negatively_acknowledge(
        self, at: MessagePosition, delivery: Delivery, message: Any | None, seconds: float, now: float
    ) -> None:
        """Have a message again in `seconds`; it leaves its unit. `message` is None where only its id is known.

        Raises TransactionStateError for one that is acknowledged in an open transaction.
        """
        position, index, size = at
        if self.owners.acknowledged_in(position, index) is not None:
            raise TransactionStateError(
                "the message is acknowledged in a transaction that is still open",
                hint="abort the transaction, its messages come again by themselves",
            )
        wanted = self.owners.leave(position, bit_of(index))
        self.redelivery.is_settled([at])
        copies: dict[int, Any] = {}
        if message is not None and size > 1:  # somebody may have others of its entry by the time that it comes again
            wanted, copies = bit_of(index), {index: message}
        self.redelivery.negatively_acknowledged(position, (wanted, size, delivery), seconds, now, copies)

    def leave_units(self, entries: Mapping[Position, int]) -> None:
        """These leave the units that have them, and are with the program."""
        for position, bits in entries.items():
            self.owners.leave(position, bits)

    # --- units --------------------------------------------------------------------------------------------------------

    def hold(self, hold: Hold, position: Position, bits: int, size: int, delivery: Delivery) -> int:
        """A loop that makes units has received these; the bits of those that nobody else has, which are its own now."""
        free = self.owners.has_free(position, bits)
        if free:
            self.owners.give(hold, position, free, size, delivery)
        return free

    def asks(self, request: Request, positions: Sequence[MessagePosition]) -> Sequence[AckId]:
        """An acknowledgement in a transaction leaves; how it names its messages."""
        cumulative = request.up_to is not None
        self.redelivery.settled(positions, cumulative=cumulative)
        if self.chunks.remembers_any and not cumulative:
            positions = self.chunks.positions(positions)
        ids = request.named([cumulative_id(positions[-1])] if cumulative else named_ids(merged(positions)))
        rewinds = self.redelivery.rewinds
        (rewinds.acknowledged_up_to if cumulative else rewinds.acknowledged)(ids, is_pending=True)
        return ids

    def answered(self, request: Request, positions: Sequence[MessagePosition], share: Share) -> None:
        """The broker has taken an acknowledgement in a transaction."""
        self.redelivery.is_settled(positions, cumulative=request.up_to is not None)
        self.units.answered(request, share)

    def ended(self, share: Share, outcome: TxnAction | None, now: float) -> None:
        """A transaction has ended; `outcome` None: it cannot be used here any more, and nobody knows how it ends."""
        self.units.ended(share, outcome, now)
        if self.owners.arrived:
            self.redelivery.stop_waiting()

    # --- seeks --------------------------------------------------------------------------------------------------------

    def seek(self, message_id: MessageId | None, time_ms: int | None, *, inclusive: bool) -> None:
        """The subscription is about to be moved: what is queued is dropped, and nothing that was acknowledged stays so."""
        self.is_seeking = True
        self.redelivery.move()
        self._before_seek = self.start, self.passed, self.sought_ms
        self.passed = None
        self.start = Start(MessageId(*EARLIEST) if message_id is None else message_id, inclusive)
        self.sought_ms = time_ms if message_id is None else None
        self.group.clear()
        self.owners.move()
        self.redelivery.stop_waiting()

    def seek_failed(self) -> None:
        """The broker has not moved the subscription."""
        self.start, self.passed, self.sought_ms = self._before_seek

    def returns_to_time(self, *, has_handed_out: bool) -> int | None:
        """The time that the subscription has to be moved to again after SUBSCRIBE, which has begun then."""
        if self.sought_ms is None or self._options.is_durable or has_handed_out:
            return None
        self.is_seeking = True
        return self.sought_ms

    def sought(self) -> None:
        """SEEK was answered."""
        self.is_seeking = False
        self.redelivery.expect_any()

    def _wanted(self, position: Position, batch_size: int) -> int:
        """The messages of an entry that are not before the start, as bits; what is skipped for good is acknowledged once.

        Whatever comes later was moved by others.
        """
        start, whole = self.passed or self.start, full_ack_set(max(batch_size, 1))
        if self.passed is not None and position < self.passed.position:
            wanted = 0
        elif start is None or start.position != position:
            wanted = whole
        elif batch_size:
            wanted = start.wanted(batch_size)
        else:
            wanted = whole if start.inclusive else 0
        if self._options.is_durable:
            self.start = None
            skipped = whole & ~wanted
            if skipped:
                everything = [(position, -1, batch_size)]
                some = [(position, index, batch_size) for index in range(batch_size) if skipped >> index & 1]
                self.acknowledge(everything if skipped == whole else some)
                self.redelivery.flush_acks()
        return wanted
