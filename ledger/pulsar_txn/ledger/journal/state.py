"""State of a journal: logs, cursors, metadata, the places of entries, and the use of each segment. Pure, and in memory.

The records of all frames add up to it. Recovery applies them one by one (`Replay`); in service the handles of logs change
the same objects, and a checkpoint writes all of it from time to time.

Three numbers locate a run of a log: its first entry, its segment, its offset there. Runs come by the hundred thousand, so
they are kept in arrays and handled a section at a time: a section is what one segment holds of one log in a row. Only logs
whose sections overlap (copies beside their originals) are taken apart. Per segment, `Usage` counts the bytes that are
still needed; a segment that needs none is recycled.

A snapshot is stored in parts. A part is a run of kind SNAPSHOT with a serial of its own; serials grow over the life of a
log. The log's record names the first serial and the number of parts of the newest finished snapshot, so an unfinished one
is only runs without a name: after a crash they are not found, and their room is used again.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Final

from pulsar_txn.ledger.cursor_changes import apply_changes, encode_base
from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.journal.frame import CURSOR, CURSOR_PIECE, LOG, LOG_VALUE, NUMBER, encode_record
from pulsar_txn.ledger.limits import CURSOR_BYTES, LOG_BYTES, Tally
from pulsar_txn.ledger.protocols import Buffer, LogDamaged, ReadFailed, Snapshot, Versioned

_SECTION: Final = struct.Struct("<QqIIQ")
_RUN_BYTES: Final = 12
_RUN_OVERHEAD: Final = 60
_ENTRY_OVERHEAD: Final = 8
"""Fields of each run, and of each entry, in a frame and in the segment's index."""


def location(segment: int, offset: int) -> int:
    """A place in the journal as one number."""
    return segment << 32 | offset


def split_location(place: int) -> tuple[int, int]:
    """(segment number, offset) of a location."""
    return place >> 32, place & 0xFFFFFFFF


class Section:
    """Runs of one log in one segment, in a row: their first entries and offsets, the entry after them, their bytes."""

    __slots__ = ("bytes", "end", "firsts", "kind", "ledger_id", "offsets")

    def __init__(self, ledger_id: int, kind: int) -> None:
        self.ledger_id = ledger_id
        self.kind = kind
        self.firsts = array("q")
        self.offsets = array("I")
        self.end = 0
        self.bytes = 0

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(first entry, entry after, offset) of each run."""
        ends = self.firsts[1:]
        ends.append(self.end)
        return zip(self.firsts, ends, self.offsets, strict=True)


class SegmentIndex:
    """All runs of a segment, by section; encoded into the segment's SEAL frame."""

    __slots__ = ("_last", "run_count", "sections")

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.run_count = 0
        self._last: dict[tuple[int, int], Section] = {}

    def add(self, ledger_id: int, first: int, entries: int, kind: int, offset: int, size: int) -> None:
        """A run after all others of the segment."""
        section = self._last.get((ledger_id, kind))
        if section is None or section.end != first:
            section = self._last[ledger_id, kind] = Section(ledger_id, kind)
            self.sections.append(section)
        section.firsts.append(first)
        section.offsets.append(offset)
        section.end = first + entries
        section.bytes += size
        self.run_count += 1

    def encoded_size(self, more_runs: int) -> int:
        """Return how long `encode` will be at most after so many more runs."""
        return (len(self.sections) + more_runs) * _SECTION.size + (self.run_count + more_runs) * _RUN_BYTES

    def encode(self) -> bytes:
        """Section by section."""
        parts: list[bytes] = []
        for section in self.sections:
            parts.append(_SECTION.pack(section.ledger_id, section.end, section.kind, len(section.firsts), section.bytes))
            parts += (section.firsts.tobytes(), section.offsets.tobytes())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: Buffer) -> SegmentIndex:
        """The inverse of `encode`."""
        index, view, at = cls(), memoryview(data), 0
        while at < len(view):
            ledger_id, end, kind, count, size = _SECTION.unpack_from(view, at)
            at += _SECTION.size
            section = Section(ledger_id, kind)
            section.firsts.frombytes(view[at : at + 8 * count])
            section.offsets.frombytes(view[at + 8 * count : at + _RUN_BYTES * count])
            section.end, section.bytes = end, size
            at += _RUN_BYTES * count
            index.sections.append(section)
            index.run_count += count
        return index


class LogIndex:
    """First entry, segment and offset of each run of a log, ascending."""

    __slots__ = ("_firsts", "_offsets", "_segments")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._segments = array("I")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first: int, segment: int, offset: int) -> None:
        """A run after all others."""
        self._firsts.append(first)
        self._segments.append(segment)
        self._offsets.append(offset)

    def extend(self, segment: int, section: Section) -> None:
        """A section after all others."""
        self._firsts.extend(section.firsts)
        self._segments.extend(array("I", (segment,)) * len(section.firsts))
        self._offsets.extend(section.offsets)

    def find(self, entry: int) -> tuple[int, int]:
        """(first entry, location) of the run that should hold `entry`. LookupError when it is before the first run."""
        at = bisect_right(self._firsts, entry) - 1
        if at < 0:
            raise LookupError(entry)
        return self._firsts[at], location(self._segments[at], self._offsets[at])

    def move(self, first: int, old: int, new: int) -> bool:
        """The run that begins with `first` was copied from `old` to `new`; False when it is not there any more."""
        if not self.holds(first, old):
            return False
        at = bisect_right(self._firsts, first) - 1
        self._segments[at], self._offsets[at] = split_location(new)
        return True

    def holds(self, first: int, place: int) -> bool:
        """True if the run that begins with `first` is read from `place`."""
        at = bisect_right(self._firsts, first) - 1
        return at >= 0 and (self._firsts[at], self._segments[at], self._offsets[at]) == (first, *split_location(place))

    def trim(self, first_entry: int) -> None:
        """Forget runs that end before `first_entry`; in large steps, as each step moves the rest."""
        gone = bisect_right(self._firsts, first_entry) - 1
        if gone > 0 and 4 * gone >= len(self._firsts):
            del self._firsts[:gone], self._segments[:gone], self._offsets[:gone]

    def clear(self) -> None:
        """Forget everything."""
        del self._firsts[:], self._segments[:], self._offsets[:]


class SegmentUse:
    """Contents of a segment, and for whom; `bytes` is what all of it takes, with what is written beside each entry and run.

    `logs`: per log the entry after its last one, entries, their bytes, and what they take. `snapshots`: per log how many
    parts of snapshots, and what they take.
    """

    __slots__ = ("bytes", "logs", "number", "pinned", "sealed", "snapshots")

    def __init__(self, number: int) -> None:
        self.number = number
        self.sealed = False
        self.pinned = False
        self.bytes = 0
        self.logs: dict[int, tuple[int, int, int, int]] = {}
        self.snapshots: dict[int, tuple[int, int]] = {}

    def seal(self) -> None:
        """The segment is full, and its index is durable."""
        self.sealed = True

    def pin(self) -> None:
        """The segment is kept, whatever is known to be in it."""
        self.pinned = True

    @property
    def empty(self) -> bool:
        """Nothing in the segment is needed."""
        return not self.logs and not self.snapshots and not self.pinned


class Usage:
    """Use of segments: which are needed, by whom. Whole runs and whole segments count, entries do not."""

    def __init__(self) -> None:
        self.segments: dict[int, SegmentUse] = {}
        self.replay_from = -1
        """Segments from this one on are needed by recovery, whatever they hold."""
        self._of_log: dict[int, deque[int]] = {}

    def replay_begins(self, number: int) -> None:
        """The checkpoint that began with this segment is complete: recovery begins there."""
        self.replay_from = number

    def segment(self, number: int) -> SegmentUse:
        """The segment's use; a new one if it was not known."""
        use = self.segments.get(number)
        if use is None:
            use = self.segments[number] = SegmentUse(number)
        return use

    def add_part(self, place: int, ledger_id: int, size: int) -> None:
        """A part of a snapshot of the log, one that is needed, is at `place`."""
        use, taken = self.segment(place >> 32), size + _RUN_OVERHEAD
        parts, known = use.snapshots.get(ledger_id, (0, 0))
        use.snapshots[ledger_id] = (parts + 1, known + taken)
        use.bytes += taken

    def remove_part(self, place: int, ledger_id: int, size: int) -> None:
        """The part at `place` is not needed there any more."""
        use = self.segments.get(place >> 32)
        if use is not None:
            taken = size + _RUN_OVERHEAD
            parts, known = use.snapshots.pop(ledger_id)
            if parts > 1:
                use.snapshots[ledger_id] = (parts - 1, known - taken)
            use.bytes -= taken

    def add_data(self, number: int, ledger_id: int, end: int, entries: int, size: int, runs: int = 1) -> None:
        """Some entries of a log, the last of them before `end`, lie in the segment."""
        use = self.segments.get(number)
        if use is None:
            use = self.segment(number)
        taken = size + _ENTRY_OVERHEAD * entries + _RUN_OVERHEAD * runs
        known = use.logs.get(ledger_id)
        if known is None:
            use.logs[ledger_id] = (end, entries, size, taken)
            self._of_log.setdefault(ledger_id, deque()).append(number)
        else:
            use.logs[ledger_id] = (max(known[0], end), known[1] + entries, known[2] + size, known[3] + taken)
        use.bytes += taken

    def log_bytes(self, ledger_id: int, entries: int) -> int:
        """Bytes of the log's last `entries` entries, as the average of the segments they lie in says."""
        total = count = 0
        for number in self._of_log.get(ledger_id, ()):
            use = self.segments.get(number)
            if use is not None and ledger_id in use.logs:
                _, more_entries, more, _ = use.logs[ledger_id]
                count, total = count + more_entries, total + more
        return total if entries >= count else total * entries // count

    def trim(self, ledger_id: int, first_entry: int) -> None:
        """Entries before `first_entry` are not needed any more."""
        numbers = self._of_log.get(ledger_id, deque())
        for _ in range(len(numbers)):
            number = numbers.popleft()
            use = self.segments.get(number)
            known = None if use is None else use.logs.get(ledger_id)
            if use is None or known is None:
                continue
            if known[0] > first_entry:
                numbers.append(number)
                continue
            use.bytes -= known[3]
            del use.logs[ledger_id]

    def forget_log(self, ledger_id: int) -> None:
        """The log was deleted."""
        self.trim(ledger_id, 2**63)
        self._of_log.pop(ledger_id, None)

    def remove_log_from(self, number: int, ledger_id: int) -> None:
        """All of the log's needed runs were copied out of the segment."""
        known = self.segments[number].logs.pop(ledger_id, None)
        if known is not None:
            self.segments[number].bytes -= known[3]

    def drop(self, number: int) -> None:
        """The segment is gone."""
        self.segments.pop(number, None)


_COVERS: Final = struct.Struct("<q")
_COVERS_INSIDE: Final = -(1 << 63)
SNAPSHOT_VALUE: Final = struct.Struct("<QIq")


class StoredSnapshot:
    """A snapshot of a log: its parts' serials, and where each of them is (-1: not durable, or not found).

    `covers` None: of format 1, where the one part begins with it. It goes from unfinished over finished (the log's record
    names it) to durable, when the one before is not needed any more.
    """

    __slots__ = ("count", "covers", "durable", "finished", "first", "places", "sizes")

    def __init__(self, first: int, count: int, covers: int | None, *, durable: bool = False) -> None:
        self.first = first
        self.count = count
        self.covers = covers
        self.finished = self.durable = durable
        self.places = [-1] * count
        self.sizes = [0] * count

    def add_part(self) -> None:
        """One more part, not durable yet."""
        self.count += 1
        self.places.append(-1)
        self.sizes.append(0)

    def finish(self) -> None:
        """Let the log's record name it, for it has all its parts."""
        self.finished = True

    def make_durable(self) -> None:
        """Note that the record that names it is durable."""
        self.durable = True

    def has(self, serial: int) -> bool:
        """True if the part of this serial belongs to it."""
        return self.first <= serial < self.first + self.count

    def place(self, serial: int) -> int:
        """The place of the part, -1 when it is not known."""
        return self.places[serial - self.first]

    def put(self, usage: Usage, ledger_id: int, serial: int, place: int, size: int) -> None:
        """The part is at `place` from now on."""
        at = serial - self.first
        if self.places[at] >= 0:
            usage.remove_part(self.places[at], ledger_id, self.sizes[at])
        self.places[at], self.sizes[at] = place, size
        usage.add_part(place, ledger_id, size)

    def free(self, usage: Usage, ledger_id: int) -> None:
        """None of its parts is needed any more."""
        for place, size in zip(self.places, self.sizes, strict=True):
            if place >= 0:
                usage.remove_part(place, ledger_id, size)
        self.places, self.sizes, self.count = [], [], 0

    def value(self) -> bytes:
        """Return what the log's record says of it."""
        return SNAPSHOT_VALUE.pack(self.first, self.count, _COVERS_INSIDE if self.covers is None else self.covers)

    @classmethod
    def decode(cls, data: bytes) -> StoredSnapshot | None:
        """The inverse of `value`, its parts not found yet; None: there was no snapshot."""
        first, count, covers = SNAPSHOT_VALUE.unpack(data)
        return cls(first, count, None if covers == _COVERS_INSIDE else covers, durable=True) if first else None


NO_SNAPSHOT: Final = SNAPSHOT_VALUE.pack(0, 0, 0)


def stored_snapshot(ledger_id: int, stored: StoredSnapshot, parts: list[bytes]) -> Snapshot:
    """Return what is given out of a stored snapshot and its parts."""
    if stored.covers is None:
        covers = int(_COVERS.unpack_from(parts[0])[0])
        return Snapshot((ledger_id, covers), (parts[0][_COVERS.size :],))
    return Snapshot((ledger_id, stored.covers), tuple(parts))


class StoredCursor:
    """A durable cursor: its number in the journal and its state, which is complete up to the entry `upto`."""

    __slots__ = ("cursor_id", "log", "name", "state", "upto")

    def __init__(self, cursor_id: int, log: LogState, name: str, state: CursorState, upto: int = END) -> None:
        self.cursor_id = cursor_id
        self.log = log
        self.name = name
        self.state = state
        self.upto = upto

    def apply_change(self, data: bytes) -> None:
        """Apply encoded changes."""
        self.upto = apply_changes(self.state, data, self.upto)

    def apply_piece(self, data: bytes) -> None:
        """Apply the next piece; a piece of what is known says nothing new."""
        if self.upto != END:
            added, _ = self.state.add_piece(data)
            self.upto = max(self.upto, added)

    def base(self, max_bytes: int) -> tuple[bytes, int]:
        """The record of the state, or of its beginning, and the entry up to which that is everything."""
        base, upto = encode_base(self.state, max_bytes)
        value = NUMBER.pack(self.log.ledger_id) + base
        return encode_record(CURSOR, self.cursor_id, self.name.encode(), value), upto

    def piece(self, after: int, max_bytes: int) -> tuple[bytes, int]:
        """The record of what is after `after`, and the entry up to which that is everything."""
        piece, upto = self.state.piece(after, max_bytes)
        return encode_record(CURSOR_PIECE, self.cursor_id, b"", piece), upto


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
        return encode_record(LOG, self.ledger_id, self.name.encode(), value)

    def open(self) -> None:
        """A handle is given out."""
        self.epoch += 1

    def trim(self, first_entry: int) -> None:
        """Entries before this one are not read any more; their places are known until that is durable."""
        self.first_entry = first_entry

    def reach(self, next_entry: int) -> None:
        """Entries before `next_entry` are in sealed groups."""
        self.next_entry = next_entry

    def told(self, epoch: int, first_entry: int, serial: int, snapshot: StoredSnapshot | None) -> None:
        """Apply a record of the log: `serial` is the newest one that was given to a part of a snapshot by then."""
        self.epoch, self.first_entry = epoch, first_entry
        self.found_part(serial)
        self.snapshots = [] if snapshot is None else [snapshot]

    def found_part(self, serial: int) -> None:
        """A part of a snapshot has this serial; it is not given again."""
        self.next_serial = max(serial + 1, self.next_serial)

    def begin_snapshot(self, covers: int) -> StoredSnapshot:
        """A snapshot without parts."""
        stored = StoredSnapshot(self.next_serial, 0, covers)
        self.snapshots.append(stored)
        return stored

    def add_part(self, stored: StoredSnapshot) -> int:
        """One more part of the snapshot that is being written; its serial."""
        serial, self.next_serial = self.next_serial, self.next_serial + 1
        stored.add_part()
        return serial

    def finished(self, stored: StoredSnapshot, usage: Usage) -> None:
        """A snapshot is durable: those before it are not needed any more."""
        stored.make_durable()
        while self.snapshots and self.snapshots[0] is not stored:
            self.snapshots.pop(0).free(usage, self.ledger_id)

    def abandon(self, stored: StoredSnapshot, usage: Usage) -> bool:
        """A snapshot will not be finished; False when it was not known any more."""
        if stored not in self.snapshots:
            return False
        self.snapshots.remove(stored)
        stored.free(usage, self.ledger_id)
        return True

    def forget_snapshots(self, usage: Usage) -> None:
        """None of its snapshots is needed any more."""
        for stored in self.snapshots:
            stored.free(usage, self.ledger_id)
        self.snapshots.clear()

    def durable_snapshot(self) -> StoredSnapshot | None:
        """The newest durable snapshot: those after it in `snapshots` are not finished, or not confirmed."""
        return self.snapshots[0] if self.snapshots and self.snapshots[0].durable else None

    def snapshot_of(self, serial: int) -> StoredSnapshot | None:
        """The snapshot that this part belongs to, None when nobody needs it."""
        return next((stored for stored in self.snapshots if stored.has(serial)), None)

    def forget_damage(self) -> None:
        """Nothing that is still wanted is damaged."""
        self.damage = None

    def damage_is_unreadable(self) -> None:
        """Whatever is missing may lie where nothing could be read, and come back."""
        if self.damage is not None:
            detail = f"{self.damage.detail}; a segment that may hold them cannot be read"
            self.damage = ReadFailed(self.name, self.damage.position, detail)

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

    def keep_metadata(self, values: dict[str, Versioned], counters: dict[str, int]) -> None:
        """Checkpoints write these from now on, which their owner changes."""
        self.values, self.counters = values, counters

    def put_value(self, path: str, value: Versioned | None) -> None:
        """A value of the metadata was written, or deleted (None)."""
        if value is None:
            self.values.pop(path, None)
        else:
            self.values[path] = value

    def put_counter(self, path: str, number: int) -> None:
        """The next number of a counter was written."""
        self.counters[path] = number

    def ids_are_given(self, ledger_id: int, cursor_id: int) -> None:
        """The numbers before these two are not given again."""
        self.next_ledger_id = max(self.next_ledger_id, ledger_id)
        self.next_cursor_id = max(self.next_cursor_id, cursor_id)

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
            self.tally.grew(-_log_cost(log.name))
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
            self.tally.grew(-_cursor_cost(cursor.name))
            cursor.state.free()
            cursor.log.cursors.pop(cursor.name, None)

    def add_log(self, log: LogState) -> None:
        """A log with its number."""
        self.tally.grew(_log_cost(log.name))
        self.logs[log.ledger_id] = log
        self.by_name[log.name] = log
        self.ids_are_given(log.ledger_id + 1, 0)

    def add_cursor(self, cursor: StoredCursor) -> None:
        """A cursor with its number; one of the same number is replaced."""
        self.remove_cursor(cursor.cursor_id)
        self.tally.grew(_cursor_cost(cursor.name))
        self.cursors[cursor.cursor_id] = cursor
        cursor.log.cursors[cursor.name] = cursor
        self.ids_are_given(0, cursor.cursor_id + 1)


def _log_cost(name: str) -> int:
    return LOG_BYTES + len(name.encode())


def _cursor_cost(name: str) -> int:
    return CURSOR_BYTES + len(name.encode())
