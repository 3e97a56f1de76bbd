"""One transaction with half messages: where its halves are, and how far their copies have come."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeAlias

from pulsar_txn.wire.ids import EARLIEST, Position

Image: TypeAlias = "tuple[int, int, Position, array[int], int]"
"""A transaction at one moment: commit, copied, before, its places (which only grow), and how many of them there were."""


class Halves:
    """Mutable; changed by `apply` only.

    `commit`: 0 while it is open, else the number of its commit, in the order of log `op`. `copied`: how many halves are in
    the topic, and `before`: the topic's position before the first of them.
    """

    __slots__ = ("_places", "before", "commit", "copied")

    def __init__(self) -> None:
        self.commit = 0
        self.copied = 0
        self.before: Position = EARLIEST
        self._places: array[int] = array("q")

    def __len__(self) -> int:
        return len(self._places) // 2

    def add(self, position: Position) -> None:
        """One more half, behind all others."""
        self._places.extend(position)

    def position(self, index: int) -> Position:
        """Where half `index` is in log `half`."""
        return self._places[2 * index], self._places[2 * index + 1]

    def positions(self, start: int, limit: int) -> tuple[Position, ...]:
        """At most `limit` of them from `start` on."""
        return tuple(self.position(index) for index in range(start, min(start + limit, len(self))))

    def image(self) -> Image:
        """What a snapshot shows of it."""
        return self.commit, self.copied, self.before, self._places, len(self)


def places_of(image: Image, chunk: int) -> Iterator[list[Position]]:
    """The positions of a transaction at the moment of its image, a chunk at a time."""
    *_, places, count = image
    for start in range(0, count, chunk):
        yield [(places[2 * at], places[2 * at + 1]) for at in range(start, min(start + chunk, count))]
