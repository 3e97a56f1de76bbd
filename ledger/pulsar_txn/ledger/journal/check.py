"""Verification and repair of a journal that no process uses.

`check` reads every frame, every entry and every snapshot, and changes nothing. Repairs are for those who have no backup.
Each one is planned, told, then carried out:

* A damaged frame is set aside: its bytes are kept in the folder `set-aside`, and an empty frame takes their place. The
  store starts again. What the frame held is lost, and logs that had entries in it are damaged from then on.
* The index of a full segment is written again from its frames. Nothing is lost.
* A log is reset: everything in it is forgotten. Its name, its id and its cursors stay, and its positions are never given
  again.

A plan reads only. It carries the findings that would be left, from a recovery over the bytes as they would be.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, cast

import attrs

from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.files import Files, RealFiles, replace_file, write_all
from pulsar_txn.ledger.journal.folder import Finding, marked_segment, of_error
from pulsar_txn.ledger.journal.frame import (
    ALIGNMENT,
    SEAL,
    TRAILER,
    aligned,
    encode_filler,
    encode_frame,
    encode_trailer,
    read_header,
)
from pulsar_txn.ledger.journal.recovery import Content, FoundFrame, Scan, read_content, recover, scan_runs, scan_segment
from pulsar_txn.ledger.journal.segments import SEGMENT_NAME, OpenSegments, RunReader, Segment
from pulsar_txn.ledger.journal.state import LogState
from pulsar_txn.ledger.journal.store import JournalStore
from pulsar_txn.ledger.protocols import LedgerError, LogDamaged, ReadFailed

_BATCH_ENTRIES = 1000
_BATCH_BYTES = 4 << 20


async def check(folder: str | Path, *, files: Files | None = None) -> list[Finding]:
    """All that is wrong in `folder`, empty when nothing is; a torn tail is nothing wrong.

    Raises StoreInUse, StoreTooNew, StoreUnsupported; OSError when the folder cannot be locked.
    """
    files = files or RealFiles()
    path = str(folder)
    try:
        files.names(path)
    except OSError as error:
        return [Finding(None, None, f"{path} cannot be read: {error.strerror}", unreadable=True, fatal=True)]
    lock = folders.enter(files, path)
    try:
        return await check_copy(path, files=files)
    finally:
        files.close(lock)


async def check_copy(path: str, *, files: Files) -> list[Finding]:
    """The same of a folder that no store uses, a backup for instance: takes no lock and writes nothing."""
    opened = OpenSegments(files, read_only=True)
    try:
        return await _check_folder(files, path, opened)
    except (LogDamaged, ReadFailed) as error:
        return [of_error(error, "folder", fatal=True)]
    except OSError as error:
        return [Finding(None, None, f"{error.filename or path} cannot be read: {error.strerror}", unreadable=True, fatal=True)]
    finally:
        opened.close_all()


async def _check_folder(files: Files, path: str, opened: OpenSegments) -> list[Finding]:
    form = folders.read_format(files, path)
    if form is None:
        return [Finding(None, None, f"{path} holds no journal")]
    names = files.names(path)
    for name in names:
        if match := SEGMENT_NAME.fullmatch(name):
            opened.find(int(match[1]), f"{path}/{name}")
    marked = marked_segment(names)
    found = recover(opened, form.uuid, started=form.started, marked=marked)
    findings = folders.check_mark(form, marked) + [finding for finding in found.findings if finding.kind != "log"]
    reader = RunReader(opened)
    for log in found.state.logs.values():
        findings += await _check_log(reader, log)
    return findings


async def _check_log(reader: RunReader, log: LogState) -> list[Finding]:
    """Every entry of a log; after damage, on with the entry after it."""
    findings: list[Finding] = []
    entry, last = log.first_entry, log.next_entry - 1
    stored = log.durable_snapshot()
    if stored is not None:
        for serial in range(stored.first, stored.first + stored.count):
            await asyncio.sleep(0)
            try:
                reader.part(log, stored, serial)
            except (LogDamaged, ReadFailed) as error:
                findings.append(of_error(error, "snapshot"))
    while entry <= last:
        await asyncio.sleep(0)
        try:
            entry += len(reader.entries(log, entry, last, _BATCH_ENTRIES, _BATCH_BYTES))
        except (LogDamaged, ReadFailed) as error:
            _add_entry(findings, attrs.evolve(of_error(error, "entry"), position=(log.ledger_id, entry)))
            entry += 1
    return findings


def _add_entry(findings: list[Finding], found: Finding) -> None:
    """One finding for entries in a row: a lost segment has a million of them."""
    last = findings[-1] if findings else None
    if last is not None and last.position is not None and found.position is not None:
        ledger_id, entry = last.position
        follows = found.position == (ledger_id, entry + last.entries) and last.kind == "entry"
        if follows and last.unreadable == found.unreadable:
            detail = f"{last.detail.removesuffix(_and_more(last))}{_and_more(attrs.evolve(last, entries=last.entries + 1))}"
            findings[-1] = attrs.evolve(last, entries=last.entries + 1, detail=detail)
            return
    findings.append(found)


def _and_more(finding: Finding) -> str:
    return f" (and {finding.entries - 1} more after it)" if finding.entries > 1 else ""


_ASIDE: Final = "set-aside"


_LOST_WITH_FRAMES: Final = (
    "changes of topics and subscriptions that were in it. Acknowledged messages may come again. A log whose newest entries "
    "were in it ends earlier, and gives their positions to others."
)


class CannotSalvage(LedgerError):  # noqa: N818 - named by what happened
    """This repair is not possible, or not needed; the text says why and what to do instead."""


@attrs.frozen
class Repair:
    """Bytes to write into one segment: `pieces` are offsets and bytes, `aside` the range to keep a copy of, if any.

    `left`: the findings that the repaired journal would have.
    """

    path: str
    pieces: tuple[tuple[int, bytes], ...]
    aside: tuple[int, int] | None
    lost: tuple[str, ...]
    left: tuple[Finding, ...]


@attrs.frozen
class LogLoss:
    """Loss by a reset of a log."""

    name: str
    first_entry: int
    next_entry: int
    has_snapshot: bool
    cursors: tuple[str, ...]


def plan_frame(files: Files, folder: str, number: int, offset: int) -> Repair:
    """Set aside the damaged frame at `offset` of a segment. Raises CannotSalvage, LogDamaged (FORMAT), OSError."""
    with _ClosedJournal(files, folder) as journal:
        segment = journal.segment(number)
        content = read_content(journal.opened, segment)
        scan = scan_segment(content, journal.uuid, number)
        places = [damage.offset for damage in scan.damage if damage.kind == "frame"]
        if offset not in places:
            there = ", ".join(f"{number}:{place}" for place in places) or "none in this segment"
            raise CannotSalvage(f"no damaged frame is at {number}:{offset}; damaged frames: {there}")
        before = [frame for frame in scan.frames if frame.offset < offset]
        behind = _behind(content, scan, journal.uuid, number, offset)
        if not before:
            text = f"the frame at {number}:0 begins the segment: without it nobody knows where the state begins"
            raise CannotSalvage(f"{text}; only a backup helps (pulsar-txn restore)")
        if behind is not None:
            pieces = _fillers(journal.uuid, number, before[-1], behind, offset)
            end, frames = behind[0], len(pieces)
            what = f"{frames} commit group{'s' if frames > 1 else ''}, {end - offset} bytes: entries, acknowledgements,"
        else:
            holes = [(max(start, offset), stop) for start, stop in content.holes if stop > offset]
            pieces = tuple((start, bytes(stop - start)) for start, stop in holes)
            end = holes[-1][1]
            what = "what was confirmed last, if it was in the part that cannot be read: entries, acknowledgements,"
        lost = (what, _LOST_WITH_FRAMES)
        return Repair(segment.path, pieces, (offset, end), lost, journal.after(segment.path, pieces))


def plan_index(files: Files, folder: str, number: int) -> Repair:
    """Write the index of a full segment again. Raises CannotSalvage, LogDamaged (FORMAT), OSError."""
    with _ClosedJournal(files, folder) as journal:
        segment = journal.segment(number)
        content = read_content(journal.opened, segment)
        index, scan = scan_runs(journal.opened, segment, journal.uuid)
        if any(damage.unknown for damage in scan.damage) or not scan.frames:
            raise CannotSalvage(f"segment {number} has frames that are not known: set those aside first (--frame)")
        last = scan.frames[-1]
        pieces: list[tuple[int, bytes]] = []
        if last.header.flags & SEAL:
            at = last.offset
        else:
            if number >= journal.newest:
                raise CannotSalvage(f"segment {number} is the newest one, which has no index")
            at = scan.end
            buffers, size = encode_frame(journal.uuid, number, last.header.sequence + 1, SEAL, [], index.encode())
            if at + aligned(size) > segment.size - TRAILER.size:
                raise CannotSalvage(f"there is no room for the index of segment {number}; nothing is lost without it")
            pieces.append((at, b"".join(buffers)))
        pieces.append((segment.size - TRAILER.size, encode_trailer(journal.uuid, number, at)))
        # A sector between the two that cannot be read would keep the index from being read.
        pieces[:0] = [(start, bytes(end - start)) for start, end in content.holes if start >= at]
        lost = ("nothing: the index is made from the frames of the segment.",)
        return Repair(segment.path, tuple(pieces), None, lost, journal.after(segment.path, tuple(pieces)))


def carry_out(files: Files, folder: str, repair: Repair) -> None:
    """Keep a copy of what is replaced, then write. What ends it in the middle: the same repair can be made again."""
    fd = files.open(repair.path)
    try:
        if repair.aside is not None:
            start, end = repair.aside
            name = repair.path.rpartition("/")[2].removesuffix(".journal")
            _keep(files, f"{folder}/{_ASIDE}", f"{name}-at-{start}", _readable(files, fd, start, end))
        for offset, data in repair.pieces:
            write_all(files, fd, data, offset)
        files.sync(fd)
    finally:
        files.close(fd)


def plan_reset(store: JournalStore, name: str) -> LogLoss:
    """Return what resetting a log of a started store would forget. Raises CannotSalvage when there is no such log."""
    log = store.state.by_name.get(name)
    if log is None:
        raise CannotSalvage(f"there is no log {name!r}")
    return LogLoss(name, log.first_entry, log.next_entry, bool(log.snapshots), tuple(sorted(log.cursors)))


async def reset_log(store: JournalStore, name: str) -> None:
    """Forget everything in a log that is not open; returns when that is durable. Raises CannotSalvage, LedgerError.

    If cancelled: the log is as it was, or reset.
    """
    plan_reset(store, name)
    state = store.state.by_name[name]
    state.forget_damage()
    state.forget_snapshots(store.state.usage)
    log = await store.open(name, create=False)
    log.trim((state.ledger_id, state.next_entry))
    for cursor_name in log.cursor_names():
        (await log.open_cursor(cursor_name)).mark_delete_to((state.ledger_id, state.next_entry - 1))
    log.change()
    await log.close()


class _ClosedJournal:
    """A journal that nobody uses, read only."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        form = folders.read_format(files, folder)
        if form is None:
            raise CannotSalvage(f"{folder} holds no journal; name the data folder of a broker")
        self._form = form
        self.uuid = form.uuid
        self.opened = self._opened(files)

    def __enter__(self) -> _ClosedJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.opened.close_all()

    def segment(self, number: int) -> Segment:
        found = self.opened.segments.get(number)
        if found is None:
            raise CannotSalvage(f"there is no segment {number}; only a backup helps (pulsar-txn restore)")
        return found

    @property
    def newest(self) -> int:
        """The segment that was begun last; as far as files tell, before there was a mark."""
        marked = marked_segment(self._files.names(self._folder))
        return max(self.opened.segments) if marked is None else marked

    def after(self, path: str, pieces: tuple[tuple[int, bytes], ...]) -> tuple[Finding, ...]:
        """Return what a recovery would find with these bytes in place."""
        marked = marked_segment(self._files.names(self._folder))
        opened = self._opened(cast(Files, _Patched(self._files, path, pieces)))
        try:
            return tuple(recover(opened, self.uuid, started=self._form.started, marked=marked).findings)
        finally:
            opened.close_all()

    def _opened(self, files: Files) -> OpenSegments:
        opened = OpenSegments(files, read_only=True)
        for name in files.names(self._folder):
            if match := SEGMENT_NAME.fullmatch(name):
                opened.find(int(match[1]), f"{self._folder}/{name}")
        return opened


class _Patched:
    """The part of `Files` that reads, with other bytes in some places of one file."""

    def __init__(self, files: Files, path: str, pieces: tuple[tuple[int, bytes], ...]) -> None:
        self._files = files
        self._path = path
        self._pieces = pieces
        self._patched: set[int] = set()
        self.names = files.names
        self.size = files.size

    def open_to_read(self, path: str) -> int:
        fd = self._files.open_to_read(path)
        if path == self._path:
            self._patched.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._patched.discard(fd)
        self._files.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        if fd not in self._patched:
            return self._files.read(fd, size, offset)
        data = bytearray(_readable(self._files, fd, offset, min(offset + size, self._files.size(fd))))
        for at, piece in self._pieces:
            start, end = max(at, offset), min(at + len(piece), offset + len(data))
            if start < end:
                data[start - offset : end - offset] = piece[start - at : end - at]
        return bytes(data)


def _readable(files: Files, fd: int, start: int, end: int) -> bytes:
    """The bytes of a range, zeros where they cannot be read."""
    parts = []
    for at in range(start, end, ALIGNMENT):
        size = min(ALIGNMENT, end - at)
        try:
            parts.append(files.read(fd, size, at))
        except OSError:
            parts.append(bytes(size))
    return b"".join(parts)


def _behind(content: Content, scan: Scan, uuid: bytes, number: int, offset: int) -> tuple[int, int] | None:
    """Offset and number of the frame after a damaged one, also of a torn one at the end; None if absent."""
    for frame in scan.frames:
        if frame.offset > offset:
            return frame.offset, frame.header.sequence
    torn = read_header(content.data, scan.end, uuid, number) if scan.end > offset else None
    return None if torn is None else (scan.end, torn.sequence)


def _fillers(
    uuid: bytes, number: int, before: FoundFrame, behind: tuple[int, int], offset: int
) -> tuple[tuple[int, bytes], ...]:
    """Empty frames for each that is missing, so that the numbers of the frames go on without a gap."""
    missing = behind[1] - before.header.sequence - 1
    room = behind[0] - offset
    if missing < 1 or room < missing * ALIGNMENT:
        raise CannotSalvage(
            f"the frames around {number}:{offset} do not fit together; only a backup helps (pulsar-txn restore)"
        )
    found = []
    for index in range(missing):
        at = offset + index * ALIGNMENT
        size = ALIGNMENT if index < missing - 1 else behind[0] - at
        found.append((at, encode_filler(uuid, number, before.header.sequence + 1 + index, size)))
    return tuple(found)


def _keep(files: Files, folder: str, name: str, data: bytes) -> None:
    files.make_folder(folder)
    if name in files.names(folder):  # of the same repair, which did not end: what is there now may be half repaired
        return
    replace_file(files, folder, name, data)
