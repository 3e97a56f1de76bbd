"""Deadlines as data: heaps of (deadline_ms, least). What was ended meanwhile is passed over when its turn comes.

When entries of ended transactions outnumber the others, the heap is swept: a few of its entries with each change, into a
second heap, those without meaning left out. So the heaps stay in proportion to what is open, and no single change pays
for all. The heaps' inner order is not state: they are rebuilt from the open transactions at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

SLACK: Final = 1024
"""Entries without meaning that are never worth a sweep."""

_MOVED_PER_CHANGE: Final = 4
_PASSED_PER_LOOK: Final = 256

_Entry = tuple[int, int]


class Deadlines:
    """When open transactions are due; `is_open` tells which still are."""

    __slots__ = ("_is_open", "_swept", "heap")

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self.heap: list[_Entry] = []
        self._swept: list[_Entry] = []  # while a sweep is under way: what is left of the heap before it
        self._is_open = is_open

    def __len__(self) -> int:
        return len(self.heap) + len(self._swept)

    def entries(self) -> list[_Entry]:
        """All entries, those without meaning too, in no order."""
        return self.heap + self._swept

    def add(self, deadline_ms: int, least: int) -> None:
        """Wait for `deadline_ms`."""
        heapq.heappush(self.heap, (deadline_ms, least))
        if self._swept:
            self._move_some()

    def ended(self, open_count: int) -> None:
        """One of those that are waited for is open no longer; `open_count` still are."""
        if self._swept:
            self._move_some()
        elif len(self.heap) > 2 * open_count + SLACK:
            self.heap, self._swept = [], self.heap

    def next(self) -> int | None:
        """The earliest deadline of an open transaction.

        Earlier, when more lies in front of it than one look should pass over: whoever asks again then, sees further.
        """
        heap = self._earliest()
        return heap[0][0] if heap else None

    def due(self, now_ms: int, limit: int) -> list[int]:
        """At most `limit` open transactions that are due, the earliest first. They stay until they are not open any more."""
        found: list[_Entry] = []
        while len(found) < limit and (heap := self._earliest()) and heap[0][0] <= now_ms and self._is_open(heap[0][1]):
            found.append(heapq.heappop(heap))
        for entry in found:
            heapq.heappush(self.heap, entry)
        return [least for _, least in found]

    def _earliest(self) -> list[_Entry]:
        """The heap with the earliest entry that means something in front, as far as one look goes; empty when there is none."""
        is_open = self._is_open
        for _ in range(_PASSED_PER_LOOK):
            heap = self.heap
            if not heap or (self._swept and self._swept[0] < heap[0]):
                heap = self._swept
            if not heap or is_open(heap[0][1]):
                return heap
            heapq.heappop(heap)
        return heap

    def _move_some(self) -> None:
        swept, heap = self._swept, self.heap
        for _ in range(min(_MOVED_PER_CHANGE, len(swept))):
            entry = swept.pop()  # the last of a heap: the rest is one
            if self._is_open(entry[1]):
                heapq.heappush(heap, entry)
