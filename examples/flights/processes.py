"""The processes of the demo: started, started again after a kill that was asked for, and ended by their pid.

Each child is the leader of a session of its own, so that Ctrl-C reaches this program alone, and whoever a child has
started (Spark's Java) ends with it. What children write is kept in files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from crash import Kill, read_log

HERE: Final = Path(__file__).resolve().parent
_POLL_SECONDS: Final = 0.02
_STARTS_AT_MOST: Final = 10


class DemoFailedError(Exception):
    """The demo cannot go on; the message is for the user."""


class Child:
    """One process that can be started several times."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self.starts = 0
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process; None if absent."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it; what it writes is added to its log."""
        self.starts += 1
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own programs
                self._command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=self._env, start_new_session=True
            )

    async def exited(self) -> int:
        """Wait for its end; the code, negative for a signal. If cancelled, it goes on."""
        process = self._process
        if process is None:
            raise DemoFailedError(f"{self.name} was never started")
        while (code := process.poll()) is None:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(_POLL_SECONDS)
        _end_session(process.pid)
        return code

    def signal(self, number: signal.Signals) -> None:
        """To the process alone; nothing happens when it is gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def end(self, seconds: float = 10.0) -> None:
        """SIGTERM, wait, SIGKILL to it and to what it has started. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        _end_session(process.pid)
        process.wait(seconds)

    def tail(self, lines: int = 15) -> str:
        """The last lines that it wrote, without the places in Java's stacks."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        told = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "... "))]
        return "\n".join(told[-lines:])


def _end_session(leader: int) -> None:
    """Whoever is left of the process group of a child that has just ended, or does not want to."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Children:
    """All of them; leaving the block ends those that are left, in the opposite order of their starts."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in reversed(self._all):
            child.end()

    def make(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """A child that is not started yet."""
        child = Child(name, command, self._logs / f"{name}.log", env)
        self._all.append(child)
        return child

    def program(self, name: str, script: str, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Child:
        """A child that runs a Python program of this folder."""
        return self.make(name, [sys.executable, str(HERE / script), *arguments], env)


class Broker:
    """`broker_crash.py standalone` on free ports of the loopback, and on the same ones after a restart."""

    def __init__(self, children: Children, name: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.ready_file = folder / f"{name}.ready.json"
        port, http_port = _free_ports(2)
        self.url = f"pulsar://127.0.0.1:{port}"
        places = ["--data", str(folder / f"{name}-data"), "--ready-file", str(self.ready_file)]
        ports = ["--port", str(port), "--http-port", str(http_port)]
        keys = ["--set", "brokerDeduplicationEnabled=true"]
        self.child = children.program(name, "broker_crash.py", ["standalone", *places, *ports, *keys], env)

    async def start(self) -> float:
        """Start it and wait until it serves; returns the seconds that took. Raises DemoFailedError."""
        begin = time.monotonic()
        self.ready_file.unlink(missing_ok=True)
        self.child.start()
        while not self.ready_file.exists():
            if self.child.pid is None:
                raise DemoFailedError(f"{self.child.name} did not get ready; its last lines:\n{self.child.tail()}")
            await asyncio.sleep(_POLL_SECONDS)  # `Demo` gives up when nothing moves
        return time.monotonic() - begin


def processes_below(pid: int) -> list[tuple[int, str]]:
    """All living descendants of a process, as (pid, command line)."""
    children: dict[int, list[tuple[int, str]]] = {}
    for each, parent, command in _process_table():
        children.setdefault(parent, []).append((each, command))
    found: list[tuple[int, str]] = []
    asked = [pid]
    while asked:
        below = children.get(asked.pop(), [])
        found += below
        asked += [each for each, _ in below]
    return found


def _process_table() -> Iterator[tuple[int, int, str]]:
    """(pid, pid of its parent, command line) of every process of this machine."""
    proc = Path("/proc")
    if not (proc / "self" / "stat").exists():
        answer = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)  # noqa: S607  # a standard tool
        for row in (line.split(maxsplit=2) for line in answer.stdout.splitlines()):
            yield int(row[0]), int(row[1]), row[2] if len(row) > 2 else ""
        return
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parent = (folder / "stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[1]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(folder.name), int(parent), command


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Supervisor:
    """Starts children again when they were killed as asked for, and only then.

    `on_kill(kill)` is awaited when a kill was found in the log, before the restart; `on_restart(kill, seconds)` after it.
    """

    def __init__(
        self,
        crash_log: Path,
        on_kill: Callable[[Kill], Awaitable[None]],
        on_restart: Callable[[Kill, float], Awaitable[None]],
    ) -> None:
        self.crash_log = crash_log
        self.kills: list[Kill] = []
        self._on_kill = on_kill
        self._on_restart = on_restart

    async def keep(self, child: Child, start: Callable[[], Awaitable[float]] | None = None) -> None:
        """Watch a started child until it ends with 0. Raises DemoFailedError when it ends otherwise and nobody asked for it."""
        while (code := await child.exited()) != 0:
            kill = self._kill_of(child.name)
            if kill is None or child.starts >= _STARTS_AT_MOST:
                asked = "and no crash point had asked for it" if kill is None else "and it has been started too often"
                raise DemoFailedError(f"{child.name} ended with {code}, {asked}; its last lines:\n{child.tail()}")
            await self._on_kill(kill)
            begin = time.monotonic()
            if start is None:
                child.start()
            else:
                await start()
            await self._on_restart(kill, time.monotonic() - begin)

    def _kill_of(self, name: str) -> Kill | None:
        """A kill of this child that was not seen before."""
        for kill in read_log(self.crash_log):
            if kill not in self.kills and name.startswith(kill.target):
                self.kills.append(kill)
                return kill
        return None
