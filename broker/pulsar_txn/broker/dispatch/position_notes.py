"""Notes by position, of which those that are done with go by themselves, a few with each new one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from pulsar_txn.wire.ids import Position

NoteT = TypeVar("NoteT")
_LOOKED_AT: Final = 2


class PositionNotes(dict[Position, NoteT]):
    """A dict whose keys are looked at in turn, two with each new one, and dropped when `is_done` says so.

    So there are at most about twice as many as are not done, and nobody ever walks over all of them. Notes come by `put` and
    go by `discard` and `clear` only.
    """

    __slots__ = ("_is_done", "_order")

    def __init__(self, is_done: Callable[[Position], bool]) -> None:
        super().__init__()
        self._is_done = is_done
        self._order: deque[Position] = deque()

    def put(self, position: Position, note: NoteT) -> None:
        """Note something of a position, in place of what was noted before."""
        order = self._order
        if position not in self:
            order.append(position)
        self[position] = note
        for _ in range(min(_LOOKED_AT, len(order))):
            oldest = order.popleft()
            if oldest not in self:
                continue
            if self._is_done(oldest):
                del self[oldest]
            else:
                order.append(oldest)

    def discard(self, position: Position) -> None:
        """Forget one, if it is there."""
        self.pop(position, None)

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._order.clear()
