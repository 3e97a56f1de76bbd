"""Handles of logs and cursors, as far as providers with one ledger id per log have them in common.

What is called joins the open commit group (`groups`). Providers add how entries are kept, read and trimmed.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from pulsar_txn.ledger.cursor_changes import Changes, encode_properties
from pulsar_txn.ledger.cursor_state import CursorState
from pulsar_txn.ledger.groups import CommitGroup, Groups
from pulsar_txn.ledger.protocols import (
    Buffer,
    EntryTooLarge,
    LedgerError,
    LogClosed,
    LogListener,
    LogStats,
    NameRefused,
    Snapshot,
)
from pulsar_txn.wire.ids import Position

logger = logging.getLogger(__name__)


_BEHIND_ALL = 2**63 - 1

MAX_BATCH_INDEXES: Final = 1 << 24
_DELETES_AT_ONCE: Final = 1 << 16
_CHANGE_BYTES: Final = 32


L = TypeVar("L", bound="BaseLog")


class BaseLog(abc.ABC):
    """Positions, listener, cursors and durability of one open log; entries are the provider's."""

    groups: Groups

    def __init__(self, groups: Groups, name: str, ledger_id: int, epoch: int, first_entry: int, next_entry: int) -> None:
        self.groups = groups
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.next_entry = next_entry
        self.confirmed_entry = next_entry - 1
        self.cursors: dict[str, BaseCursor] = {}
        self.closed: LedgerError | None = None
        self._name = name
        self._epoch = epoch
        self.listener: LogListener | None = None
        self._writing: SnapshotParts | None = None

    @property
    def name(self) -> str:
        """The name it was opened by."""
        return self._name

    @property
    def epoch(self) -> int:
        """Grows with every open of this log."""
        return self._epoch

    @property
    def first(self) -> Position | None:
        """The first readable entry."""
        return (self.ledger_id, self.first_entry) if self.first_entry <= self.confirmed_entry else None

    @property
    def last_appended(self) -> Position:
        """The entry appended last."""
        return (self.ledger_id, self.next_entry - 1)

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry."""
        return (self.ledger_id, self.confirmed_entry)

    def listen(self, listener: LogListener) -> None:
        """Set the listener; the last call wins."""
        self.listener = listener

    def entry_of(self, position: Position) -> int:
        """The entry id of a position; positions of earlier and later ledgers lie before and after all entries."""
        ledger_id, entry = position
        if ledger_id == self.ledger_id:
            return entry
        return -1 if ledger_id < self.ledger_id else _BEHIND_ALL

    def entries_between(self, after: Position, upto: Position) -> int:
        """Return how many readable entries lie in (after, upto]."""
        low = max(self.entry_of(after), self.first_entry - 1)
        return max(0, min(self.entry_of(upto), self.confirmed_entry) - low)

    def next_position(self, position: Position) -> Position:
        """The position of the entry after `position`, existing or to be appended next."""
        after = position[1] + 1
        if position[0] == self.ledger_id and self.first_entry <= after <= self.next_entry:
            return (self.ledger_id, after)
        return (self.ledger_id, min(max(self.entry_of(position) + 1, self.first_entry), self.next_entry))

    def cursor_names(self) -> list[str]:
        """Names of the durable cursors, sorted."""
        return sorted(self.cursors)

    def stats(self) -> LogStats:
        """The log at this moment."""
        entries = max(0, self.confirmed_entry - self.first_entry + 1)
        return LogStats(
            name=self._name,
            entries=entries,
            bytes=self.readable_bytes(),
            first=self.first,
            last_appended=self.last_appended,
            last_confirmed=self.last_confirmed,
            bytes_in_flight=self.bytes_in_flight(),
        )

    async def flush(self) -> None:
        """Wait until everything called so far on this log is durable. If cancelled: it becomes durable all the same."""
        self.check_open()
        await self.wait_durable()

    def write_snapshot(self, covers: Position) -> SnapshotParts:
        """Begin a snapshot; an unfinished one before it is abandoned."""
        self.check_open()
        if self._writing is not None:
            self._writing.abandon()
        self._writing = self.begin_snapshot(covers)
        return self._writing

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """Store a whole snapshot; ValueError when what it covers is not confirmed."""
        self.check_covered(snapshot.covers)
        writer = self.write_snapshot(snapshot.covers)
        try:
            for part in snapshot.parts:
                writer.write(part)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def check_covered(self, covers: Position) -> None:
        """ValueError when `covers` is not confirmed yet."""
        if self.entry_of(covers) > self.confirmed_entry:
            raise ValueError(f"snapshot of {self._name!r} covers {covers}, which is not confirmed yet")

    @abc.abstractmethod
    def begin_snapshot(self, covers: Position) -> SnapshotParts:
        """The provider's writer of a snapshot."""

    @abc.abstractmethod
    async def wait_durable(self) -> None:
        """Wait for the last group that may hold something of this log."""

    @abc.abstractmethod
    def readable_bytes(self) -> int:
        """Bytes of readable entries."""

    @abc.abstractmethod
    def bytes_in_flight(self) -> int:
        """Bytes of this log appended and not confirmed."""

    def check_open(self) -> None:
        """Raise what closed the log, if it is closed."""
        if self.closed is not None:
            raise self.closed

    def join(self) -> CommitGroup:
        """Have this log confirmed by the open group."""
        group = self.groups.open_group
        if group.add_log(self):
            self.groups.wake()
        return group

    def confirm(self, entry: int) -> None:
        """Everything up to `entry` is durable."""
        self.confirmed_entry = entry

    def end(self, error: LedgerError) -> None:
        """Close the log for `error`, if it is open; the listener is told by who calls this."""
        if self.closed is None:
            self.closed = error

    def fail(self, error: LedgerError) -> None:
        """Close the log for `error` and tell the listener."""
        if self.closed is None:
            self.end(error)
            self.tell_failed(error)

    def tell_failed(self, error: LedgerError) -> None:
        """Tell the listener of a failure that has closed the log."""
        if self.listener is not None:
            try:
                self.listener.log_failed(error)
            except Exception:
                logger.exception("the listener of log %r failed", self._name)

    def release(self) -> None:
        """Close the handle without a failure."""
        if self.closed is None:
            self.closed = LogClosed(f"log {self._name!r} was closed; open it again")


class OpenLogs(Generic[L]):
    """The handles that a store has given out, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, L] = {}

    def add(self, log: L) -> None:
        """The log is open."""
        self.by_name[log.name] = log

    def forget(self, log: L) -> None:
        """The handle was closed."""
        if self.by_name.get(log.name) is log:
            del self.by_name[log.name]

    def take_all(self) -> list[L]:
        """All of them; none is open afterwards."""
        logs = list(self.by_name.values())
        self.by_name.clear()
        return logs


class SnapshotParts(abc.ABC):
    """A snapshot that is being written (protocol `SnapshotWriter`); how parts are kept is the provider's."""

    def __init__(self, log: BaseLog, covers: Position) -> None:
        self.covers = covers
        self._of = log
        self._ended = False

    def write(self, part: Buffer) -> None:
        """The next part. Raises EntryTooLarge, DiskFull, LogClosed, StorageFailed; ValueError once it has ended."""
        self._check()
        self.keep(part if type(part) is bytes else bytes(memoryview(part)))

    def finish(self) -> None:
        """All parts were written. ValueError while `covers` is not confirmed, or once it has ended."""
        self._check()
        self._of.check_covered(self.covers)
        self._ended = True
        self.kept()

    def abandon(self) -> None:
        """Give it up. Idempotent."""
        if not self._ended:
            self._ended = True
            self.dropped()

    def _check(self) -> None:
        self._of.check_open()
        if self._ended:
            raise ValueError(f"this snapshot of {self._of.name!r} was finished or abandoned; begin another one")

    @abc.abstractmethod
    def keep(self, part: bytes) -> None:
        """One more part joins the open group."""

    @abc.abstractmethod
    def kept(self) -> None:
        """Keep it, for it is complete: the newest one once the open group is durable."""

    @abc.abstractmethod
    def dropped(self) -> None:
        """Its parts are not needed."""


class BaseCursor:
    """Durable acknowledgement state: memory changes at once, the changes join the open group."""

    __slots__ = ("_changes", "_name", "confirmed_ticket", "cursor_id", "log", "state")

    def __init__(self, log: BaseLog, name: str, state: CursorState, cursor_id: int = 0) -> None:
        self.log = log
        self.state = state
        self.cursor_id = cursor_id
        self.confirmed_ticket = 0
        self._name = name
        self._changes = Changes()

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self._name

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return (self.log.ledger_id, self.state.mark)

    @property
    def properties(self) -> dict[str, str]:
        """Return what the owner stored with the cursor; a copy."""
        return dict(self.state.properties)

    @property
    def ticket(self) -> int:
        """Number of the last change."""
        return self._changes.ticket

    def confirm(self, ticket: int) -> None:
        """The changes up to this one are durable."""
        self.confirmed_ticket = ticket

    def is_deleted(self, position: Position) -> bool:
        """True if the whole entry is acknowledged."""
        entry = position[1] if position[0] == self.log.ledger_id else self.log.entry_of(position)
        state = self.state
        return entry <= state.mark or (state.deleted_count > 0 and state.is_deleted(entry))

    def ack_set(self, position: Position) -> int | None:
        """The entry's ack set when a part of its batch is acknowledged."""
        return self.state.ack_set(position[1]) if position[0] == self.log.ledger_id else None

    def deleted_ranges(self, limit: int | None = None) -> list[tuple[Position, Position]]:
        """Acknowledged ranges after mark_delete, both ends inclusive; the first `limit` of them."""
        ledger_id = self.log.ledger_id
        return [((ledger_id, start), (ledger_id, end)) for start, end in self.state.ranges(limit)]

    def ack_sets(self) -> dict[Position, int]:
        """All partly acknowledged batch entries."""
        return {(self.log.ledger_id, entry): ack_set for entry, ack_set in self.state.ack_sets().items()}

    def mark_delete_to(self, position: Position) -> int:
        """Acknowledge everything up to `position`, at most up to the last appended entry."""
        self.log.check_open()
        entry = self._clamp(position)
        if self.state.mark_delete_to(entry):
            self._changes.mark_delete_to(entry)
            self._changed()
        return self._changes.ticket

    def delete(self, positions: Iterable[Position]) -> int:
        """Acknowledge whole entries; positions of other ledgers or not appended yet are ignored."""
        log = self.log
        if log.closed is not None:
            raise log.closed
        ledger_id, end, delete = log.ledger_id, log.next_entry, self.state.delete
        entries = []
        for ledger, entry in positions:  # mostly one: no function for a comprehension
            if ledger == ledger_id and entry < end and delete(entry):
                entries.append(entry)
        if entries:
            if len(entries) > _DELETES_AT_ONCE:
                self._delete_many(entries)
            else:
                self._changes.delete(entries)
                self._changed(8 * len(entries))
        return self._changes.ticket

    def delete_indexes(self, position: Position, acked: int, batch_size: int) -> int:
        """Acknowledge batch indexes (bit i of `acked`: index i)."""
        self.log.check_open()
        ledger_id, entry = position
        if ledger_id != self.log.ledger_id or entry >= self.log.next_entry:
            return self._changes.ticket
        most = min(MAX_BATCH_INDEXES, 8 * self.log.groups.max_value_bytes)
        if acked < 0 or not 0 < batch_size <= most:
            raise EntryTooLarge(f"batch indexes of {position}: a batch has 1 to {most} messages, not {batch_size}")
        if self.state.delete_indexes(entry, acked, batch_size):
            self._changes.delete_indexes(entry, acked, batch_size)
            self._changed(acked.bit_length() >> 3)
        return self._changes.ticket

    def reset(self, mark_delete: Position) -> int:
        """Move the cursor to `mark_delete`, at most to the last appended entry, and forget everything after it."""
        self.log.check_open()
        entry = self._clamp(mark_delete)
        if self.state.reset(entry):
            self._changes.reset(entry)
            self._changed()
        return self._changes.ticket

    def put_properties(self, properties: dict[str, str]) -> int:
        """Replace the properties."""
        self.log.check_open()
        if properties != self.state.properties:
            try:
                size = len(encode_properties(properties))
            except UnicodeEncodeError as error:
                raise NameRefused(f"properties of cursor {self._name!r} cannot be written in UTF-8: {error.reason}") from error
            most = self.log.groups.max_value_bytes
            if size > most:
                raise EntryTooLarge(f"properties of {size} bytes for cursor {self._name!r}; at most {most} are kept")
            if size > self.state.properties_bytes:
                self.log.groups.tally.check(f"the properties of cursor {self._name!r}", size - self.state.properties_bytes)
            self.state.put_properties(properties)
            self._changes.put_properties(properties)
            self._changed(size)
        return self._changes.ticket

    def backlog(self) -> int:
        """Readable entries not acknowledged."""
        log, state = self.log, self.state
        first = max(state.mark + 1, log.first_entry)
        deleted = state.deleted_upto(log.confirmed_entry) - state.deleted_upto(first - 1)
        return max(0, log.confirmed_entry - first + 1 - deleted)

    def state_bytes(self) -> int:
        """Return what holes and ack sets take in memory, about; at no cost."""
        return self.state.bytes

    def state_full(self) -> bool:
        """True if the store keeps as much state as it may."""
        tally = self.log.groups.tally
        return tally.bytes >= tally.max_bytes

    def _clamp(self, position: Position) -> int:
        return max(-1, min(self.log.entry_of(position), self.log.next_entry - 1))

    def _delete_many(self, entries: list[int]) -> None:
        """Delete in several groups, so that no frame is too large for them."""
        for start in range(0, len(entries), _DELETES_AT_ONCE):
            some = entries[start : start + _DELETES_AT_ONCE]
            self._changes.delete(some)
            self._changed(8 * len(some))

    def _changed(self, size: int = 0) -> None:
        """The open group takes the last change, which has `size` bytes."""
        groups = self.log.groups
        group = groups.open_group
        if self not in group.cursors:
            group.add_cursor(self, self._changes)
            groups.wake()
        groups.count(_CHANGE_BYTES + size)
