"""The writer: groups become frames, frames get their places, and go to the disk one at a time. Without IO, loop or files.

At most one frame is between its first byte and its sync; what arrives meanwhile is the next group. Where a frame goes
is decided when its group is sealed. A frame that does not fit is the first of the next segment. It carries the state
right after its group, when that is small; otherwise a checkpoint in slices begins there, and frames carry one each
(see `checkpoint`).

Handles join groups here; the store takes each frame, writes it, and carries out what its group says (`Frame`, `Change`).
The writer calls neither of them.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.journal.checkpoint import HEAD_BYTES, NO_SLICE, Checkpoints
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    CHANGE,
    CLOSE,
    HEADER,
    RUN,
    SEAL,
    SEGMENT_SIZE,
    TRAILER,
    Run,
    aligned,
    encode_frame,
    encode_record,
    frame_size,
)
from pulsar_txn.ledger.journal.state import JournalState, LogState, SegmentIndex, StoredSnapshot
from pulsar_txn.ledger.limits import MAX_VALUE_BYTES, Pressure, Tally
from pulsar_txn.ledger.protocols import Buffer, LedgerError, StorageFailed
from pulsar_txn.ledger.turn import Turn

if TYPE_CHECKING:
    from pulsar_txn.ledger.handles import BaseLog
    from pulsar_txn.ledger.journal.recovery import Recovered

logger = logging.getLogger(__name__)

_LOG_RECORD_BYTES: Final = 100  # beside the name


@attrs.frozen
class Trimmed:
    """Entries of a log before `first_entry` are given up."""

    log: LogState
    first_entry: int


@attrs.frozen
class Finished:
    """A snapshot of a log is complete, and the ones before it are given up."""

    log: LogState
    snapshot: StoredSnapshot


@attrs.frozen
class Deleted:
    """A log is given up, with everything in it."""

    log: LogState


@attrs.frozen
class Unneeded:
    """The file of a segment is given up, which is not named any more."""

    segment: int


Change: TypeAlias = Trimmed | Finished | Deleted | Unneeded
"""Something that gives room back once the group that says so is durable."""


class JournalGroup(CommitGroup):
    """A commit group of the journal: runs of entries, records, logs whose record changed.

    `changes` are carried out, in order, once the group is durable.
    """

    __slots__ = ("changes", "dirty", "records", "runs")

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.records: list[bytes] = []
        self.dirty: dict[LogState, None] = {}
        self.changes: list[Change] = []

    def __bool__(self) -> bool:
        return bool(self.runs or self.records or self.dirty or self.logs or self.cursors or self.waiters)

    def begin_run(self, log: BaseLog, ledger_id: int, entry: int) -> Run:
        """A run of a log that is confirmed with the group, for entries from this one on."""
        run = Run(log, ledger_id, entry)
        self.runs.append(run)
        self.logs[log] = None
        return run

    def add_run(self, run: Run) -> None:
        """A run after all others."""
        self.runs.append(run)

    def add_record(self, record: bytes) -> None:
        """A record after all others."""
        self.records.append(record)

    def touch(self, log: LogState) -> None:
        """The record of this log goes with the group, as it is when that is sealed."""
        self.dirty[log] = None

    def leave(self, log: LogState) -> None:
        """The record of this log is not needed."""
        self.dirty.pop(log, None)

    def change(self, change: Change) -> None:
        """Something to be carried out when the group is durable."""
        self.changes.append(change)

    def sealed_records(self) -> bytes:
        """Seal the group; all its records, in the order in which they must be applied.

        The state is told how far each log goes, for the log's record and for checkpoints.
        """
        self.seal()
        for log, entry in self.marks:
            log.state.reach(entry + 1)  # type: ignore[attr-defined] # logs here are JournalLogs
        changes = [encode_record(CHANGE, cursor.cursor_id, b"", data) for cursor, _, data in self.tickets if data]
        return b"".join([*self.records, *[log.record() for log in self.dirty], *changes])


class Frame:
    """An encoded frame with its place, the group it confirms, and the checkpoint that it completes (-1: none).

    `end` is where the next frame begins, an offset in bytes like `offset`.
    """

    __slots__ = ("buffers", "completes", "end", "flags", "group", "offset", "segment", "size")

    def __init__(
        self,
        buffers: list[Buffer],
        size: int,
        segment: int,
        offset: int,
        flags: int,
        group: JournalGroup | None,
        completes: int,
    ) -> None:
        self.buffers = buffers
        self.size = size
        self.segment = segment
        self.offset = offset
        self.end = offset + aligned(size)
        self.flags = flags
        self.group = group
        self.completes = completes


class JournalWriter:
    """Owns the order of frames, the open group, and how it all ends (`ended`: nothing joins or is written after that).

    `turn` is asked for when there is something to write.
    """

    def __init__(
        self,
        state: JournalState,
        uuid: bytes,
        folder: str,
        segment_bytes: int,
        group_bytes: int,
        pressure: Pressure,
        turn: Turn,
    ) -> None:
        self.open_group = JournalGroup()
        self.group_bytes = group_bytes
        self.max_value_bytes = min(MAX_VALUE_BYTES, segment_bytes // 16)
        self.pressure = pressure
        self.tally: Tally = state.tally
        self.ended: LedgerError | None = None
        self.slice_pause = 0.0
        """Seconds until there is a frame for the open checkpoint alone; 0: there is none to come."""
        self._state = state
        self._uuid = uuid
        self._folder = folder
        self._segment_bytes = segment_bytes
        self.turn = turn
        self._checkpoints = Checkpoints(state, segment_bytes)
        self._queue: deque[Frame] = deque()
        self._current: Frame | None = None
        """The frame between its first byte and its sync."""
        # The plan: where the next sealed group goes.
        self._planned_segment = -1
        self._planned_offset = 0
        self._planned_size = 0
        self._planned_index = SegmentIndex()
        self._sequence = 0
        self.durable_end = (-1, 0, True)
        """The segment of the newest durable frame, where that frame ends, and whether the segment is full."""

    def go_on(self, found: Recovered, size: int) -> None:
        """Go on where recovery ended: in a segment of this size, or (0) after a sealed segment."""
        self._checkpoints.go_on(found.replay_from)
        self._planned_segment = found.number
        self._planned_offset = found.offset
        self._planned_size = size
        self._planned_index = found.index
        self._sequence = found.sequence
        self.durable_end = (found.number, found.offset, not size)

    # ---- the plan

    @property
    def planned_segment(self) -> int:
        """The segment that the next group goes to, as far as is known."""
        return self._planned_segment

    @property
    def room(self) -> int:
        """Bytes left in the segment of the plan."""
        return max(0, self._planned_size - self._planned_offset - self._seal_reserve(0))

    @property
    def checkpointing(self) -> bool:
        """A checkpoint in slices is under way."""
        return self._checkpoints.open

    @property
    def checkpoint_bytes(self) -> int:
        """Return what was written while the newest complete checkpoint was; 0 when it is a single frame."""
        return self._checkpoints.written_bytes

    @property
    def idle(self) -> bool:
        """Nothing is waiting and nothing is under way."""
        return self._current is None and not self._queue and not self.open_group

    # ---- joining

    def check(self) -> None:
        """Raise what ended the journal, if it has ended."""
        if self.ended is not None:
            raise self.ended

    def wake(self) -> None:
        """Something joined the open group: it is sealed in the next turn."""
        self.turn.ask()

    def join(self, size: int, room: int = 0) -> JournalGroup:
        """The open group, a new one if `size` (counted here) or `room` (counted by the caller) do not fit any more."""
        group = self.open_group
        if group.bytes and group.bytes + size + room > self.group_bytes:
            self.seal()
            self.check()
            group = self.open_group
        if size:
            self.grew(size)
        return group

    def grew(self, size: int) -> None:
        """Count bytes that joined the open group."""
        self.open_group.grew(size)
        self.pressure.enter(size)

    def count(self, size: int) -> None:
        """Count `size` bytes that joined the open group and are no entries; a group that is large by now is sealed."""
        self.grew(size)
        if self.open_group.bytes >= self.group_bytes:
            self.seal()

    def touch(self, log: LogState) -> None:
        """The record of this log goes with the open group, as it is when that is sealed."""
        if log not in self.open_group.dirty:
            self.join(len(log.name) + _LOG_RECORD_BYTES).touch(log)

    def last_group(self) -> JournalGroup | None:
        """The group whose confirmation says that everything called so far is durable; None when nothing waits."""
        if self.open_group:
            return self.open_group
        for planned in reversed(self._queue):
            if planned.group is not None:
                return planned.group
        return None if self._current is None else self._current.group

    async def wait_durable(self) -> None:
        """Wait until everything called so far is durable. Raises what ended the journal."""
        self.check()
        group = self.last_group()
        if group is not None:
            self.turn.ask()
            await group.waiter()

    async def write(self, record: bytes) -> None:
        """Wait until a record is durable, with everything called before it."""
        self.check()
        self.open_group.add_record(record)
        self.count(len(record))
        await self.wait_durable()

    # ---- sealing

    def seal(self, flags: int = 0) -> None:
        """Close the open group, give it a place and queue it.

        What cannot be encoded was refused before it joined. Should that ever be wrong, the store fails for ever: the plan
        may have moved already, and nothing may be confirmed after a checkpoint that is not there.
        """
        group, self.open_group = self.open_group, JournalGroup()
        self.slice_pause = 0.0
        try:
            self._place(flags, group)
        except Exception as error:
            logger.exception("the journal stops: a group of entries cannot be encoded; this is a defect, report it")
            self.open_group = group  # it fails with the others
            self.fail(f"a group cannot be encoded: {type(error).__name__}: {error}")

    def _place(self, flags: int, group: JournalGroup) -> None:
        """Give a group its place, with the slice of a checkpoint that its frame carries."""
        records, checkpoints = group.sealed_records(), self._checkpoints
        size, reserve = frame_size(group.runs, len(records)), self._seal_reserve(len(group.runs))
        room = self._room_beside(size, reserve)
        if room >= checkpoints.slice_room or (room >= 0 and (flags or group or not checkpoints.open)):
            carried = checkpoints.next(room, self.turn.now()) if checkpoints.open else NO_SLICE
        else:
            self._begin_segment()
            reserve = self._seal_reserve(len(group.runs))
            room = self._room_beside(size, reserve)
            live = [number for number, use in self._state.usage.segments.items() if number < self._planned_segment]
            self._state.usage.segment(self._planned_segment)
            carried = checkpoints.first(self._planned_segment, live, room, self.turn.now())
            carried = carried._replace(head=encode_record(SEGMENT_SIZE, self._planned_size) + carried.head)
            if carried.whole:
                size -= len(records)
                records = b""
        if carried is not NO_SLICE:
            records = b"".join((carried.head, records, carried.records))
            size += len(carried.head) + len(carried.records)
        needed = aligned(size) + reserve
        if self._planned_offset + needed > self._planned_size:
            raise ValueError(f"a frame needs {needed} bytes, more than a segment of {self._planned_size} has")
        self._plan(flags | carried.flags, group, group.runs, records, carried.completes)

    def _room_beside(self, size: int, reserve: int) -> int:
        """Bytes that a frame of `size` may carry beside its group in the segment of the plan, negative when it does not fit."""
        left = self._planned_size - self._planned_offset - reserve - HEAD_BYTES
        return left // ALIGNMENT * ALIGNMENT - size

    def _begin_segment(self) -> None:
        """Queue the index of the full segment as its last frame; the plan goes on in the next one."""
        if self._planned_size:
            self._plan(SEAL, None, [], self._planned_index.encode())
        self._planned_segment += 1
        self._planned_offset = 0
        self._planned_size = self._segment_bytes
        self._planned_index = SegmentIndex()

    def _plan(self, flags: int, group: JournalGroup | None, runs: list[Run], records: bytes, completes: int = -1) -> None:
        """Encode a frame for the next place of the plan, and queue it."""
        segment, offset = self._planned_segment, self._planned_offset
        buffers, size = encode_frame(self._uuid, segment, self._sequence, flags, runs, records)
        planned = Frame(buffers, size, segment, offset, flags, group, completes)
        self._queue.append(planned)
        self._checkpoints.wrote(planned.end - offset)
        self._sequence += 1
        self._planned_offset = planned.end
        add, at = self._planned_index.add, offset + HEADER.size
        for run in runs:
            add(run.ledger_id, run.first, run.count, run.kind, at, run.bytes)
            at += RUN.size

    def _seal_reserve(self, more_runs: int) -> int:
        """Return what the index and the trailer will need."""
        return aligned(HEADER.size + self._planned_index.encoded_size(more_runs)) + TRAILER.size

    # ---- events, and the frames to write

    def next_frame(self, *, scarce: bool) -> Frame | None:
        """The frame to write now; None when one is under way or there is nothing to write.

        `scarce`: no file is taken for a checkpoint alone.
        """
        if self._current is not None or self.ended is not None:
            return None
        if not self._queue and (self.open_group or (self._checkpoints.open and self._slice_is_due(scarce))):
            self.seal()
        return self._queue[0] if self._queue else None  # none: nothing to do, or it failed in sealing

    def _slice_is_due(self, scarce: bool) -> bool:
        """True if the open checkpoint goes on although nothing else is to be written; if later, `slice_pause` says when."""
        self.slice_pause = 0.0 if scarce else max(0.0, self._checkpoints.wait(self.turn.now()))
        return not scarce and not self.slice_pause

    def begin(self) -> None:
        """The next frame is under way: its segment is there."""
        self._current = self._queue.popleft()

    def written(self) -> None:
        """The frame that was under way is durable."""
        frame, self._current = self._current, None
        if frame is not None:
            self.durable_end = (frame.segment, frame.end, bool(frame.flags & SEAL))

    def close_cleanly(self) -> None:
        """Queue a frame that says: nothing follows, and nothing before it may be missing."""
        self._checkpoints.give_up()
        self.open_group.add_record(b"")
        self.seal(CLOSE)

    def fail(self, detail: str) -> None:
        """Nothing is written or confirmed any more. A turn is asked for, in which everybody is to be told."""
        if self.ended is None:
            self.ended = StorageFailed(f"storage failed in {self._folder}: {detail}; restart to recover")
            self.turn.ask()

    def stop(self, error: LedgerError) -> list[JournalGroup]:
        """Write nothing more; the groups that will never be confirmed."""
        self.ended = self.ended or error
        self._checkpoints.give_up()
        frames = [] if self._current is None else [self._current]
        groups = [*(frame.group for frame in (*frames, *self._queue)), self.open_group]
        self._queue.clear()
        return [group for group in groups if group is not None]
