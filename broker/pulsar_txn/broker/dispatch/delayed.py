"""Messages that wait for their time (Shared and Key_Shared): where they lie, and when the first of them may go out.

The log is the truth: what is kept here is read from it again after a restart, or when there was too much to be kept.
"""

from __future__ import annotations

import asyncio
import heapq
from array import array
from typing import Final, Protocol

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire.entries import read_header
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

from .replay import Replay
from .view import SubscriptionView

MAX_DELAYED: Final = 200_000
"""Messages of one subscription that are remembered, 16 bytes each; those that are due last are looked up in the log again."""

_AT_ONCE: Final = 512
_MOST_PASSED_OVER: Final = 64
_DROPPED_AT_ONCE: Final = 200
"""The part of all that is forgotten together when there is no more room: one of so many."""
_LONGEST_TIMER_SECONDS: Final = 3600.0


class DelayedPositions:
    """Positions by the tick in which they may go out; at most `limit`, the earliest."""

    __slots__ = ("_count", "_forgotten", "_latest", "_limit", "_tick_ms", "_ticks", "_waiting")

    def __init__(self, tick_ms: int, limit: int) -> None:
        self._tick_ms = tick_ms
        self._limit = limit
        self._count = 0
        self._waiting: dict[int, array[int]] = {}
        self._ticks: list[int] = []  # a heap; what is not in `_waiting` is passed over, here and in the next one
        self._latest: list[int] = []  # a heap of the same ticks, negative
        self._forgotten: int | None = None  # all that is due in this tick or later may be missing

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0 or self._forgotten is not None

    def add(self, position: Position, deliver_at_ms: int) -> None:
        """Keep a position until its time."""
        tick = -(-deliver_at_ms // self._tick_ms)
        if self._forgotten is not None and tick >= self._forgotten:
            return
        if self._count >= self._limit:
            self._forgotten = self._drop_latest()
            if tick >= self._forgotten:
                return
        places = self._waiting.get(tick)
        if places is None:
            places = self._waiting[tick] = array("q")
            heapq.heappush(self._ticks, tick)
            heapq.heappush(self._latest, -tick)
            self._tidy()
        places.extend(position)
        self._count += 1

    def _tidy(self) -> None:
        """Make a heap again when most of it is passed over."""
        most = 2 * len(self._waiting) + _MOST_PASSED_OVER
        if len(self._ticks) > most:
            self._ticks = list(self._waiting)
            heapq.heapify(self._ticks)
        if len(self._latest) > most:
            self._latest = [-tick for tick in self._waiting]
            heapq.heapify(self._latest)

    def _drop_latest(self) -> int:
        """Make some room: forget what is due last. Returns the first tick of which not everything is kept."""
        room = self._limit - max(1, self._limit // _DROPPED_AT_ONCE)
        dropped = 0
        while self._count > room:
            tick = -heapq.heappop(self._latest)
            places = self._waiting.get(tick)
            if places is None:  # it was due, and taken
                continue
            dropped = tick
            if len(self._waiting) == 1:  # very much is due in one tick: the later ones of it come when these are gone
                half = self._limit // 2
                del places[2 * half :]
                self._count = half
                heapq.heappush(self._latest, -tick)
            else:
                self._count -= len(places) // 2
                del self._waiting[tick]
        return dropped

    def next_ms(self) -> int | None:
        """Return when something may go out, or has to be looked up; None when nothing waits."""
        ticks = [each for each in (self._first_tick(), self._forgotten) if each is not None]
        return min(ticks) * self._tick_ms if ticks else None

    def take_due(self, now_ms: float, most: int) -> list[Position]:
        """Up to `most` positions whose time has come."""
        found: list[Position] = []
        while self._has_due(now_ms) and len(found) < most:
            places = self._waiting[self._ticks[0]]
            taken = places[: 2 * (most - len(found))]
            found += zip(taken[::2], taken[1::2], strict=True)
            if len(taken) == len(places):
                del self._waiting[heapq.heappop(self._ticks)]
            else:
                del places[: len(taken)]
        self._count -= len(found)
        return found

    def _has_due(self, now_ms: float) -> bool:
        first = self._first_tick()
        return first is not None and first * self._tick_ms <= now_ms

    def _first_tick(self) -> int | None:
        ticks = self._ticks
        while ticks and ticks[0] not in self._waiting:
            heapq.heappop(ticks)
        return ticks[0] if ticks else None

    def must_look(self, now_ms: float) -> bool:
        """True if something is due that was forgotten, and nothing that is remembered."""
        forgotten = self._forgotten is not None and self._forgotten * self._tick_ms <= now_ms
        return forgotten and not self._has_due(now_ms)

    def clear(self) -> None:
        """Forget all, as nothing waits."""
        self._count = 0
        self._waiting.clear()
        self._ticks.clear()
        self._latest.clear()
        self._forgotten = None


class Delaying(Protocol):
    """The dispatcher that messages wait for."""

    subscription: SubscriptionView
    replay: Replay
    read_position: Position

    def has(self, position: Position) -> bool:
        """True if an entry is with a consumer, or on its way to one."""

    def wake(self) -> None:
        """Dispatch at the end of this turn."""


class DelayedDelivery:
    """The delayed messages of one dispatcher; made when the first one comes, gone when none is left."""

    def __init__(self, dispatcher: Delaying, tick_ms: int) -> None:
        self._dispatcher = dispatcher
        self._topic = dispatcher.subscription.topic
        self._turn = self._topic.turn
        self._positions = DelayedPositions(tick_ms, MAX_DELAYED)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._positions)

    def __bool__(self) -> bool:
        return bool(self._positions) or self._looking is not None

    def add(self, position: Position, deliver_at_ms: int) -> None:
        """Keep a message until its time."""
        self._positions.add(position, deliver_at_ms)
        self._arm()

    def release(self) -> None:
        """Hand what is due to the replay, as much as is soon given out."""
        replay = self._dispatcher.replay
        if len(replay) < _AT_ONCE:
            now_ms = self._now_ms()
            for position in self._positions.take_due(now_ms, _AT_ONCE - len(replay)):
                replay.add(position)
            if self._looking is None and self._positions.must_look(now_ms):
                self._looking = asyncio.get_running_loop().create_task(self._look())
        self._arm()

    @property
    def wants_turn(self) -> bool:
        """True if more is due, and there is room for it in the replay."""
        due_ms = self._positions.next_ms()
        room = len(self._dispatcher.replay) < _AT_ONCE and self._looking is None
        return room and due_ms is not None and due_ms <= self._now_ms()

    def clear(self) -> None:
        """Nothing waits any more: the log is read again, or nobody is there to read."""
        self._positions.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _now_ms(self) -> float:
        return self._turn.clock.now_ms() if self._topic.rules.delays else float("inf")

    def _arm(self) -> None:
        due_ms = self._positions.next_ms()
        if due_ms is None or (self._timer is not None and self._timer_at_ms <= due_ms):
            return
        now_ms = self._turn.clock.now_ms()
        if due_ms <= now_ms:
            return  # it waits for consumers, and they wake the dispatcher
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = due_ms
        delay = min((due_ms - now_ms) / 1000, _LONGEST_TIMER_SECONDS)
        self._timer = self._turn.runtime.call_later(delay, self._time_has_come)

    def _time_has_come(self) -> None:
        self._timer = None
        self._dispatcher.wake()

    async def _look(self) -> None:
        """Read again what the dispatcher has passed, and remember what waits in it: as much as there is room for."""
        dispatcher, positions = self._dispatcher, self._positions
        log, buffer, cursor = self._topic.log, self._topic.buffer, dispatcher.subscription.cursor
        positions.clear()
        start, end = log.next_position(cursor.mark_delete), dispatcher.read_position
        budget = self._turn.budget
        try:
            while start < end:
                await budget.pause()
                entries = await log.read(start, max_entries=256)
                for position, data in entries:
                    header = read_header(data)
                    deliver_at_ms = None if header.hints is None else header.hints.deliver_at_ms
                    if deliver_at_ms is None or position >= end or buffer.is_hidden(position, header):
                        continue
                    if not (cursor.is_deleted(position) or dispatcher.has(position)):
                        positions.add(position, deliver_at_ms)
                if not entries:
                    break
                start = log.next_position(entries[-1][0])
        except (LedgerError, WireError) as error:
            dispatcher.subscription.fail(error)
        self._looking = None
        dispatcher.wake()
