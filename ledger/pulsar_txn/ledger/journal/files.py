"""Operating system of the journal: file operations, and the process or thread that waits for the disk. Nothing else is used.

`Files` is the file operations layer, `RealFiles` the operating system. Tests use `SimulatedFiles` of
`tests/support/simulated_files.py`: it keeps files in memory, records every operation and can say which states a power loss
may leave. The functions at the end take several of these steps, and block: they are not for commits.

A `Syncer` waits for the disk: a helper process, or a thread where no process can be started. Both carry out one request
at a time, in order, and call back on the loop with an errno (0: done). A lost helper is reported once through `on_death`:
whether its last request reached the disk is unknown, so the store has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from pulsar_txn.ledger.journal import sync_helper
from pulsar_txn.ledger.protocols import Buffer

logger = logging.getLogger(__name__)

SYNC, SYNC_DIRECTORY, ZERO_FILL = b"s", b"d", b"z"
Done: TypeAlias = Callable[[int], None]

_HELPER: Final = Path(sync_helper.__file__)


class Syncer(Protocol):
    """Carries out `SYNC`, `SYNC_DIRECTORY` and `ZERO_FILL` requests, in order."""

    kind: str

    def request(self, command: bytes, fd: int, done: Done) -> None:
        """Carry out `command` on `fd`, which stays open until `done(errno)` was called on the loop."""

    def forget(self, fd: int) -> None:
        """`fd` is about to be closed; its number may come back for another file."""

    def close(self) -> None:
        """Give up what was not carried out. Idempotent."""


class HelperSyncer:
    """The sync helper process at the other end of a socket."""

    kind = "process"

    def __init__(self, on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, int, Done]] = deque()
        self._current_fd = -1
        self._channel, theirs = socket.socketpair()
        try:
            self._process = self._start(theirs)
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel.fileno(), self._answered)

    @property
    def pid(self) -> int:
        """The helper's process id."""
        return self._process.pid

    def request(self, command: bytes, fd: int, done: Done) -> None:
        """Queue a request; at most one is under way."""
        self._waiting.append((command, fd, done))
        if len(self._waiting) == 1:
            self._send()

    def forget(self, fd: int) -> None:
        """`fd` is about to be closed; its number may come back for another file."""
        if self._current_fd == fd:
            self._current_fd = -1

    def close(self) -> None:
        """End the helper: it sees the end of the stream. One that is stuck in a sync ends when that returns."""
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._waiting.clear()
            # Reaped beside the loop, which must not wait for a process that may be stuck in a sync.
            threading.Thread(target=self._process.wait, name="journal-reap", daemon=True).start()

    @staticmethod
    def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own file, by our own interpreter
            [sys.executable, "-S", "-E", str(_HELPER), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not end it before the last sync
        )

    def _send(self) -> None:
        command, fd, _ = self._waiting[0]
        try:
            if fd == self._current_fd:
                self._channel.send(command)
            else:
                socket.send_fds(self._channel, [command.upper()], [fd])
                self._current_fd = fd
        except OSError:
            self._lost()

    def _answered(self) -> None:
        try:
            answer = self._channel.recv(1)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._lost()
            return
        _, _, done = self._waiting.popleft()
        if self._waiting:
            self._send()
        done(answer[0])

    def _lost(self) -> None:
        self.close()
        self._loop.call_soon(self._on_death)


class ThreadSyncer:
    """The same in a thread: right, but it starves beside a busy loop."""

    kind = "thread"

    def __init__(self, on_death: Callable[[], None]) -> None:
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[tuple[bytes, int, Done] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._thread.start()

    def request(self, command: bytes, fd: int, done: Done) -> None:
        """Queue a request."""
        self._requests.put((command, fd, done))

    def forget(self, fd: int) -> None:
        """Nothing is remembered."""

    def close(self) -> None:
        """End the thread after the request under way."""
        if not self._closed:
            self._closed = True
            self._requests.put(None)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None and not self._closed:
            command, fd, done = request
            code = sync_helper.attempt(command, fd)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
                self._loop.call_soon_threadsafe(self._deliver, done, code)

    def _deliver(self, done: Done, code: int) -> None:
        if not self._closed:
            done(code)


def start_syncer(on_death: Callable[[], None]) -> Syncer:
    """The helper process where one can be started, else the thread; says which."""
    try:
        syncer = HelperSyncer(on_death)
    except OSError as error:
        text = "the journal syncs in a thread, which a busy loop delays: its helper process did not start (%s); allow processes"
        logger.warning(text, error)
        return ThreadSyncer(on_death)
    return syncer


def describe(code: int) -> str:
    """An errno in words."""
    return f"{errno.errorcode.get(code, code)}: {os.strerror(code)}"


NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "9p", "glusterfs", "lustre", "beegfs", "gpfs"}
)


UNREADABLE: Final = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EUCLEAN", "EBADMSG", "ENODATA", "EREMOTEIO", "ENXIO", "ENODEV", "ETIMEDOUT")
    if hasattr(errno, name)  # not each system has all of them
)
"""Errors that speak of the medium, not of this process: these bytes cannot be read, others may be."""


NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
TRANSIENT: Final = NO_DESCRIPTOR | {errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors that pass by themselves and say nothing about the file."""

HELD_DESCRIPTORS: Final = 8
"""Kept for the journal while it holds a folder: enough to start a helper, and to open a file or two."""


def _write_joined(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    return os.pwrite(fd, b"".join(buffers), offset)


_pwritev: Callable[[int, Sequence[Buffer], int], int] = getattr(os, "pwritev", _write_joined)  # macOS has it since version 11


class Files(Protocol):
    """File system, as far as the journal asks it; failures are OSErrors. Paths are strings, descriptors ints."""

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents unless they are there."""

    def names(self, folder: str) -> list[str]:
        """Names in the folder, sorted."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; with `create`, an empty file (one that is there is emptied)."""

    def open_to_read(self, path: str) -> int:
        """Open for reading only."""

    def open_folder(self, path: str) -> int:
        """A descriptor for `SYNC_DIRECTORY`."""

    def close(self, fd: int) -> None:
        """Close it."""

    def size(self, fd: int) -> int:
        """The file's size."""

    def truncate(self, fd: int, size: int) -> None:
        """Set the file's size."""

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the file's end."""

    def read_cached(self, fd: int, size: int, offset: int) -> bytes | None:
        """Read without waiting for the disk: None when something is not in memory. It is being fetched then."""

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write buffers one after the other; returns how many bytes were written, which may be fewer."""

    def sync(self, fd: int) -> None:
        """Wait until the file's (or folder's) content is on the disk. Blocks: for start and close only."""

    def rename(self, old: str, new: str) -> None:
        """Rename within a folder; durable once the folder is synced."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def lock(self, path: str) -> int | None:
        """Create the file and lock it exclusively; its descriptor, or None when another process holds it."""

    def file_system(self, path: str) -> str:
        """The type of the file system that holds `path`."""

    def start_syncer(self, on_death: Callable[[], None]) -> Syncer:
        """Return who carries out syncs beside the loop."""


class RealFiles:
    """The operating system's files.

    While a folder is locked, some descriptors are held back. When the process has no other left, because clients hold
    all of them, the journal goes on with these: it can still roll, and read.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._lock_fd = -1
        self._no_wait = getattr(os, "RWF_NOWAIT", 0)

    def make_folder(self, path: str) -> None:
        """Create the folder, and make its name durable."""
        folder = Path(os.path.realpath(path))  # Path.resolve raises RuntimeError for a loop of links
        if folder.is_dir():
            return
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            self._sync_folder(str(made.parent))

    def names(self, folder: str) -> list[str]:
        """Names in the folder, sorted."""
        return sorted(os.listdir(folder))  # noqa: PTH208 - names, not paths

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing."""
        return self._open(path, os.O_RDWR | (os.O_CREAT | os.O_TRUNC if create else 0))

    def open_to_read(self, path: str) -> int:
        """Open for reading."""
        return self._open(path, os.O_RDONLY)

    def open_folder(self, path: str) -> int:
        """Open the folder."""
        return self._open(path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self, fd: int) -> None:
        """Close it; held descriptors that were given up come back."""
        os.close(fd)
        if fd == self._lock_fd:
            self._lock_fd = -1
            self._give_up_held()
        else:
            self._hold()

    def size(self, fd: int) -> int:
        """The file's size."""
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        """Set the size."""
        os.ftruncate(fd, size)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read; goes on after a short read."""
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        while (missing := size - sum(map(len, parts))) and (part := os.pread(fd, missing, offset + size - missing)):
            parts.append(part)
        return b"".join(parts)

    def read_cached(self, fd: int, size: int, offset: int) -> bytes | None:
        """Read what the page cache has; a file system that cannot say that is read as usual."""
        if not self._no_wait:
            return self.read(fd, size, offset)
        buffer = bytearray(size)
        try:
            count = os.preadv(fd, [buffer], offset, self._no_wait)
        except BlockingIOError:
            count = -1
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self._no_wait = 0
            return self.read(fd, size, offset)
        if count == size:
            return bytes(buffer)
        if count >= 0 and offset + count >= self.size(fd):
            return bytes(buffer[:count])
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)
        return None

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write."""
        return _pwritev(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        """Sync."""
        sync_helper.sync_fully(fd)

    def rename(self, old: str, new: str) -> None:
        """Rename."""
        os.rename(old, new)  # noqa: PTH104 - paths are strings here

    def unlink(self, path: str) -> None:
        """Remove."""
        os.unlink(path)  # noqa: PTH108 - paths are strings here

    def lock(self, path: str) -> int | None:
        """Lock by flock: the lock goes with the process, whatever ends it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        self._lock_fd = fd
        self._hold()
        return fd

    def file_system(self, path: str) -> str:
        """File system of the mount with the longest path above `path`; empty where the system does not tell."""
        real = str(Path(path).resolve())
        found, longest = "", -1
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                fields = line.split(" ")
                mount = fields[4].encode().decode("unicode_escape")
                above = real == mount or real.startswith(mount.rstrip("/") + "/")
                if above and len(mount) >= longest:
                    longest, found = len(mount), fields[fields.index("-") + 1]
        return found

    def start_syncer(self, on_death: Callable[[], None]) -> Syncer:
        """The helper process, or a thread. Starting a process takes some descriptors for a moment."""
        self._give_up_held()
        try:
            return start_syncer(on_death)
        finally:
            self._hold()

    def _open(self, path: str, flags: int) -> int:
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._held:
                    raise
                os.close(self._held.pop())

    def _hold(self) -> None:
        with contextlib.suppress(OSError):  # next time, then
            while self._lock_fd >= 0 and len(self._held) < HELD_DESCRIPTORS:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _give_up_held(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def _sync_folder(self, path: str) -> None:
        fd = self.open_folder(path)
        try:
            sync_helper.sync_fully(fd)
        finally:
            os.close(fd)


def is_network(file_system: str) -> bool:
    """True if syncs and locks there depend on another machine or another process."""
    return file_system in NETWORK_FILE_SYSTEMS or file_system.startswith("fuse")


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
