"""The only place of the broker that touches clocks, randomness, sockets and timers.

Everything else gets a `Runtime` and a `Clock`. Timers are those of the running event loop, so that a loop with virtual
time moves them together with `monotonic`; a runtime that connects in-memory pipes and counts its own time makes the
whole broker deterministic.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, Protocol, TypeVar

ResourceT = TypeVar("ResourceT")

_MAX_DESCRIPTORS: Final = 65_536


class Listener(Protocol):
    """An open listening socket, or its substitute in tests."""

    @property
    def port(self) -> int:
        """The port it listens on (the chosen one when 0 was asked)."""
        ...

    async def close(self) -> None:
        """Accept nothing more. Connections that are open stay open. Idempotent."""
        ...


class Runtime(Protocol):
    """Services that the broker asks of the world."""

    async def listen(self, host: str, port: int, protocol_factory: Callable[[], asyncio.Protocol]) -> Listener:
        """Accept connections, each with a protocol of its own. Raises OSError (port in use, address not ours)."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; the clock of `call_later`."""
        ...

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def descriptors(self) -> int | None:
        """Files and sockets that this process may have open; None: no limit is known."""
        ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run `callback` in the next turn of the loop."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """Run `callback` on the loop in `delay` seconds."""
        ...


class Clock:
    """Time that never goes back: wall clock at the start plus monotonic time since, never below the newest time in a log."""

    __slots__ = ("_base_ms", "_monotonic")

    def __init__(self, runtime: Runtime) -> None:
        self._monotonic = runtime.monotonic
        self._base_ms = runtime.wall_ms() - int(runtime.monotonic() * 1000)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as far as the rule above allows."""
        return self._base_ms + int(self._monotonic() * 1000)

    def observe(self, newest_ms: int) -> None:
        """A log holds a time: `now_ms` is never below it from here on (after a wall clock that was set back)."""
        self._base_ms += max(0, newest_ms - self.now_ms())


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        # Not wait_closed(): from Python 3.12 on it waits for the connections too, and those are drained by their owner.
        self._server.close()


class AsyncioRuntime:
    """The real world: TCP by the running asyncio (or uvloop) loop, the system's clocks and random source."""

    async def listen(self, host: str, port: int, protocol_factory: Callable[[], asyncio.Protocol]) -> Listener:
        """Listen on TCP."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol_factory, host, port, backlog=1024)
        return _TcpListener(server)

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """The clock of the loop's timers."""

    def random(self) -> float:
        """A float in [0, 1) from the process-wide source."""
        return random.random()  # noqa: S311 - consumer names and back-off, nothing secret

    def descriptors(self) -> int | None:
        """The soft limit, raised as far as the hard one allows: an idle connection costs a descriptor and little else."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
            if soft != resource.RLIM_INFINITY and soft < wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
        return None if soft == resource.RLIM_INFINITY else soft

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """The next turn of the running loop."""
        asyncio.get_running_loop().call_soon(callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """A timer of the running loop."""
        return asyncio.get_running_loop().call_later(delay, callback, *args)


async def load_modules(*names: str) -> None:
    """Import modules in a thread, one after the other: the loop serves meanwhile."""

    def load() -> None:
        for name in names:
            importlib.import_module(name)

    await asyncio.get_running_loop().run_in_executor(None, load)


async def start_child(*command: str) -> asyncio.subprocess.Process:
    """A process of ours, with a pipe as its standard input: when this process dies, the child reads the end of it."""
    return await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)


class LoopThread(Generic[ResourceT]):
    """An async resource in a thread with an event loop of its own, for callers that have none."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[ResourceT]]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._started: Future[ResourceT] = Future()
        self._thread = threading.Thread(target=self._main, name="pulsar-broker", daemon=True)

    def start(self, timeout: float = 30.0) -> ResourceT:
        """Return the resource once it was entered; raises what kept it from that."""
        self._thread.start()
        return self._started.result(timeout)

    def call(self, function: Callable[[], Any], timeout: float = 30.0) -> Any:
        """Run `function` in the thread's loop and return what it returns."""
        if self._loop is None:
            raise RuntimeError("this thread was not started")
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                result.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return result.result(timeout)

    def stop(self, timeout: float = 30.0) -> None:
        """Leave the resource and end the thread. Idempotent."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(timeout)

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with self._make() as resource:
            self._started.set_result(resource)
            await self._end.wait()
