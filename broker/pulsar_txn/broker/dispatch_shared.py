"""Shared subscriptions: each entry goes to one of the consumers, round robin; what is not settled comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_txn.wire.ids import DispatchHints, Position

from .chunks import Chunks
from .consumers import Consumer
from .delayed import DelayedDelivery
from .dispatch import Delivery, Dispatcher

if TYPE_CHECKING:
    from .subscription import Subscription


class SharedDispatcher(Dispatcher):
    """Round robin among the consumers of the best priority that can take something."""

    individual = True

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.redeliveries: dict[Position, int] = {}
        self.unacked_count = 0
        self._chunks: Chunks | None = None  # made with the first chunk
        self._directed: tuple[Position, Consumer] | None = None
        self._next = 0
        self._chosen = 0

    def add(self, consumer: Consumer) -> None:
        """The first consumer starts behind the mark-delete position."""
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: each.priority)
        self.wake()

    def remove(self, consumer: Consumer) -> None:
        """What it held goes to the others."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._take_back(consumer, list(consumer.unacked))
        if not self.consumers:
            self.replay.clear()
            self._forget_delayed()
            self._chunks = None
            self.redeliveries.clear()
            self.unacked_count = 0
        self.wake()

    def redeliver(self, consumer: Consumer, positions: list[Position]) -> None:
        """All that the consumer holds, or some of it."""
        self._take_back(consumer, positions or list(consumer.unacked))
        self.wake()

    def release(self, position: Position, indexes: int | None) -> None:
        """What a transaction gave back is nobody's until it is delivered again."""
        for consumer in self.consumers:
            before = consumer.unacked_count
            if consumer.settle(position, indexes):
                self.unacked_count -= before - consumer.unacked_count
                self._left(consumer, position)
        super().release(position, indexes)
        if position in self.replay:
            self.redeliveries[position] = self.redeliveries.get(position, 0) + 1

    def settled(self, position: Position, indexes: int | None) -> None:
        """Whoever held it holds it no more; permission to send more may come of it."""
        for consumer in self.consumers:
            before = consumer.unacked_count
            if consumer.settle(position, indexes):
                self.unacked_count -= before - consumer.unacked_count
                self._left(consumer, position)
                if indexes is None:
                    break
        if self.redeliveries and self.subscription.cursor.is_deleted(position):
            self.redeliveries.pop(position, None)
            self.replay.discard(position)

    def pledged(self, position: Position, indexes: int | None) -> None:
        """An open transaction acknowledged it: whoever holds it has room for more."""
        for consumer in self.consumers:
            before = consumer.unacked_count
            consumer.pledge(position, indexes)
            self.unacked_count -= before - consumer.unacked_count
        self.wake()

    def rewind(self) -> None:
        """Nobody holds anything any more."""
        for consumer in self.consumers:
            for position in list(consumer.unacked):
                consumer.settle(position, None)
                self._left(consumer, position)
        self.unacked_count = 0
        self._chunks = None
        super().rewind()

    def _take_back(self, consumer: Consumer, positions: list[Position]) -> None:
        for position in positions:
            indexes = consumer.unacked.get(position)
            if indexes is None:
                continue
            before = consumer.unacked_count
            consumer.settle(position, None)
            self.unacked_count -= before - consumer.unacked_count
            self._left(consumer, position)
            self.replay.add(position, indexes)
            self.redeliveries[position] = self.redeliveries.get(position, 0) + 1

    def has(self, position: Position) -> bool:
        """Whether an entry is with a consumer, or on its way to one."""
        if position in self.replay or (self._chunks is not None and position in self._chunks):
            return True
        return any(position in consumer.unacked for consumer in self.consumers)

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

    def _left(self, consumer: Consumer, position: Position) -> None:
        """A consumer settled (a part of) an entry; Key_Shared counts."""

    def _can_take(self, consumer: Consumer) -> bool:
        limit = self._topic.config.max_unacked_messages_per_consumer
        return consumer.permits > 0 and consumer.owner.writable and (not limit or consumer.unacked_count < limit)

    def _is_full(self) -> bool:
        limit = self._topic.config.max_unacked_messages_per_subscription
        return bool(limit) and self.unacked_count >= limit

    def _next_consumer(self) -> Consumer | None:
        consumers = self.consumers
        if self._is_full() or (self._chunks is not None and self._chunks.is_full):
            return None
        best: Consumer | None = None
        for step in range(len(consumers)):
            place = (self._next + step) % len(consumers)
            consumer = consumers[place]
            if (best is None or consumer.priority < best.priority) and self._can_take(consumer):
                best = consumer
                chosen = place
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
        before = consumer.unacked_count
        consumer.hold(position, delivery.indexes)
        self.unacked_count += consumer.unacked_count - before
        count = self.redeliveries.get(position, 0) if self.redeliveries else 0
        consumer.send(position, data, delivery.messages, delivery.ack_set, delivery.batch_size, count)
