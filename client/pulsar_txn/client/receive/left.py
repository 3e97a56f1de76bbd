"""Entries that are neither handed out nor acknowledged, and that no cumulative acknowledgement may take along.

An entry is left when it is more than this program takes, or a chunk of a message that was given up: it stays with the
broker, to be delivered again another time. When the server starts over (see `partition_consumer`) what was left comes again,
too; until it has, or something after it has, it may not be acknowledged along either.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final

from pulsar_txn.wire.ids import Position

LIMIT: Final = 10_000
"""Places that are remembered one by one; of those after them only the first."""


class LeftEntries:
    """Entries that were left of one partition.

    Without `watched` nothing is remembered, for subscriptions without order or memory.
    """

    def __init__(self, *, watched: bool) -> None:
        self._watched = watched
        self._places: list[Position] = []
        self._others: Position | None = None
        self.owed: list[Position] = []
        """Those that the server, which has started over, has not passed yet."""

    def add(self, positions: Iterable[Position]) -> None:
        """These are left."""
        if self._watched:
            for position in positions:
                self._add(position)

    def _add(self, position: Position) -> None:
        at = bisect.bisect_left(self._places, position)
        if self._places[at : at + 1] == [position]:
            return
        self._places.insert(at, position)
        if len(self._places) > LIMIT:
            last = self._places.pop()
            self._others = last if self._others is None else min(last, self._others)

    def before(self, position: Position) -> bool:
        """True if one of them is before a place."""
        firsts = (self._places[:1], self.owed[:1], [] if self._others is None else [self._others])
        return any(first < position for each in firsts for first in each)

    def start_over(self, incomplete: Iterable[Position]) -> None:
        """All of them come again, and so do these."""
        self.add(incomplete)
        others = [] if self._others is None else [self._others]
        self.owed = sorted({*self.owed, *self._places, *others})[:LIMIT]
        self._places, self._others = [], None

    def came(self, position: Position) -> None:
        """The server has delivered this; what is not after it is owed no more."""
        del self.owed[: bisect.bisect_right(self.owed, position)]
