"""A file system in memory that records what is done to it, and the states a power loss may leave.

The model: writes are unsynced sectors until the file is synced, changes of names are unsynced until their folder is.
A power loss keeps everything synced; of the unsynced rest of each file any set of sectors may be there, may be
missing (the old content), or be zeros; of the unsynced names, a prefix of the changes. A sync that fails leaves sectors
that are read as they were written, and that no later sync writes.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from pulsar_txn.ledger.journal.files import ZERO_FILL, Done, Syncer
from pulsar_txn.ledger.protocols import Buffer

SECTOR_BYTES: Final = 512

Loss: TypeAlias = Literal["all", "none", "torn", "reordered", "zeroed"]
"""Which unsynced sectors are lost: all, none, all after a torn place, any, or those after a place read as zeros."""

LOSSES: Final[tuple[Loss, ...]] = ("all", "none", "torn", "reordered", "zeroed")


class _File:
    """Content as it is read, and content on the disk.

    They differ in `unsynced` sectors, which the next sync writes, and in `clean` ones: a sync of them failed, the kernel
    has said so once and calls the pages clean since, so that only another write brings them to the disk.
    """

    __slots__ = ("bad", "clean", "content", "durable", "takes_room", "under_sync", "unsynced")

    def __init__(self) -> None:
        self.bad: set[int] = set()
        """Sectors that cannot be read; writing one mends it."""
        self.takes_room = False
        self.content = bytearray()
        self.durable = bytearray()
        self.unsynced: dict[int, None] = {}
        self.clean: dict[int, None] = {}
        self.under_sync: dict[int, bytes] = {}

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.content):
            self.content.extend(bytes(end - len(self.content)))
        self.content[offset:end] = data
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self.unsynced[sector] = None
            self.clean.pop(sector, None)
            self.bad.discard(sector)

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, len(self.content))
        if self.bad and not self.bad.isdisjoint(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES))):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self.content[offset:end])

    def sync(self) -> None:
        self.begin_sync()
        self.end_sync()

    def begin_sync(self) -> None:
        """What is written from here on is not part of this sync."""
        for sector in self.unsynced:
            at = sector * SECTOR_BYTES
            self.under_sync[sector] = bytes(self.content[at : at + SECTOR_BYTES])

    def end_sync(self) -> None:
        """What was there when it began is on the disk."""
        self._resize()
        for sector, data in self.under_sync.items():
            at = sector * SECTOR_BYTES
            self.durable[at : at + len(data)] = data
            if self.content[at : at + SECTOR_BYTES] == data:
                self.unsynced.pop(sector, None)
        self.under_sync.clear()

    def fail_sync(self) -> None:
        """Nothing reaches the disk, and the pages are clean from now on."""
        self.clean |= self.unsynced
        self.unsynced.clear()
        self.under_sync.clear()

    def evict(self, rng: random.Random) -> None:
        """Some pages that seem to be clean are read from the disk again, which does not have them."""
        for sector in [sector for sector in self.clean if rng.random() < 0.5]:
            at = sector * SECTOR_BYTES
            old = self.durable[at : at + SECTOR_BYTES]
            self.content[at : at + SECTOR_BYTES] = old + bytes(len(self.content[at : at + SECTOR_BYTES]) - len(old))
            del self.clean[sector]

    def killed(self) -> _File:
        """What the next process finds: the page cache, with what is dirty in it and what only seems to be clean."""
        left = _File()
        left.takes_room = self.takes_room
        left.content, left.durable = bytearray(self.content), bytearray(self.durable)
        left.unsynced, left.clean, left.bad = dict(self.unsynced), dict(self.clean), set(self.bad)
        return left

    def after_loss(self, loss: Loss, rng: random.Random) -> _File:
        left = _File()
        left.takes_room, left.bad = self.takes_room, set(self.bad)
        left.durable = bytearray(self.durable)
        if loss != "all":
            left.durable.extend(bytes(max(0, len(self.content) - len(left.durable))))
            self._keep_some(left.durable, loss, rng)
        left.content = bytearray(left.durable)
        return left

    def _resize(self) -> None:
        missing = len(self.content) - len(self.durable)
        if missing > 0:
            self.durable.extend(bytes(missing))
        elif missing < 0:
            del self.durable[missing:]

    def _keep_some(self, durable: bytearray, loss: Loss, rng: random.Random) -> None:
        sectors = list(self.unsynced)
        kept = rng.randint(0, len(sectors))
        chosen = set(rng.sample(sectors, kept)) if loss == "reordered" else set(sectors[:kept])
        for sector in sectors:
            at = sector * SECTOR_BYTES
            if sector in chosen:
                durable[at : at + SECTOR_BYTES] = self.content[at : at + SECTOR_BYTES]
            elif loss == "zeroed":
                durable[at : at + SECTOR_BYTES] = bytes(len(durable[at : at + SECTOR_BYTES]))


class SimulatedFiles:
    """Protocol `Files` in memory; all paths share one flat space of names."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.durable_names: dict[str, _File] = {}
        self.renamed: list[tuple[str, str | None, _File]] = []
        self.operations = 0
        self.on_operation: Callable[[str], None] | None = None
        """Called before each operation that changes something, with its name; may raise OSError."""
        self.on_access: Callable[[str], None] | None = None
        """Called before each open, size and read, with its name; may raise OSError."""
        self.misses = 0
        """So many of the next reads find nothing in memory, and fetch it."""
        self.short_read_bytes: int | None = None
        """How much one read gives at most."""
        self.free_bytes: int | None = None
        """What is left on the disk; None: plenty."""
        self.forget_folder_syncs = False
        """Pretend that folders were synced when they were not (a bug to be caught)."""
        self.file_system_type = "ext4"
        self.read_only = False
        self.syncers: list[SimulatedSyncer] = []
        self._open: dict[int, tuple[str, _File]] = {}
        self._locked: set[str] = set()

    def after_power_loss(self, loss: Loss, rng: random.Random) -> SimulatedFiles:
        """What a power loss at this moment may leave; with "none", what the end of the process alone leaves."""
        if loss == "none":
            return self._after_kill()
        left = SimulatedFiles()
        names = dict(self.durable_names)
        kept = 0 if loss == "all" else rng.randint(0, len(self.renamed))
        for name, old, file in self.renamed[:kept]:
            self._apply(names, name, old, file)
        left.files = {name: file.after_loss(loss, rng) for name, file in names.items()}
        left.durable_names = dict(left.files)
        return left

    def _after_kill(self) -> SimulatedFiles:
        left = SimulatedFiles()
        copies: dict[int, _File] = {}

        def copy(file: _File) -> _File:
            if id(file) not in copies:
                copies[id(file)] = file.killed()
            return copies[id(file)]

        left.files = {name: copy(file) for name, file in self.files.items()}
        left.durable_names = {name: copy(file) for name, file in self.durable_names.items()}
        left.renamed = [(name, old, copy(file)) for name, old, file in self.renamed]
        return left

    def evict(self, rng: random.Random) -> None:
        """The page cache lets go of some pages whose sync has failed: they are read as they were before."""
        for file in self.files.values():
            file.evict(rng)

    def spoil(self, path: str, start: int, end: int) -> None:
        """The sectors of these bytes cannot be read until they are written."""
        self.files[path].bad |= set(range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def make_folder(self, path: str) -> None:
        """Folders need not be made, but a read-only place says so."""
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def names(self, folder: str) -> list[str]:
        """Names in the folder."""
        prefix = folder.rstrip("/") + "/"
        return sorted(name[len(prefix) :] for name in self.files if name.startswith(prefix))

    def open(self, path: str, *, create: bool = False) -> int:
        """Open or create."""
        if create:
            self._change("create")
            self.files[path] = _File()
            self.renamed.append((path, None, self.files[path]))
        return self.open_to_read(path)

    def open_to_read(self, path: str) -> int:
        """Open what is there."""
        self._access("open")
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._descriptor(path, self.files[path])

    def open_folder(self, path: str) -> int:
        """A descriptor of the folder."""
        return self._descriptor(path, _File())

    def close(self, fd: int) -> None:
        """Close it."""
        path, _ = self.opened(fd)
        del self._open[fd]
        self._locked.discard(path)

    def size(self, fd: int) -> int:
        """The size now."""
        self._access("size")
        return len(self.opened(fd)[1].content)

    def truncate(self, fd: int, size: int) -> None:
        """Set the size."""
        _check_arguments(size, 0)
        self._change("truncate")
        file = self.opened(fd)[1]
        file.content = file.content[:size] + bytes(max(0, size - len(file.content)))

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """The content now."""
        _check_arguments(size, offset)
        self._access("read")
        if self.short_read_bytes is not None:
            size = min(size, self.short_read_bytes)
        return self.opened(fd)[1].read(size, offset)

    def read_cached(self, fd: int, size: int, offset: int) -> bytes | None:
        """The content now, unless this is a miss."""
        if self.misses:
            self.misses -= 1
            return None
        return self.read(fd, size, offset)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write; becomes durable with a sync."""
        _check_arguments(0, offset)
        self._change("write")
        data = b"".join(buffers)
        self.opened(fd)[1].write(data, offset)
        return len(data)

    def sync(self, fd: int) -> None:
        """Make a file's content, or the folder's names, durable. One that fails leaves the file's pages clean."""
        self.sync_opened(*self.opened(fd))

    def opened(self, fd: int) -> tuple[str, _File]:
        """The path by which a descriptor was opened, and the file."""
        if fd not in self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open[fd]

    def sync_opened(self, path: str, file: _File) -> None:
        """As `sync`, by whoever has the file open."""
        try:
            self._change("sync")
        except OSError:
            file.fail_sync()
            raise
        if path in self.files or file.content:
            file.sync()
        elif not self.forget_folder_syncs:
            self.sync_names()

    def sync_names(self) -> None:
        """All changes of names so far are on the disk."""
        for name, old, renamed in self.renamed:
            self._apply(self.durable_names, name, old, renamed)
        self.renamed.clear()

    def zero_fill(self, fd: int) -> None:
        """Zeros over the whole file, synced; takes room."""
        self.zero_fill_opened(self.opened(fd)[1])

    def zero_fill_opened(self, file: _File) -> None:
        """As `zero_fill`, by whoever has the file open."""
        self._change("fill")
        if self.free_bytes is not None:
            if self.free_bytes < len(file.content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.free_bytes -= len(file.content)
            file.takes_room = True
        file.content = bytearray(len(file.content))
        file.durable = bytearray(len(file.content))
        file.unsynced.clear()
        file.clean.clear()

    def rename(self, old: str, new: str) -> None:
        """Rename now; durable with the folder."""
        self._change("rename")
        self.files[new] = self.files.pop(old)
        self.renamed.append((new, old, self.files[new]))

    def unlink(self, path: str) -> None:
        """Remove now; durable with the folder."""
        self._change("unlink")
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        file = self.files.pop(path)
        if self.free_bytes is not None and file.takes_room:
            self.free_bytes += len(file.content)
        self.renamed.append(("", path, file))

    def lock(self, path: str) -> int | None:
        """One holder at a time."""
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        if path in self._locked:
            return None
        self._locked.add(path)
        self.files.setdefault(path, _File())
        return self._descriptor(path, self.files[path])

    def file_system(self, path: str) -> str:
        """As set."""
        return self.file_system_type

    def start_syncer(self, on_death: Callable[[], None]) -> Syncer:
        """Syncs in the next loop turn."""
        syncer = SimulatedSyncer(self, on_death)
        self.syncers.append(syncer)
        return syncer

    def _change(self, operation: str) -> None:
        if self.on_operation is not None:
            self.on_operation(operation)
        self.operations += 1

    def _access(self, operation: str) -> None:
        if self.on_access is not None:
            self.on_access(operation)

    def _descriptor(self, path: str, file: _File) -> int:
        fd = next(fd for fd in itertools.count(1000) if fd not in self._open)  # the lowest free one, as the system does
        self._open[fd] = (path, file)
        return fd

    def _apply(self, names: dict[str, _File], name: str, old: str | None, file: _File) -> None:
        if old is not None:
            names.pop(old, None)
        if name:
            names[name] = file


def _check_arguments(size: int, offset: int) -> None:
    """As the system calls do: a negative number is an error, it does not count from the end."""
    if size < 0 or offset < 0:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class SimulatedSyncer:
    """Carries out one request per loop turn. As the helper does, it keeps the file that it got last, and its number."""

    kind = "simulated"

    def __init__(self, files: SimulatedFiles, on_death: Callable[[], None]) -> None:
        self._files = files
        self._on_death = on_death
        self._waiting: deque[tuple[bytes, int, Done]] = deque()
        self._closed = False
        self._current_fd = -1
        self._current: tuple[str, _File] = ("", _File())

    def request(self, command: bytes, fd: int, done: Done) -> None:
        """Queue it."""
        self._waiting.append((command, fd, done))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._work)

    def forget(self, fd: int) -> None:
        """Its number may come back for another file."""
        if fd == self._current_fd:
            self._current_fd = -1

    def die(self) -> None:
        """Behave as a helper that was killed."""
        self.close()
        asyncio.get_running_loop().call_soon(self._on_death)

    def close(self) -> None:
        """Give up."""
        self._closed = True
        self._waiting.clear()

    def _work(self) -> None:
        if self._closed:
            return
        command, fd, done = self._waiting.popleft()
        code = 0
        try:
            if fd != self._current_fd:
                self._current_fd, self._current = fd, self._files.opened(fd)
            if command == ZERO_FILL:
                self._files.zero_fill_opened(self._current[1])
            else:
                self._files.sync_opened(*self._current)
        except OSError as error:
            code = error.errno or errno.EIO
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._work)
        done(code)
