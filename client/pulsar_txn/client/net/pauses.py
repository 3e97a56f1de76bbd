"""Pauses of the client before it tries something again, and what ends the wait early.

Whatever is tried again has a back-off of its own, and only one: the connection to a broker (the pool), the place of a
producer, consumer or coordinator session at its broker (`_attachment`), a request, a lane of a pipeline. A back-off starts
over after `HEALTHY_SECONDS` in which the thing worked, not at the first success: a broker that answers and dies again is
not healthy. No wait is longer than `max_backoff`.

While no connection can be had, only the pool tries; everything else waits for it. A new connection is a sign of life: what
waits for anything else tries again then as well, spread over `initial_backoff`. So, whatever happened before, everything works
again after its broker serves it, in at most `max_backoff` and `initial_backoff` together, and the time of the attempt itself.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pulsar_txn.client.net.runtime import Runtime

HEALTHY_SECONDS: Final = 1.0
"""Time of success after which a back-off starts over."""


class Backoff:
    """Waiting times that double from `initial` to `maximum` seconds, each shortened by up to a tenth at random."""

    def __init__(self, runtime: Runtime, initial: float, maximum: float) -> None:
        self._runtime = runtime
        self._initial = min(initial, maximum)
        self._maximum = maximum
        self._next = self._initial

    def next(self) -> float:
        """The seconds to wait before the next attempt."""
        seconds = self._next
        self._next = min(self._next * 2, self._maximum)
        return seconds * (1 - 0.1 * self._runtime.random())

    def spread(self) -> float:
        """A moment of up to `initial` seconds, so that not everybody tries at once what has just become possible."""
        return self._initial * self._runtime.random()

    def reset(self) -> None:
        """Begin again with the shortest wait."""
        self._next = self._initial


class SignsOfLife:
    """Wakes what waits when the client has got a new connection."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def seen(self) -> None:
        """There is a new connection."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Until the next one, or for so long; whether there was one. Safe to cancel."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True


class Gate:
    """Gate of one broker: it opens when the broker may be asked for a connection again."""

    def __init__(self, runtime: Runtime, backoff: Backoff) -> None:
        self._runtime = runtime
        self._backoff = backoff
        self._opens_at = 0.0
        self._worked_at: float | None = None
        self._passing: asyncio.Future[None] | None = None

    @property
    def seconds(self) -> float:
        """Seconds for which it stays closed; 0 when it is open."""
        return max(0.0, self._opens_at - self._runtime.monotonic())

    def worked(self) -> None:
        """A connection was made."""
        self._worked_at = self._runtime.monotonic()

    def failed(self) -> None:
        """No connection was made: it closes for a while."""
        self._worked_at = None
        self._opens_at = self._runtime.monotonic() + self._backoff.next()

    def lost(self) -> None:
        """The connection has ended: it closes for a moment, or for a while when that connection was short-lived."""
        if self._worked_at is None:
            return
        now = self._runtime.monotonic()
        if now - self._worked_at > HEALTHY_SECONDS:
            self._backoff.reset()
            self._opens_at = now + self._backoff.spread()
        else:
            self._opens_at = self._worked_at + self._backoff.next()
        self._worked_at = None

    async def passed(self) -> None:
        """Wait until it is open."""
        if not self.seconds:
            return
        self._passing = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.seconds):
                await self._passing
        except TimeoutError:
            return
        finally:
            self._passing = None

    def open(self) -> None:
        """Open it: nobody needs to wait any more."""
        self._opens_at = 0.0
        self._backoff.reset()
        if self._passing is not None and not self._passing.done():
            self._passing.set_result(None)
