"""What a journal's records add up to: logs, cursors, metadata. The same in recovery and in service.

`apply` takes the frames of recovery one by one; in service the handles change the same objects, and `checkpoint`
writes all of it at the start of each segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pulsar_txn.ledger.cursor_changes import apply_changes, decode_base, decode_old_base, encode_base
from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.journal import records
from pulsar_txn.ledger.journal.frame import CHECKPOINT, DATA, SNAPSHOT
from pulsar_txn.ledger.journal.index import LogIndex, Section, SegmentIndex, Usage, location
from pulsar_txn.ledger.journal.records import LOG_VALUE, NUMBER, encode_record
from pulsar_txn.ledger.journal.snapshots import NO_SNAPSHOT, StoredSnapshot
from pulsar_txn.ledger.protocols import EntryTooLarge, LogDamaged, ReadFailed, Versioned

_NAME_OVERHEAD_BYTES: Final = 64
"""Of a log's or cursor's record beside its name, with an empty cursor state."""


class StoredCursor:
    """A durable cursor: its number in the journal and its state."""

    __slots__ = ("cursor_id", "log", "name", "state")

    def __init__(self, cursor_id: int, log: LogState, name: str, state: CursorState) -> None:
        self.cursor_id = cursor_id
        self.log = log
        self.name = name
        self.state = state

    def base(self) -> bytes:
        """The record of the whole state."""
        value = NUMBER.pack(self.log.ledger_id) + encode_base(self.state, END)[0]
        return encode_record(records.CURSOR, self.cursor_id, self.name.encode(), value)


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
        self.live_segments: set[int] = set()
        self.usage = Usage()
        self.names_bytes = 0
        """What the names of logs and cursors add to a checkpoint."""
        self._found: dict[int, list[tuple[int, Section]]] = {}

    def check_room(self, name: str, max_bytes: int) -> None:
        """EntryTooLarge when one more log or cursor would make the checkpoint of all names too large for a segment."""
        if self.names_bytes + _cost(name) > max_bytes:
            text = f"{len(self.logs)} logs and {len(self.cursors)} cursors have names of {self.names_bytes} bytes"
            raise EntryTooLarge(f"{text}; at most {max_bytes} are kept: delete some before there can be {name[:60]!r}")

    def create_log(self, name: str) -> LogState:
        """A new, empty log."""
        log = LogState(name, self.next_ledger_id)
        self.next_ledger_id += 1
        self._add_log(log)
        return log

    def remove_log(self, ledger_id: int) -> None:
        """Forget a log, its cursors and its snapshot."""
        log = self.logs.pop(ledger_id, None)
        if log is not None:
            self.names_bytes -= _cost(log.name) + sum(map(_cost, log.cursors))
            if self.by_name.get(log.name) is log:
                del self.by_name[log.name]
            for cursor in log.cursors.values():
                self.cursors.pop(cursor.cursor_id, None)

    def create_cursor(self, log: LogState, name: str, state: CursorState) -> StoredCursor:
        """A new cursor."""
        cursor = StoredCursor(self.next_cursor_id, log, name, state)
        self.next_cursor_id += 1
        self._add_cursor(cursor)
        return cursor

    def remove_cursor(self, cursor_id: int) -> None:
        """Forget a cursor."""
        cursor = self.cursors.pop(cursor_id, None)
        if cursor is not None:
            self.names_bytes -= _cost(cursor.name)
            cursor.log.cursors.pop(cursor.name, None)

    def checkpoint(self, live_segments: Iterable[int]) -> bytes:
        """All records."""
        parts = [encode_record(records.IDS, self.next_ledger_id, b"", NUMBER.pack(self.next_cursor_id))]
        parts += [encode_record(records.SEGMENT_LIVE, number) for number in live_segments]
        parts += [log.record() for log in self.logs.values()]
        parts += [cursor.base() for cursor in self.cursors.values()]
        parts += [encode_record(records.META, v.version, path.encode(), v.data) for path, v in self.values.items()]
        parts += [encode_record(records.COUNTER, value, path.encode()) for path, value in self.counters.items()]
        return b"".join(parts)

    def build_indexes(self, *, unreadable: bool) -> None:
        """After the last segment: from all sections that were found, the index of each log. Gaps are damage.

        `unreadable`: sections may be missing only because a medium could not be read.
        """
        for log in self.logs.values():
            found = self._found.pop(log.ledger_id, [])
            end = _index_sections(log, sorted(found, key=lambda pair: (pair[1].firsts[0], pair[0])))
            if end < log.next_entry:
                log.damaged(end, f"entries up to {log.next_entry - 1} are missing")
            if any(place < 0 for stored in log.snapshots for place in stored.places):
                log.damaged(log.first_entry, "its snapshot, or a part of it, is missing")
            if unreadable and log.damage is not None:
                detail = f"{log.damage.detail}; a segment that may hold them cannot be read"
                log.damage = ReadFailed(log.name, log.damage.position, detail)
        self._found.clear()

    def apply(self, flags: int, runs: Iterable[tuple[int, int, int, int]], data: memoryview) -> None:
        """One frame of recovery: (ledger, first, count, kind) of its runs, and its records.

        In a checkpoint, the records tell the state behind the frame's own runs.
        """
        ends = [self._apply_record(*record) for record in records.decode_records(data)]
        if not flags & CHECKPOINT:
            self._count(runs)
        for end in ends:
            if end is not None and end[0].next_entry < end[1]:
                end[0].damaged(end[0].next_entry, f"its end is missing, it had {end[1]} entries")
                end[0].next_entry = end[1]

    def add_segment(self, number: int, index: SegmentIndex) -> None:
        """The runs of a segment, when the state is complete but for the indexes."""
        for section in index.sections:
            log = self.logs.get(section.ledger_id)
            if log is None:
                continue
            if section.kind & SNAPSHOT:
                self._found_parts(log, number, section)
            elif section.end > log.first_entry:
                self.usage.add_data(number, log.ledger_id, section.end, section.end - section.firsts[0], section.bytes)
                self._found.setdefault(log.ledger_id, []).append((number, section))

    def _count(self, runs: Iterable[tuple[int, int, int, int]]) -> None:
        """Each log's own new entries follow those before; anything between is missing."""
        logs = self.logs
        for ledger_id, first, count, kind in runs:
            log = logs.get(ledger_id)
            if kind == DATA and log is not None:
                if first != log.next_entry:
                    log.damaged(log.next_entry, f"entries up to {first - 1} are missing")
                log.next_entry = first + count

    def _apply_record(self, kind: int, number: int, key: str, value: bytes) -> tuple[LogState, int] | None:
        if kind == records.LOG:
            return self._apply_log(number, key, value)
        if kind == records.CHANGE:
            cursor = self.cursors.get(number)
            if cursor is not None:  # deleted later in the same frame otherwise
                apply_changes(cursor.state, value)
        elif kind in (records.CURSOR, records.OLD_CURSOR):
            log = self.logs.get(NUMBER.unpack_from(value)[0])
            if log is not None:
                base = value[NUMBER.size :]
                state = decode_base(base)[0] if kind == records.CURSOR else decode_old_base(base)
                self._add_cursor(StoredCursor(number, log, key, state))
        elif kind == records.META:
            self.values[key] = Versioned(value, number)
        elif kind == records.META_GONE:
            self.values.pop(key, None)
        elif kind == records.COUNTER:
            self.counters[key] = number
        else:
            self._apply_housekeeping(kind, number, value)
        return None

    def _apply_housekeeping(self, kind: int, number: int, value: bytes) -> None:
        if kind == records.LOG_GONE:
            self.remove_log(number)
        elif kind == records.CURSOR_GONE:
            self.remove_cursor(number)
        elif kind == records.SEGMENT_LIVE:
            self.live_segments.add(number)
        elif kind == records.SEGMENT_GONE:
            self.live_segments.discard(number)
        elif kind == records.IDS:
            self.next_ledger_id = max(self.next_ledger_id, number)
            self.next_cursor_id = max(self.next_cursor_id, NUMBER.unpack(value)[0])
        else:
            raise ValueError(f"record of unknown kind {kind}")

    def _apply_log(self, ledger_id: int, name: str, value: bytes) -> tuple[LogState, int]:
        epoch, first_entry, next_entry, serial = LOG_VALUE.unpack_from(value)
        log = self.logs.get(ledger_id)
        if log is None:
            log = LogState(name, ledger_id)
            log.next_entry = next_entry
            self._add_log(log)
        log.epoch, log.first_entry, log.next_serial = epoch, first_entry, max(serial + 1, log.next_serial)
        if len(value) > LOG_VALUE.size:
            stored = StoredSnapshot.decode(value[LOG_VALUE.size :])
        else:
            stored = StoredSnapshot(serial, 1, None, durable=True) if serial else None
        log.snapshots = [] if stored is None else [stored]
        return log, next_entry

    def _found_parts(self, log: LogState, segment: int, section: Section) -> None:
        """Parts of snapshots, finished or not; of a part and its copies, or a serial used again, the newest place counts."""
        size = section.bytes // len(section.firsts)
        for serial, offset in zip(section.firsts, section.offsets, strict=True):
            log.next_serial = max(log.next_serial, serial + 1)
            stored, place = log.snapshot_of(serial), location(segment, offset)
            if stored is not None and stored.place(serial) < place:
                stored.put(self.usage, log.ledger_id, serial, place, size)

    def _add_log(self, log: LogState) -> None:
        self.names_bytes += _cost(log.name)
        self.logs[log.ledger_id] = log
        self.by_name[log.name] = log
        self.next_ledger_id = max(self.next_ledger_id, log.ledger_id + 1)

    def _add_cursor(self, cursor: StoredCursor) -> None:
        if cursor.cursor_id not in self.cursors:
            self.names_bytes += _cost(cursor.name)
        self.cursors[cursor.cursor_id] = cursor
        cursor.log.cursors[cursor.name] = cursor
        self.next_cursor_id = max(self.next_cursor_id, cursor.cursor_id + 1)


def _cost(name: str) -> int:
    return len(name.encode()) + _NAME_OVERHEAD_BYTES


def _index_sections(log: LogState, found: list[tuple[int, Section]]) -> int:
    """Put sections into the log's index, in order; the entry behind the last one."""
    end = log.first_entry
    if any(found[at][1].end > found[at + 1][1].firsts[0] for at in range(len(found) - 1)):
        found = _without_overlaps(found)
    for segment, section in found:
        if section.firsts[0] > end:
            log.damaged(end, f"entries up to {section.firsts[0] - 1} are missing")
        log.index.extend(segment, section)
        end = max(end, section.end)
    return end


def _without_overlaps(found: list[tuple[int, Section]]) -> list[tuple[int, Section]]:
    """Runs one by one: of a run and its copies, the one in the newest segment counts."""
    newest: dict[int, tuple[int, int, int]] = {}
    for segment, section in sorted(found, key=lambda pair: pair[0]):
        for first, end, offset in section.runs():
            newest[first] = (end, segment, offset)
    single: list[tuple[int, Section]] = []
    for first, (end, segment, offset) in sorted(newest.items()):
        section = Section(0, DATA)
        section.firsts.append(first)
        section.offsets.append(offset)
        section.end = end
        single.append((segment, section))
    return single
