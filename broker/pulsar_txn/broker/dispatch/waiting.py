"""Entries that wait for a consumer, in the order of the log; for Key_Shared also by slot, and by the owner of the slot.

`Replay` is a sorted set. In a `SlotReplay` the earliest position of each slot is announced to the slot's owner; so the dispatch
finds what a consumer may take without looking at what all others wait for. A slot that another consumer still holds entries
of is put aside until it is released.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Final

from pulsar_txn.wire.ids import Position

from .consumers import Consumer
from .key_ring import SlotOwners

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


class SlotReplay(Replay):
    """A `Replay` whose positions are taken by owner. Positions whose slot is not known yet are `fresh`: read them first."""

    __slots__ = ("_announced", "_fresh", "_held", "_of_slot", "_owners", "_slots", "_ungrouped")

    def __init__(self, slots: Mapping[Position, int], owners: SlotOwners) -> None:
        super().__init__()
        self._slots = slots
        self._owners = owners
        self._fresh: list[Position] = []
        self._of_slot: dict[int, list[Position]] = {}  # heaps
        self._announced: dict[Consumer | None, list[tuple[Position, int]]] = {}  # heaps; what is out of date is passed over
        self._held: set[int] = set()
        self._ungrouped: Iterator[int] | None = None

    def add(self, position: Position, indexes: int | None = None) -> None:
        """Deliver it again; more indexes of an entry that waits already join it."""
        if position in self.waiting:
            known = self.waiting[position]
            self.waiting[position] = None if known is None or indexes is None else known | indexes
            return
        self.waiting[position] = indexes
        slot = self._slots.get(position)
        if slot is None:
            heapq.heappush(self._fresh, position)
        else:
            self.wait(position, slot)

    def wait(self, position: Position, slot: int) -> None:
        """A position that was added waits in its slot."""
        queue = self._of_slot.setdefault(slot, [])
        heapq.heappush(queue, position)
        if queue[0] == position:
            self._announce(position, slot)

    def is_waiting(self, slot: int) -> bool:
        """True if something of a slot waits: what comes later has to wait as well."""
        return self._head(slot) is not None

    def first_fresh(self) -> tuple[Position, int | None] | None:
        """The earliest position whose slot is not known; it stays until `discard` or `take_fresh`."""
        fresh = self._fresh
        while fresh:
            position = fresh[0]
            if position in self.waiting:
                return position, self.waiting[position]
            heapq.heappop(fresh)
        return None

    def take_fresh(self) -> None:
        """The position that `first_fresh` told is not fresh any more."""
        heapq.heappop(self._fresh)

    def first_of(self, owner: Consumer) -> tuple[Position, int] | None:
        """The earliest position, and its slot, that an owner may be given; it stays until `discard` or `hold`."""
        announced = self._announced.get(owner)
        while announced:
            position, slot = announced[0]
            head = self._head(slot)
            if head == position and slot not in self._held:
                return position, slot
            heapq.heappop(announced)
            if head is not None and head > position:  # an earlier one announced itself when it came
                self._announce(head, slot)
        return None

    def indexes_of(self, position: Position) -> int | None:
        """Return which batch indexes of a waiting entry to deliver (None: whatever is not settled)."""
        return self.waiting[position]

    def hold(self, slot: int) -> None:
        """Another consumer holds entries of a slot: what waits in it is offered to nobody until `release`."""
        self._held.add(slot)

    def release(self, slot: int) -> None:
        """Release a slot of which nobody holds entries any more."""
        if slot in self._held:
            self._held.discard(slot)
            head = self._head(slot)
            if head is not None:
                self._announce(head, slot)

    def owners_changed(self) -> None:
        """Slots may belong to others now; `regroup` tells the new owners."""
        self._announced.clear()
        self._held.clear()
        self._ungrouped = iter(list(self._of_slot))

    def regroup(self, most: int) -> bool:
        """Announce up to `most` slots to their owners after `owners_changed`. Whether there are more."""
        if self._ungrouped is None:
            return False
        for slot in self._ungrouped:
            head = self._head(slot)
            if head is not None:
                self._announce(head, slot)
            most -= 1
            if not most:
                return True
        self._ungrouped = None
        return False

    def _forget_discarded(self) -> None:
        waiting = self.waiting
        self._fresh = sorted(each for each in self._fresh if each in waiting)
        left = {slot: sorted(each for each in queue if each in waiting) for slot, queue in self._of_slot.items()}
        self._of_slot = {slot: queue for slot, queue in left.items() if queue}
        first = {slot: queue[0] for slot, queue in self._of_slot.items()}
        for owner, announced in self._announced.items():  # one that is out of date says that its slot has to be looked at
            self._announced[owner] = sorted({(first[slot], slot) for _, slot in announced if slot in first})

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._fresh.clear()
        self._of_slot.clear()
        self._announced.clear()
        self._held.clear()
        self._ungrouped = None

    def _announce(self, position: Position, slot: int) -> None:
        if slot not in self._held:
            heapq.heappush(self._announced.setdefault(self._owners.owner(slot), []), (position, slot))

    def _head(self, slot: int) -> Position | None:
        queue = self._of_slot.get(slot)
        if queue is None:
            return None
        while queue and queue[0] not in self.waiting:
            heapq.heappop(queue)
        if not queue:
            del self._of_slot[slot]
            return None
        return queue[0]
