"""Positions to be delivered again, in the order of the log."""

from __future__ import annotations

import heapq
from typing import Final

from pulsar_txn.wire.ids import Position

_MOST_DISCARDED: Final = 1024


class Replay:
    """A sorted set of positions, each with the batch indexes to deliver (None: whatever of the entry is not settled)."""

    __slots__ = ("_discarded", "_heap", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[Position, int | None] = {}
        self._heap: list[Position] = []
        self._discarded = 0  # since the heaps held only what waits

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, position: Position) -> bool:
        return position in self.waiting

    def add(self, position: Position, indexes: int | None = None) -> None:
        """Deliver it again; more indexes of an entry that waits already join it."""
        if position not in self.waiting:
            self.waiting[position] = indexes
            heapq.heappush(self._heap, position)
            return
        known = self.waiting[position]
        self.waiting[position] = None if known is None or indexes is None else known | indexes

    def first(self) -> tuple[Position, int | None] | None:
        """The earliest one; it stays until `discard`."""
        heap = self._heap
        while heap:
            position = heap[0]
            if position in self.waiting:
                return position, self.waiting[position]
            heapq.heappop(heap)
        return None

    def discard(self, position: Position) -> None:
        """Discard an entry that was delivered, or is not needed any more.

        It leaves a heap when it is the first there, or with many others.
        """
        self.waiting.pop(position, None)
        self._discarded += 1
        if self._discarded > _MOST_DISCARDED and self._discarded > len(self.waiting):
            self._discarded = 0
            self._forget_discarded()

    def _forget_discarded(self) -> None:
        self._heap = sorted(self.waiting)

    def in_order(self) -> list[tuple[Position, int | None]]:
        """All of them."""
        return sorted(self.waiting.items(), key=lambda item: item[0])

    def clear(self) -> None:
        """Forget all."""
        self.waiting.clear()
        self._heap.clear()
