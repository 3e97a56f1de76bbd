"""The part that waits for the disk: a helper process, or a thread where no process can be started.

Both carry out one request at a time, in order, and call back on the loop with an errno (0: done). A lost helper is
reported once through `on_death`: whether its last request reached the disk is unknown, so the store has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from pulsar_txn.ledger.journal import sync_helper

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
        logger.warning("syncing in a thread, which is slow beside a busy loop: no helper process (%s)", error)
        return ThreadSyncer(on_death)
    return syncer


def describe(code: int) -> str:
    """An errno in words."""
    return f"{errno.errorcode.get(code, code)}: {os.strerror(code)}"
