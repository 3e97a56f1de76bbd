"""Small steps on files that several parts of the journal need, through the fault layer. They block: not for commits."""

from __future__ import annotations

import errno

from pulsar_txn.ledger.journal.files import Files


def write_all(files: Files, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`, going on after short writes. Raises OSError, also when nothing more is written."""
    written = 0
    while written < len(data):
        more = files.write(fd, [data[written:]], offset + written)
        if more <= 0:
            raise OSError(errno.EIO, "nothing was written")
        written += more


def sync_folder(files: Files, folder: str) -> None:
    """Make the names in a folder durable."""
    fd = files.open_folder(folder)
    try:
        files.sync(fd)
    finally:
        files.close(fd)


def replace_file(files: Files, folder: str, name: str, data: bytes) -> None:
    """Give a file this content, durably: it is written beside and takes the name. A crash leaves the old one or the new."""
    temporary = f"{folder}/{name}.tmp"
    fd = files.open(temporary, create=True)
    try:
        write_all(files, fd, data, 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, f"{folder}/{name}")
    sync_folder(files, folder)
