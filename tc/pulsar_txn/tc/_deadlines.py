"""Deadlines as data: a heap of (deadline_ms, least). What was ended meanwhile is passed over when its turn comes.

Entries of ended transactions are swept out when they outnumber the others, so the heap stays in proportion to
what is open. The heap's inner order is not state: it is rebuilt from the open transactions at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

SLACK: Final = 1024
"""Entries without meaning that are never worth a sweep."""


class Deadlines:
    """When open transactions are due; `is_open` tells which still are."""

    __slots__ = ("_is_open", "heap")

    def __init__(self, is_open: Callable[[int], bool]) -> None:
        self.heap: list[tuple[int, int]] = []
        self._is_open = is_open

    def add(self, deadline_ms: int, least: int) -> None:
        """Wait for `deadline_ms`."""
        heapq.heappush(self.heap, (deadline_ms, least))

    def next(self) -> int | None:
        """The earliest deadline of an open transaction."""
        heap = self.heap
        while heap:
            if self._is_open(heap[0][1]):
                return heap[0][0]
            heapq.heappop(heap)
        return None

    def due(self, now_ms: int, limit: int) -> list[int]:
        """At most `limit` open transactions that are due, the earliest first. They stay until they are not open any more."""
        found: list[tuple[int, int]] = []
        while len(found) < limit and (deadline := self.next()) is not None and deadline <= now_ms:
            found.append(heapq.heappop(self.heap))
        for entry in found:
            heapq.heappush(self.heap, entry)
        return [least for _, least in found]

    def sweep(self, open_count: int, entries: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """Rebuild the heap from `entries()` when most of it means nothing any more."""
        if len(self.heap) > 2 * open_count + SLACK:
            self.heap = list(entries())
            heapq.heapify(self.heap)
