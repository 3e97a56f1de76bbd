"""The data folder: who may use it, what it says of itself before any frame is read, and what may be wrong with it.

    LOCK               held by the process that uses the folder
    FORMAT             version and uuid of the store; `started` once a first checkpoint is durable
    begun-0000000042   the mark: the name of this file says which segment was begun last

A segment's first frame is confirmed to nobody before the mark names that segment, so a segment that the mark names and
that has no valid frame is damage: it was lost, or replaced by an older copy. Without the mark, the segment before it
would look like the end of a healthy journal. Segments after the mark hold nothing that was confirmed. The mark changes by
one rename, and the sync of the folder that makes the next segment's name durable covers it. No commit waits for another
sync.

A `Finding` is one thing that is wrong with a folder. Recovery and `check` return findings, and a repair begins with one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from pulsar_txn.ledger.journal.files import Files, is_network, replace_file
from pulsar_txn.ledger.protocols import (
    RESTORE_LOG,
    LogDamaged,
    ReadFailed,
    StoreInUse,
    StoreReadOnly,
    StoreTooNew,
    StoreUnsupported,
)
from pulsar_txn.wire.ids import Position

FORMAT_VERSION: Final = 2
"""2: snapshots in parts, checkpoints in slices, a mark. 1 is read as well; the file says 2 before anything else is written."""

_OLDEST_VERSION: Final = 1
_FIRST_MARKED_VERSION: Final = 2
_FORMAT_NAME: Final = "FORMAT"
_LOCK_NAME: Final = "LOCK"
_TITLE: Final = "pulsar-txn journal"
_NO_FOLDER: Final = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG})
"""Reasons for a missing folder: a file is in its place or above it, or nothing can be made there (`/proc`)."""


@attrs.frozen
class Format:
    """The store's identity; `started` once a first checkpoint is durable, so that its absence is damage."""

    uuid: bytes
    started: bool
    version: int = FORMAT_VERSION


def enter(files: Files, folder: str) -> int:
    """Make the folder if need be, and lock it; the lock's descriptor. Raises StoreInUse, StoreUnsupported."""
    try:
        files.make_folder(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        text = f"{folder} cannot be a folder ({error.strerror}); name a place where one is, or can be made"
        raise StoreUnsupported(text) from error
    file_system = files.file_system(folder)
    if is_network(file_system):
        raise StoreUnsupported(
            f"{folder} is on a {file_system} file system, where syncs and locks cannot be relied on; use a local disk"
        )
    fd = files.lock(f"{folder}/{_LOCK_NAME}")
    if fd is None:
        raise StoreInUse(f"{folder} is in use by another process; stop that one first, or use another folder")
    return fd


def read_only(folder: str, error: OSError) -> StoreReadOnly:
    """Return what to say when the folder cannot be written."""
    return StoreReadOnly(f"{folder} cannot be written ({error.strerror}); make it writable for this user")


def read_format(files: Files, folder: str) -> Format | None:
    """The folder's format, None when it holds no store. Raises StoreTooNew, LogDamaged, StoreUnsupported."""
    names = files.names(folder)
    if _FORMAT_NAME not in names:
        foreign = [name for name in names if name not in (_LOCK_NAME, f"{_FORMAT_NAME}.tmp")]
        if any(name.startswith("restoring-") for name in foreign):
            raise LogDamaged(f"{folder}/{_FORMAT_NAME}", None, "a restore did not end", "run `pulsar-txn restore` again")
        if any(name.startswith(("segment-", "begun-")) for name in foreign):
            raise LogDamaged(f"{folder}/{_FORMAT_NAME}", None, "the file is missing beside segments", RESTORE_FOLDER)
        if foreign:
            raise StoreUnsupported(f"{folder} holds other files ({foreign[0]}, …); give the store a folder of its own")
        return None
    fd = files.open_to_read(f"{folder}/{_FORMAT_NAME}")
    try:
        text = files.read(fd, 1024, 0).decode(errors="replace")
    finally:
        files.close(fd)
    return _parse(folder, text)


def check_mark(form: Format, marked: int | None) -> list[Finding]:
    """A started store has a mark since version 2."""
    if marked is not None or not form.started or form.version < _FIRST_MARKED_VERSION:
        return []
    detail = "the file begun-… is missing: whether the newest segments are there cannot be known"
    return [Finding(None, None, detail, "mark", fatal=True)]


def write_format(files: Files, folder: str, form: Format) -> None:
    """Write the format beside, then over the old one."""
    state = "started" if form.started else "new"
    text = f"{_TITLE}\nversion {FORMAT_VERSION}\nuuid {form.uuid.hex()}\nstate {state}\nend\n".encode()
    replace_file(files, folder, _FORMAT_NAME, text)


def _parse(folder: str, text: str) -> Format:
    lines = text.split("\n")
    fields = dict(line.split(" ", 1) for line in lines[1:] if " " in line)
    version = fields.get("version", "")
    if lines[0] == _TITLE and version.isdecimal() and int(version) > FORMAT_VERSION:
        raise StoreTooNew(f"{folder} was written in format {version}; this version reads up to {FORMAT_VERSION}: upgrade")
    try:
        uuid = bytes.fromhex(fields.get("uuid", ""))
    except ValueError:
        uuid = b""
    readable = version.isdecimal() and _OLDEST_VERSION <= int(version) <= FORMAT_VERSION
    if lines[0] != _TITLE or not readable or len(uuid) != 16 or "end" not in lines:
        raise LogDamaged(f"{folder}/{_FORMAT_NAME}", None, "it does not say what it should", RESTORE_FOLDER)
    return Format(uuid, fields.get("state") == "started", int(version))


MARK_NAME: Final = re.compile(r"begun-(\d{10})")
_TEXT: Final = b"The name of this file says which segment was begun last. Copy it together with the segments.\n"


def marked_segment(names: Iterable[str]) -> int | None:
    """The segment that the folder's mark names; None when there is no mark."""
    return max((int(match[1]) for name in names if (match := MARK_NAME.fullmatch(name))), default=None)


def move_mark(files: Files, folder: str, old: int | None, new: int) -> None:
    """Name another segment; durable once the folder is synced."""
    path = f"{folder}/begun-{new:010d}"
    if old is not None:
        files.rename(f"{folder}/begun-{old:010d}", path)
        return
    fd = files.open(path, create=True)
    try:
        files.write(fd, [_TEXT], 0)  # for people; the journal reads the name only
    finally:
        files.close(fd)


FindingKind: TypeAlias = Literal[
    "folder",
    "mark",
    "segment",
    "checkpoint",
    "frame",
    "data",
    "records",
    "order",
    "index",
    "unused",
    "log",
    "snapshot",
    "entry",
]
"""Subject of the finding:

    folder      the folder, or the file FORMAT: nothing below it was looked at
    mark        the file that says which segment was begun last is missing
    segment     a segment that is needed is missing, or nothing of it can be read
    checkpoint  no frame to begin with: the state is not known
    frame       a frame whose directory is unreadable: which logs it held is not known
    data        a frame whose directory is whole and whose entries are not all so; they have findings of their own
    records     a whole frame whose records make no sense
    order       frames that do not follow each other
    index       the index or the trailer of a full segment; its frames were read instead, so nothing is lost
    unused      a part of the newest segment where nothing was written; nothing is lost
    log         entries of a log are missing
    snapshot    the snapshot of a log
    entry       one entry
"""

RESTORE_FOLDER: Final = (
    "restore the whole folder from a copy; `pulsar-txn salvage` and the page Backup and salvage say what else helps"
)


@attrs.frozen
class Finding:
    """One thing that is wrong: the log (None: not of one log), the position, a sentence; the place where it is.

    `unreadable`: the bytes could not be read, which may pass; otherwise they were read and are wrong. `fatal`: the store
    does not start because of it. `segment` and `offset` (bytes from the segment's start) are None where that says nothing.
    """

    log: str | None
    position: Position | None
    detail: str
    kind: FindingKind = "folder"
    segment: int | None = None
    offset: int | None = None
    unreadable: bool = False
    fatal: bool = False
    entries: int = 1
    """Of kind "entry": how many in a row, from `position` on."""

    def error(self) -> LogDamaged | ReadFailed:
        """The error of a store that does not start."""
        name = self.log or "(the whole journal)"
        if self.unreadable:
            return ReadFailed(name, self.position, self.detail)
        return LogDamaged(name, self.position, self.detail, RESTORE_FOLDER if self.fatal else RESTORE_LOG)


def of_error(error: LogDamaged | ReadFailed, kind: FindingKind, *, fatal: bool = False) -> Finding:
    """Return what an error says that was raised, or kept, for one log or file."""
    return Finding(error.log, error.position, str(error), kind, unreadable=isinstance(error, ReadFailed), fatal=fatal)


def first_fatal(findings: Sequence[Finding]) -> Finding | None:
    """Return why the store does not start, None when it does."""
    return next((finding for finding in findings if finding.fatal), None)
