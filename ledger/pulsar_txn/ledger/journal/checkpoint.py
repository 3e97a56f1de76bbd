"""Checkpoints: all of the state, in slices that are written while the state goes on changing, and read back by replay.

A slice is of the moment when it is taken, which is when its frame gets its place. So a checkpoint is *fuzzy*. What is
created after it began is in the frames anyway; so each kind of thing is listed when its turn comes, logs before cursors,
and what is gone by then is passed over. `Checkpoints` decides which frame carries which slice.

`Replay` begins with nothing, at the beginning of the newest complete checkpoint, and applies the records of every frame
from there on. These rules make a fuzzy checkpoint sound:

* a change of something whose slice has not come yet is left out: the slice to come holds it;
* a change of something that is known is applied, be it known from its slice or from the record that made it;
* a cursor comes in pieces, and is known up to the entry where the last one ended (`StoredCursor.upto`);
* slices of a later checkpoint that was never completed say again what is known already: they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from pulsar_txn.ledger.cursor_changes import decode_base, decode_old_base
from pulsar_txn.ledger.cursor_state import END
from pulsar_txn.ledger.journal.frame import (
    CHANGE,
    CHECKPOINT,
    COMPLETE,
    COUNTER,
    CURSOR,
    CURSOR_GONE,
    CURSOR_PIECE,
    DATA,
    IDS,
    LOG,
    LOG_GONE,
    LOG_VALUE,
    META,
    META_GONE,
    NUMBER,
    OLD_CURSOR,
    REPLAY_FROM,
    SEGMENT_GONE,
    SEGMENT_LIVE,
    SEGMENT_SIZE,
    SLICED,
    SNAPSHOT,
    decode_records,
    encode_record,
)
from pulsar_txn.ledger.journal.state import (
    JournalState,
    LogState,
    Section,
    SegmentIndex,
    StoredCursor,
    StoredSnapshot,
    location,
)
from pulsar_txn.ledger.protocols import Versioned

SLICE_BYTES: Final = 256 << 10
SLICE_RECORDS: Final = 1000
"""Largest size of a slice, to which one record may be added: some milliseconds of the loop."""

PAUSE_SECONDS = 0.005
"""Between two slices, when little else is written: a large checkpoint takes a third of the loop at most."""

MAX_RECORD_BYTES: Final = 7 << 19
"""Largest size of one record: a name, properties, and an ack set."""


HEAD_BYTES: Final = len(encode_record(REPLAY_FROM)) + len(encode_record(SEGMENT_SIZE))
"""Largest size of the header in the first frame of a segment or the last one of a checkpoint."""


class Checkpoint:
    """The slices of a checkpoint that begins with segment `number`; `live`: the segments before it that are needed."""

    def __init__(self, state: JournalState, number: int, live: Iterable[int], slice_bytes: int) -> None:
        self.number = number
        self.complete = False
        self._state = state
        self._slice_bytes = slice_bytes
        self._records = self._all_records(list(live))

    def take(self) -> bytes:
        """The records of the next slice, of the state of this moment; `complete` after the last one."""
        taken: list[bytes] = []
        size = 0
        for record in self._records:
            taken.append(record)
            size += len(record)
            if size >= self._slice_bytes or len(taken) >= SLICE_RECORDS:
                break
        else:
            self.complete = True
        return b"".join(taken)

    def _all_records(self, live: list[int]) -> Iterator[bytes]:
        yield self._ids()
        for number in live:
            yield encode_record(SEGMENT_LIVE, number)
        logs = self._state.logs
        for ledger_id in list(logs):
            log = logs.get(ledger_id)
            if log is not None:
                yield log.record()
        for cursor_id in list(self._state.cursors):
            yield from self._cursor(cursor_id)
        values = self._state.values
        for path in list(values):
            value = values.get(path)
            if value is not None:
                yield encode_record(META, value.version, path.encode(), value.data)
        counters = self._state.counters
        for path in list(counters):
            yield encode_record(COUNTER, counters[path], path.encode())
        yield self._ids()

    def _cursor(self, cursor_id: int) -> Iterator[bytes]:
        """The base of a cursor with its first piece, and the other pieces while the cursor is there."""
        cursor = self._state.cursors.get(cursor_id)
        if cursor is None:
            return
        record, upto = cursor.base(self._slice_bytes)
        yield record
        while upto != END and self._state.cursors.get(cursor_id) is cursor:
            record, upto = cursor.piece(upto, self._slice_bytes)
            yield record

    def _ids(self) -> bytes:
        return encode_record(IDS, self._state.next_ledger_id, b"", NUMBER.pack(self._state.next_cursor_id))


class Slice(NamedTuple):
    """Slice of a checkpoint that a frame carries: records before and after the group's own, flags, and what it makes complete.

    `completes`: the segment that the checkpoint began with, when this frame is its last; -1 otherwise.
    """

    head: bytes = b""
    records: bytes = b""
    flags: int = 0
    completes: int = -1
    whole: bool = False
    """All of the state: the group's own records say nothing more."""


NO_SLICE: Final = Slice()


class Checkpoints:
    """Decides which frame carries which slice. One checkpoint at a time; the next begins with a segment, like each.

    A small state is one slice, in the first frame of each segment. A larger one begins again once as much was written
    since the end of the one before as between its beginning and its end. So checkpoints are at most half of what is
    written, and the segments that recovery needs are bounded. A slice is due after
    a pause, so that other work goes on, or when so much was written meanwhile that the checkpoint would lie too far apart.
    """

    def __init__(self, state: JournalState, segment_bytes: int) -> None:
        self.replay_from = -1
        """The segment with which the newest complete checkpoint begins, by the plan."""
        self.slice_room = min(MAX_RECORD_BYTES + SLICE_BYTES, 3 * segment_bytes // 16)
        """So much room in a frame is enough for every slice."""
        self._slice_bytes = min(SLICE_BYTES, segment_bytes // 16)
        self._state = state
        self._open: Checkpoint | None = None
        self.written_bytes = 0
        """Records between the beginning and the end of the newest complete checkpoint, unless it was a single frame."""
        self._written = 0
        """Since the checkpoint that is open, or was completed last, began."""
        self._written_at_slice = 0
        self._due = 0.0

    def go_on(self, replay_from: int) -> None:
        """Recovery began with the checkpoint that begins with this segment."""
        self.replay_from = replay_from

    @property
    def open(self) -> bool:
        """Slices are to come."""
        return self._open is not None

    def wrote(self, size: int) -> None:
        """A frame of `size` bytes was planned."""
        self._written += size

    def wait(self, now: float) -> float:
        """Seconds until the next slice is due."""
        return 0.0 if self._written - self._written_at_slice >= 2 * self._slice_bytes else self._due - now

    def give_up(self) -> None:
        """No more slices: the store is being closed."""
        self._open = None

    def first(self, number: int, live: Iterable[int], room: int, now: float) -> Slice:
        """Slice for the first frame of segment `number`, which has `room` beside its group; `live` are those before it."""
        taken = self._begin(number, live, now) if self._open is None and room >= self.slice_room else self.next(room, now)
        if taken.whole or taken.completes >= 0:
            return taken
        return taken._replace(head=self._where())

    def next(self, room: int, now: float) -> Slice:
        """Slice for a frame with `room` beside its group."""
        checkpoint = self._open
        if checkpoint is None or room < self.slice_room or self.wait(now) > 0:
            return NO_SLICE
        taken = checkpoint.take()
        self._took(now)
        if not checkpoint.complete:
            return Slice(b"", taken)
        self._open = None
        self.written_bytes = self._written
        self.replay_from = checkpoint.number
        return Slice(self._where(), taken, COMPLETE, checkpoint.number)

    def _begin(self, number: int, live: Iterable[int], now: float) -> Slice:
        begun = Checkpoint(self._state, number, live, self._slice_bytes)
        taken = begun.take()
        if begun.complete:
            self._written = self.written_bytes = 0
            self.replay_from = number
            return Slice(b"", taken, CHECKPOINT, number, whole=True)
        if self._written < 2 * self.written_bytes:
            return NO_SLICE
        self._open = begun
        self._written = 0
        self._took(now)
        return Slice(b"", taken, CHECKPOINT | SLICED)

    def _took(self, now: float) -> None:
        self._written_at_slice = self._written
        self._due = now + PAUSE_SECONDS

    def _where(self) -> bytes:
        return encode_record(REPLAY_FROM, self.replay_from)


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
        ends = [self._apply_record(*record) for record in decode_records(data)]
        self._count(runs)
        for end in ends:
            if end is not None and end[0].next_entry < end[1]:
                end[0].damaged(end[0].next_entry, f"its end is missing, it had {end[1]} entries")
                end[0].reach(end[1])

    def check_complete(self) -> None:
        """Check after the last frame: ValueError when a part of a cursor never came."""
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
        """Build the index of each log after the last segment, from all sections that were found. Gaps are damage.

        `unreadable`: sections may be missing only because a medium could not be read.
        """
        for log in self.state.logs.values():
            found = self._found.pop(log.ledger_id, [])
            if log.damage is not None and log.damage.position is not None and log.damage.position[1] < log.first_entry:
                log.forget_damage()  # trimmed, or reset, since; a gap that goes on after that is found again
            end = _index_sections(log, sorted(found, key=lambda pair: (pair[1].firsts[0], pair[0])))
            if end < log.next_entry:
                log.damaged(end, f"entries up to {log.next_entry - 1} are missing")
            if any(place < 0 for stored in log.snapshots for place in stored.places):
                log.damaged(log.first_entry, "its snapshot, or a part of it, is missing")
            if unreadable:
                log.damage_is_unreadable()
        self._found.clear()

    def _count(self, runs: Iterable[RunHead]) -> None:
        """Each log's own new entries follow those before; anything between is missing."""
        logs, fresh = self.state.logs, self._fresh
        for ledger_id, first, count, kind in runs:
            log = logs.get(ledger_id)
            if kind == DATA and log is not None and ledger_id not in fresh:
                if first != log.next_entry:
                    log.damaged(log.next_entry, f"entries up to {first - 1} are missing")
                log.reach(first + count)

    def _apply_record(self, kind: int, number: int, key: str, value: bytes) -> tuple[LogState, int] | None:
        state = self.state
        if kind == LOG:
            return self._apply_log(number, key, value)
        if kind in (CHANGE, CURSOR_PIECE):
            cursor = state.cursors.get(number)
            if cursor is not None:  # its slice is to come otherwise, or it was deleted later in the same frame
                (cursor.apply_change if kind == CHANGE else cursor.apply_piece)(value)
        elif kind in (CURSOR, OLD_CURSOR):
            self._apply_cursor(kind, number, key, value)
        elif kind == META:
            state.put_value(key, Versioned(value, number))
        elif kind == META_GONE:
            state.put_value(key, None)
        elif kind == COUNTER:
            state.put_counter(key, number)
        else:
            self._apply_housekeeping(kind, number, value)
        return None

    def _apply_housekeeping(self, kind: int, number: int, value: bytes) -> None:
        state = self.state
        if kind == LOG_GONE:
            state.remove_log(number)
        elif kind == CURSOR_GONE:
            state.remove_cursor(number)
        elif kind == SEGMENT_LIVE:
            self.live_segments.add(number)
        elif kind == SEGMENT_GONE:
            self.live_segments.discard(number)
        elif kind == IDS:
            state.ids_are_given(number, NUMBER.unpack(value)[0])
        elif kind not in (REPLAY_FROM, SEGMENT_SIZE):
            raise ValueError(f"record of unknown kind {kind}")

    def _apply_log(self, ledger_id: int, name: str, value: bytes) -> tuple[LogState, int]:
        epoch, first_entry, next_entry, serial = LOG_VALUE.unpack_from(value)
        log = self.state.logs.get(ledger_id)
        if log is None:
            log = LogState(name, ledger_id)
            log.reach(next_entry)
            self.state.add_log(log)
            self._fresh.add(ledger_id)
        if len(value) > LOG_VALUE.size:
            stored = StoredSnapshot.decode(value[LOG_VALUE.size :])
        else:
            stored = StoredSnapshot(serial, 1, None, durable=True) if serial else None
        log.told(epoch, first_entry, serial, stored)
        return log, next_entry

    def _apply_cursor(self, kind: int, number: int, name: str, value: bytes) -> None:
        log, known = self.state.logs.get(NUMBER.unpack_from(value)[0]), self.state.cursors.get(number)
        if log is None or (known is not None and known.upto == END):
            return
        if kind == CURSOR:
            state, upto = decode_base(value, NUMBER.size, self.state.tally)
        else:
            state, upto = decode_old_base(value[NUMBER.size :], self.state.tally), END
        self.state.add_cursor(StoredCursor(number, log, name, state, upto))

    def _found_parts(self, log: LogState, segment: int, section: Section) -> None:
        """Parts of snapshots, finished or not; of a part and its copies, or a serial used again, the newest place counts."""
        size = section.bytes // len(section.firsts)
        for serial, offset in zip(section.firsts, section.offsets, strict=True):
            log.found_part(serial)
            stored, place = log.snapshot_of(serial), location(segment, offset)
            if stored is not None and stored.place(serial) < place:
                stored.put(self.state.usage, log.ledger_id, serial, place, size)


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
        index = SegmentIndex()
        index.add(0, first, end - first, DATA, offset, 0)
        single.append((segment, index.sections[0]))
    return single
