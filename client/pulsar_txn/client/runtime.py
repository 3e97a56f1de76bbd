"""The only place of the client that touches clocks, randomness and sockets.

Everything else gets a `Runtime`. Timers are those of the running event loop (`call_later`, `asyncio.timeout`): a loop
with virtual time moves them together with `monotonic`. A runtime that connects in-memory pipes and counts its own
time makes the whole client deterministic.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


class Runtime(Protocol):
    """What the client asks of the world."""

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

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """Run `callback` on the loop in `delay` seconds."""
        ...


class AsyncioRuntime:
    """The real world: TCP and TLS by the running asyncio (or uvloop) loop, the system's clocks and random source."""

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
        return asyncio.get_running_loop().time()

    def random(self) -> float:
        """A float in [0, 1) from the process-wide source."""
        return random.random()  # noqa: S311 - jitter of retries and a routing start, nothing secret

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """A timer of the running loop."""
        return asyncio.get_running_loop().call_later(delay, callback, *args)
