"""State that a journal's records add up to: logs, cursors, metadata. The same in recovery and in service.

`replay` takes the frames of recovery one by one; in service the handles change the same objects, and `checkpoint`
writes all of it from time to time.
"""

from __future__ import annotations

from pulsar_txn.ledger.cursor_changes import encode_base
from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.journal import records
from pulsar_txn.ledger.journal.index import LogIndex, Usage
from pulsar_txn.ledger.journal.records import LOG_VALUE, NUMBER, encode_record
from pulsar_txn.ledger.journal.snapshots import NO_SNAPSHOT, StoredSnapshot
from pulsar_txn.ledger.protocols import LogDamaged, ReadFailed, Versioned
from pulsar_txn.ledger.tally import CURSOR_BYTES, LOG_BYTES, Tally


class StoredCursor:
    """A durable cursor: its number in the journal and its state, which is complete up to the entry `upto`."""

    __slots__ = ("cursor_id", "log", "name", "state", "upto")

    def __init__(self, cursor_id: int, log: LogState, name: str, state: CursorState, upto: int = END) -> None:
        self.cursor_id = cursor_id
        self.log = log
        self.name = name
        self.state = state
        self.upto = upto

    def base(self, max_bytes: int) -> tuple[bytes, int]:
        """The record of the state, or of its beginning, and the entry up to which that is everything."""
        base, upto = encode_base(self.state, max_bytes)
        value = NUMBER.pack(self.log.ledger_id) + base
        return encode_record(records.CURSOR, self.cursor_id, self.name.encode(), value), upto

    def piece(self, after: int, max_bytes: int) -> tuple[bytes, int]:
        """The record of what is after `after`, and the entry up to which that is everything."""
        piece, upto = self.state.piece(after, max_bytes)
        return encode_record(records.CURSOR_PIECE, self.cursor_id, b"", piece), upto


class LogState:
    """One log, open or not."""

    __slots__ = (
        "cursors",
        "damage",
        "epoch",
        "first_entry",
        "index",
        "ledger_id",
        "name",
        "next_entry",
        "next_serial",
        "snapshots",
    )

    def __init__(self, name: str, ledger_id: int) -> None:
        self.name = name
        self.ledger_id = ledger_id
        self.epoch = 0
        self.first_entry = 0
        self.next_entry = 0
        self.next_serial = 1
        self.snapshots: list[StoredSnapshot] = []
        """Oldest first: the durable one, those that are finished and not durable yet, and the one being written."""
        self.index = LogIndex()
        self.cursors: dict[str, StoredCursor] = {}
        self.damage: LogDamaged | ReadFailed | None = None

    def record(self) -> bytes:
        """The record of everything but entries and cursors."""
        newest = next((stored for stored in reversed(self.snapshots) if stored.finished), None)
        value = LOG_VALUE.pack(self.epoch, self.first_entry, self.next_entry, self.next_serial - 1)
        value += NO_SNAPSHOT if newest is None else newest.value()
        return encode_record(records.LOG, self.ledger_id, self.name.encode(), value)

    def durable_snapshot(self) -> StoredSnapshot | None:
        """The newest durable snapshot: those after it in `snapshots` are not finished, or not confirmed."""
        return self.snapshots[0] if self.snapshots and self.snapshots[0].durable else None

    def snapshot_of(self, serial: int) -> StoredSnapshot | None:
        """The snapshot that this part belongs to, None when nobody needs it."""
        return next((stored for stored in self.snapshots if stored.has(serial)), None)

    def damaged(self, entry: int, detail: str) -> LogDamaged:
        """The error to raise; the first one is remembered, and refuses the log when it is opened."""
        found = LogDamaged(self.name, (self.ledger_id, entry), detail)
        if self.damage is None:
            self.damage = found
        return found

    def missing(self, entry: int, detail: str) -> LogDamaged | ReadFailed:
        """The error to raise where a run should be: damage, unless what could not be read may hold it."""
        if isinstance(self.damage, ReadFailed):
            return ReadFailed(self.name, (self.ledger_id, entry), detail)
        return self.damaged(entry, detail)


class JournalState:
    """Everything of a journal but the entries' bytes."""

    def __init__(self) -> None:
        self.logs: dict[int, LogState] = {}
        self.by_name: dict[str, LogState] = {}
        self.cursors: dict[int, StoredCursor] = {}
        self.values: dict[str, Versioned] = {}
        self.counters: dict[str, int] = {}
        self.next_ledger_id = 0
        self.next_cursor_id = 0
        self.usage = Usage()
        self.tally = Tally()

    def check_log(self, name: str) -> None:
        """StateTooLarge when there is no room for one more log."""
        self.tally.check(f"log {name[:60]!r}", _log_cost(name))

    def check_cursor(self, name: str) -> None:
        """StateTooLarge when there is no room for one more cursor."""
        self.tally.check(f"cursor {name[:60]!r}", _cursor_cost(name))

    def create_log(self, name: str) -> LogState:
        """A new, empty log."""
        log = LogState(name, self.next_ledger_id)
        self.next_ledger_id += 1
        self.add_log(log)
        return log

    def remove_log(self, ledger_id: int) -> None:
        """Forget a log, its cursors and its snapshot."""
        log = self.logs.pop(ledger_id, None)
        if log is not None:
            self.tally.bytes -= _log_cost(log.name)
            if self.by_name.get(log.name) is log:
                del self.by_name[log.name]
            for cursor in list(log.cursors.values()):
                self.remove_cursor(cursor.cursor_id)

    def create_cursor(self, log: LogState, name: str, state: CursorState) -> StoredCursor:
        """A new cursor."""
        cursor = StoredCursor(self.next_cursor_id, log, name, state)
        self.next_cursor_id += 1
        self.add_cursor(cursor)
        return cursor

    def remove_cursor(self, cursor_id: int) -> None:
        """Forget a cursor."""
        cursor = self.cursors.pop(cursor_id, None)
        if cursor is not None:
            self.tally.bytes -= _cursor_cost(cursor.name)
            cursor.state.free()
            cursor.log.cursors.pop(cursor.name, None)

    def add_log(self, log: LogState) -> None:
        """A log with its number."""
        self.tally.bytes += _log_cost(log.name)
        self.logs[log.ledger_id] = log
        self.by_name[log.name] = log
        self.next_ledger_id = max(self.next_ledger_id, log.ledger_id + 1)

    def add_cursor(self, cursor: StoredCursor) -> None:
        """A cursor with its number; one of the same number is replaced."""
        self.remove_cursor(cursor.cursor_id)
        self.tally.bytes += _cursor_cost(cursor.name)
        self.cursors[cursor.cursor_id] = cursor
        cursor.log.cursors[cursor.name] = cursor
        self.next_cursor_id = max(self.next_cursor_id, cursor.cursor_id + 1)


def _log_cost(name: str) -> int:
    return LOG_BYTES + len(name.encode())


def _cursor_cost(name: str) -> int:
    return CURSOR_BYTES + len(name.encode())
