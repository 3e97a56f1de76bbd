"""Notes by position, of which those that are done with go by themselves, a few with each new one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from pulsar_txn.wire.ids import Position

NoteT = TypeVar("NoteT")
_LOOKED_AT: Final = 2


class PositionNotes(Generic[NoteT]):
    """A dict whose keys are looked at in turn, two with each new one, and dropped when `is_done` says so.

    So there are at most about twice as many as are not done, and nobody ever walks over all of them.
    """

    __slots__ = ("_is_done", "_notes", "_order")

    def __init__(self, is_done: Callable[[Position], bool]) -> None:
        self._is_done = is_done
        self._notes: dict[Position, NoteT] = {}
        self._order: deque[Position] = deque()

    def __len__(self) -> int:
        return len(self._notes)

    def __contains__(self, position: object) -> bool:
        return position in self._notes

    def __iter__(self) -> Iterator[Position]:
        return iter(self._notes)

    def __getitem__(self, position: Position) -> NoteT:
        return self._notes[position]

    def put(self, position: Position, note: NoteT) -> None:
        """Note something of a position, in place of what was noted before."""
        notes, order = self._notes, self._order
        if position not in notes:
            order.append(position)
        notes[position] = note
        for _ in range(min(_LOOKED_AT, len(order))):
            oldest = order.popleft()
            if oldest not in notes:
                continue
            if self._is_done(oldest):
                del notes[oldest]
            else:
                order.append(oldest)

    def discard(self, position: Position) -> None:
        """Forget one, if it is there."""
        self._notes.pop(position, None)

    def clear(self) -> None:
        """Forget all."""
        self._notes.clear()
        self._order.clear()
