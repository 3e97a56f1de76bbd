"""Transaction with half messages: positions of its messages, and how far their copies have come."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TypeAlias, overload

from pulsar_txn.wire.ids import EARLIEST, Position

Image: TypeAlias = "tuple[int, int, Position, array[int], int]"
"""A transaction at one moment: commit, copied, before, its positions (which only grow), and how many of them there were."""


class HalfTransaction:
    """Mutable; changed by `apply` only.

    `commit`: 0 while it is open, else the number of its commit, in the order of log `op`. `copied`: how many of its half
    messages are in the topic, and `before`: the topic's position before the first of them.
    """

    __slots__ = ("_positions", "before", "commit", "copied")

    def __init__(self, commit: int = 0, copied: int = 0, before: Position = EARLIEST) -> None:
        self.commit = commit
        self.copied = copied
        self.before = before
        self._positions: array[int] = array("q")

    def __len__(self) -> int:
        return len(self._positions) // 2

    def add(self, position: Position) -> None:
        """One more half message, behind all others."""
        self._positions.extend(position)

    def decide(self, commit: int) -> None:
        """The outcome is COMMIT, and `commit` its number."""
        self.commit = commit

    def copy(self, before: Position) -> None:
        """The next half message is in the topic, which ended at `before`."""
        if not self.copied:
            self.before = before
        self.copied += 1

    def position(self, index: int) -> Position:
        """Position of half message `index` in log `half`."""
        return self._positions[2 * index], self._positions[2 * index + 1]

    def remaining(self) -> Positions:
        """Messages that are not copied yet."""
        return Positions(self._positions, self.copied, len(self))

    def image(self) -> Image:
        """Image for a snapshot."""
        return self.commit, self.copied, self.before, self._positions, len(self)


class Positions(Sequence[Position]):
    """Positions of half messages, which are made while they are walked: there may be very many."""

    __hash__ = None  # type: ignore[assignment] # equal to any sequence of the same positions

    def __init__(self, flat: array[int], start: int, end: int) -> None:
        self._flat = flat
        self._range = range(start, end)

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...
    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        at = self._range[index]
        return self._flat[2 * at], self._flat[2 * at + 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(tuple.__eq__, self, other))


def positions_of(image: Image, chunk: int) -> Iterator[list[Position]]:
    """The positions of a transaction at the moment of its image, a chunk at a time."""
    *_, positions, count = image
    for start in range(0, count, chunk):
        yield [(positions[2 * at], positions[2 * at + 1]) for at in range(start, min(start + chunk, count))]
