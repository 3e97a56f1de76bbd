"""Dispatchers: which entry goes to which consumer, and when.

A dispatcher is woken (by a confirmed publish, a transaction's end, permits, a connection that can be written again,
something to redeliver) and then works once at the end of the loop turn: it reads up to the topic's `published` position
and never polls for more. It reads only the header of an entry; payloads are handed on as they lie in the log.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Iterator
from typing import Final, TypeAlias

from pulsar_txn.ledger.protocols import LedgerError, ReadFailed
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import WHOLE_ENTRY, DispatchHints, Position, full_ack_set

from .consumers import Consumer
from .delayed import DelayedDelivery
from .replay import Replay
from .view import Source, SubscriptionView

_logger = logging.getLogger(__name__)

ENTRIES_PER_TURN: Final = 512
BYTES_PER_TURN: Final = 2 << 20
READ_RETRY_SECONDS: Final = 1.0
"""A dispatcher gives the loop back after this much, and goes on in the next turn."""


Delivery: TypeAlias = tuple[int, int, int | None, int]
"""An entry that may be sent, as `(messages, indexes, ack_set, batch_size)`; `ack_set` is None for all of it."""

_SINGLE: Final[Delivery] = (1, 1, None, 0)


class Dispatcher(abc.ABC):
    """Part that all kinds have in common: position, replay, reading, filtering."""

    individual: bool = False
    """Whether consumers settle entries one by one (Shared, Key_Shared)."""

    def __init__(self, subscription: SubscriptionView) -> None:
        self.subscription = subscription
        self.consumers: list[Consumer] = []
        self.replay = Replay()
        self._topic = subscription.topic
        self._source: Source = subscription.topic.log
        self._turn = subscription.topic.turn
        self.delayed: DelayedDelivery | None = None
        self._due = False
        self._reading: asyncio.Task[None] | None = None
        self._fetched: dict[Position, bytes] = {}
        self.read_position = self._start()

    def __repr__(self) -> str:
        return f"subscription {self.subscription.name!r} of {self._topic.name}"

    # ---- what wakes it

    def wake(self) -> None:
        """Dispatch at the end of this turn."""
        if not self._due:
            self._due = True
            self._turn.defer(self._run)

    @abc.abstractmethod
    def add(self, consumer: Consumer) -> None:
        """A consumer came; Refusal when there is no place for it."""

    @abc.abstractmethod
    def remove(self, consumer: Consumer) -> None:
        """A consumer went; what it held is delivered again."""

    @abc.abstractmethod
    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES; None means all."""

    def release(self, position: Position, indexes: int | None) -> None:
        """A transaction gave an acknowledgement back: deliver exactly that again."""
        if position < self.read_position:
            self.replay.add(position, indexes)
            self.wake()

    @abc.abstractmethod
    def settled(self, position: Position, indexes: int | None) -> None:
        """Indexes of an entry (None: all) are acknowledged; called when `individual`."""

    def rewind(self) -> None:
        """Start again after the mark-delete position."""
        self.replay.clear()
        self._forget_delayed()
        self._fetched.clear()
        self.subscription.moves.hidden.clear()
        self.read_position = self._start()
        self.wake()

    def close(self) -> None:
        """Stop reading."""
        self._forget_delayed()
        if self._reading is not None:
            self._reading.cancel()

    def _forget_delayed(self) -> None:
        if self.delayed is not None:
            self.delayed.clear()
            self.delayed = None

    # ---- work of a turn

    def _run(self) -> None:
        self._due = False
        if self._reading is None and self._topic.serving:
            if self.delayed is not None:
                self.delayed.release()
            try:
                self._dispatch()
            except WireError as error:
                self.subscription.fail(error)
            if self.delayed is not None:
                self._after_delayed(self.delayed)

    def _after_delayed(self, delayed: DelayedDelivery) -> None:
        if not delayed:
            delayed.clear()
            self.delayed = None
        elif delayed.wants_turn and self._reading is None:
            self.wake()

    def _dispatch(self) -> None:
        entries, size = ENTRIES_PER_TURN, BYTES_PER_TURN
        replay, source, published = self.replay, self._source, self._topic.published
        while (consumer := self._next_consumer()) is not None:
            waiting = replay.first() if replay.waiting else None
            if waiting is not None:
                position, indexes = waiting
            else:
                position, indexes = self.read_position, None
                if position > published:
                    return
            if entries <= 0 or size <= 0:
                self.wake()
                return
            data = source.read_cached(position)
            if data is None:
                data = self._entry(position)
                if data is None:
                    return
            if waiting is None:
                self.read_position = source.next_position(position)
            else:
                replay.discard(position)
            delivery = self._prepare(position, data, indexes)
            entries -= 1
            if delivery is not None:
                self._send(consumer, position, data, delivery)
                size -= len(data)

    @abc.abstractmethod
    def _next_consumer(self) -> Consumer | None:
        """The consumer that takes the next entry; None when no consumer can."""

    def _send(self, consumer: Consumer, position: Position, data: bytes, delivery: Delivery) -> None:
        messages, _, ack_set, batch_size = delivery
        consumer.send(position, data, messages, ack_set, batch_size, 0)

    def _prepare(self, position: Position, data: bytes, indexes: int | None) -> Delivery | None:
        """Return what of an entry may be delivered: None for markers, aborted data, and what is acknowledged or pending."""
        subscription = self.subscription
        cursor = subscription.cursor
        if cursor.is_deleted(position):
            return None
        header = read_header(data)
        if self._topic.buffer.is_hidden(position, header):
            subscription.moves.hide(position)
            return None
        handle = subscription.pending_ack
        pending = 0 if handle is None else handle.pending(position)
        if pending == WHOLE_ENTRY or (header.hints is not None and self._waits(position, header.hints, indexes)):
            return None
        batch_size = header.num_messages
        if batch_size is None:
            return None if pending else _SINGLE
        full = full_ack_set(batch_size)
        left = cursor.ack_set(position)
        live = full if left is None else left & full
        if pending:
            live &= ~pending
        if indexes is not None:
            live &= indexes
        if not live:
            return None
        return live.bit_count(), live, None if live == full else live, batch_size

    def _waits(self, position: Position, hints: DispatchHints, indexes: int | None) -> bool:
        """True if an entry cannot go out now for what it asks; then it is remembered, and comes again by itself."""
        return False

    # ---- reading

    def _start(self) -> Position:
        return self._source.next_position(self.subscription.cursor.mark_delete)

    def _entry(self, position: Position) -> bytes | None:
        """The entry if it is at hand; otherwise reading begins, and the dispatcher is woken when it is there."""
        data = self._source.read_cached(position)
        if data is None:
            data = self._fetched.pop(position, None)
        if data is None:
            self._fetched.clear()
            self._reading = asyncio.get_running_loop().create_task(self._read(position))
        return data

    async def _read(self, position: Position) -> None:
        config = self._topic.config
        try:
            entries = await self._source.read(
                position,
                max_entries=config.dispatcher_max_read_batch_size,
                max_bytes=min(config.dispatcher_max_read_size_bytes, BYTES_PER_TURN),
            )
        except ReadFailed as error:  # nothing is proven to be damaged: ask again, unless a seek has led elsewhere by then
            _logger.warning("%s waits %g s: %s", self, READ_RETRY_SECONDS, error)
            await asyncio.sleep(READ_RETRY_SECONDS)
            self._reading = None
            self.wake()
            return
        except LedgerError as error:
            self.subscription.fail(error)
            return
        finally:
            self._reading = None
        self._fetched = dict(entries)
        if not entries:
            return  # woken when something is published
        first = entries[0][0]
        if first != position:  # trimmed meanwhile
            self.replay.discard(position)
            if self.read_position == position:
                self.read_position = first
        self.wake()


class SingleActiveDispatcher(Dispatcher):
    """Exclusive and Failover: one consumer gets everything, in order."""

    def __init__(self, subscription: SubscriptionView, *, failover: bool) -> None:
        super().__init__(subscription)
        self._failover = failover
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        """Failover: the first by (priority, name) becomes active. Exclusive has one place (see `Subscription.add`)."""
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: (each.priority, each.name))
        self._choose(newcomer=consumer)

    def remove(self, consumer: Consumer) -> None:
        """The next one takes over from the mark-delete position."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        self._choose(newcomer=None)

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """Everything that is not acknowledged comes again; only the active consumer may ask."""
        if consumer is self.active:
            self.rewind()

    def release(self, position: Position, indexes: int | None) -> None:
        """Everything unacknowledged comes again, not only this entry: otherwise later entries would come before it.

        Clients know this from stock brokers and drop what they have queued.
        """
        if position < self.read_position:
            self.rewind()

    def settled(self, position: Position, indexes: int | None) -> None:
        """Do nothing: nobody holds anything here, and the cursor says it all."""

    def acknowledged_by(self, consumer: Consumer, first: Position) -> None:
        """A consumer acknowledged something, `first` at the earliest. One that lost its place may still do so."""
        for each in self.consumers:
            if each is not consumer and (each.settled_elsewhere is None or first < each.settled_elsewhere):
                each.settled_elsewhere = first

    def rewind(self) -> None:
        """The active consumer gets everything again that is not settled."""
        if self.active is not None:
            self.active.settled_elsewhere = None
        super().rewind()

    def _choose(self, newcomer: Consumer | None) -> None:
        partition = self._topic.name.partition
        chosen: Consumer | None = None
        if self.consumers:
            top = [each for each in self.consumers if each.priority == self.consumers[0].priority]
            chosen = top[partition % len(top)] if partition >= 0 else top[0]
        if chosen is self.active:
            if newcomer is not None and self._failover:
                newcomer.owner.active_changed(newcomer, newcomer is chosen)
            return
        self.active = chosen
        compacted = chosen is not None and chosen.read_compacted
        self._source = self._topic.compaction.source if compacted else self._topic.log
        self.rewind()
        if self._failover:
            for consumer in self.consumers:
                consumer.owner.active_changed(consumer, consumer is chosen)

    def _next_consumer(self) -> Consumer | None:
        active = self.active
        return active if active is not None and active.permits > 0 and active.owner.writable else None
