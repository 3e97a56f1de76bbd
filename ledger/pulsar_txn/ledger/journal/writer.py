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
from functools import partial
from typing import TYPE_CHECKING, Final

from pulsar_txn.ledger.confirming import confirm
from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.journal.checkpoint import HEAD_BYTES, Checkpoints
from pulsar_txn.ledger.journal.files import SYNC, Files, Syncer, describe
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    CHANGE,
    CLOSE,
    HEADER,
    RUN,
    SEAL,
    SEGMENT_SIZE,
    SMALL_FRAME_BYTES,
    TRAILER,
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
        return bool(self.runs or self.records or self.dirty or self.logs or self.cursors or self.waiters)

    def sealed_records(self) -> bytes:
        """Seal the group; all its records, in the order in which they must be applied.

        The state is told how far each log goes, for the log's record and for checkpoints.
        """
        self.seal()
        for log, entry in self.marks:
            log.state.next_entry = entry + 1  # type: ignore[attr-defined] # logs here are JournalLogs
        changes = [encode_record(CHANGE, cursor.cursor_id, b"", data) for cursor, _, data in self.tickets if data]
        return b"".join([*self.records, *[log.record() for log in self.dirty], *changes])


class _PlannedFrame:
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
    """Owns the order of frames. Everything runs on the loop; the syncer only waits for the disk.

    `on_confirmed(group, segment, offset of its runs)` is called before the group's own confirmation, `on_failure(detail)`
    once, when a write or a sync failed: nothing is written after that.
    """

    def __init__(self, files: Files, segment_files: SegmentFiles, syncer: Syncer, state: JournalState, uuid: bytes) -> None:
        self.open_group = JournalGroup()
        self.on_confirmed: Callable[[JournalGroup, int, int], None] = lambda *_: None
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
        self._queue: deque[_PlannedFrame] = deque()
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
        """Give a group its place, with the slice of a checkpoint that its frame carries."""
        records, checkpoints, now = group.sealed_records(), self._checkpoints, self._loop.time()
        size, reserve = frame_size(group.runs, len(records)), self._seal_reserve(len(group.runs))
        room = self._room_beside(size, reserve)
        if room >= checkpoints.slice_room or (room >= 0 and (flags or group or not checkpoints.open)):
            carried = checkpoints.next(room, now)
        else:
            self._begin_segment()
            reserve = self._seal_reserve(len(group.runs))
            room = self._room_beside(size, reserve)
            live = [number for number, use in self._state.usage.segments.items() if number < self._planned_segment]
            self._state.usage.segment(self._planned_segment)
            carried = checkpoints.first(self._planned_segment, live, room, now)
            carried = carried._replace(head=encode_record(SEGMENT_SIZE, self._planned_size) + carried.head)
            if carried.whole:
                size -= len(records)
                records = b""
        size += len(carried.head) + len(carried.records)
        needed = aligned(size) + reserve
        if self._planned_offset + needed > self._planned_size:
            raise ValueError(f"a frame needs {needed} bytes, more than a segment of {self._planned_size} has")
        records = b"".join((carried.head, records, carried.records))
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
        self._planned_size = self._segment_files.segment_bytes
        self._planned_index = SegmentIndex()

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
        """Encode a frame for the next place of the plan, and queue it."""
        segment, offset = self._planned_segment, self._planned_offset
        buffers, size = encode_frame(self._uuid, segment, self._sequence, flags, runs, records)
        planned = _PlannedFrame(buffers, size, segment, offset, flags, group, completes)
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

    def _turn(self) -> None:
        self.awake = False
        self._advance()

    def _advance(self) -> None:
        """Begin with the next frame, if none is under way and its segment is there."""
        if self._busy or self._stopped:
            return
        if not self._queue and (self.open_group or (self._checkpoints.open and self._slice_is_due())):
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
        if planned.size > SMALL_FRAME_BYTES:
            self._write_slice(planned, deque(memoryview(piece) for piece in planned.buffers), planned.offset)
        elif self._write_all(planned.buffers, planned.offset):
            self._sync(planned)

    def _slice_is_due(self) -> bool:
        """True if the open checkpoint goes on although nothing else is to be written; if later, a timer asks again."""
        if self._segment_files.scarce:
            return False
        wait = self._checkpoints.wait(self._loop.time())
        if wait > 0 and self._slice_timer is None:
            self._slice_timer = self._loop.call_later(wait, self._slice_time)
        return wait <= 0

    def _slice_time(self) -> None:
        self._slice_timer = None
        self._advance()

    def _write_slice(self, planned: _PlannedFrame, pieces: deque[memoryview], offset: int) -> None:
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

    def _sync(self, planned: _PlannedFrame) -> None:
        assert self._segment is not None  # noqa: S101 - set before a frame is begun
        segment = self._segment
        if planned.flags & SEAL:
            trailer = encode_trailer(self._uuid, segment.number, planned.offset)
            if not self._write_all([trailer], segment.size - TRAILER.size):
                return
        self.sync_count += 1
        self._syncer.request(SYNC, segment.fd, partial(self._synced, planned))

    def _synced(self, planned: _PlannedFrame, code: int) -> None:
        if self._stopped:
            return
        if code:
            self._fail(f"syncing segment {planned.segment}: {describe(code)}")
        elif planned.offset:
            self._durable(planned)
        else:  # nobody hears of a segment before the folder says that it was begun
            self._segment_files.begun(planned.segment, lambda: self._durable(planned))

    def _durable(self, planned: _PlannedFrame) -> None:
        if self._stopped:
            return
        self._busy = False
        full = bool(planned.flags & SEAL)
        self.durable_end = (planned.segment, planned.end, full)
        group, self._current_group = self._current_group, None
        if full:
            self.on_sealed(planned.segment)
        if planned.completes >= 0:
            self.on_checkpoint(planned.completes)
        if group is not None:
            self.on_confirmed(group, planned.segment, planned.offset + HEADER.size)
            confirm(group)
            for call in group.confirmed:
                call()
        # Not at once: what the confirmation sets free now should be in the next group.
        self.wake()

    def _fail(self, detail: str) -> None:
        if not self._stopped:
            self._stopped = True
            self.on_failure(detail)
