"""Segment files, from the first zero to the last reader: made ahead of need, taken in order, read, held for copies, recycled.

    segment-0000000042.journal   in use, or next in turn      spare-7.journal   filled, waiting      filling-8.tmp   in work

A file becomes a segment by a rename that is synced before the first frame is written to it. One segment is always
promoted ahead, so that no writer waits for that; its name is synced together with the mark of the folder, which says that
the segment before it was begun. What a recycled file holds does not matter: its frames name another
segment. Spares are also the reserve for a full disk: `scarce` says that no new file can be made and few are left.

While somebody copies the folder of a running store, its full segments keep their names and what they hold. Segments that
are not needed any more are recycled only after the last hold has ended. A hold has a lease, so that a copier that died
keeps nothing for ever, and it is dropped when the disk is full. The copier renews the hold once more at the end: only if
that succeeds, no segment was recycled meanwhile.

Entries are read by the location of their run. The checksum of every entry is checked, every time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import secrets
from array import array
from itertools import accumulate
from typing import Final, NamedTuple

from pulsar_txn.ledger.journal.files import (
    NO_DESCRIPTOR,
    SYNC_DIRECTORY,
    TRANSIENT,
    UNREADABLE,
    ZERO_FILL,
    Files,
    Syncer,
    describe,
    write_all,
)
from pulsar_txn.ledger.journal.folder import MARK_NAME, move_mark
from pulsar_txn.ledger.journal.frame import COPY, DATA, RUN, SNAPSHOT, crc_seed, entry_crc, split_run
from pulsar_txn.ledger.journal.state import LogState, StoredSnapshot, split_location
from pulsar_txn.ledger.protocols import LedgerError, ReadFailed
from pulsar_txn.ledger.turn import Turn

logger = logging.getLogger(__name__)

SEGMENT_NAME: Final = re.compile(r"segment-(\d{10})\.journal")
SPARE_NAME: Final = re.compile(r"spare-(\d+)\.journal")
FILLING_NAME: Final = re.compile(r"filling-(\d+)\.tmp")

FULL_RETRY_SECONDS: Final = 1.0


MAX_OPEN_FILES: Final = 64
_READ_ATTEMPTS: Final = 3
UNKNOWN_SIZE: Final = -1
"""Of a segment file that cannot be opened."""


class NotCached(Exception):  # noqa: N818 - named by what happened
    """Error: bytes are not in the page cache. They are being fetched; ask again soon."""


class Segment:
    """A segment file; `fd` is -1 while it is closed."""

    __slots__ = ("fd", "number", "path", "size")

    def __init__(self, number: int, path: str, fd: int, size: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd
        self.size = size


class OpenSegments:
    """The segments that hold something, of which only those read lately are open.

    `busy_from`: segments from this number on belong to the writer and stay open. While `cached_only` is set, a read that would
    have to wait for the disk raises NotCached.
    """

    def __init__(self, files: Files, *, read_only: bool = False) -> None:
        self.files = files
        self.segments: dict[int, Segment] = {}
        self.busy_from = 1 << 63 if read_only else 0
        self.cached_only = False
        self._open = files.open_to_read if read_only else files.open
        self._read_lately: dict[int, Segment] = {}
        self._syncer: Syncer | None = None

    def synced_by(self, syncer: Syncer | None) -> None:
        """Let `syncer` forget each descriptor before it is closed."""
        self._syncer = syncer

    def keep_from(self, number: int) -> None:
        """Segments from this number on stay open."""
        self.busy_from = number

    def find(self, number: int, path: str) -> None:
        """A segment file of the folder."""
        segment = self.segments[number] = Segment(number, path, -1, UNKNOWN_SIZE)
        try:
            self.fd(segment)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise

    def add(self, segment: Segment) -> None:
        """A segment that was just opened for the writer."""
        self.segments[segment.number] = segment
        self._touch(segment)

    def fd(self, segment: Segment) -> int:
        """The segment's descriptor; opens it if need be, and closes one that was not read for long."""
        if segment.fd < 0:
            segment.fd = self._open_file(segment.path)
            if segment.size == UNKNOWN_SIZE:
                segment.size = self.files.size(segment.fd)
        self._touch(segment)
        return segment.fd

    def read(self, segment: Segment, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`, fewer only at the file's end. Tries again; OSError when that does not help."""
        for _ in range(_READ_ATTEMPTS - 1):
            with contextlib.suppress(OSError):
                return self._read(segment, size, offset)
        return self._read(segment, size, offset)

    def _read(self, segment: Segment, size: int, offset: int) -> bytes:
        fd = self.fd(segment)
        data = (self.files.read_cached if self.cached_only else self.files.read)(fd, size, offset)
        if data is None:
            raise NotCached
        if len(data) < size and offset + len(data) < self.files.size(fd):
            raise OSError(errno.EIO, f"only {len(data)} of {size} bytes were read", segment.path)
        return data

    def write_again(self, segment: Segment, pieces: list[tuple[int, bytes]]) -> None:
        """Write what was read from there, and sync it. Blocks: for the start only."""
        fd = self.fd(segment)
        for offset, data in pieces:
            write_all(self.files, fd, data, offset)
        self.files.sync(fd)

    def close(self, segment: Segment) -> None:
        """Close the file if it is open."""
        self._read_lately.pop(segment.number, None)
        if segment.fd >= 0:
            if self._syncer is not None:
                self._syncer.forget(segment.fd)
            self.files.close(segment.fd)
            segment.fd = -1

    def remove(self, number: int) -> Segment:
        """The segment is to hold nothing any more; its file is closed."""
        segment = self.segments.pop(number)
        self.close(segment)
        return segment

    def close_all(self) -> None:
        """Close every file."""
        for segment in self.segments.values():
            self.close(segment)
        self.segments.clear()

    def _open_file(self, path: str) -> int:
        """Open it; where no descriptor is left, the segments that were not read for long give up theirs."""
        while True:
            try:
                return self._open(path)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._close_oldest():
                    raise

    def _touch(self, segment: Segment) -> None:
        lately = self._read_lately
        lately.pop(segment.number, None)
        lately[segment.number] = segment
        if len(lately) > MAX_OPEN_FILES:
            self._close_oldest(but=segment)

    def _close_oldest(self, but: Segment | None = None) -> bool:
        """Close the segment that was not read for longest, of those that are not the writer's; False if none can be closed."""
        oldest = next(
            (other for other in self._read_lately.values() if other.number < self.busy_from and other is not but), None
        )
        if oldest is not None:
            self.close(oldest)
        return oldest is not None


class SegmentFiles:
    """All files of a journal's folder, and who fills and promotes them.

    `syncer` is asked for directory syncs. A second one is started while a file is being filled, so that filling
    never delays a commit. `turn` is asked for when something has changed that a writer may wait for: `ready_count`,
    `begun_upto`, `failure`, `empty`.
    """

    def __init__(self, files: Files, folder: str, segment_bytes: int, spare_count: int, turn: Turn) -> None:
        self.files = files
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.spare_count = spare_count
        self.opened = OpenSegments(files)
        self.failure = ""
        """An operation failed that must not: nothing may be written any more."""
        self.empty = ""
        """No file is left and none can be made, which is tried again and again: why not."""
        self.begun_upto = -1
        """The newest segment that was begun since the start, as the folder says durably."""
        self._turn = turn
        self.full = False
        self.scarce = False
        """No new file can be made, and at most one is left: time to refuse what can wait."""
        self._syncer: Syncer | None = None
        self._filler: Syncer | None = None
        self._filling_fd = -1
        self._folder_fd = -1
        self._spares: list[str] = []
        self._next_file = 0
        self._promoted: Segment | None = None
        self._promoting = False
        self._wanted = 0
        self._marked: int | None = None
        self._unmarked = False
        """A segment was taken and is not marked yet: no other one is promoted before that."""
        self._retry: asyncio.TimerHandle | None = None
        self._complained = False
        self._held = False
        self._kept: list[int] = []
        """Segments that nobody needs, kept while somebody copies the folder."""

    def find(self) -> None:
        """Open what is in the folder; half-made files are removed."""
        self._folder_fd = self.files.open_folder(self.folder)
        for name in self.files.names(self.folder):
            path = f"{self.folder}/{name}"
            if match := SEGMENT_NAME.fullmatch(name):
                self.opened.keep_from(max(self.opened.busy_from, int(match[1]) - 1))
                self.opened.find(int(match[1]), path)
            elif FILLING_NAME.fullmatch(name):
                self.files.unlink(path)
            elif match := MARK_NAME.fullmatch(name):
                self._found_mark(int(match[1]))
            elif match := SPARE_NAME.fullmatch(name):
                self._found_spare(path, int(match[1]))

    @property
    def marked(self) -> int | None:
        """The newest segment that was begun, as the folder says."""
        return self._marked

    def mark_found(self, number: int) -> None:
        """Recovery goes on after this segment. Durable with `sync_names`."""
        if number >= 0 and number != self._marked:
            move_mark(self.files, self.folder, self._marked, number)
            self._marked = number

    def begun(self, number: int) -> None:
        """The first frame of this segment is on the disk: mark that, and prepare the next one (`begun_upto` tells)."""
        assert self._syncer is not None  # noqa: S101 - set by start
        try:
            move_mark(self.files, self.folder, self._marked, number)
        except OSError as error:
            self._fail(f"cannot mark segment {number} as begun: {error}")
            return
        self._marked, self._unmarked = number, False
        promoted = self._rename_spare() if self._promoted is None else None
        self._syncer.request(SYNC_DIRECTORY, self._folder_fd, lambda code: self._names_synced(promoted, code, number))

    def hope(self) -> None:
        """Forget `empty` until the next attempt to make a file has failed."""
        self.empty = ""

    def start(self, syncer: Syncer, wanted: int) -> None:
        """Begin to prepare; `wanted` is the number of the segment that will be taken next."""
        self._syncer = syncer
        self.opened.synced_by(syncer)
        self._wanted = wanted
        self._prepare()

    def sync_names(self) -> None:
        """Make the folder's names durable as they were found. Blocks: for the start only."""
        self.files.sync(self._folder_fd)

    @property
    def ready_count(self) -> int:
        """Files that can be written to without making one."""
        return len(self._spares) + (self._promoted is not None or self._promoting)

    def take(self, number: int) -> Segment | None:
        """The segment `number`, ready to be written; None when it is not ready yet (a turn is asked for then)."""
        segment = self._promoted
        if segment is None:
            self._prepare()
            return None
        assert segment.number == number, f"segment {segment.number} is ready, {number} was taken"  # noqa: S101 - invariant
        self._promoted = None
        self._wanted = number + 1
        self._unmarked = True
        self.opened.keep_from(number)
        self._prepare()
        return segment

    def _weigh(self) -> None:
        self.scarce = self.full and self.ready_count <= 1
        if self.scarce and self._held:  # service goes before a copy, whose maker learns it
            logger.warning("the disk is full: a running backup of %s fails; free space and start it again", self.folder)
            self.let_go()

    @property
    def held(self) -> bool:
        """True if segments that are not needed any more keep their names and what they hold."""
        return self._held

    def hold(self) -> None:
        """Keep every segment from now on: a copy of the folder is being made."""
        self._held = True

    def let_go(self) -> None:
        """Recycle what was kept. Idempotent."""
        self._held = False
        kept, self._kept = self._kept, []
        for number in kept:
            self.put_back(number)

    def put_back(self, number: int) -> None:
        """Nothing in this segment is needed: make it a spare, or remove it. Its name is not missed after a crash."""
        if self._held:
            self._kept.append(number)
            return
        segment = self.opened.remove(number)
        try:
            self._recycle(segment)
        except OSError as error:  # it is in nobody's way: the next start finds that nothing in it is needed
            logger.warning("segment %s is empty and cannot be recycled (%s); the next start removes it", segment.path, error)
        if self._syncer is not None:
            self._prepare()

    def _recycle(self, segment: Segment) -> None:
        if segment.size != self.segment_bytes or len(self._spares) >= self.spare_count:
            self.files.unlink(segment.path)
        else:
            path = f"{self.folder}/spare-{self._next_file}.journal"
            self._next_file += 1
            self.files.rename(segment.path, path)
            self._spares.append(path)

    def close(self) -> None:
        """Close all files. Idempotent."""
        if self._retry is not None:
            self._retry.cancel()
        if self._filler is not None:
            self._filler.close()
            if self._filler.kind != "thread":  # which is perhaps still writing zeros, and must not do so to another file
                self._close_filling()
            self._filler = None
        self._syncer = None
        self.opened.synced_by(None)
        self.opened.close_all()
        self._promoted = None
        if self._folder_fd >= 0:
            self.files.close(self._folder_fd)
            self._folder_fd = -1

    def _found_mark(self, number: int) -> None:
        """Two marks come from a copy that was laid over a folder: the newer one counts."""
        if self._marked is not None:
            self.files.unlink(f"{self.folder}/begun-{min(number, self._marked):010d}")
        self._marked = max(number, self._marked if self._marked is not None else number)

    def _found_spare(self, path: str, number: int) -> None:
        self._next_file = max(self._next_file, number + 1)
        try:
            fd = self.files.open(path)
            fits = self.files.size(fd) == self.segment_bytes
            self.files.close(fd)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            fits = False
        if fits and len(self._spares) < self.spare_count:
            self._spares.append(path)
        else:
            self.files.unlink(path)

    def _prepare(self) -> None:
        """Promote a spare when none is promoted; fill a new one when there are too few."""
        if self._promoted is None and not self._promoting and not self._unmarked:
            self._promote()
        if self.ready_count < self.spare_count and self._filler is None and self._retry is None:
            self._fill()
        self._weigh()

    def _promote(self) -> None:
        segment = self._rename_spare()
        if segment is not None:
            assert self._syncer is not None  # noqa: S101 - set by start
            self._syncer.request(SYNC_DIRECTORY, self._folder_fd, lambda code: self._names_synced(segment, code))

    def _rename_spare(self) -> Segment | None:
        """The next segment, whose name is not durable yet; None when there is no spare, or it failed."""
        if not self._spares:
            return None
        spare, path = self._spares[-1], f"{self.folder}/segment-{self._wanted:010d}.journal"
        try:
            fd = self.files.open(spare)
        except OSError as error:
            if error.errno in TRANSIENT:
                self._try_later(f"cannot open {spare} ({error.strerror})")
            else:
                self._fail(f"cannot take {spare} into use: {error}")
            return None
        try:
            self.files.rename(spare, path)
        except OSError as error:
            self.files.close(fd)
            self._fail(f"cannot take {spare} into use: {error}")
            return None
        self._spares.pop()
        segment = Segment(self._wanted, path, fd, self.segment_bytes)
        self.opened.add(segment)
        self._promoting = True
        return segment

    def _names_synced(self, promoted: Segment | None, code: int, begun: int = -1) -> None:
        if promoted is not None:
            self._promoting = False
        if code:
            self._fail(f"cannot sync {self.folder}: {describe(code)}")
            return
        if promoted is not None:
            self._promoted = promoted
        self.begun_upto = max(self.begun_upto, begun)
        self._turn.ask()

    def _fail(self, detail: str) -> None:
        self.failure = self.failure or detail
        self._turn.ask()

    def _fill(self) -> None:
        path = f"{self.folder}/filling-{self._next_file}.tmp"
        spare = f"{self.folder}/spare-{self._next_file}.journal"
        self._next_file += 1
        try:
            self._filling_fd = fd = self.files.open(path, create=True)
            self.files.truncate(fd, self.segment_bytes)
            self._filler = self.files.start_syncer(lambda: self._filled(path, spare, errno.EIO))
        except OSError as error:
            self._filled(path, spare, error.errno or errno.EIO)
            return
        self._filler.request(ZERO_FILL, fd, lambda code: self._filled(path, spare, code))

    def _filled(self, path: str, spare: str, code: int) -> None:
        if self._filler is not None:
            self._filler.close()
            self._filler = None
        if self._folder_fd < 0:
            return
        try:
            self._close_filling()
            if not code:
                self.files.rename(path, spare)
        except OSError as error:
            code = error.errno or errno.EIO
        if code:
            self._cannot_fill(path, code)
            return
        if self.full:
            logger.warning("there is room for the journal in %s again", self.folder)
        self.full = self._complained = False
        self.empty = ""
        self._spares.append(spare)
        self._prepare()

    def _close_filling(self) -> None:
        if self._filling_fd >= 0:
            fd, self._filling_fd = self._filling_fd, -1
            if self._syncer is not None:
                self._syncer.forget(fd)
            self.files.close(fd)

    def _cannot_fill(self, path: str, code: int) -> None:
        self.full = self.full or code not in TRANSIENT
        self._weigh()
        with contextlib.suppress(OSError):
            self.files.unlink(path)
        self._try_later(f"cannot make another segment in {self.folder} ({describe(code)}); {self.ready_count} left")
        if not self.ready_count:
            self.empty = describe(code)
            self._turn.ask()

    def _try_later(self, why: str) -> None:
        if not self._complained:
            logger.warning("%s; it is tried again. Free space on the disk, or look at its errors", why)
        self._complained = True
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(FULL_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._prepare()


MAX_HOLDS: Final = 16
"""Copies that may be made at the same time."""


class TooManyHolds(LedgerError):  # noqa: N818 - named by what happened
    """Refusal of a copy, because as many as are allowed are being made; nothing was held for this one."""


class Holds:
    """The holds of one store, by name."""

    def __init__(self, segment_files: SegmentFiles) -> None:
        self._segment_files = segment_files
        self._leases: dict[str, asyncio.TimerHandle] = {}

    def begin(self, lease_seconds: float) -> str:
        """A new hold; its name. Raises TooManyHolds."""
        if not self._segment_files.held:
            self._forget_all()  # those of before were dropped: their holders must not learn of this one
        if len(self._leases) >= MAX_HOLDS:
            raise TooManyHolds(f"{MAX_HOLDS} copies of this folder are being made; wait until one is finished")
        name = secrets.token_hex(8)
        self._segment_files.hold()
        self._lease(name, lease_seconds)
        return name

    def renew(self, name: str, lease_seconds: float) -> bool:
        """A new lease; False when the hold is over."""
        if name not in self._leases or not self._segment_files.held:
            return False
        self._leases.pop(name).cancel()
        self._lease(name, lease_seconds)
        return True

    def end(self, name: str) -> bool:
        """The copy was made; False when the hold was over before."""
        lease = self._leases.pop(name, None)
        if lease is None:
            return False
        lease.cancel()
        held = self._segment_files.held
        if held and not self._leases:
            self._segment_files.let_go()
        return held

    def close(self) -> None:
        """The store is closed."""
        self._forget_all()

    def _lease(self, name: str, seconds: float) -> None:
        self._leases[name] = asyncio.get_running_loop().call_later(seconds, self.end, name)

    def _forget_all(self) -> None:
        for lease in self._leases.values():
            lease.cancel()
        self._leases.clear()


_FIRST_READ_BYTES: Final = 16 << 10
_LONG_RUN_ENTRIES: Final = 256
_KEPT_ENTRIES: Final = 1 << 18
"""Tables of long runs are kept for the next read, of so many entries together, about 16 bytes each."""


class OpenRun(NamedTuple):
    """A run's header and tables, where its data is, and the data as far as it was read along."""

    entries: int
    lengths: array[int]
    crcs: array[int]
    data_offset: int
    size: int
    segment: Segment
    chunk: bytes
    chunk_offset: int
    ends: array[int] | None = None
    """Of a long run: where each entry ends, counted from the first."""

    def start_of(self, number: int) -> int:
        """Return where the entry of this number begins."""
        if self.ends is None:
            return sum(self.lengths[:number])
        return self.ends[number - 1] if number else 0


class RunReader:
    """Reads entries by the location of their run.

    Damage is a LogDamaged naming log and position. Bytes that cannot be read are a ReadFailed, but only for those who
    asked for them: what is read along, to save a call, may fail.
    """

    def __init__(self, opened: OpenSegments) -> None:
        self._opened = opened
        self._long: dict[int, OpenRun] = {}
        """Long runs read lately, by location, the last one last: a reader of one in steps comes again."""
        self._long_entries = 0

    def entries(self, log: LogState, entry: int, upto: int, max_entries: int, max_bytes: int) -> list[bytes]:
        """Entries from `entry` on, of one run, at most up to `upto`; at least one."""
        try:
            first, place = log.index.find(entry)
        except LookupError:
            raise log.missing(entry, "no run of it was found") from None
        run = self._long.get(place) or self._open(log, first, place, DATA, entry)
        if run.entries >= _LONG_RUN_ENTRIES:
            run = self._keep(place, run)
        skip = entry - first
        if skip >= run.entries:
            raise log.missing(entry, f"its run has only {run.entries} entries")
        wanted = min(run.entries - skip, max_entries, upto - entry + 1)
        lengths = run.lengths[skip : skip + wanted]
        fitting = sum(1 for total in accumulate(lengths) if total <= max_bytes)
        lengths = lengths[: max(1, fitting)]
        start = run.start_of(skip)
        try:
            data = self._data(log, run, start, sum(lengths), entry)
        except ReadFailed:
            lengths = lengths[:1]  # perhaps only one after it cannot be read
            data = self._data(log, run, start, sum(lengths), entry)
        return self._split(log, run, data, lengths, skip, entry)

    def cached_entries(self, log: LogState, entry: int, upto: int, max_entries: int, max_bytes: int) -> list[bytes] | None:
        """Read entries without waiting for the disk: None when something is not in memory. It is being fetched then."""
        self._opened.cached_only = True
        try:
            return self.entries(log, entry, upto, max_entries, max_bytes)
        except NotCached:
            return None
        finally:
            self._opened.cached_only = False

    def forget(self, number: int) -> None:
        """The segment is gone."""
        for place in [place for place in self._long if place >> 32 == number]:
            self._long_entries -= self._long.pop(place).entries

    def _keep(self, place: int, run: OpenRun) -> OpenRun:
        """Keep the tables of a long run; the ones that were not read for longest make room."""
        kept = self._long.pop(place, None)
        if kept is None:
            kept = run._replace(chunk=b"", ends=array("Q", accumulate(run.lengths)))
            self._long_entries += run.entries
        self._long[place] = kept
        while self._long_entries > _KEPT_ENTRIES and len(self._long) > 1:
            self._long_entries -= self._long.pop(next(iter(self._long))).entries
        return kept

    def part(self, log: LogState, stored: StoredSnapshot, serial: int) -> bytes:
        """The bytes of one part of a snapshot of the log."""
        run = self._open(log, serial, stored.place(serial), SNAPSHOT, log.first_entry)
        data = self._data(log, run, 0, run.size, log.first_entry)
        if entry_crc(crc_seed(log.ledger_id, SNAPSHOT), serial, data) != run.crcs[0]:
            raise log.damaged(log.first_entry, f"its snapshot does not fit its checksum{_where(run)}")
        return data

    def raw(self, log: LogState, first: int, place: int, kind: int) -> tuple[OpenRun, bytes]:
        """A whole run as it is, checksums not checked, to be copied: wrong entries stay wrong."""
        run = self._open(log, first, place, kind, first)
        return run, self._data(log, run, 0, run.size, first)

    def _open(self, log: LogState, first: int, place: int, kind: int, entry: int) -> OpenRun:
        number, offset = split_location(place)
        segment = self._opened.segments.get(number)
        if segment is None:
            raise log.damaged(entry, f"segment {number} is missing")
        chunk = self._read_along(log, segment, offset, entry)
        if len(chunk) >= RUN.size:
            ledger_id, found_first, count, found_kind, table_at, data_at, size = RUN.unpack_from(chunk)
            fits = (ledger_id, found_first, found_kind & ~COPY) == (log.ledger_id, first, kind & ~COPY)
            tables_end = table_at + 8 * count
            if fits and offset + data_at + size <= segment.size and tables_end <= data_at:
                if tables_end <= len(chunk):
                    tables = chunk[table_at:tables_end]
                else:
                    tables = self._read(log, segment, 8 * count, offset + table_at, entry)
                lengths, crcs = split_run(tables, count)
                if sum(lengths) == size:
                    return OpenRun(count, lengths, crcs, offset + data_at, size, segment, chunk, offset)
        raise log.damaged(entry, f"no run of it in {segment.path} at {offset}")

    def _data(self, log: LogState, run: OpenRun, start: int, size: int, entry: int) -> bytes:
        offset = run.data_offset + start
        skip = offset - run.chunk_offset
        if not size:
            return b""
        if skip + size <= len(run.chunk):
            return run.chunk[skip : skip + size]
        data = self._read(log, run.segment, size, offset, entry)
        if len(data) < size:
            raise log.damaged(entry, f"{run.segment.path} ends at {offset + len(data)}")
        return data

    def _split(self, log: LogState, run: OpenRun, data: bytes, lengths: array[int], skip: int, entry: int) -> list[bytes]:
        seed, at = crc_seed(log.ledger_id, DATA), 0
        found: list[bytes] = []
        for number, length in enumerate(lengths):
            piece = data[at : at + length]
            at += length
            if entry_crc(seed, entry + number, piece) != run.crcs[skip + number]:
                if found:
                    return found  # the good ones first; the next read says what is wrong
                raise log.damaged(entry + number, f"its bytes do not fit their checksum{_where(run)}")
            found.append(piece)
        return found

    def _read_along(self, log: LogState, segment: Segment, offset: int, entry: int) -> bytes:
        """A run's header, and what is after it if that can be read."""
        try:
            return self._opened.read(segment, _FIRST_READ_BYTES, offset)
        except OSError:
            return self._read(log, segment, RUN.size, offset, entry)

    def _read(self, log: LogState, segment: Segment, size: int, offset: int, entry: int) -> bytes:
        try:
            return self._opened.read(segment, size, offset)
        except OSError as error:
            raise ReadFailed(log.name, (log.ledger_id, entry), f"{segment.path} at {offset}: {error.strerror}") from error


def _where(run: OpenRun) -> str:
    return f" ({run.segment.path} at {run.data_offset})"
