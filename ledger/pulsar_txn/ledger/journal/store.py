"""The journal store: one folder, one process, everything in one interleaved journal."""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid as uuids
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

from pulsar_txn.ledger.confirming import confirm, fail
from pulsar_txn.ledger.handles import OpenLogs
from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.files import SYNC, Files, RealFiles, Syncer, describe
from pulsar_txn.ledger.journal.folder import Finding, first_fatal
from pulsar_txn.ledger.journal.frame import (
    COPY,
    COUNTER,
    HEADER,
    LOG_GONE,
    META,
    META_GONE,
    RUN,
    SEAL,
    SMALL_FRAME_BYTES,
    SNAPSHOT,
    TRAILER,
    Run,
    encode_record,
    encode_trailer,
)
from pulsar_txn.ledger.journal.log import JournalLog, Parts
from pulsar_txn.ledger.journal.reclaim import Reclaimer
from pulsar_txn.ledger.journal.recovery import Recovered, recover
from pulsar_txn.ledger.journal.segments import Holds, RunReader, Segment, SegmentFiles
from pulsar_txn.ledger.journal.state import JournalState, LogState, location
from pulsar_txn.ledger.journal.writer import Deleted, Frame, JournalGroup, JournalWriter, Unneeded
from pulsar_txn.ledger.limits import DEFAULT_HIGH_WATER_BYTES, DEFAULT_MAX_STATE_BYTES, Pressure, check_name
from pulsar_txn.ledger.metadata import MetadataTree, TreeStore
from pulsar_txn.ledger.protocols import (
    Buffer,
    Cut,
    LedgerError,
    LogClosed,
    LogExists,
    LogNotFound,
    MetadataStore,
    StorageFailed,
    StoreInUse,
    Versioned,
)
from pulsar_txn.ledger.turn import Turn

logger = logging.getLogger(__name__)

DEFAULT_SEGMENT_BYTES: Final = 64 << 20
DEFAULT_MAX_ENTRY_BYTES: Final = (5 << 20) + (256 << 10)
DEFAULT_CACHE_BYTES: Final = 32 << 20
_ENTRY_OVERHEAD_BYTES: Final = 200  # of an entry in the tail cache: object, key, table slot
_GROUP_BYTES: Final = 4 << 20
_SLICE_BYTES: Final = 256 << 10
_SLICE_BUFFERS: Final = 512  # the kernel takes 1024 in one call
_LOCK_PAUSES: Final = (0.05, 0.1, 0.2, 0.4)  # seconds; how long a predecessor that is just ending is waited for


class JournalStore:
    """Protocol `LogStore` in a folder.

    `segment_bytes` is the size of new segment files; entries are at most a quarter of it, and at most
    `max_entry_bytes`. `cache_bytes` bounds the recent entries kept in memory, `high_water_bytes` is where back-pressure
    begins. `max_state_bytes` bounds what is kept in memory beside entries: logs, cursors, metadata.
    `files` is the file operations layer; tests put another one in.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        high_water_bytes: int = DEFAULT_HIGH_WATER_BYTES,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
        spare_count: int = 2,
        files: Files | None = None,
    ) -> None:
        self.folder = str(folder)
        self.max_entry_bytes = min(max_entry_bytes, segment_bytes // 4)
        self.max_state_bytes = max_state_bytes
        self.group_bytes = min(_GROUP_BYTES, segment_bytes // 16)
        self.pressure = Pressure(high_water_bytes)
        self.state = JournalState()
        self.findings: list[Finding] = []
        """Damage found by recovery; the logs concerned are refused when they are opened."""
        self._files: Files = files or RealFiles()
        self._turn = Turn(self._take_turn)
        self.segment_files = SegmentFiles(self._files, self.folder, segment_bytes, spare_count, self._turn)
        self.metadata: MetadataStore
        self.writer: JournalWriter
        self.reader: RunReader
        self.reclaimer: Reclaimer
        self.holds = Holds(self.segment_files)
        self._syncer: Syncer | None = None
        self._uuid = b""
        self._lock_fd = -1
        self._open_logs: OpenLogs[JournalLog] = OpenLogs()
        self._parts: Parts | None = None
        """None before the start."""
        self._segment: Segment | None = None
        """The segment of the newest frame that was begun."""
        self._unmarked: Frame | None = None
        """The first frame of a segment, durable, while the folder does not say that the segment was begun."""
        self._needs_file = ""
        """The reason to fail when no segment can be made; empty while the store waits for room."""
        self._slice_timer: asyncio.TimerHandle | None = None
        self._failed = False
        self.sync_count = 0
        """Syncs of commit groups since the start."""
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._cached: deque[tuple[JournalLog, int, int, int]] = deque()

    async def start(self) -> None:
        """Recover, or create.

        Raises StoreInUse, StoreTooNew, StoreReadOnly, StoreUnsupported, LogDamaged, ReadFailed, StorageFailed.
        """
        try:
            await self._start()
        except OSError as error:
            self.abandon()
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise folders.read_only(self.folder, error) from error
            raise StorageFailed(f"cannot open the journal in {self.folder}: {error}") from error
        except BaseException:
            self.abandon()
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self, name: str, *, create: bool = True) -> JournalLog:
        """Open a log exclusively. Raises LogNotFound, LogExists, LogDamaged, ReadFailed, NameRefused, EntryTooLarge.

        If cancelled: the log may exist, and is not open.
        """
        parts = self._check()
        if name in self._open_logs.by_name:
            raise LogExists(f"log {name!r} is open already in this store; close that handle first")
        state = self.state.by_name.get(name)
        if state is None:
            if not create:
                raise LogNotFound(f"there is no log {name!r}")
            check_name("log", name)
            self.state.check_log(name)
            state = self.state.create_log(name)
        if state.damage is not None:
            raise state.damage
        state.open()
        log = JournalLog(parts, state)
        self._open_logs.add(log)
        self.writer.touch(state)
        try:
            await self.durable()
        except BaseException:  # nobody has the handle, so nobody could close it
            log.release()
            self._open_logs.forget(log)
            raise
        return log

    def exists(self, name: str) -> bool:
        """True if there is a log of this name."""
        return name in self.state.by_name

    @property
    def log_count(self) -> int:
        """Return how many logs there are."""
        return len(self.state.by_name)

    def names(self, prefix: str = "") -> list[str]:
        """Names of logs, sorted."""
        return sorted(name for name in self.state.by_name if name.startswith(prefix))

    async def delete(self, name: str) -> None:
        """Delete a log, damaged or not, with its cursors and snapshots; an open handle is closed."""
        self._check()
        log = self._open_logs.by_name.get(name)
        if log is not None:
            self._open_logs.forget(log)
            log.release()
        state = self.state.by_name.get(name)
        if state is not None:
            record = encode_record(LOG_GONE, state.ledger_id)
            group = self.writer.join(len(record))
            group.leave(state)
            group.add_record(record)
            group.change(Deleted(state))
            self.state.remove_log(state.ledger_id)
        await self.durable()

    async def hold(self, lease_seconds: float) -> tuple[str, Cut]:
        """Keep the segments for somebody who copies the folder, up to the end of what is durable now.

        Returns the name of the hold, to renew and to release, and where the copy ends.
        Raises TooManyHolds, StorageFailed, LogClosed.
        If cancelled: the hold ends with its lease.
        """
        self._check()
        name = self.holds.begin(lease_seconds)
        await self.durable()
        return name, Cut(self._uuid.hex(), *self.writer.durable_end)

    def on_pressure(self, callback: Callable[[bool], None]) -> None:
        """Tell `callback` when bytes in flight pass the high-water mark, and when they are below half of it."""
        self.pressure.listen(callback)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended and not confirmed."""
        return self.pressure.bytes

    @property
    def progress(self) -> object | None:
        """See `LogStore.progress`: where the newest durable frame ends."""
        return None if self.writer.idle else self.writer.durable_end

    @property
    def disk_full(self) -> bool:
        """True if new data is refused with DiskFull until there is room."""
        return self.segment_files.scarce

    @property
    def syncer_kind(self) -> str:
        """Return who syncs: `process` or `thread`."""
        return "none" if self._syncer is None else self._syncer.kind

    async def close(self) -> None:
        """Wait until everything is durable, mark the clean end, let go of the folder. Idempotent."""
        if self._parts is not None and self.writer.ended is None:
            await self.reclaimer.close()
            try:
                await self.durable()
                waiter = self.writer.open_group.waiter()
                self.segment_files.hope()
                self._needs_file = "no room to close it cleanly"
                self.writer.close_cleanly()
                self._go_on()
                await waiter
            except LedgerError as error:
                logger.error("the journal in %s was not closed cleanly (%s); the next start recovers it", self.folder, error)  # noqa: TRY400 - said before
            for log in self._open_logs.take_all():
                log.release()
            # What the last confirmations added is found again by the next start.
            self.writer.stop(LogClosed("the store was closed"))
        self.abandon()

    async def durable(self) -> None:
        """Wait until everything called so far is durable. Raises what made the store fail."""
        await self._check().writer.wait_durable()

    async def _enter(self) -> int:
        """The folder's lock. A predecessor that is just ending (killed a moment ago, say) is waited for a little."""
        for pause in _LOCK_PAUSES:
            try:
                return folders.enter(self._files, self.folder)
            except StoreInUse:
                await asyncio.sleep(pause)
        return folders.enter(self._files, self.folder)

    @property
    def uuid(self) -> str:
        """The name of the folder, which its copies have as well; after `start`."""
        return self._uuid.hex()

    async def _start(self) -> None:
        self._lock_fd = await self._enter()
        form = folders.read_format(self._files, self.folder)
        if form is None:
            form = folders.Format(uuids.uuid4().bytes, started=False)
            folders.write_format(self._files, self.folder, form)
        self._uuid = form.uuid
        self.segment_files.find()
        marked = self.segment_files.marked
        found = recover(self.segment_files.opened, form.uuid, started=form.started, marked=marked)
        self.state, self.findings = found.state, found.findings + folders.check_mark(form, marked)
        if (fatal := first_fatal(self.findings)) is not None:
            raise fatal.error()
        self._syncer = self._files.start_syncer(self._helper_died)
        self._begin(found)
        if form.version != folders.FORMAT_VERSION:  # after the mark, which this version expects
            folders.write_format(self._files, self.folder, folders.Format(form.uuid, form.started))
        if found.sealed:
            await self._begin_segment(found.number + 1)
        else:
            self.segment_files.start(self._syncer, found.number + 1)
        if not form.started:
            folders.write_format(self._files, self.folder, folders.Format(form.uuid, started=True))
        self.reclaimer.begin()
        logger.info("the journal in %s is open; a %s syncs it", self.folder, self.syncer_kind)

    def _begin(self, found: Recovered) -> None:
        """Put the parts together, and go on where recovery ended."""
        state, segment_files = self.state, self.segment_files
        size = segment_files.segment_bytes
        state.tally.limit(self.max_state_bytes)
        self.writer = writer = JournalWriter(state, self._uuid, self.folder, size, self.group_bytes, self.pressure, self._turn)
        tree = MetadataTree(state.values, state.counters, tally=state.tally, max_value_bytes=writer.max_value_bytes)
        state.keep_metadata(tree.values, tree.counters)
        self.metadata = _JournalMetadata(writer, tree)
        self.reader = RunReader(segment_files.opened)
        self.reclaimer = Reclaimer(state, writer, self.reader, segment_files.opened, self._uuid, size)
        self._parts = Parts(state, writer, self.reader, self.reclaimer, segment_files, self._open_logs, self.max_entry_bytes)
        current = segment_files.opened.segments.get(found.number)
        if current is not None:
            segment_files.opened.write_again(current, found.tail)
        segment_files.mark_found(found.number)
        segment_files.sync_names()
        for number in found.unneeded:
            segment_files.put_back(number)
        self._segment = None if found.sealed else current
        writer.go_on(found, 0 if self._segment is None else self._segment.size)

    async def _begin_segment(self, wanted: int) -> None:
        """Write the first checkpoint of a segment, and wait for it; with no file for it the store cannot start."""
        self.writer.seal()
        self._check()
        self._needs_file = "cannot make a segment"
        self.segment_files.start(self._require_syncer(), wanted)
        await self.writer.wait_durable()
        self._needs_file = ""

    def _require_syncer(self) -> Syncer:
        assert self._syncer is not None  # noqa: S101 - between start and close
        return self._syncer

    def _confirmed(self, group: JournalGroup, segment: int, offset: int) -> None:
        """A group is durable: its entries can be found, its bytes are not in flight. `offset` is where its runs begin."""
        usage = self.state.usage
        for run in group.runs:
            if run.kind:
                self._confirmed_special(run, segment, offset)
            else:
                log: JournalLog = run.owner  # type: ignore[assignment] # owners of plain runs are their logs
                first, count, size = run.first, run.count, run.bytes
                log.state.index.add(first, segment, offset)
                usage.add_data(segment, run.ledger_id, first + count, count, size)
                size += count * _ENTRY_OVERHEAD_BYTES
                self._cached.append((log, first, count, size))
                self._cached_bytes += size
            offset += RUN.size
        if self._cached_bytes > self._cache_bytes:
            self._shrink_cache()
        self.pressure.leave(group.bytes)

    def _confirmed_special(self, run: Run, segment: int, offset: int) -> None:
        """A snapshot, or a copy of something."""
        state: LogState = run.owner  # type: ignore[assignment] # owners of snapshots and copies are log states
        usage, new = self.state.usage, location(segment, offset)
        if run.kind & SNAPSHOT:
            stored = state.snapshot_of(run.first)
            if stored is not None and stored.place(run.first) == run.old_location:  # -1 of a part that is no copy
                stored.put(usage, run.ledger_id, run.first, new, run.bytes)
        elif run.kind & COPY and state.index.move(run.first, run.old_location, new):
            usage.add_data(segment, run.ledger_id, run.first + run.count, run.count, run.bytes)

    def _shrink_cache(self) -> None:
        while self._cached_bytes > self._cache_bytes:
            log, first, count, size = self._cached.popleft()
            self._cached_bytes -= size
            log.uncache(first, count)

    def _helper_died(self) -> None:
        self._fail("the sync helper is gone; what was being synced may be lost")

    def _fail(self, detail: str) -> None:
        """Nothing is written or confirmed any more; every log is closed."""
        if self._parts is not None and self.writer.ended is None:
            self.writer.fail(detail)
            self._end_failed()

    def _end_failed(self) -> None:
        """Close every log of a store that failed, and tell everybody, once."""
        error = self.writer.ended
        if self._failed or not isinstance(error, StorageFailed):
            return
        self._failed = True
        logger.critical("%s", error)
        logs = self._open_logs.take_all()
        for log in logs:
            log.end(error)
        groups = self.writer.stop(error)
        asyncio.get_running_loop().call_soon(_tell_failed, error, groups, logs)

    def _check(self) -> Parts:
        if self._parts is None:
            raise LogClosed("the store was not started")
        if self.writer.ended is not None:
            raise self.writer.ended
        return self._parts

    def abandon(self) -> None:
        """Let go of files, helper and lock without writing: as a killed process does, and a failed store."""
        self.holds.close()
        self.segment_files.close()
        if self._syncer is not None:
            self._syncer.close()
            self._syncer = None
        if self._lock_fd >= 0:
            self._files.close(self._lock_fd)
            self._lock_fd = -1

    # ---- the way of a frame to the disk

    def _take_turn(self) -> None:
        self._turn.begun()
        self._go_on()

    def _go_on(self) -> None:
        """Carry out what has changed, then begin with the next frame, if none is under way and its segment is there."""
        writer, files = self.writer, self.segment_files
        if files.failure:
            self._fail(files.failure)
        frame = self._unmarked
        if frame is not None and files.begun_upto >= frame.segment and writer.ended is None:
            self._unmarked = None
            self._durable(frame)
        next_frame = writer.next_frame(scarce=files.scarce)
        if next_frame is None:
            if writer.ended is not None or writer.slice_pause:
                self._rest()
            return
        segment = self._segment
        if segment is None or segment.number != next_frame.segment:
            segment = self._take_segment(next_frame.segment)
            if segment is None:
                return
        writer.begin()
        if next_frame.size > SMALL_FRAME_BYTES:
            self._write_slice(next_frame, segment, deque(memoryview(piece) for piece in next_frame.buffers), next_frame.offset)
        elif self._write_all(segment, next_frame.buffers, next_frame.offset):
            self._sync(next_frame, segment)

    def _rest(self) -> None:
        """Nothing can be written now: tell of a failure, or look after the open checkpoint again when a slice is due."""
        if self.writer.ended is not None:
            self._end_failed()
        elif self._slice_timer is None:
            self._slice_timer = asyncio.get_running_loop().call_later(self.writer.slice_pause, self._slice_time)

    def _slice_time(self) -> None:
        self._slice_timer = None
        self._go_on()

    def _take_segment(self, number: int) -> Segment | None:
        """The next segment; None when it is not ready, or the store failed."""
        files = self.segment_files
        segment = files.take(number)
        if files.failure:
            self._fail(files.failure)
            return None
        if segment is not None:
            self._segment = segment
        elif files.empty and self._needs_file:
            self._fail(f"{self._needs_file}: {files.empty}")
        return segment

    def _write_slice(self, frame: Frame, segment: Segment, pieces: deque[memoryview], offset: int) -> None:
        """A large frame leaves in slices, one a loop turn, so that nobody waits long."""
        if self.writer.ended is not None:
            return
        buffers: list[Buffer] = []
        room = _SLICE_BYTES
        while pieces and room and len(buffers) < _SLICE_BUFFERS:
            piece = pieces.popleft()
            if len(piece) > room:
                pieces.appendleft(piece[room:])
                piece = piece[:room]
            room -= len(piece)
            buffers.append(piece)
        if not self._write_all(segment, buffers, offset):
            return
        if pieces:
            call_soon = asyncio.get_running_loop().call_soon
            call_soon(self._write_slice, frame, segment, pieces, offset + _SLICE_BYTES - room)
        else:
            self._sync(frame, segment)

    def _write_all(self, segment: Segment, buffers: list[Buffer], offset: int) -> bool:
        """Write, going on after short writes; False when that failed."""
        size = sum(map(len, buffers))
        try:
            written = self._files.write(segment.fd, buffers, offset)
            while written < size:
                rest = memoryview(b"".join(buffers))[written:]
                more = self._files.write(segment.fd, [rest], offset + written)
                if more <= 0:
                    self._fail(f"writing {segment.path} at {offset}: nothing was written")
                    return False
                written += more
        except OSError as error:
            self._fail(f"writing {segment.path} at {offset}: {error}")
            return False
        return True

    def _sync(self, frame: Frame, segment: Segment) -> None:
        if frame.flags & SEAL:
            trailer = encode_trailer(self._uuid, segment.number, frame.offset)
            if not self._write_all(segment, [trailer], segment.size - TRAILER.size):
                return
        self.sync_count += 1
        assert self._syncer is not None  # noqa: S101 - between start and close
        self._syncer.request(SYNC, segment.fd, partial(self._synced, frame))

    def _synced(self, frame: Frame, code: int) -> None:
        if self.writer.ended is not None:
            return
        if code:
            self._fail(f"syncing segment {frame.segment}: {describe(code)}")
        elif frame.offset:
            self._durable(frame)
        else:  # nobody hears of a segment before the folder says that it was begun
            self._unmarked = frame
            self.segment_files.begun(frame.segment)

    def _durable(self, frame: Frame) -> None:
        """A frame is durable, and its segment is known: carry out what it says."""
        self.writer.written()
        if frame.flags & SEAL:
            self.state.usage.segment(frame.segment).seal()
            self.reclaimer.look()
        if frame.completes >= 0:
            self.state.usage.replay_begins(frame.completes)
            self.reclaimer.look()
        group = frame.group
        if group is not None:
            self._confirmed(group, frame.segment, frame.offset + HEADER.size)
            confirm(group)
            for change in group.changes:
                if isinstance(change, Unneeded):
                    self.segment_files.put_back(change.segment)
                else:
                    self.reclaimer.confirmed(change)
        # Not at once: what the confirmation sets free now should be in the next group. Who joins an empty one asks then.
        if not self.writer.idle or self.writer.checkpointing:
            self._turn.ask()


class _JournalMetadata(TreeStore):
    """Metadata as records of the journal."""

    def __init__(self, writer: JournalWriter, tree: MetadataTree) -> None:
        super().__init__(tree)
        self._writer = writer

    async def write(self, path: str, value: Versioned | None) -> None:
        if value is None:
            await self._writer.write(encode_record(META_GONE, 0, path.encode()))
        else:
            await self._writer.write(encode_record(META, value.version, path.encode(), value.data))

    async def write_counter(self, path: str, value: int) -> None:
        await self._writer.write(encode_record(COUNTER, value, path.encode()))


def _tell_failed(error: LedgerError, groups: list[JournalGroup], logs: list[JournalLog]) -> None:
    for group in groups:
        fail(group, error)
    for log in logs:
        log.tell_failed(error)
