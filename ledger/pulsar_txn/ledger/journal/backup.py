"""Backups: a copy of a journal at one moment, proven to be whole, and the way back into a data folder.

A backup is a folder with the segments, the mark and the file FORMAT, as they were at the cut, and the file BACKUP, written
last: a list of the files with their checksums. A folder without it is no backup, so one that was not finished is never
restored. The newest segment is copied up to the cut; after it are zeros, so nothing of a frame that was being written
comes along. The whole copy was checked as `check` does it before BACKUP was written.

A restore changes nothing in the folder before the backup was read to its last byte and checked. The files come in under
other names first. A journal that was there is moved into a folder `replaced-N` inside, FORMAT first; the new FORMAT gets
its name last. So whatever ends a restore in the middle leaves the old journal, the new one, or a folder without FORMAT,
which no broker starts on and which the same command completes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import attrs
from crc32c import crc32c

from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.check import check_copy
from pulsar_txn.ledger.journal.files import Files, replace_file, sync_folder, write_all
from pulsar_txn.ledger.journal.folder import MARK_NAME, Finding, first_fatal, move_mark
from pulsar_txn.ledger.journal.recovery import recover
from pulsar_txn.ledger.journal.segments import FILLING_NAME, SEGMENT_NAME, SPARE_NAME, OpenSegments
from pulsar_txn.ledger.protocols import Cut, LedgerError

LIST_NAME: Final = "BACKUP"
_TITLE: Final = "pulsar-txn journal backup"
_VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 20


Step: TypeAlias = Callable[[], Awaitable[None]]
"""Called after each piece that was copied; may raise."""


class BackupRefused(LedgerError):  # noqa: N818 - named by what happened
    """Refusal to make a backup here, or to restore from one; the text says why."""


@attrs.frozen
class CopiedFile:
    """A file of a backup: its name, how many bytes of it matter, their CRC32C, and its size, zeros included."""

    name: str
    bytes: int
    crc: int
    size: int


@attrs.frozen
class Backup:
    """Text of BACKUP: where the copy ends, when it was finished (seconds since 1970), its files."""

    cut: Cut
    made_at: int
    files: tuple[CopiedFile, ...]

    @property
    def bytes(self) -> int:
        """All bytes that matter."""
        return sum(copied.bytes for copied in self.files)


async def back_up(files: Files, folder: str, target: str, cut: Cut, *, now: int, step: Step, still_held: Step) -> Backup:
    """Copy a journal up to a cut into an empty folder, and check the copy.

    `now` is the time, in seconds since 1970. `step` is called after each piece, `still_held` after the last byte was
    read: it raises when the segments may have been recycled meanwhile. Raises BackupRefused when the copy is damaged or the
    target is not empty, OSError. If cancelled: what was copied stays, without BACKUP.
    """
    files.make_folder(target)
    if files.names(target):
        raise BackupRefused(f"{target} is not empty; name a folder that is, or that is not there yet")
    form = folders.read_format(files, folder)
    if form is None or form.uuid.hex() != cut.uuid:
        raise BackupRefused(f"{folder} does not hold the journal that is to be copied; name the data folder of that broker")
    copied: list[CopiedFile] = []
    for name in files.names(folder):
        match = SEGMENT_NAME.fullmatch(name)
        if match is None or int(match[1]) > cut.segment:
            continue
        end = cut.offset if int(match[1]) == cut.segment and not cut.full else None
        copied.append(await copy_file(files, f"{folder}/{name}", f"{target}/{name}", end, step))
    await still_held()
    move_mark(files, target, None, cut.segment)
    _sync_file(files, f"{target}/begun-{cut.segment:010d}")
    folders.write_format(files, target, form)
    findings = await check_copy(target, files=files)
    if findings:
        raise BackupRefused(f"the copy in {target} is incomplete, so it is not a backup: {findings[0].detail}")
    copied += [_checksum(files, f"{target}/{name}") for name in (f"begun-{cut.segment:010d}", "FORMAT")]
    backup = Backup(cut, now, tuple(copied))
    _write_list(files, target, backup)
    return backup


def cut_of_closed(files: Files, folder: str) -> Cut:
    """The end of a journal that nobody uses; the caller holds its lock. Raises BackupRefused, LogDamaged, StoreTooNew."""
    form = folders.read_format(files, folder)
    if form is None:
        raise BackupRefused(f"{folder} holds no journal; name the data folder of a broker")
    opened = OpenSegments(files, read_only=True)
    try:
        names = files.names(folder)
        marked = None
        for name in names:
            if match := SEGMENT_NAME.fullmatch(name):
                opened.find(int(match[1]), f"{folder}/{name}")
            elif match := MARK_NAME.fullmatch(name):
                marked = int(match[1])
        found = recover(opened, form.uuid, started=form.started, marked=marked)
    finally:
        opened.close_all()
    fatal: Finding | None = first_fatal(found.findings)
    if fatal is not None:
        raise fatal.error()
    if found.number < 0:
        raise BackupRefused(f"the journal in {folder} was never used: there is nothing to copy")
    return Cut(form.uuid.hex(), found.number, found.offset, found.sealed)


def read_backup(files: Files, folder: str) -> Backup:
    """Return what a backup says of itself. Raises BackupRefused."""
    if LIST_NAME not in files.names(folder):
        raise BackupRefused(f"{folder} is no finished backup: it has no file {LIST_NAME}")
    fd = files.open_to_read(f"{folder}/{LIST_NAME}")
    try:
        data = files.read(fd, files.size(fd), 0)
    finally:
        files.close(fd)
    try:
        return _parse(json.loads(data))
    except (ValueError, KeyError, TypeError) as error:
        raise BackupRefused(f"{folder}/{LIST_NAME} is damaged or of a newer version: {error}; use another backup") from error


async def verify(files: Files, folder: str, backup: Backup) -> None:
    """Read every byte of a backup, and check it as a journal. Raises BackupRefused, OSError."""
    for listed in backup.files:
        if listed.name not in files.names(folder):
            raise BackupRefused(f"{folder}/{listed.name} is missing; use another backup")
        found = _checksum(files, f"{folder}/{listed.name}", listed.bytes)
        if (found.crc, found.size) != (listed.crc, listed.size):
            raise BackupRefused(f"{folder}/{listed.name} is not what was backed up; use another backup")
    findings = await check_copy(folder, files=files)
    if findings:
        raise BackupRefused(f"{folder} is damaged: {findings[0].detail}; use another backup")


async def copy_file(files: Files, source: str, target: str, end: int | None, step: Step, *, fill: bool = False) -> CopiedFile:
    """Copy a file up to `end` (None: all) and sync it; it keeps its size, with zeros after, which `fill` writes.

    Blocks while a piece is read or written: for programs of their own. If cancelled: a part of the file is there.
    """
    reading = files.open_to_read(source)
    try:
        size = files.size(reading)
        end = size if end is None else end
        writing = files.open(target, create=True)
        try:
            crc = 0
            for offset in range(0, end, _PIECE_BYTES):
                data = files.read(reading, min(_PIECE_BYTES, end - offset), offset)
                if len(data) != min(_PIECE_BYTES, end - offset):
                    raise BackupRefused(f"{source} became shorter while it was copied; try again")
                crc = int(crc32c(data, crc))
                write_all(files, writing, data, offset)
                await step()
            for offset in range(end, size if fill else end, _PIECE_BYTES):
                write_all(files, writing, bytes(min(_PIECE_BYTES, size - offset)), offset)
            files.truncate(writing, size)
            files.sync(writing)
        finally:
            files.close(writing)
    finally:
        files.close(reading)
    return CopiedFile(target.rpartition("/")[2], end, crc, size)


def _sync_file(files: Files, path: str) -> None:
    fd = files.open(path)
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def _checksum(files: Files, path: str, end: int | None = None) -> CopiedFile:
    fd = files.open_to_read(path)
    try:
        size, crc = files.size(fd), 0
        end = size if end is None else end
        for offset in range(0, end, _PIECE_BYTES):
            crc = int(crc32c(files.read(fd, min(_PIECE_BYTES, end - offset), offset), crc))
    finally:
        files.close(fd)
    return CopiedFile(path.rpartition("/")[2], end, crc, size)


def _write_list(files: Files, target: str, backup: Backup) -> None:
    told = {"title": _TITLE, "version": _VERSION, **attrs.asdict(backup)}
    data = json.dumps(told, indent=1).encode() + b"\n"
    replace_file(files, target, LIST_NAME, data)


def _parse(told: dict[str, Any]) -> Backup:
    if told["title"] != _TITLE or told["version"] != _VERSION:
        raise ValueError(f"{told['title']}, version {told['version']}")
    copied = tuple(CopiedFile(**each) for each in told["files"])
    for each in copied:
        if not (SEGMENT_NAME.fullmatch(each.name) or MARK_NAME.fullmatch(each.name) or each.name == "FORMAT"):
            raise ValueError(f"a file named {each.name!r}")
    return Backup(Cut(**told["cut"]), int(told["made_at"]), copied)


_COMING: Final = "restoring-"
_REPLACED: Final = re.compile(r"replaced-(\d+)")
_PLAIN: Final = frozenset({"FORMAT", "FORMAT.tmp", "BACKUP", "BACKUP.tmp"})


async def _go_on() -> None:
    """Do nothing: nobody else needs to be asked while a backup is read."""


def journal_names(files: Files, folder: str) -> list[str]:
    """The files of a journal in a folder, FORMAT first. Raises BackupRefused when there are others."""
    found: list[str] = []
    for name in files.names(folder):
        if name in _PLAIN or any(known.fullmatch(name) for known in (SEGMENT_NAME, SPARE_NAME, FILLING_NAME, MARK_NAME)):
            found.append(name)
        elif name != "LOCK" and not name.startswith(_COMING) and not _REPLACED.match(name):
            raise BackupRefused(f"{folder} holds other files ({name}, …); restore into a folder of its own")
    return sorted(found, key=lambda name: (name != "FORMAT", name))


async def restore(files: Files, source: str, folder: str, *, replace: bool) -> Backup:
    """Put the journal of the backup `source` into `folder`; with `replace`, in place of the one that is there.

    Raises StoreInUse, BackupRefused (no backup, a damaged one, something in the way), OSError.
    """
    backup = read_backup(files, source)
    await verify(files, source, backup)
    lock = folders.enter(files, folder)
    try:
        old = journal_names(files, folder)
        if old and not replace:
            raise BackupRefused(f"{folder} holds a journal; --replace moves it aside, or name an empty folder")
        for name in files.names(folder):
            if name.startswith(_COMING):
                files.unlink(f"{folder}/{name}")  # of a restore that did not end
        await _copy_in(files, source, folder, backup)
        if old:
            _move_aside(files, folder, old)
        _take_names(files, folder, backup)
    finally:
        files.close(lock)
    return backup


async def _copy_in(files: Files, source: str, folder: str, backup: Backup) -> None:
    for listed in backup.files:
        # Zeros are written, not left out: the broker relies on having the room of a segment that it writes to.
        target = f"{folder}/{_COMING}{listed.name}"
        found = await copy_file(files, f"{source}/{listed.name}", target, listed.bytes, _go_on, fill=True)
        if (found.crc, found.size) != (listed.crc, listed.size):
            raise BackupRefused(f"{source}/{listed.name} changed while it was restored; {folder} is as it was")
    sync_folder(files, folder)


def _move_aside(files: Files, folder: str, old: list[str]) -> None:
    used = [int(match[1]) for name in files.names(folder) if (match := _REPLACED.match(name))]
    aside = f"{folder}/replaced-{max(used, default=0) + 1}"
    files.make_folder(aside)
    for name in old:
        files.rename(f"{folder}/{name}", f"{aside}/{name}")
        if name == "FORMAT":
            sync_folder(files, folder)
    sync_folder(files, aside)
    sync_folder(files, folder)


def _take_names(files: Files, folder: str, backup: Backup) -> None:
    for listed in sorted(backup.files, key=lambda listed: listed.name == "FORMAT"):
        if listed.name == "FORMAT":
            sync_folder(files, folder)
        files.rename(f"{folder}/{_COMING}{listed.name}", f"{folder}/{listed.name}")
    sync_folder(files, folder)
