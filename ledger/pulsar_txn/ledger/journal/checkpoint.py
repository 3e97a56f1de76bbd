"""A checkpoint: all of the state, in slices that are written one after the other while the state goes on changing.

Each slice is of the moment when it is taken, which is when its frame gets its place. What makes that sound is said in
`replay`. What is created after the checkpoint began is in the frames anyway; so each kind of thing is listed when its
turn comes, logs before cursors, and what is gone by then is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pulsar_txn.ledger.cursor_state import END
from pulsar_txn.ledger.journal import records
from pulsar_txn.ledger.journal.frame import CHECKPOINT, COMPLETE, SLICED
from pulsar_txn.ledger.journal.records import NUMBER, encode_record
from pulsar_txn.ledger.journal.state import JournalState

SLICE_BYTES: Final = 256 << 10
SLICE_RECORDS: Final = 1000
"""What a slice has at most, plus one record: some milliseconds of the loop."""

PAUSE_SECONDS = 0.005
"""Between two slices, when little else is written: a large checkpoint takes a third of the loop at most."""

MAX_RECORD_BYTES: Final = 7 << 19
"""What one record has at most: a name, properties, and an ack set."""


HEAD_BYTES: Final = len(encode_record(records.REPLAY_FROM)) + len(encode_record(records.SEGMENT_SIZE))
"""What the first frame of a segment, or the last one of a checkpoint, says of itself at most."""


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
            yield encode_record(records.SEGMENT_LIVE, number)
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
                yield encode_record(records.META, value.version, path.encode(), value.data)
        counters = self._state.counters
        for path in list(counters):
            yield encode_record(records.COUNTER, counters[path], path.encode())
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
        return encode_record(records.IDS, self._state.next_ledger_id, b"", NUMBER.pack(self._state.next_cursor_id))


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
        """What was written between the beginning and the end of the newest complete checkpoint, when it was no single frame."""
        self._written = 0
        """Since the checkpoint that is open, or was completed last, began."""
        self._written_at_slice = 0
        self._due = 0.0

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
        """For the first frame of segment `number`, which has `room` beside its group; `live` are the segments before it."""
        taken = self._begin(number, live, now) if self._open is None and room >= self.slice_room else self.next(room, now)
        if taken.whole or taken.completes >= 0:
            return taken
        return taken._replace(head=self._where())

    def next(self, room: int, now: float) -> Slice:
        """For a frame with `room` beside its group."""
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
        return encode_record(records.REPLAY_FROM, self.replay_from)
