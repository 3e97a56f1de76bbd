"""The data folder: who may use it, and what it says of itself before anything of it is read."""

from __future__ import annotations

import errno
from typing import Final

import attrs

from pulsar_txn.ledger.journal.files import Files, is_network
from pulsar_txn.ledger.journal.findings import RESTORE_FOLDER, Finding
from pulsar_txn.ledger.journal.whole_files import replace_file
from pulsar_txn.ledger.protocols import (
    LogDamaged,
    StoreInUse,
    StoreReadOnly,
    StoreTooNew,
    StoreUnsupported,
)

FORMAT_VERSION: Final = 2
"""2: snapshots in parts, checkpoints in slices, a mark. 1 is read as well; the file says 2 before anything else is written."""

_OLDEST_VERSION: Final = 1
_FIRST_MARKED_VERSION: Final = 2
_FORMAT_NAME: Final = "FORMAT"
_LOCK_NAME: Final = "LOCK"
_TITLE: Final = "pulsar-txn journal"
_NO_FOLDER: Final = frozenset({errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG})
"""Why there is no folder: a file is in its place or above it, or nothing can be made there (`/proc`)."""


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
