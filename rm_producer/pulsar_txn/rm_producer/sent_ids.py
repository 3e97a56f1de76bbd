"""Entries of one producer in one transaction: the sequence ids of each, and a checksum of what it contains.

An entry that comes again has the same ids and the same bytes. Another message with ids that are used already is a mistake
of its program, and neither that message nor the first one may be taken for the other.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, TypeAlias

MAX_ENTRIES: Final = 16_384
"""Entries that are known one by one. Of more than these, the half with the lowest ids is known as ranges."""

MAX_RANGES: Final = 65_536
"""Ranges with ids between them that were not used. Of more than these, the lowest ones become one."""

MAX_CHUNKED: Final = 64
"""Messages that have come in part only. Of more than these, the one that began first is forgotten."""

NO_CHECKSUM: Final = 0
"""Of an entry that an earlier version noted, or a client sent without one. It cannot be compared."""

IdsImage: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]
"""First and last id of each range, lowest first; first id, last id and checksum of each other entry, in order; and the last
chunk of each message that has come in part."""


class SentIds:
    """The entries in the order of their ids. Mutable; changed by the `apply` of its buffer only.

    A producer counts upwards, so nearly always an entry comes behind all others. Chunks of a message share its id.
    """

    __slots__ = ("_entries", "_ranges", "chunks", "last")

    def __init__(self) -> None:
        self.last = -1
        """No id above it was used."""
        self.chunks: dict[int, int] | None = None
        self._ranges: array[int] | None = None
        self._entries = array("q")  # first id, last id and checksum of each

    def is_repeat(self, first: int, last: int, checksum: int, chunk_id: int | None = None) -> bool | None:
        """True for an entry that has come, False for one that has not. None: another one has its ids, or nobody knows."""
        if first > self.last:  # which nearly all are
            return False
        entries, known = self._entries, False
        for at in range(self._index(first), len(entries), 3):
            if entries[at] != first:
                break
            if entries[at + 1] == last:
                if entries[at + 2] == checksum != NO_CHECKSUM:
                    return True
                known = True
        if chunk_id is not None and self.chunks is not None and (came := self.chunks.get(first)) is not None:
            return None if chunk_id <= came else False
        return None if known or self._in_ranges(first, last) else False

    def note(self, first: int, last: int, checksum: int) -> None:
        """An entry has come."""
        entries = self._entries
        if not entries or first >= entries[-3]:
            entries.extend((first, last, checksum))
        else:
            at = self._index(first + 1)
            entries[at:at] = array("q", (first, last, checksum))
        self.last = max(self.last, last)
        if len(entries) > 3 * MAX_ENTRIES:
            half = 3 * (MAX_ENTRIES // 2)
            self._fold(zip(entries[:half:3], entries[1:half:3], strict=True))
            del entries[:half]

    def note_chunk(self, sequence_id: int, checksum: int, chunk_id: int, chunks: int) -> None:
        """A chunk has come; the last one completes its message."""
        self.note(sequence_id, sequence_id, checksum)
        if chunk_id + 1 >= chunks:
            if self.chunks is not None:
                self.chunks.pop(sequence_id, None)
            return
        if self.chunks is None:
            self.chunks = {}
        self.chunks[sequence_id] = max(chunk_id, self.chunks.get(sequence_id, -1))
        if len(self.chunks) > MAX_CHUNKED:
            del self.chunks[next(iter(self.chunks))]

    def image(self) -> IdsImage:
        """Image for a snapshot."""
        return tuple(self._ranges or ()), tuple(self._entries), tuple((self.chunks or {}).items())

    def restore(self, image: IdsImage) -> None:
        """Take over a part of an image; its parts come in their order."""
        ranges, entries, chunks = image
        if ranges:
            self._fold(_pairs(ranges))
        self._entries.extend(entries)
        if chunks:
            self.chunks = {**(self.chunks or {}), **dict(chunks)}
        self.last = max([self.last, *ranges[1::2], *entries[1::3], *dict(chunks)])

    def _index(self, first: int) -> int:
        """Index of the first entry from this id on."""
        entries = self._entries
        return 3 * bisect_left(range(len(entries) // 3), first, key=lambda number: entries[3 * number])

    def _in_ranges(self, first: int, last: int) -> bool:
        ranges = self._ranges
        if ranges is None:
            return False
        at = bisect_right(ranges, last)
        return at % 2 == 1 or (at > 0 and ranges[at - 1] >= first)

    def _fold(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Know these by ranges only, from now on."""
        ranges, pairs = self._ranges or array("q"), list(pairs)
        if ranges and pairs[0][0] <= ranges[-1]:  # ids of a program that does not count upwards
            pairs, ranges = sorted([*_pairs(tuple(ranges)), *pairs]), array("q")
        for low, high in pairs:
            if ranges and low <= ranges[-1] + 1:
                ranges[-1] = max(ranges[-1], high)
            else:
                ranges.extend((low, high))
        if (excess := len(ranges) // 2 - MAX_RANGES) > 0:
            del ranges[1 : 2 * excess + 1]
        self._ranges = ranges

    def check_invariants(self) -> bool:
        """True if ranges and entries are in order, below the highest id, and not more than may be."""
        ranges, entries = list(_pairs(self.image()[0])), self._entries
        apart = all(low[1] + 1 < high[0] for low, high in pairwise(ranges)) and len(ranges) <= MAX_RANGES
        in_order = list(entries[::3]) == sorted(entries[::3]) and len(entries) <= 3 * MAX_ENTRIES
        return (
            apart and in_order and max([-1, *(high for _, high in ranges), *entries[1::3], *(self.chunks or ())]) == self.last
        )


def _pairs(flat: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
