"""Restore: a backup becomes the journal of a data folder.

Nothing in the folder changes before the backup was read to its last byte and checked. The files come in under other names
first. A journal that was there is moved into a folder `replaced-N` inside, FORMAT first; the new FORMAT gets its name last.
So whatever ends a restore in the middle leaves the old journal, the new one, or a folder without FORMAT, which no broker
starts on and which the same command completes.
"""

from __future__ import annotations

import re
from typing import Final

from pulsar_txn.ledger.journal import folder as folders
from pulsar_txn.ledger.journal.backup import Backup, BackupRefused, copy_file, read_backup, verify
from pulsar_txn.ledger.journal.files import Files
from pulsar_txn.ledger.journal.mark import MARK_NAME
from pulsar_txn.ledger.journal.segments import FILLING_NAME, SEGMENT_NAME, SPARE_NAME
from pulsar_txn.ledger.journal.whole_files import sync_folder

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
