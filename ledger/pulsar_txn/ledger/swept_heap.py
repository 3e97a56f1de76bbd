"""A heap of entries that may lose their meaning while they lie in it, which is swept a few entries at a time.

Code that knows when an entry means something (a transaction is open, say) passes `is_alive`; entries without meaning are
passed over when they come to the front. When they outnumber the others, the heap is swept: some of its entries with each
change, into a second heap, those without meaning left out. So the room stays in proportion to what is alive, and no single
change pays for all. The inner order is not state: a heap is built again from what is alive at any time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar


class Comparable(Protocol):
    """Value that a heap can order."""

    def __lt__(self, other: Any, /) -> bool: ...


EntryT = TypeVar("EntryT", bound=Comparable)

SLACK: Final = 1024
"""Entries without meaning that are never worth a sweep."""

_MOVED_PER_CHANGE: Final = 4
_PASSED_PER_LOOK: Final = 256


class SweptHeap(Generic[EntryT]):
    """The smallest entries that are alive; an entry that was added must not be added again."""

    __slots__ = ("_is_alive", "_swept", "heap")

    def __init__(self, is_alive: Callable[[EntryT], bool]) -> None:
        self.heap: list[EntryT] = []
        self._swept: list[EntryT] = []  # while a sweep is under way: what is left of the heap before it
        self._is_alive: Callable[[EntryT], bool] = is_alive

    def __len__(self) -> int:
        return len(self.heap) + len(self._swept)

    def __iter__(self) -> Iterator[EntryT]:
        """All entries, those without meaning too, in no order."""
        yield from self.heap
        yield from self._swept

    def add(self, entry: EntryT) -> None:
        """Take in an entry that is alive."""
        heapq.heappush(self.heap, entry)
        if self._swept:
            self._move_some()

    def lost(self, alive: int) -> None:
        """An entry lost its meaning; at most `alive` others still have theirs."""
        if self._swept:
            self._move_some()
        elif len(self.heap) > 2 * alive + SLACK:
            self.heap, self._swept = [], self.heap

    def first(self) -> EntryT | None:
        """The smallest entry that is alive; None if absent.

        When too many dead entries come before it for one look, the result is a dead one: looking again sees further.
        """
        heap = self.heap
        if not self._swept:  # nearly always
            is_alive, left = self._is_alive, _PASSED_PER_LOOK
            while heap and left and not is_alive(heap[0]):
                heapq.heappop(heap)
                left -= 1
        else:
            heap = self._front()
        return heap[0] if heap else None

    def smallest(self, limit: int, is_wanted: Callable[[EntryT], bool]) -> list[EntryT]:
        """The smallest entries that are alive, ascending, up to the first that is not wanted; at most `limit`. They stay."""
        found: list[EntryT] = []
        while len(found) < limit and (heap := self._front()) and is_wanted(heap[0]) and self._is_alive(heap[0]):
            found.append(heapq.heappop(heap))
        for entry in found:
            heapq.heappush(self.heap, entry)
        return found

    def _front(self) -> list[EntryT]:
        """The heap with the smallest entry that is alive in front, as far as one look goes; otherwise empty."""
        is_alive = self._is_alive
        heap = self.heap
        for _ in range(_PASSED_PER_LOOK):
            heap = self.heap
            if not heap or (self._swept and self._swept[0] < heap[0]):
                heap = self._swept
            if not heap or is_alive(heap[0]):
                break
            heapq.heappop(heap)
        return heap

    def _move_some(self) -> None:
        swept, heap = self._swept, self.heap
        for _ in range(min(_MOVED_PER_CHANGE, len(swept))):
            entry = swept.pop()  # the last of a heap: the rest is one
            if self._is_alive(entry):
                heapq.heappush(heap, entry)
