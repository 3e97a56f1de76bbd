"""The sequence ids that one producer has used in one transaction."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, TypeAlias

MAX_RANGES: Final = 256
"""Ranges with ids of other transactions between them. Of more than these, the two lowest become one."""

MAX_CHUNKED: Final = 64
"""Messages that have come in part only. Of more than these, the one that began first is forgotten."""

IdsImage: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""First and last id of each range, lowest first; and the last chunk of each message that has come in part."""


class SentIds:
    """A set of ids as ranges. Mutable; changed by the `apply` of its buffer only.

    A producer counts upwards, so nearly always there is one range, or one more for each change between its transactions. An id
    between the first and the last one of a batch counts as used.
    """

    __slots__ = ("_earlier", "chunks", "first", "last")

    def __init__(self) -> None:
        self.first = 0
        self.last = -1
        self.chunks: dict[int, int] | None = None
        self._earlier: array[int] | None = None  # first and last id of each range below `first`

    def has(self, first: int, last: int) -> bool:
        """Whether all ids from `first` to `last` were used."""
        if first > self.last:  # which nearly all are
            return False
        if first >= self.first:
            return last <= self.last
        earlier = self._earlier
        if earlier is None:
            return False
        at = bisect_right(earlier, first)
        if at % 2:  # it is after the first id of a range, and before the last one
            return last <= earlier[at]
        return at > 0 and earlier[at - 1] == first == last

    def note(self, first: int, last: int) -> None:
        """Ids from `first` to `last` are used."""
        if first == self.last + 1:
            self.last = last
        elif self.last < self.first:  # the first ones
            self.first, self.last = first, last
        elif first > self.last:
            earlier = self._earlier
            if earlier is None:
                earlier = self._earlier = array("q")
            earlier.extend((self.first, self.last))
            if len(earlier) > 2 * MAX_RANGES:
                del earlier[1:3]
            self.first, self.last = first, last
        else:
            self._insert(first, last)

    def has_chunk(self, sequence_id: int, chunk_id: int) -> bool:
        """Whether this chunk of a message has come."""
        if self.has(sequence_id, sequence_id):
            return True
        return self.chunks is not None and self.chunks.get(sequence_id, -1) >= chunk_id

    def note_chunk(self, sequence_id: int, chunk_id: int, chunks: int) -> None:
        """It has come; the last one of a message makes its id a used one."""
        if chunk_id + 1 >= chunks:
            if self.chunks is not None:
                self.chunks.pop(sequence_id, None)
            self.note(sequence_id, sequence_id)
            return
        if self.chunks is None:
            self.chunks = {}
        self.chunks[sequence_id] = max(chunk_id, self.chunks.get(sequence_id, -1))
        if len(self.chunks) > MAX_CHUNKED:
            del self.chunks[next(iter(self.chunks))]

    def image(self) -> IdsImage:
        """What a snapshot shows of it."""
        newest = (self.first, self.last) if self.first <= self.last else ()
        return (*(self._earlier or ()), *newest), tuple((self.chunks or {}).items())

    def restore(self, image: IdsImage) -> None:
        """Take over an image, in place of everything."""
        ranges, chunks = image
        self._take(list(_pairs(ranges)))
        self.chunks = dict(chunks) or None

    def _insert(self, first: int, last: int) -> None:
        """Ids below the highest one: a program that gives them itself, and not in their order."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*_pairs((*(self._earlier or ()), self.first, self.last)), (first, last)]):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], high)
            else:
                merged.append((low, high))
        if len(merged) > MAX_RANGES + 1:
            merged[:2] = [(merged[0][0], merged[1][1])]
        self._take(merged)

    def _take(self, ranges: list[tuple[int, int]]) -> None:
        *earlier, (self.first, self.last) = ranges or [(0, -1)]
        self._earlier = array("q", [id_ for low_high in earlier for id_ in low_high]) if earlier else None

    def check_invariants(self) -> bool:
        """Whether the ranges are in order, apart, and not more than may be."""
        ranges = list(_pairs(self.image()[0]))
        apart = all(low[1] + 1 < high[0] for low, high in pairwise(ranges))
        return apart and all(first <= last for first, last in ranges) and len(ranges) <= MAX_RANGES + 1


def _pairs(flat: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
