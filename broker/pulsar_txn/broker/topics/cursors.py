"""The cursor of a non-durable subscription: a reader's, or one that is gone with its consumer."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_txn.ledger.protocols import Log
from pulsar_txn.wire.ids import Position


class MemoryCursor:
    """Protocol `ledger.protocols.Cursor` without durability: every change counts as stored at once."""

    def __init__(self, log: Log, name: str, mark_delete: Position) -> None:
        self._log = log
        self._name = name
        self._mark = min(mark_delete, log.last_appended)
        self._deleted: set[Position] = set()
        self._sets: dict[Position, int] = {}
        self._properties: dict[str, str] = {}
        self._ticket = 0

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self._name

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self._mark

    @property
    def properties(self) -> dict[str, str]:
        """Return what the owner stored with the cursor; a copy."""
        return dict(self._properties)

    @property
    def ticket(self) -> int:
        """Number of the last change."""
        return self._ticket

    @property
    def confirmed_ticket(self) -> int:
        """The same: there is nothing to wait for."""
        return self._ticket

    def is_deleted(self, position: Position) -> bool:
        """True if the whole entry is acknowledged."""
        return position <= self._mark or position in self._deleted

    def ack_set(self, position: Position) -> int | None:
        """The entry's ack set when a part of its batch is acknowledged."""
        return self._sets.get(position)

    def deleted_ranges(self, limit: int | None = None) -> list[tuple[Position, Position]]:
        """Acknowledged entries after mark_delete, one range each; the first `limit` of them."""
        return [(position, position) for position in sorted(self._deleted)[:limit]]

    def state_full(self) -> bool:
        """Never: it is bounded by the topic's messages."""
        return False

    def state_bytes(self) -> int:
        """About what the acknowledgements after mark_delete take in memory."""
        return 128 * (len(self._deleted) + len(self._sets))

    def ack_sets(self) -> dict[Position, int]:
        """All partly acknowledged batch entries."""
        return dict(self._sets)

    def mark_delete_to(self, position: Position) -> int:
        """Acknowledge everything up to `position`, at most up to the last appended entry."""
        position = min(position, self._log.last_appended)
        if position > self._mark:
            self._forget_upto(position)
            self._mark = position
            self._absorb()
        return self._changed()

    def delete(self, positions: Iterable[Position]) -> int:
        """Acknowledge whole entries."""
        for position in positions:
            if self._mark < position <= self._log.last_appended:
                self._deleted.add(position)
                self._sets.pop(position, None)
        self._absorb()
        return self._changed()

    def delete_indexes(self, position: Position, acked: int, batch_size: int) -> int:
        """Acknowledge batch indexes (bit i of `acked`: index i)."""
        if not self.is_deleted(position):
            left = self._sets.get(position, (1 << batch_size) - 1) & ~acked
            if not left:
                return self.delete([position])
            self._sets[position] = left
        return self._changed()

    def reset(self, mark_delete: Position) -> int:
        """Go back to `mark_delete` and forget everything after it."""
        self._mark = min(mark_delete, self._log.last_appended)
        self._deleted.clear()
        self._sets.clear()
        return self._changed()

    def put_properties(self, properties: dict[str, str]) -> int:
        """Replace the properties."""
        self._properties = dict(properties)
        return self._changed()

    def backlog(self) -> int:
        """Readable entries not acknowledged."""
        return self._log.entries_between(self._mark, self._log.last_confirmed) - len(self._deleted)

    def _forget_upto(self, position: Position) -> None:
        """Nothing is remembered of what the mark passes; the shorter way to it is taken."""
        if not self._deleted and not self._sets:
            return
        if self._log.entries_between(self._mark, position) < len(self._deleted) + len(self._sets):
            following = self._log.next_position
            after, previous = following(self._mark), self._mark
            while previous < after <= position:
                self._deleted.discard(after)
                self._sets.pop(after, None)
                previous, after = after, following(after)
        else:
            self._deleted = {kept for kept in self._deleted if kept > position}
            self._sets = {kept: ack_set for kept, ack_set in self._sets.items() if kept > position}

    def _absorb(self) -> None:
        after = self._log.next_position(self._mark)
        while after in self._deleted:
            self._deleted.discard(after)
            self._mark = after
            after = self._log.next_position(after)

    def _changed(self) -> int:
        self._ticket += 1
        return self._ticket
