"""From the records of frames to the state they add up to, and from runs to indexes: recovery, and nothing else.

Replay begins with nothing, at the beginning of the newest checkpoint that is complete. That checkpoint is *fuzzy*: its
slices were written one after the other while everything went on, each of the moment when it was written. So

* a change of something whose slice has not come yet is left out: the slice to come holds it;
* a change of something that is known is applied, be it known from its slice or from the record that made it;
* a cursor comes in pieces, and is known up to the entry where the last one ended (`StoredCursor.upto`);
* slices of a later checkpoint that was never completed say again what is known already: they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from pulsar_txn.ledger.cursor_changes import apply_changes, decode_base, decode_old_base
from pulsar_txn.ledger.cursor_state import END
from pulsar_txn.ledger.journal import records
from pulsar_txn.ledger.journal.frame import DATA, SNAPSHOT
from pulsar_txn.ledger.journal.index import Section, SegmentIndex, location
from pulsar_txn.ledger.journal.records import LOG_VALUE, NUMBER
from pulsar_txn.ledger.journal.snapshots import StoredSnapshot
from pulsar_txn.ledger.journal.state import JournalState, LogState, StoredCursor
from pulsar_txn.ledger.protocols import ReadFailed, Versioned

RunHead: TypeAlias = tuple[int, int, int, int]
"""Ledger, first entry, count, kind."""


class Replay:
    """Applies frames in order, then the places of entries, to `state`."""

    def __init__(self, state: JournalState) -> None:
        self.state = state
        self.live_segments: set[int] = set()
        """Segments before the checkpoint's that are needed."""
        self._fresh: set[int] = set()
        """Logs that got to be known with the frame at hand."""
        self._found: dict[int, list[tuple[int, Section]]] = {}

    def apply(self, runs: Iterable[RunHead], data: memoryview) -> None:
        """One frame: its runs and its records. ValueError, LookupError when the records make no sense.

        Records tell the state after the frame's own runs: the runs of a log that gets to be known here are in its record.
        """
        self._fresh.clear()
        ends = [self._apply_record(*record) for record in records.decode_records(data)]
        self._count(runs)
        for end in ends:
            if end is not None and end[0].next_entry < end[1]:
                end[0].damaged(end[0].next_entry, f"its end is missing, it had {end[1]} entries")
                end[0].next_entry = end[1]

    def check_complete(self) -> None:
        """After the last frame: ValueError when a part of a cursor never came."""
        for cursor in self.state.cursors.values():
            if cursor.upto != END:
                raise ValueError(f"cursor {cursor.name!r} of log {cursor.log.name!r} ends at entry {cursor.upto}")

    def add_segment(self, number: int, index: SegmentIndex) -> None:
        """The runs of a segment, when the state is complete except for the indexes."""
        usage = self.state.usage
        for section in index.sections:
            log = self.state.logs.get(section.ledger_id)
            if log is None:
                continue
            if section.kind & SNAPSHOT:
                self._found_parts(log, number, section)
            elif section.end > log.first_entry:
                entries, runs = section.end - section.firsts[0], len(section.firsts)
                usage.add_data(number, log.ledger_id, section.end, entries, section.bytes, runs)
                self._found.setdefault(log.ledger_id, []).append((number, section))

    def build_indexes(self, *, unreadable: bool) -> None:
        """After the last segment: from all sections that were found, the index of each log. Gaps are damage.

        `unreadable`: sections may be missing only because a medium could not be read.
        """
        for log in self.state.logs.values():
            found = self._found.pop(log.ledger_id, [])
            if log.damage is not None and log.damage.position is not None and log.damage.position[1] < log.first_entry:
                log.damage = None  # trimmed, or reset, since; a gap that goes on after that is found again
            end = _index_sections(log, sorted(found, key=lambda pair: (pair[1].firsts[0], pair[0])))
            if end < log.next_entry:
                log.damaged(end, f"entries up to {log.next_entry - 1} are missing")
            if any(place < 0 for stored in log.snapshots for place in stored.places):
                log.damaged(log.first_entry, "its snapshot, or a part of it, is missing")
            if unreadable and log.damage is not None:
                detail = f"{log.damage.detail}; a segment that may hold them cannot be read"
                log.damage = ReadFailed(log.name, log.damage.position, detail)
        self._found.clear()

    def _count(self, runs: Iterable[RunHead]) -> None:
        """Each log's own new entries follow those before; anything between is missing."""
        logs, fresh = self.state.logs, self._fresh
        for ledger_id, first, count, kind in runs:
            log = logs.get(ledger_id)
            if kind == DATA and log is not None and ledger_id not in fresh:
                if first != log.next_entry:
                    log.damaged(log.next_entry, f"entries up to {first - 1} are missing")
                log.next_entry = first + count

    def _apply_record(self, kind: int, number: int, key: str, value: bytes) -> tuple[LogState, int] | None:
        state = self.state
        if kind == records.LOG:
            return self._apply_log(number, key, value)
        if kind in (records.CHANGE, records.CURSOR_PIECE):
            cursor = state.cursors.get(number)
            if cursor is not None:  # its slice is to come otherwise, or it was deleted later in the same frame
                _carry_on(cursor, kind, value)
        elif kind in (records.CURSOR, records.OLD_CURSOR):
            self._apply_cursor(kind, number, key, value)
        elif kind == records.META:
            state.values[key] = Versioned(value, number)
        elif kind == records.META_GONE:
            state.values.pop(key, None)
        elif kind == records.COUNTER:
            state.counters[key] = number
        else:
            self._apply_housekeeping(kind, number, value)
        return None

    def _apply_housekeeping(self, kind: int, number: int, value: bytes) -> None:
        state = self.state
        if kind == records.LOG_GONE:
            state.remove_log(number)
        elif kind == records.CURSOR_GONE:
            state.remove_cursor(number)
        elif kind == records.SEGMENT_LIVE:
            self.live_segments.add(number)
        elif kind == records.SEGMENT_GONE:
            self.live_segments.discard(number)
        elif kind == records.IDS:
            state.next_ledger_id = max(state.next_ledger_id, number)
            state.next_cursor_id = max(state.next_cursor_id, NUMBER.unpack(value)[0])
        elif kind not in (records.REPLAY_FROM, records.SEGMENT_SIZE):
            raise ValueError(f"record of unknown kind {kind}")

    def _apply_log(self, ledger_id: int, name: str, value: bytes) -> tuple[LogState, int]:
        epoch, first_entry, next_entry, serial = LOG_VALUE.unpack_from(value)
        log = self.state.logs.get(ledger_id)
        if log is None:
            log = LogState(name, ledger_id)
            log.next_entry = next_entry
            self.state.add_log(log)
            self._fresh.add(ledger_id)
        log.epoch, log.first_entry, log.next_serial = epoch, first_entry, max(serial + 1, log.next_serial)
        if len(value) > LOG_VALUE.size:
            stored = StoredSnapshot.decode(value[LOG_VALUE.size :])
        else:
            stored = StoredSnapshot(serial, 1, None, durable=True) if serial else None
        log.snapshots = [] if stored is None else [stored]
        return log, next_entry

    def _apply_cursor(self, kind: int, number: int, name: str, value: bytes) -> None:
        log, known = self.state.logs.get(NUMBER.unpack_from(value)[0]), self.state.cursors.get(number)
        if log is None or (known is not None and known.upto == END):
            return
        if kind == records.CURSOR:
            state, upto = decode_base(value, NUMBER.size, self.state.tally)
        else:
            state, upto = decode_old_base(value[NUMBER.size :], self.state.tally), END
        self.state.add_cursor(StoredCursor(number, log, name, state, upto))

    def _found_parts(self, log: LogState, segment: int, section: Section) -> None:
        """Parts of snapshots, finished or not; of a part and its copies, or a serial used again, the newest place counts."""
        size = section.bytes // len(section.firsts)
        for serial, offset in zip(section.firsts, section.offsets, strict=True):
            log.next_serial = max(log.next_serial, serial + 1)
            stored, place = log.snapshot_of(serial), location(segment, offset)
            if stored is not None and stored.place(serial) < place:
                stored.put(self.state.usage, log.ledger_id, serial, place, size)


def _carry_on(cursor: StoredCursor, kind: int, value: bytes) -> None:
    """A change, or the next piece; a piece of what is known says nothing new."""
    if kind == records.CHANGE:
        cursor.upto = apply_changes(cursor.state, value, cursor.upto)
    elif cursor.upto != END:
        added, _ = cursor.state.add_piece(value)
        cursor.upto = max(cursor.upto, added)


def _index_sections(log: LogState, found: list[tuple[int, Section]]) -> int:
    """Put sections into the log's index, in order; the entry after the last one."""
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
