"""Owners of the slots of the key space: by a hash ring of the consumers' names, or by the ranges that they asked for.

Both cost a consumer that comes or goes its own points or ranges, not those of all others: three hundred consumers of one
connection leave at once when it breaks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.hashing import KEY_SLOTS, murmur3_32

from .consumers import Consumer

POINTS: Final = 100
"""Points of one consumer on the ring; as stock Pulsar has them."""

MAX_RANGES: Final = 4096
"""Ranges that one consumer may ask for."""

_INSERTED_ONE_BY_ONE: Final = 128
_CLEANED_ONE_BY_ONE: Final = 16


class SlotOwners(Protocol):
    """A division of the slots among consumers."""

    def add(self, consumer: Consumer) -> None:
        """A consumer came. Refusal ConsumerAssignError when it cannot have the ranges that it asks for."""

    def remove(self, consumer: Consumer) -> None:
        """A consumer went."""

    def owner(self, slot: int) -> Consumer | None:
        """Return whose slot it is; None when it is nobody's."""


class HashRing:
    """Auto split: a slot belongs to the first point from it on; of two on one point, to the lesser name."""

    __slots__ = ("_at", "_empty", "_gone", "_points", "_slots")

    def __init__(self) -> None:
        self._points: dict[Consumer, set[int]] = {}
        self._at: dict[int, list[Consumer]] = {}
        self._slots = array("H")  # the keys of `_at`, sorted; those with no consumer left go when they are half of all
        self._empty = 0
        self._gone: list[Consumer] = []  # their points are still there; many may go before anybody asks for an owner

    def add(self, consumer: Consumer) -> None:
        """Place its points."""
        name = f"{consumer.name}-{consumer.consumer_id}-"
        points = {murmur3_32(f"{name}{point}".encode()) % KEY_SLOTS for point in range(POINTS)}
        self._points[consumer] = points
        for slot in points:
            here = self._at.get(slot)
            if here is None:
                self._at[slot] = [consumer]
                self._slots.insert(bisect_left(self._slots, slot), slot)
                continue
            self._empty -= not here
            here.append(consumer)
            here.sort(key=lambda each: each.name)

    def remove(self, consumer: Consumer) -> None:
        """Its points are nobody's."""
        self._gone.append(consumer)

    def _clean(self) -> None:
        """Take the points away of all who are gone."""
        gone, self._gone = self._gone, []
        if len(gone) > _CLEANED_ONE_BY_ONE:
            for consumer in gone:
                del self._points[consumer]
            living = self._points
            self._at = {slot: left for slot, here in self._at.items() if (left := [each for each in here if each in living])}
            self._empty = len(self._slots)
        else:
            for consumer in gone:
                for slot in self._points.pop(consumer):
                    here = self._at[slot]
                    here.remove(consumer)
                    self._empty += not here
        if 2 * self._empty > len(self._slots):
            self._at = {slot: here for slot, here in self._at.items() if here}
            self._slots = array("H", sorted(self._at))
            self._empty = 0

    def owner(self, slot: int) -> Consumer | None:
        """Return whose slot it is."""
        if self._gone:
            self._clean()
        slots, at = self._slots, self._at
        if len(slots) == self._empty:
            return None
        place = bisect_left(slots, slot)
        while True:
            here = at[slots[place if place < len(slots) else 0]]
            if here:
                return here[0]
            place = place + 1 if place < len(slots) else 1


class StickyRanges:
    """Sticky: each consumer names its ranges, both ends inclusive, and no two consumers have a slot in common."""

    __slots__ = ("_gone", "_owners", "_ranges")

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # sorted and apart
        self._owners: list[Consumer] = []
        self._gone: set[Consumer] = set()  # their ranges are still in the lists, and free

    def add(self, consumer: Consumer) -> None:
        """Refusal ConsumerAssignError when ranges are missing, too many, out of bounds, or taken by another consumer."""
        ranges = consumer.key_ranges or ()
        if len(ranges) > MAX_RANGES:
            raise Refusal(ServerError.ConsumerAssignError, f"{len(ranges)} key ranges: one consumer may have {MAX_RANGES}")
        if not ranges or any(not 0 <= start <= end < KEY_SLOTS for start, end in ranges):
            raise Refusal(ServerError.ConsumerAssignError, f"ranges {_some(ranges)}: give some within 0 to {KEY_SLOTS - 1}")
        if self._gone:
            self._put([pair for pair in self._pairs() if pair[1] not in self._gone])
        merged = _merged(ranges)
        for start, end in merged:
            place = bisect_right(self._ranges, (end, KEY_SLOTS)) - 1
            if place >= 0 and self._ranges[place][1] >= start:
                text = f"a range of {_some(ranges)} belongs to consumer {self._owners[place].name!r}"
                raise Refusal(ServerError.ConsumerAssignError, text)
        if len(merged) > _INSERTED_ONE_BY_ONE:
            self._put(sorted([*self._pairs(), *((each, consumer) for each in merged)], key=lambda pair: pair[0]))
            return
        for each in merged:
            place = bisect_right(self._ranges, each)
            self._ranges.insert(place, each)
            self._owners.insert(place, consumer)

    def remove(self, consumer: Consumer) -> None:
        """Its ranges are free again."""
        self._gone.add(consumer)

    def owner(self, slot: int) -> Consumer | None:
        """The consumer whose range contains the slot."""
        place = bisect_right(self._ranges, (slot, KEY_SLOTS)) - 1
        if place < 0 or self._ranges[place][1] < slot or self._owners[place] in self._gone:
            return None
        return self._owners[place]

    def _pairs(self) -> Iterator[tuple[tuple[int, int], Consumer]]:
        return zip(self._ranges, self._owners, strict=True)

    def _put(self, pairs: list[tuple[tuple[int, int], Consumer]]) -> None:
        self._ranges = [pair[0] for pair in pairs]
        self._owners = [pair[1] for pair in pairs]
        self._gone.clear()


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, and those that touch made one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _some(ranges: Sequence[tuple[int, int]]) -> str:
    text = ", ".join(f"{start}-{end}" for start, end in ranges[:8])
    return text if len(ranges) <= 8 else f"{text} and {len(ranges) - 8} more"
