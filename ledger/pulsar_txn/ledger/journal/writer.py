"""The writer: groups become frames, frames go to the disk one at a time, confirmations come back.

At most one frame is between its first byte and its sync; what arrives meanwhile is the next group. Where a frame goes
is decided when its group is sealed. A frame that does not fit is the first of the next segment. It carries the state
right after its group, when that is small; otherwise a checkpoint in slices begins there, and frames carry one each
(see `checkpoint`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pulsar_txn.ledger.group import CommitGroup
from pulsar_txn.ledger.journal.checkpoint import HEAD_BYTES, Checkpoints, Slice
from pulsar_txn.ledger.journal.files import SYNC, Files, Syncer, describe
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    CHANGE,
    CLOSE,
    HEADER,
    SEAL,
    SEGMENT_SIZE,
    SMALL_FRAME_BYTES,
    TRAILER,
    Frame,
    Run,
    aligned,
    encode_frame,
    encode_record,
    encode_trailer,
    frame_size,
)
from pulsar_txn.ledger.journal.segments import Segment, SegmentFiles
from pulsar_txn.ledger.journal.state import JournalState, LogState, SegmentIndex
from pulsar_txn.ledger.protocols import Buffer

if TYPE_CHECKING:
    from pulsar_txn.ledger.journal.recovery import Recovered

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 256 << 10
_SLICE_BUFFERS: Final = 512  # the kernel takes 1024 in one call


class JournalGroup(CommitGroup):
    """A commit group of the journal: runs of entries, records, logs whose record changed."""

    __slots__ = ("confirmed", "dirty", "records", "runs")

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.records: list[bytes] = []
        self.dirty: dict[LogState, None] = {}
        self.confirmed: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self.runs or self.records or self.dirty) or super().__bool__()

    def seal(self) -> None:
        """Also tell the state how far each log goes, for its record and for checkpoints."""
        super().seal()
        for log, entry in self.marks:
            log.state.next_entry = entry + 1  # type: ignore[attr-defined] # logs here are JournalLogs

    def encoded_records(self) -> bytes:
        """All records of a sealed group, in the order in which they must be applied."""
        changes = [encode_record(CHANGE, cursor.cursor_id, b"", data) for cursor, _, data in self.tickets if data]
        return b"".join([*self.records, *(log.record() for log in self.dirty), *changes])


class _Planned:
    """An encoded frame with its place, the group it confirms, and the checkpoint that it completes (-1: none)."""

    __slots__ = ("completes", "frame", "group", "offset", "segment")

    def __init__(self, frame: Frame, segment: int, offset: int, group: JournalGroup | None, completes: int) -> None:
        self.completes = completes
        self.frame = frame
        self.segment = segment
        self.offset = offset
        self.group = group


class JournalWriter:
    """Owns the order of frames. Everything runs on the loop; the syncer only waits for the disk.

    `on_confirmed(group, segment, run offsets)` is called before the group's own confirmation, `on_failure(detail)`
    once, when a write or a sync failed: nothing is written after that.
    """

    def __init__(self, files: Files, segment_files: SegmentFiles, syncer: Syncer, state: JournalState, uuid: bytes) -> None:
        self.open_group = JournalGroup()
        self.on_confirmed: Callable[[JournalGroup, int, list[int]], None] = lambda *_: None
        self.on_sealed: Callable[[int], None] = lambda _: None
        self.on_checkpoint: Callable[[int], None] = lambda _: None
        self.on_failure: Callable[[str], None] = lambda _: None
        self.sync_count = 0
        self._files = files
        self._segment_files = segment_files
        self._syncer = syncer
        self._state = state
        self._checkpoints = Checkpoints(state, segment_files.segment_bytes)
        self._slice_timer: asyncio.TimerHandle | None = None
        self._uuid = uuid
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Planned] = deque()
        self._segment: Segment | None = None
        self.awake = False
        self._busy = False
        self._stopped = False
        # The plan: where the next sealed group goes.
        self._planned_segment = -1
        self._planned_offset = 0
        self._planned_size = 0
        self._planned_index = SegmentIndex()
        self._sequence = 0
        self.durable_end = (-1, 0, True)
        """The segment of the newest durable frame, where that frame ends, and whether the segment is full."""
        segment_files.on_ready = self._advance

    def go_on(self, segment: Segment | None, found: Recovered) -> None:
        """Go on where recovery ended: in `segment` at an offset, or (None) after a sealed segment."""
        number, offset, sequence, index = found.number, found.offset, found.sequence, found.index
        self._checkpoints.replay_from = found.replay_from
        self._segment = segment
        self._planned_segment = number
        self._planned_offset = offset
        self._planned_size = 0 if segment is None else segment.size
        self._planned_index = index
        self._sequence = sequence
        self.durable_end = (number, offset, segment is None)

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
        return not self._busy and not self._queue and not self.open_group

    def wake(self) -> None:
        """Something joined the open group: seal it when the loop has carried out what is ready now."""
        if not self.awake:
            self.awake = True
            self._loop.call_soon(self._turn)

    def last_group(self) -> JournalGroup | None:
        """The group whose confirmation says that everything called so far is durable; None when nothing waits."""
        if self.open_group:
            return self.open_group
        for planned in reversed(self._queue):
            if planned.group is not None:
                return planned.group
        return self._current_group if self._busy else None

    _current_group: JournalGroup | None = None

    def seal(self, flags: int = 0) -> None:
        """Close the open group, give it a place and queue it.

        What cannot be encoded was refused before it joined. Should that ever be wrong, the store fails for ever: the plan
        may have moved already, and nothing may be confirmed after a checkpoint that is not there.
        """
        group, self.open_group = self.open_group, JournalGroup()
        try:
            self._place(flags, group)
        except Exception as error:
            logger.exception("a group cannot be encoded")
            self.open_group = group  # it fails with the others
            self._fail(f"a group cannot be encoded: {type(error).__name__}: {error}")

    def _place(self, flags: int, group: JournalGroup) -> None:
        group.seal()
        records, checkpoints, now = group.encoded_records(), self._checkpoints, self._loop.time()
        room = self._room_beside(group, records)
        if room >= checkpoints.slice_room or (room >= 0 and (flags or group or not checkpoints.open)):
            self._plan_group(flags, group, records, checkpoints.next(room, now))
            return
        self._seal_segment()
        live = [number for number, use in self._state.usage.segments.items() if number <= self._planned_segment]
        self._planned_segment += 1
        self._planned_offset = 0
        self._planned_size = self._segment_files.segment_bytes
        self._planned_index = SegmentIndex()
        self._state.usage.segment(self._planned_segment)
        first = checkpoints.first(self._planned_segment, live, self._room_beside(group, records), now)
        size = encode_record(SEGMENT_SIZE, self._planned_size)
        self._plan_group(flags, group, b"" if first.whole else records, first._replace(head=size + first.head))

    def _room_beside(self, group: JournalGroup, records: bytes) -> int:
        """Bytes that a group's frame may carry beside it in the segment of the plan, negative when the group does not fit."""
        left = self._planned_size - self._planned_offset - self._seal_reserve(len(group.runs)) - HEAD_BYTES
        return left // ALIGNMENT * ALIGNMENT - frame_size(group.runs, len(records))

    def _plan_group(self, flags: int, group: JournalGroup, records: bytes, carried: Slice) -> None:
        records = b"".join((carried.head, records, carried.records))
        needed = aligned(frame_size(group.runs, len(records))) + self._seal_reserve(len(group.runs))
        if self._planned_offset + needed > self._planned_size:
            raise ValueError(f"a frame needs {needed} bytes, more than a segment of {self._planned_size} has")
        self._plan(flags | carried.flags, group, group.runs, records, carried.completes)

    def close_cleanly(self) -> None:
        """Queue a frame that says: nothing follows, and nothing before it may be missing."""
        self._checkpoints.give_up()
        self.open_group.records.append(b"")
        self.seal(CLOSE)
        self._advance()

    def stop(self) -> list[JournalGroup]:
        """Write nothing more; the groups that will never be confirmed."""
        self._stopped = True
        self._checkpoints.give_up()
        groups = [self._current_group, *(planned.group for planned in self._queue), self.open_group]
        self._queue.clear()
        return [group for group in groups if group is not None]

    def _plan(self, flags: int, group: JournalGroup | None, runs: list[Run], records: bytes, completes: int = -1) -> None:
        frame = encode_frame(self._uuid, self._planned_segment, self._sequence, flags, runs, records)
        offset = self._planned_offset
        self._queue.append(_Planned(frame, self._planned_segment, offset, group, completes))
        self._checkpoints.wrote(aligned(frame.size))
        self._sequence += 1
        self._planned_offset += aligned(frame.size)
        add = self._planned_index.add
        for run, at in zip(runs, frame.run_offsets, strict=True):
            add(run.ledger_id, run.first, run.count, run.kind, offset + at, run.bytes)

    def _seal_segment(self) -> None:
        """Queue the index of the full segment as its last frame."""
        if self._planned_size:
            self._plan(SEAL, None, [], self._planned_index.encode())

    def _seal_reserve(self, more_runs: int) -> int:
        """Return what the index and the trailer will need."""
        return aligned(HEADER.size + self._planned_index.encoded_size(more_runs)) + TRAILER.size

    def _turn(self) -> None:
        self.awake = False
        self._advance()

    def _advance(self) -> None:
        """Begin with the next frame, if none is under way and its segment is there."""
        if self._busy or self._stopped:
            return
        if not self._queue and (self.open_group or self._slice_is_due()):
            self.seal()
        if not self._queue:  # nothing to do, or the store failed in sealing
            return
        planned = self._queue[0]
        if self._segment is None or self._segment.number != planned.segment:
            segment = self._segment_files.take(planned.segment)
            if segment is None or self._stopped:  # taking it may fail, and ends the store then
                return
            self._segment = segment
        self._queue.popleft()
        self._busy = True
        self._current_group = planned.group
        self._write(planned)

    def _slice_is_due(self) -> bool:
        """True if the checkpoint goes on although nothing else is to be written; if later, somebody will ask again."""
        if not self._checkpoints.open or self._segment_files.scarce:
            return False
        wait = self._checkpoints.wait(self._loop.time())
        if wait > 0 and self._slice_timer is None:
            self._slice_timer = self._loop.call_later(wait, self._slice_time)
        return wait <= 0

    def _slice_time(self) -> None:
        self._slice_timer = None
        self._advance()

    def _write(self, planned: _Planned) -> None:
        frame = planned.frame
        if frame.size <= SMALL_FRAME_BYTES:
            if self._write_all([frame.head, *frame.data], planned.offset):
                self._sync(planned)
            return
        pieces = deque(memoryview(piece) for piece in (frame.head, *frame.data))
        self._write_slice(planned, pieces, planned.offset)

    def _write_slice(self, planned: _Planned, pieces: deque[memoryview], offset: int) -> None:
        """A large frame leaves in slices, one a loop turn, so that nobody waits long."""
        if self._stopped:
            return
        buffers: list[Buffer] = []
        room = SLICE_BYTES
        while pieces and room and len(buffers) < _SLICE_BUFFERS:
            piece = pieces.popleft()
            if len(piece) > room:
                pieces.appendleft(piece[room:])
                piece = piece[:room]
            room -= len(piece)
            buffers.append(piece)
        if not self._write_all(buffers, offset):
            return
        if pieces:
            self._loop.call_soon(self._write_slice, planned, pieces, offset + SLICE_BYTES - room)
        else:
            self._sync(planned)

    def _write_all(self, buffers: list[Buffer], offset: int) -> bool:
        """Write, going on after short writes; False when that failed."""
        assert self._segment is not None  # noqa: S101 - set before a frame is begun
        size = sum(map(len, buffers))
        try:
            written = self._files.write(self._segment.fd, buffers, offset)
            while written < size:
                rest = memoryview(b"".join(buffers))[written:]
                more = self._files.write(self._segment.fd, [rest], offset + written)
                if more <= 0:
                    self._fail(f"writing {self._segment.path} at {offset}: nothing was written")
                    return False
                written += more
        except OSError as error:
            self._fail(f"writing {self._segment.path} at {offset}: {error}")
            return False
        return True

    def _sync(self, planned: _Planned) -> None:
        assert self._segment is not None  # noqa: S101 - set before a frame is begun
        segment = self._segment
        if planned.frame.flags & SEAL:
            trailer = encode_trailer(self._uuid, segment.number, planned.offset)
            if not self._write_all([trailer], segment.size - TRAILER.size):
                return
        self.sync_count += 1
        self._syncer.request(SYNC, segment.fd, lambda code: self._synced(planned, code))

    def _synced(self, planned: _Planned, code: int) -> None:
        if self._stopped:
            return
        if code:
            self._fail(f"syncing segment {planned.segment}: {describe(code)}")
        elif planned.offset:
            self._durable(planned)
        else:  # nobody hears of a segment before the folder says that it was begun
            self._segment_files.begun(planned.segment, lambda: self._durable(planned))

    def _durable(self, planned: _Planned) -> None:
        if self._stopped:
            return
        self._busy = False
        full = bool(planned.frame.flags & SEAL)
        self.durable_end = (planned.segment, planned.offset + aligned(planned.frame.size), full)
        group, self._current_group = self._current_group, None
        if full:
            self.on_sealed(planned.segment)
        if planned.completes >= 0:
            self.on_checkpoint(planned.completes)
        if group is not None:
            offsets = [planned.offset + at for at in planned.frame.run_offsets]
            self.on_confirmed(group, planned.segment, offsets)
            group.confirm()
            for call in group.confirmed:
                call()
        # Not at once: what the confirmation sets free now should be in the next group.
        self.wake()

    def _fail(self, detail: str) -> None:
        if not self._stopped:
            self._stopped = True
            self.on_failure(detail)
