"""The journal store: one folder, one process, everything in one interleaved journal."""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid as uuids
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from pulsar_txn.ledger.confirming import fail
from pulsar_txn.ledger.handles import MAX_VALUE_BYTES
from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.files import Files, RealFiles, Syncer
from pulsar_txn.ledger.journal.folder import Finding, first_fatal
from pulsar_txn.ledger.journal.frame import COPY, COUNTER, LOG_GONE, META, META_GONE, RUN, SNAPSHOT, Run, encode_record
from pulsar_txn.ledger.journal.log import JournalLog
from pulsar_txn.ledger.journal.reclaim import Reclaimer
from pulsar_txn.ledger.journal.recovery import Recovered, read_index, recover, scan_runs
from pulsar_txn.ledger.journal.segments import Holds, RunReader, SegmentFiles
from pulsar_txn.ledger.journal.state import JournalState, LogState, SegmentIndex, location
from pulsar_txn.ledger.journal.writer import JournalGroup, JournalWriter
from pulsar_txn.ledger.limits import DEFAULT_HIGH_WATER_BYTES, DEFAULT_MAX_STATE_BYTES, Pressure, Tally, check_name
from pulsar_txn.ledger.metadata import MetadataTree
from pulsar_txn.ledger.protocols import (
    Cut,
    LedgerError,
    LogClosed,
    LogExists,
    LogNotFound,
    MetadataStore,
    ReadFailed,
    StorageFailed,
    StoreInUse,
    Versioned,
)

logger = logging.getLogger(__name__)

DEFAULT_SEGMENT_BYTES: Final = 64 << 20
DEFAULT_MAX_ENTRY_BYTES: Final = (5 << 20) + (256 << 10)
DEFAULT_CACHE_BYTES: Final = 32 << 20
_ENTRY_OVERHEAD_BYTES: Final = 200  # of an entry in the tail cache: object, key, table slot
_GROUP_BYTES: Final = 4 << 20
_LOG_RECORD_BYTES: Final = 100  # beside the name
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
        self.max_value_bytes = min(MAX_VALUE_BYTES, segment_bytes // 16)
        self.max_state_bytes = max_state_bytes
        self.group_bytes = min(_GROUP_BYTES, segment_bytes // 16)
        self.pressure = Pressure(high_water_bytes)
        self.state = JournalState()
        self.findings: list[Finding] = []
        """Damage found by recovery; the logs concerned are refused when they are opened."""
        self._files: Files = files or RealFiles()
        self.segment_files = SegmentFiles(self._files, self.folder, segment_bytes, spare_count)
        self.metadata: MetadataStore
        self.writer: JournalWriter
        self.reader: RunReader
        self.reclaimer: Reclaimer
        self.holds = Holds(self.segment_files)
        self._syncer: Syncer | None = None
        self._uuid = b""
        self._lock_fd = -1
        self._logs: dict[str, JournalLog] = {}
        self._closed: LedgerError | None = LogClosed("the store was not started")
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
        self._check()
        if name in self._logs:
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
        state.epoch += 1
        self._logs[name] = log = JournalLog(self, state)
        self.touch(state)
        try:
            await self.durable()
        except BaseException:  # nobody has the handle, so nobody could close it
            log.release()
            self.forget(log)
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
        log = self._logs.pop(name, None)
        if log is not None:
            log.release()
        state = self.state.by_name.get(name)
        if state is not None:
            record = encode_record(LOG_GONE, state.ledger_id)
            group = self.join(len(record))
            group.dirty.pop(state, None)
            group.records.append(record)
            group.confirmed.append(lambda: self.reclaimer.deleted(state))
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
    def sync_count(self) -> int:
        """Syncs of commit groups since the start."""
        return self.writer.sync_count

    @property
    def syncer_kind(self) -> str:
        """Return who syncs: `process` or `thread`."""
        return "none" if self._syncer is None else self._syncer.kind

    async def close(self) -> None:
        """Wait until everything is durable, mark the clean end, let go of the folder. Idempotent."""
        if self._closed is None:
            await self.reclaimer.close()
            try:
                await self.durable()
                self.segment_files.on_empty = lambda detail: self._fail(f"no room to close it cleanly: {detail}")
                waiter = self.writer.open_group.waiter()
                self.writer.close_cleanly()
                await waiter
            except LedgerError as error:
                logger.error("the journal in %s was not closed cleanly: %s", self.folder, error)  # noqa: TRY400 - said before
            for log in list(self._logs.values()):
                log.release()
            self._logs.clear()
            self.writer.stop()  # what the last confirmations added is found again by the next start
            self._closed = self._closed or LogClosed("the store was closed")
        self.abandon()

    async def durable(self) -> None:
        """Wait until everything called so far is durable. Raises what made the store fail."""
        self._check()
        group = self.writer.last_group()
        if group is not None:
            waiter = group.waiter()
            self.writer.wake()
            await waiter

    @property
    def open_group(self) -> JournalGroup:
        """The group that joins now."""
        return self.writer.open_group

    def wake(self) -> None:
        """Commit soon."""
        self.writer.wake()

    def join(self, size: int, room: int = 0) -> JournalGroup:
        """The open group, a new one if `size` (counted here) or `room` (counted by the caller) do not fit any more."""
        group = self.writer.open_group
        if group.bytes and group.bytes + size + room > self.group_bytes:
            self.writer.seal()
            self._check()
            group = self.writer.open_group
        if size:
            group.grew(size)
            self.pressure.enter(size)
        return group

    @property
    def tally(self) -> Tally:
        """Return what is kept in memory beside entries."""
        return self.state.tally

    def count(self, size: int) -> None:
        """Of what joined the open group, `size` bytes are no entries; a group that is large by now is closed."""
        group = self.writer.open_group
        group.grew(size)
        self.pressure.enter(size)
        if group.bytes >= self.group_bytes:
            self.writer.seal()

    def touch(self, state: LogState) -> None:
        """The record of this log goes with the open group, as it is when that is closed."""
        if state not in self.writer.open_group.dirty:
            self.join(len(state.name) + _LOG_RECORD_BYTES).dirty[state] = None

    def has_reserve(self, size: int) -> bool:
        """True if a record that must go on may still use what is left of the reserve."""
        room = self.writer.room + self.segment_files.ready_count * self.segment_files.segment_bytes
        return room - 2 * (self.pressure.bytes + size) > self.segment_files.segment_bytes // 4

    def forget(self, log: JournalLog) -> None:
        """The handle was closed."""
        if self._logs.get(log.name) is log:
            del self._logs[log.name]

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
        found.findings += folders.check_mark(form, marked)
        self.state, self.findings = found.state, found.findings
        if (fatal := first_fatal(found.findings)) is not None:
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
        """Wire the parts together, and go on where recovery ended."""
        assert self._syncer is not None  # noqa: S101 - set just before
        state, segment_files = self.state, self.segment_files
        self._closed = None
        state.tally.max_bytes = self.max_state_bytes
        writers = (self._write, self._write_counter)
        tree = MetadataTree(*writers, state.values, state.counters, tally=state.tally, max_value_bytes=self.max_value_bytes)
        self.metadata = tree
        state.values, state.counters = tree.values, tree.counters
        self.writer = JournalWriter(self._files, segment_files, self._syncer, state, self._uuid)
        self.writer.on_confirmed = self._confirmed
        self.writer.on_sealed = self._sealed
        self.writer.on_checkpoint = self._checkpointed
        self.writer.on_failure = segment_files.on_failure = self._fail
        self.reader = RunReader(segment_files.opened)
        self.reclaimer = Reclaimer(state, self.writer, self.reader, segment_files, self._index_of, self.join)
        current = segment_files.opened.segments.get(found.number)
        if current is not None:
            segment_files.opened.write_again(current, found.tail)
        segment_files.mark_found(found.number)
        segment_files.sync_names()
        for number in found.unneeded:
            segment_files.put_back(number)
        going_on = None if found.sealed else current
        self.writer.go_on(going_on, found)

    async def _begin_segment(self, wanted: int) -> None:
        """Write the first checkpoint of a segment, and wait for it; with no file for it the store cannot start."""
        self.writer.seal()
        self._check()
        group = self.writer.last_group()
        assert group is not None  # noqa: S101 - sealed just before
        waiter = group.waiter()
        self.segment_files.on_empty = lambda detail: self._fail(f"cannot make a segment: {detail}")
        self.segment_files.start(self._require_syncer(), wanted)
        self.writer.wake()
        await waiter
        self.segment_files.on_empty = lambda _: None

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
                log.state.index.add(run.first, segment, offset)
                usage.add_data(segment, run.ledger_id, run.first + run.count, run.count, run.bytes)
                self._cached.append((log, run.first, run.count, run.bytes + run.count * _ENTRY_OVERHEAD_BYTES))
                self._cached_bytes += run.bytes + run.count * _ENTRY_OVERHEAD_BYTES
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

    def _sealed(self, number: int) -> None:
        self.state.usage.segment(number).sealed = True
        self.reclaimer.look()

    def _checkpointed(self, number: int) -> None:
        """The checkpoint that began with segment `number` is complete: recovery begins there."""
        self.state.usage.replay_from = number
        self.reclaimer.look()

    def _index_of(self, number: int) -> SegmentIndex:
        opened = self.segment_files.opened
        segment = opened.segments[number]
        try:
            index = read_index(opened, segment, self._uuid)
            if index is not None:
                return index
            index, scan = scan_runs(opened, segment, self._uuid)
        except OSError as error:
            raise ReadFailed(segment.path, None, str(error)) from error
        if any(damage.unknown for damage in scan.damage):
            raise ReadFailed(segment.path, None, "some of its frames are not known")
        return index

    def _shrink_cache(self) -> None:
        while self._cached_bytes > self._cache_bytes:
            log, first, count, size = self._cached.popleft()
            self._cached_bytes -= size
            pop = log.tail.pop
            for entry in range(first, first + count):
                pop(entry, None)

    def _helper_died(self) -> None:
        self._fail("the sync helper is gone; what was being synced may be lost")

    def _fail(self, detail: str) -> None:
        """Nothing is written or confirmed any more; every log is closed."""
        if self._closed is not None:
            return
        self._closed = error = StorageFailed(f"storage failed in {self.folder}: {detail}; restart to recover")
        logger.critical("%s", error)
        logs = list(self._logs.values())
        self._logs.clear()
        for log in logs:
            log.end(error)
        groups = self.writer.stop()
        asyncio.get_running_loop().call_soon(_tell_failed, error, groups, logs)

    def _check(self) -> None:
        if self._closed is not None:
            raise self._closed

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

    async def _write(self, path: str, value: Versioned | None) -> None:
        self._check()
        record = (
            encode_record(META_GONE, 0, path.encode())
            if value is None
            else encode_record(META, value.version, path.encode(), value.data)
        )
        self.writer.open_group.records.append(record)
        self.count(len(record))
        await self.durable()

    async def _write_counter(self, path: str, value: int) -> None:
        self._check()
        record = encode_record(COUNTER, value, path.encode())
        self.writer.open_group.records.append(record)
        self.count(len(record))
        await self.durable()


def _tell_failed(error: LedgerError, groups: list[JournalGroup], logs: list[JournalLog]) -> None:
    for group in groups:
        fail(group, error)
    for log in logs:
        log.tell_failed(error)
