"""Moves of a subscription's cursor: acknowledgements, and the entries that nobody acknowledges.

Markers and aborted entries go to no consumer. They are acknowledged on its behalf, but together with the acknowledgement
next to them: their positions are remembered (`hidden`) when the dispatcher passes them, and join the change of the cursor
that reaches them. So they cost no change and leave no hole of their own.

It always holds that no hidden entry follows an acknowledged one. Every path that acknowledges something (plain, in a
transaction, cumulative, the last index of a batch) comes through here, so that it holds after each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pulsar_txn.broker.dispatch.position_notes import PositionNotes
from pulsar_txn.ledger.protocols import Cursor, Log
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.wire.ids import Position

MAX_HIDDEN: Final = 4096
"""Hidden entries that are remembered. More than these, after a message that nobody acknowledges, are acknowledged at once."""


class CursorMoves:
    """Moves the cursor of one subscription. What raises LedgerError has the log closed."""

    __slots__ = ("_cursor", "_log", "hidden")

    def __init__(self, cursor: Cursor, log: Log) -> None:
        self.hidden: PositionNotes[None] = PositionNotes(cursor.is_deleted)
        self._cursor = cursor
        self._log = log

    def delete(self, positions: list[Position]) -> None:
        """Acknowledge whole entries."""
        self._cursor.delete(self._with_hidden(positions) if self.hidden else positions)

    def delete_indexes(self, items: Iterable[AckItem]) -> None:
        """Acknowledge batch indexes; an entry is done with after its last one."""
        cursor = self._cursor
        for position, acked, batch_size in items:
            if acked is not None:
                cursor.delete_indexes(position, acked, batch_size)
                if self.hidden and cursor.is_deleted(position):
                    self._absorb_after(position)

    def delete_upto(self, position: Position, acked: int | None, batch_size: int) -> None:
        """Acknowledge everything before `position`, and of its own entry the indexes in `acked` (None: all)."""
        if acked is None:
            self._cursor.mark_delete_to(position)
        else:
            self._cursor.mark_delete_to((position[0], position[1] - 1))
            self._cursor.delete_indexes(position, acked, batch_size)
        if self.hidden:
            self._absorb_after(self._cursor.mark_delete)

    def hide(self, position: Position) -> None:
        """The dispatcher passed an entry that is for nobody."""
        cursor = self._cursor
        if self._log.next_position(cursor.mark_delete) == position:
            self._cursor.mark_delete_to([position, *self._hidden_after(position)][-1])
        elif cursor.is_deleted((position[0], position[1] - 1)):
            self.delete([position])
        else:
            self.hidden.put(position, None)
            if len(self.hidden) >= MAX_HIDDEN:
                cursor.delete(sorted(self.hidden))
                self.hidden.clear()

    def reset(self, mark_delete: Position) -> int:
        """Put the cursor to `mark_delete`; everything after it is read again. Returns the ticket."""
        self.hidden.clear()
        return self._cursor.reset(mark_delete)

    def _with_hidden(self, positions: list[Position]) -> list[Position]:
        return [*positions, *(hidden for position in positions for hidden in self._hidden_after(position))]

    def _absorb_after(self, position: Position) -> None:
        run = self._hidden_after(position)
        if not run:
            return
        if position == self._cursor.mark_delete:
            self._cursor.mark_delete_to(run[-1])
        else:
            self._cursor.delete(run)

    def _hidden_after(self, position: Position) -> list[Position]:
        """The hidden entries that follow a position without a gap; they are hidden no more."""
        run: list[Position] = []
        following = self._log.next_position
        after = following(position)
        while after in self.hidden:
            self.hidden.discard(after)
            run.append(after)
            after = following(after)
        return run
