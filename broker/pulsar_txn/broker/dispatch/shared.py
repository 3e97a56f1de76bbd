"""Shared subscriptions: each entry goes to one of the consumers, round robin; what is not settled comes again.

The chunks of one message go to one consumer, for only it can put them together again: whoever gets a first chunk gets the
others too. When it cannot take one just now, that one waits apart, and others go on. What has a delivery time waits for it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Final

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.wire.ids import DispatchHints, EntryHeader, Position

from .consumers import Consumer
from .delayed import DelayedPositions
from .holders import TRANSITIONS, Event, Holders, State
from .machine import NOTHING, REWIND, Delivery, Dispatch, Effect, ack_set_of
from .waiting import Replay

RETURNED_PER_TURN: Final = 1000
"""Entries that consumers give back and that are taken in one turn of the loop."""

MAX_INCOMPLETE: Final = 1000
"""Messages of which not every chunk was given out; the one that began first is forgotten."""

MAX_CHUNKS_WAITING: Final = 2000
_UUID_BYTES: Final = 128

_DUE_AT_ONCE: Final = 512
"""Entries whose time has come wait for consumers with others, so many at most."""


class Shared(Dispatch):
    """Round robin among the consumers of the best priority that can take something."""

    individual = True

    def __init__(self, start: Position, config: BrokerConfig) -> None:
        super().__init__(start)
        self.replay = Replay()
        self.holders = Holders()
        self.redeliveries: dict[Position, int] = {}
        self.delayed: DelayedPositions | None = None
        self._most_unacked = config.max_unacked_messages_per_consumer
        self._most_unacked_of_all = config.max_unacked_messages_per_subscription
        self._chunks: Chunks | None = None  # made with the first chunk
        self._next = 0
        self._chosen = 0
        self._returning: deque[tuple[Consumer, Iterator[Position]]] = deque()
        self._now_ms: float = 0
        self._tick_ms = 1
        self._is_looking = False

    @property
    def delayed_count(self) -> int:
        """Entries that wait for their time; without those that were forgotten."""
        return len(self.delayed or ())

    # ---- events

    def add(self, consumer: Consumer) -> Sequence[Effect]:
        """The first consumer starts after the mark-delete position."""
        effects = NOTHING if self.consumers else REWIND
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: each.priority)
        return effects

    def remove(self, consumer: Consumer) -> Sequence[Effect]:
        """Give what it held to the others, if there are any."""
        if consumer not in self.consumers:
            return NOTHING
        self.consumers.remove(consumer)
        if self.consumers:
            self._return(consumer, iter(list(consumer.unacked)))
        else:
            self.replay.clear()
            self._returning.clear()
            self._forget_deferred()
            self.redeliveries.clear()
            self.holders = Holders()
        return NOTHING

    def redeliver(self, consumer: Consumer, positions: Iterator[Position] | None) -> Sequence[Effect]:
        """All that the consumer holds, or some of it."""
        self._return(consumer, iter(list(consumer.unacked)) if positions is None else positions)
        return NOTHING

    def release(self, position: Position, indexes: int | None) -> Sequence[Effect]:
        """Take from its holders what a transaction gave back: it is nobody's until it is delivered again."""
        self._tell(position, Event.RELEASE, indexes)
        state = State.AHEAD if position >= self.read_position else State.AWAY
        if TRANSITIONS[state, Event.RELEASE].to is State.WAITING:
            self._wait_again(position, indexes)
        return NOTHING

    def settled(self, position: Position, indexes: int | None) -> None:
        """Take it from its holders, who have room for more then."""
        self._tell(position, Event.ACKNOWLEDGE, indexes)
        if self.redeliveries and indexes is None:
            self.redeliveries.pop(position, None)
            self.replay.discard(position)

    def pledged(self, position: Position, indexes: int | None) -> None:
        """Make room for more with its holders."""
        self._tell(position, Event.PLEDGE, indexes)

    def acknowledged_by(self, consumer: Consumer, first: Position) -> None:
        """Do nothing: each consumer was given other messages."""

    def rewind(self, start: Position) -> None:
        """Go back: nobody holds anything any more."""
        super().rewind(start)
        self.replay.clear()
        self.holders.clear()
        for consumer, _ in self._returning:
            consumer.end_return(consumer.returning)
        self._returning.clear()
        self._forget_deferred()

    def _forget_deferred(self) -> None:
        self.delayed = self._chunks = None
        self._is_looking = self.must_look = False

    def _tell(
        self, position: Position, event: Event, indexes: int | None, consumer: Consumer | None = None
    ) -> Sequence[Consumer]:
        return self.holders.tell(position, event, indexes, consumer)

    def _wait_again(self, position: Position, indexes: int | None) -> None:
        self.replay.add(position, indexes)
        self.redeliveries[position] = self.redeliveries.get(position, 0) + 1

    def _return(self, consumer: Consumer, positions: Iterator[Position]) -> None:
        """Deliver again what a consumer gives back, taken back so many in a turn.

        Meanwhile the consumer gets nothing, so that it has in its hands what it is sent after it gave everything back.
        """
        consumer.begin_return()
        self._returning.append((consumer, positions))

    def _take_back(self, most: int) -> None:
        """Go on with what is given back, up to so many positions."""
        while self._returning:
            consumer, positions = self._returning[0]
            for position in positions:
                indexes = consumer.unacked.get(position)
                if indexes is not None:
                    self._tell(position, Event.RETURN, None, consumer)
                    self._wait_again(position, indexes)
                most -= 1
                if not most:
                    return
            consumer.end_return()
            self._returning.popleft()

    # ---- a turn

    def begin(self, now_ms: float, tick_ms: int) -> None:
        """Take what is due, what is given back, and the chunks whose consumer can take them."""
        self._now_ms, self._tick_ms = now_ms, tick_ms
        self.must_look = False
        delayed = self.delayed
        if delayed is not None and len(self.replay) < _DUE_AT_ONCE:
            for position in delayed.take_due(now_ms, _DUE_AT_ONCE - len(self.replay)):
                self.replay.add(position)
            self.must_look = not self._is_looking and delayed.must_look(now_ms)
        if self._returning:
            self._take_back(RETURNED_PER_TURN)
        if self._chunks is not None:
            for position, indexes in self._chunks.release(self.consumers, self._most_unacked):
                self.replay.add(position, indexes)

    def end(self, now_ms: float) -> float | None:
        """At once, while more is given back, or more is due and there is room for it; or when the first is due."""
        if self._returning:
            return now_ms
        delayed = self.delayed
        if delayed is None:
            return None
        if not delayed and not self._is_looking:
            self.delayed = None
            return None
        due_ms = delayed.next_ms()
        if due_ms is None or due_ms > now_ms:
            return due_ms
        # What is due and finds no room waits for consumers, and they wake the dispatch.
        return now_ms if len(self.replay) < _DUE_AT_ONCE and not self._is_looking else None

    def wanted(self, published: Position) -> Position | None:
        """The earliest entry that waits, else the next one of the log, if there is a consumer for it."""
        first = self.replay.first() if self.replay.waiting else None
        position = self.read_position if first is None else first[0]
        return position if (first is not None or position <= published) and self._choose() else None

    def _choose(self) -> bool:
        """Find the consumer that takes the next entry, unless none can."""
        of_all = self._most_unacked_of_all
        if (of_all and self.holders.count >= of_all) or (self._chunks is not None and self._chunks.is_full):
            return False
        consumers, most = self.consumers, self._most_unacked
        count, best = len(consumers), None
        for place in range(self._next, self._next + count):
            consumer = consumers[place % count]
            if consumer.permits > 0 and (best is None or consumer.priority < best.priority) and consumer.can_take(most):
                best, self._chosen = consumer, place % count
                if consumer.priority == consumers[0].priority:
                    break
        return best is not None

    def _is_full(self) -> bool:
        return bool(self._most_unacked_of_all) and self.holders.count >= self._most_unacked_of_all

    def offer(
        self,
        position: Position,
        following: Position,
        live: int,
        batch_size: int,
        pending: int,
        header: EntryHeader | None,
        data: bytes,
    ) -> Delivery | None:
        """Give what is live and wanted to the consumer whose turn it is."""
        indexes = None
        if position == self.read_position:
            self.read_position = following
        elif position in self.replay:
            indexes = self.replay.waiting[position]
            self.replay.discard(position)
            if indexes is not None:
                live &= indexes
        if not live or header is None or not self.consumers:
            return None
        consumer = self.consumers[self._chosen]
        if header.hints is not None:
            taker = self._taker(position, header.hints, indexes, consumer)
            if taker is None:
                return None
            if taker is not consumer:
                return self._give(taker, position, live, batch_size)
        # The turn passes on with what is sent, not with being asked: a look that finds nothing must not cost a turn.
        self._next = self._chosen + 1
        return self._give(consumer, position, live, batch_size)

    def _taker(self, position: Position, hints: DispatchHints, indexes: int | None, chosen: Consumer) -> Consumer | None:
        """The consumer of an entry that asks for something; None: it waits."""
        if self._is_early(position, hints):
            return None
        if hints.chunk_of is None:
            return chosen
        if self._chunks is None:
            self._chunks = Chunks()
        return self._chunks.taker(position, hints, indexes, chosen, self.consumers, self._most_unacked)

    def _is_early(self, position: Position, hints: DispatchHints) -> bool:
        if hints.deliver_at_ms is None or hints.deliver_at_ms <= self._now_ms:
            return False
        self.delay(position, hints.deliver_at_ms)
        return True

    def _give(self, consumer: Consumer, position: Position, live: int, batch_size: int) -> Delivery:
        self.holders.give(position, consumer, live)
        count = self.redeliveries.get(position, 0) if self.redeliveries else 0
        return consumer, ack_set_of(live, batch_size) if batch_size else None, count

    def trimmed(self, position: Position, first: Position) -> None:
        """Forget what waited there."""
        self.replay.discard(position)
        super().trimmed(position, first)

    # ---- delayed entries

    def delay(self, position: Position, deliver_at_ms: int) -> None:
        """Keep an entry until its time."""
        if self.delayed is None:
            self.delayed = DelayedPositions(self._tick_ms)
        self.delayed.add(position, deliver_at_ms)

    def begin_look(self) -> None:
        """Everything that is delayed is told anew: as much is remembered as there is room for."""
        self._is_looking = True
        if self.delayed is not None:
            self.delayed.clear()

    def end_look(self) -> None:
        """All that is delayed is told."""
        self._is_looking = False

    def has(self, position: Position) -> bool:
        """True if an entry is with a consumer, or on its way to one."""
        if position in self.replay or (self._chunks is not None and position in self._chunks):
            return True
        return position in self.holders

    def state(self, position: Position, index: int = 0) -> State:
        """State of one message, as the table of `holders` has them."""
        held = self.holders.state(position, index)
        if held is not None:
            return held
        if position in self.replay:
            indexes = self.replay.waiting[position]
            return State.WAITING if indexes is None or indexes >> index & 1 else State.AWAY
        if position >= self.read_position:
            return State.AHEAD
        is_deferred = (self._chunks is not None and position in self._chunks) or (self.delayed and position in self.delayed)
        return State.DEFERRED if is_deferred else State.AWAY

    def close(self) -> None:
        """Nothing waits any more."""
        self._forget_deferred()


class Chunks:
    """Consumers that get the chunks of messages, and those chunks that wait for their consumer."""

    def __init__(self) -> None:
        self._takers: OrderedDict[bytes, Consumer] = OrderedDict()
        self._waiting: dict[Position, tuple[Consumer, int | None]] = {}

    def __contains__(self, position: Position) -> bool:
        return position in self._waiting

    @property
    def is_full(self) -> bool:
        """True if so many chunks wait that nothing more is read before some of them could go."""
        return len(self._waiting) >= MAX_CHUNKS_WAITING

    def taker(
        self,
        position: Position,
        hints: DispatchHints,
        indexes: int | None,
        chosen: Consumer,
        consumers: Sequence[Consumer],
        most_unacked: int,
    ) -> Consumer | None:
        """The consumer that gets this chunk; None when it has to wait.

        `chosen`: whose turn it is, and who gets a message that begins.
        """
        uuid = (hints.chunk_of or b"")[:_UUID_BYTES]
        taker = self._takers.get(uuid)
        if hints.chunk_id <= 0 or taker is None or taker not in consumers:
            taker = self._takers[uuid] = chosen
            if len(self._takers) > MAX_INCOMPLETE:
                self._takers.popitem(last=False)
        elif not taker.can_take(most_unacked):
            self._waiting[position] = (taker, indexes)
            return None
        if hints.chunk_id >= hints.chunks - 1:
            self._takers.pop(uuid, None)
        return taker

    def release(self, consumers: Sequence[Consumer], most_unacked: int) -> list[tuple[Position, int | None]]:
        """Take the chunks whose consumer can take something again, or is gone, with the indexes to deliver."""
        found = [
            (position, indexes)
            for position, (taker, indexes) in self._waiting.items()
            if taker not in consumers or taker.can_take(most_unacked)
        ]
        for position, _ in found:
            del self._waiting[position]
        return found
