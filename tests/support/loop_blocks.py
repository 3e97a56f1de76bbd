"""How long the loop of a test is held: CPU seconds of its thread per turn, so that a busy machine fails no test.

    async with held_loop() as held:
        ...                         # what must not hold the loop
    assert held.longest_seconds < LONGEST_SECONDS

A turn is one round of the loop, between two looks at the sockets. The garbage collector is off meanwhile: its pauses depend on
what other tests left. Work of the test itself in between: `with held.not_counted():`.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

LONGEST_SECONDS: Final = 0.050
"""What tests allow a turn: five times the 10 ms that the broker should keep to, for slow machines and coverage."""


class HeldLoop:
    """What was measured so far."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.turns = 0
        self.total_seconds = 0.0
        self._excluded = 0.0

    def ran(self, seconds: float) -> None:
        """A turn is over."""
        seconds -= self._excluded
        self._excluded = 0.0
        self.turns += 1
        self.total_seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """CPU of the test's own in here is not the broker's; no await inside."""
        before = time.thread_time()
        try:
            yield
        finally:
            self._excluded += time.thread_time() - before

    def __repr__(self) -> str:
        longest, total = self.longest_seconds * 1000, self.total_seconds * 1000
        return f"longest turn {longest:.1f} ms, {self.turns} turns, {total:.0f} ms in all"


@asynccontextmanager
async def held_loop() -> AsyncIterator[HeldLoop]:
    """Measure every turn of the running loop, which has to be asyncio's own."""
    loop: Any = asyncio.get_running_loop()
    run_once = loop._run_once
    held = HeldLoop()

    def measured() -> None:
        before = time.thread_time()
        run_once()
        held.ran(time.thread_time() - before)

    await asyncio.sleep(0)
    collecting = gc.isenabled()
    gc.disable()
    loop._run_once = measured
    try:
        await asyncio.sleep(0)  # what was before belongs to no turn of ours
        held.longest_seconds = held.total_seconds = 0.0
        yield held
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        del loop._run_once
        if collecting:
            gc.enable()
