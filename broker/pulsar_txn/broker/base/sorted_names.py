"""A sorted set of names that is cheap to change and to read in slices.

The names lie in pieces, each a sorted tuple of up to two thousand. A change makes one piece again, so a change costs the
same however many names there are; and a reader that took the pieces before reads on in the set as it was then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, TypeAlias

from .slices import LoopBudget

Pieces: TypeAlias = tuple[tuple[str, ...], ...]
"""Sorted names in sorted pieces, none of them empty. It never changes."""

_MOST: Final = 2000
_SORTED_AT_ONCE: Final = 500


class SortedNames:
    """See above. `len`, `in`, and `pieces()` for all of them in order."""

    __slots__ = ("_count", "_lasts", "_pieces")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._pieces: list[tuple[str, ...]] = []
        self._lasts: list[str] = []
        self._count = 0
        self.add_all(names)

    @classmethod
    def of(cls, pieces: Pieces) -> SortedNames:
        """Of names that are sorted already, as `pieces()` gives them."""
        made = cls()
        made._pieces = list(pieces)
        made._lasts = [piece[-1] for piece in pieces]
        made._count = count_of(pieces)
        return made

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        place = bisect_left(self._lasts, name)
        if place == len(self._lasts):
            return False
        piece = self._pieces[place]
        return piece[bisect_left(piece, name)] == name

    def pieces(self, after: str = "") -> Pieces:
        """The names that follow `after`, as they are now."""
        if not after:
            return tuple(self._pieces)
        place = bisect_right(self._lasts, after)
        if place == len(self._pieces):
            return ()
        piece = self._pieces[place]
        return (piece[bisect_right(piece, after) :], *self._pieces[place + 1 :])

    def add(self, name: str) -> bool:
        """True if it is new."""
        return bool(self.add_all((name,)))

    def add_all(self, names: Iterable[str]) -> list[str]:
        """Add many at once; returns the new ones, sorted."""
        new = sorted({name for name in names if name not in self})
        place, end = 0, len(new)
        while place < end:
            at = min(bisect_left(self._lasts, new[place]), max(0, len(self._lasts) - 1))
            is_last = at >= len(self._lasts) - 1
            upto = end if is_last else bisect_right(new, self._lasts[at], lo=place)
            before = self._pieces[at] if self._pieces else ()
            self._put(at, sorted([*before, *new[place:upto]]))
            place = upto
        self._count += len(new)
        return new

    def discard(self, name: str) -> bool:
        """True if it was there."""
        if name not in self:
            return False
        at = bisect_left(self._lasts, name)
        piece = self._pieces[at]
        place = bisect_left(piece, name)
        self._put(at, [*piece[:place], *piece[place + 1 :]])
        self._count -= 1
        return True

    def _put(self, at: int, names: list[str]) -> None:
        """These in place of a piece, in as many pieces as they need."""
        size = _MOST if len(names) <= _MOST else _MOST // 2
        pieces = [tuple(names[start : start + size]) for start in range(0, len(names), size)]
        self._pieces[at : at + 1] = pieces
        self._lasts[at : at + 1] = [piece[-1] for piece in pieces]


def count_of(pieces: Pieces) -> int:
    """Number of names in pieces."""
    return sum(map(len, pieces))


async def in_order(names: Iterable[str], budget: LoopBudget) -> Pieces:
    """Names sorted, each once, in slices."""
    made, waiting = SortedNames(), list[str]()
    async for name in budget.each(names):
        waiting.append(name)
        if len(waiting) == _SORTED_AT_ONCE:
            made.add_all(waiting)
            waiting = []
    made.add_all(waiting)
    return made.pieces()


def behind(pieces: Pieces, name: str) -> Pieces:
    """The names that follow a name."""
    return SortedNames.of(pieces).pieces(name)
