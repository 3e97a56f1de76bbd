"""Shared subscriptions: each entry goes to one of the consumers, round robin; what is not settled comes again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from pulsar_txn.wire.ids import DispatchHints, Position

from .chunks import Chunks
from .consumers import Consumer
from .delayed import DelayedDelivery
from .dispatcher import Delivery, Dispatcher
from .view import SubscriptionView

RETURNED_PER_TURN: Final = 1000
"""Entries that consumers give back and that are taken in one turn of the loop."""


class SharedDispatcher(Dispatcher):
    """Round robin among the consumers of the best priority that can take something."""

    individual = True

    def __init__(self, subscription: SubscriptionView) -> None:
        super().__init__(subscription)
        self.redeliveries: dict[Position, int] = {}
        self.unacked_count = 0
        self._chunks: Chunks | None = None  # made with the first chunk
        self._directed: tuple[Position, Consumer] | None = None
        self._next = 0
        self._chosen = 0
        self._last_holder: Consumer | None = None
        self._returning: deque[tuple[Consumer, Iterator[Position]]] = deque()

    def add(self, consumer: Consumer) -> None:
        """The first consumer starts after the mark-delete position."""
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: each.priority)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """Give what it held to the others."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if self._last_holder is consumer:
            self._last_holder = None
        if self.consumers:
            self._return(consumer, iter(list(consumer.unacked)))
        else:
            self.replay.clear()
            self._returning.clear()
            self._forget_delayed()
            self._chunks = None
            self.redeliveries.clear()
            self.unacked_count = 0
        self.wake()

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> None:
        """All that the consumer holds, or some of it."""
        self._return(consumer, iter(list(consumer.unacked)) if positions is None else positions)

    def release(self, position: Position, indexes: int | None) -> None:
        """Take from its holders what a transaction gave back: it is nobody's until it is delivered again."""
        for consumer, part in self._holding(position, indexes):
            self._settle(consumer, position, part)
        super().release(position, indexes)
        if position in self.replay:
            self.redeliveries[position] = self.redeliveries.get(position, 0) + 1

    def settled(self, position: Position, indexes: int | None) -> None:
        """Whoever held it holds it no more; permission to send more may come of it."""
        last = self._last_holder
        if indexes is None and last is not None and last.unacked.get(position):
            self._settle(last, position, None)
        else:
            for consumer, part in self._holding(position, indexes):
                self._settle(consumer, position, part)
        if self.redeliveries and self.subscription.cursor.is_deleted(position):
            self.redeliveries.pop(position, None)
            self.replay.discard(position)

    def pledged(self, position: Position, indexes: int | None) -> None:
        """An open transaction acknowledged it: whoever holds it has room for more."""
        last = self._last_holder
        if indexes is None and last is not None and last.unacked.get(position):
            self.unacked_count -= last.pledge(position, None)
        else:
            for consumer, part in self._holding(position, indexes):
                self.unacked_count -= consumer.pledge(position, part)
        if not self._due:
            self.wake()

    def _holding(self, position: Position, indexes: int | None) -> list[tuple[Consumer, int | None]]:
        """Return who holds (a part of) an entry, and which of `indexes` (None: all) to look for there.

        The holder that was found last is asked first: acknowledgements come in runs, and consumers may be many.
        """
        last = self._last_holder
        if last is not None and (known := last.unacked.get(position)) is not None and (indexes is None or not indexes & ~known):
            return [(last, indexes)]
        found: list[tuple[Consumer, int | None]] = []
        for consumer in self.consumers:
            if position in consumer.unacked:
                self._last_holder = consumer
                found.append((consumer, indexes))
                if indexes is None:
                    break
        return found

    def _settle(self, consumer: Consumer, position: Position, indexes: int | None) -> None:
        before = consumer.unacked_count
        consumer.settle(position, indexes)
        self.unacked_count -= before - consumer.unacked_count

    def rewind(self) -> None:
        """Go back: nobody holds anything any more."""
        for consumer in self.consumers:
            for position in list(consumer.unacked):
                consumer.settle(position, None)
        for consumer, _ in self._returning:
            consumer.returning = 0
        self._returning.clear()
        self.unacked_count = 0
        self._chunks = None
        super().rewind()

    def _return(self, consumer: Consumer, positions: Iterator[Position]) -> None:
        """Deliver again what a consumer gives back, taken back so many in a turn.

        Meanwhile the consumer gets nothing, so that it has in its hands what it is sent after it gave everything back.
        """
        consumer.returning += 1
        self._returning.append((consumer, positions))
        self.wake()

    def _take_back(self, most: int) -> None:
        """Go on with what is given back, up to so many positions."""
        while self._returning:
            consumer, positions = self._returning[0]
            for position in positions:
                self._take_back_one(consumer, position)
                most -= 1
                if not most:
                    self.wake()
                    return
            consumer.returning -= 1
            self._returning.popleft()

    def _take_back_one(self, consumer: Consumer, position: Position) -> None:
        indexes = consumer.unacked.get(position)
        if indexes is None:
            return
        self._settle(consumer, position, None)
        if not self.subscription.cursor.is_deleted(position):  # by a transaction, while it was on its way back
            self.replay.add(position, indexes)
            self.redeliveries[position] = self.redeliveries.get(position, 0) + 1

    def has(self, position: Position) -> bool:
        """True if an entry is with a consumer, or on its way to one."""
        if position in self.replay or (self._chunks is not None and position in self._chunks):
            return True
        holders = (*self.consumers, *(consumer for consumer, _ in self._returning))
        return any(position in consumer.unacked for consumer in holders)

    def _waits(self, position: Position, hints: DispatchHints, indexes: int | None) -> bool:
        if hints.deliver_at_ms is not None and self._is_early(position, hints.deliver_at_ms):
            return True
        return hints.chunk_of is not None and self._waits_for_its_taker(position, hints, indexes)

    def _waits_for_its_taker(self, position: Position, hints: DispatchHints, indexes: int | None) -> bool:
        if self._chunks is None:
            self._chunks = Chunks()
        chosen = self.consumers[self._chosen]
        taker = self._chunks.taker(position, hints, indexes, chosen, self.consumers, self._can_take)
        self._directed = None if taker is None or taker is chosen else (position, taker)
        return taker is None

    def _dispatch(self) -> None:
        if self._returning:
            self._take_back(RETURNED_PER_TURN)
        if self._chunks is not None:
            self._chunks.release(self.replay, self.consumers, self._can_take)
        super()._dispatch()

    def _is_early(self, position: Position, deliver_at_ms: int) -> bool:
        rules = self._topic.rules
        if not rules.delays or deliver_at_ms <= self._turn.clock.now_ms():
            return False
        if self.delayed is None:
            self.delayed = DelayedDelivery(self, rules.delay_tick_ms)
        self.delayed.add(position, deliver_at_ms)
        return True

    def _can_take(self, consumer: Consumer) -> bool:
        limit = self._topic.config.max_unacked_messages_per_consumer
        if consumer.permits <= 0 or consumer.returning or not consumer.owner.writable:
            return False
        return not limit or consumer.unacked_count < limit

    def _is_full(self) -> bool:
        limit = self._topic.config.max_unacked_messages_per_subscription
        return bool(limit) and self.unacked_count >= limit

    def _next_consumer(self) -> Consumer | None:
        config, consumers = self._topic.config, self.consumers
        limit = config.max_unacked_messages_per_subscription
        if limit and self.unacked_count >= limit:
            return None
        if self._chunks is not None and self._chunks.is_full:
            return None
        limit = config.max_unacked_messages_per_consumer
        count, best, chosen = len(consumers), None, 0
        for place in range(self._next, self._next + count):
            consumer = consumers[place % count]
            if (
                (best is None or consumer.priority < best.priority)
                and consumer.permits > 0
                and not consumer.returning
                and consumer.owner.writable
                and not (limit and consumer.unacked_count >= limit)
            ):
                best, chosen = consumer, place % count
                if consumer.priority == consumers[0].priority:
                    break
        if best is not None:
            self._chosen = chosen
        return best

    def _send(self, consumer: Consumer, position: Position, data: bytes, delivery: Delivery) -> None:
        # The turn passes on with what is sent, not with being asked: a look that finds nothing must not cost a turn.
        if self._directed is None:
            self._next = self._chosen + 1
        else:
            if self._directed[0] == position:
                consumer = self._directed[1]
            self._directed = None
        messages, indexes, ack_set, batch_size = delivery
        self.unacked_count += consumer.hold(position, indexes)
        count = self.redeliveries.get(position, 0) if self.redeliveries else 0
        consumer.send(position, data, messages, ack_set, batch_size, count)
