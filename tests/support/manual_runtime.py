"""The broker's runtime with a clock that stands until the test moves it."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Any, cast

from pulsar_txn.broker.serving import AsyncioRuntime


class _Timer:
    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.call: Callable[[], Any] | None = lambda: callback(*args)

    def cancel(self) -> None:
        self.call = None


class ManualRuntime(AsyncioRuntime):
    """`advance` moves the time, and calls what is due on the way. One runtime may outlive several brokers."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._started_ms = time.time_ns() // 1_000_000
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = count()

    def wall_ms(self) -> int:
        return self._started_ms + int(self.now * 1000)

    def monotonic(self) -> float:  # type: ignore[override]  # a method in place of a function
        return self.now

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        timer = _Timer(callback, args)
        heapq.heappush(self._timers, (self.now + delay, next(self._numbers), timer))
        return cast("asyncio.TimerHandle", timer)

    async def advance(self, seconds: float, turns: int = 60) -> None:
        """Let so much time pass; before, after each timer, and after the last one, the loop has some turns."""
        until = self.now + seconds
        await self._turns(turns)
        while self._timers and self._timers[0][0] <= until:
            at, _, timer = heapq.heappop(self._timers)
            self.now = max(at, self.now)
            if timer.call is not None:
                timer.call()
                await self._turns(4)
            if not self._timers or self._timers[0][0] > until:
                await self._turns(turns)
        self.now = until

    async def _turns(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
