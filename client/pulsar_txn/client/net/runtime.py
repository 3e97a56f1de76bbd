"""The only place of the client that touches clocks, randomness and sockets.

Everything else gets a `Runtime`. Timers are those of the running event loop (`call_later`, `asyncio.timeout`): a loop
with virtual time moves them together with `monotonic`. A runtime that connects in-memory pipes and counts its own
time makes the whole client deterministic.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import importlib
import json
import logging
import os
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from pulsar_txn.client.errors import InvalidConfiguration

P = TypeVar("P", bound=asyncio.BaseProtocol)
logger = logging.getLogger("pulsar_txn.client")
Guard = threading.RLock
"""Lock that the loop's thread and those of a program take in turn: `with guard:`."""
Future = concurrent.futures.Future
"""Result of the blocking client's `send_nowait`: a future for threads."""
Cancelled = concurrent.futures.CancelledError
"""Error raised by the result of a cancelled one."""
Lock = threading.Lock
Condition = threading.Condition
Thread = threading.Thread
thread_id = threading.get_ident


LARGEST_BLOCK: Final = 4 << 20


@functools.cache
def keep_freed_blocks() -> None:
    """Have glibc keep what it is given back for the next batch; once per process.

    By default it maps each block of more than 128 KiB again, and returns the end of its heap as soon as 128 KiB of it are
    free; the pages of every batch are then mapped and cleared again, a tenth of the CPU of a transaction of 1,000 KiB. It
    learns from the largest mapped block that is freed: from then on smaller ones stay, up to twice its size (mallopt(3),
    M_MMAP_THRESHOLD). Cheap, as nobody touches the block. Without effect on other C libraries, and where the environment
    sets these bounds.
    """
    bytes(LARGEST_BLOCK)


def thread_name() -> str:
    """The name of the thread that calls."""
    return threading.current_thread().name


UnknownHost = socket.gaierror
"""The OSError of a host name that cannot be resolved."""


class Runtime(Protocol):
    """Services that the client asks of the world."""

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, ssl_context: ssl.SSLContext | None, server_hostname: str | None
    ) -> P:
        """Open a byte stream and attach `factory()` to it; OSError (also ssl.SSLError) when that fails. Safe to cancel."""
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

    def secret(self, count: int) -> bytes:
        """Random bytes that nobody can guess, and that no other process has."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        """Run `callback` on the loop in `delay` seconds."""
        ...


class AsyncioRuntime:
    """The real world: TCP and TLS by the running asyncio (or uvloop) loop, the system's clocks and random source.

    One per client: it keeps the clock of the loop in which it was first asked for the time.
    """

    def __init__(self) -> None:
        self._clock: Callable[[], float] | None = None
        keep_freed_blocks()

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, ssl_context: ssl.SSLContext | None, server_hostname: str | None
    ) -> P:
        """Open a TCP connection, with TLS when a context is given."""
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(
            factory, host, port, ssl=ssl_context, server_hostname=server_hostname if ssl_context else None
        )
        return protocol

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """The loop's own clock, so that it agrees with its timers."""
        clock = self._clock
        if clock is None:
            clock = self._clock = asyncio.get_running_loop().time
        return clock()

    def random(self) -> float:
        """A float in [0, 1) from the process-wide source."""
        return random.random()  # noqa: S311 - jitter of retries and a routing start, nothing secret

    def secret(self, count: int) -> bytes:
        """Bytes of the system's own source: a program that seeds `random` gets other ones in each process."""
        return os.urandom(count)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        """A timer of the running loop; of less than a millisecond, uvloop's handle is no timer and has no `when()`."""
        return asyncio.get_running_loop().call_later(delay, callback, *args)


def monotonic_seconds() -> float:
    """Seconds on a clock that never goes back, for what belongs to no client: a token's life."""
    return time.monotonic()


def secret_bytes(count: int) -> bytes:
    """Random bytes that are fit for keys and nonces."""
    return os.urandom(count)


class JsonHttp:
    """Small HTTP requests with JSON answers, by aiohttp; InvalidConfiguration where that is not installed."""

    def __init__(self, *, timeout: float, tls_context: ssl.SSLContext | None = None) -> None:
        try:
            self._aiohttp = importlib.import_module("aiohttp")
        except ImportError as error:
            raise InvalidConfiguration("aiohttp is needed", hint="pip install '.[oauth2]' in a checkout") from error
        self._timeout = timeout
        self._tls: ssl.SSLContext | bool = tls_context or True

    async def request(self, method: str, url: str, form: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and parsed body (None when it is not JSON); redirects are not followed, proxies of the environment are used.

        Raises OSError (TimeoutError within that), ValueError for a bad URL.
        """
        aiohttp = self._aiohttp
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout), trust_env=True) as session,
                session.request(method, url, data=form, ssl=self._tls, allow_redirects=False) as answer,
            ):
                body = await answer.read()
                status: int = answer.status
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error
        try:
            return status, json.loads(body)
        except ValueError:
            return status, None


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed, else of asyncio: uvloop's takes two thirds of the cost of a hand-over."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        logger.debug("uvloop is not installed: the client's thread runs asyncio's event loop")
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class WorkerThread:
    """A daemon thread that calls what it is given, in order: a program's callbacks, which must not run on the IO thread.

    What a call raises is logged and does no harm. The thread starts with the first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Have it called. From any thread."""
        if self._thread is None:
            self._start()
        self._calls.put((function, args))

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return self._calls.qsize()

    def drain(self, timeout: float | None = None) -> None:
        """Wait until everything submitted before has been called, or for `timeout` s; at once on the thread itself."""
        if self._thread is not None and self._thread is not threading.current_thread():
            done = threading.Event()
            self.submit(done.set)
            done.wait(timeout)

    def stop(self) -> None:
        """End after what was submitted before; does not wait."""
        self._calls.put(None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call[0](*call[1])
            except Exception:
                logger.exception("a callback of the program failed")


class Gate:
    """Open or closed; threads wait at it while it is closed: `open()`, `close()`, `wait()`."""

    def __init__(self) -> None:
        event = threading.Event()
        event.set()
        self.open, self.close, self.wait = event.set, event.clear, event.wait


class Slots:
    """So many threads, or things in flight, at once: `take()` waits for a free one, `give_back()` is for any thread."""

    def __init__(self, count: int) -> None:
        semaphore = threading.Semaphore(count)
        self.take, self.give_back = semaphore.acquire, semaphore.release
