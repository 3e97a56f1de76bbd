"""Messages that wait for their time (Shared and Key_Shared): where they lie, and when the first of them may go out.

The log is the truth: what is kept here is read from it again after a restart, or when there was too much to be kept.
"""

from __future__ import annotations

import heapq
from array import array
from typing import Final

from pulsar_txn.wire.ids import Position

MAX_DELAYED: Final = 200_000
"""Messages of one subscription that are remembered, 16 bytes each; those that are due last are looked up in the log again."""

_MOST_PASSED_OVER: Final = 64
_DROPPED_AT_ONCE: Final = 200
"""The part of all that is forgotten together when there is no more room: one of so many."""


class DelayedPositions:
    """Positions by the tick in which they may go out; at most `limit`, the earliest."""

    __slots__ = ("_count", "_forgotten", "_latest", "_limit", "_tick_ms", "_ticks", "_waiting")

    def __init__(self, tick_ms: int, limit: int | None = None) -> None:
        self._tick_ms = tick_ms
        self._limit = MAX_DELAYED if limit is None else limit
        self._count = 0
        self._waiting: dict[int, array[int]] = {}
        self._ticks: list[int] = []  # a heap; what is not in `_waiting` is passed over, here and in the next one
        self._latest: list[int] = []  # a heap of the same ticks, negative
        self._forgotten: int | None = None  # all that is due in this tick or later may be missing

    def __len__(self) -> int:
        return self._count

    def __contains__(self, position: Position) -> bool:
        """True if a position is remembered; looks at all of them."""
        pairs = (zip(places[::2], places[1::2], strict=True) for places in self._waiting.values())
        return any(position in each for each in pairs)

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
