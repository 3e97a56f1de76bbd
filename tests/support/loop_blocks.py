"""How long the loop of a test is held: CPU seconds of its thread per turn, so that a busy machine fails no test.

    async with held_loop() as held:
        ...                         # what must not hold the loop
    assert held.longest_seconds < LONGEST_SECONDS

A turn is one round of the loop, between two looks at the sockets. The garbage collector is off meanwhile: its pauses depend on
what other tests left. Work of the test itself in between: `with held.not_counted():`. The clients of tests, which live in the
same loop, take what they parse out by themselves with `work_of_the_test`.

The CPU seconds are those of a machine of usual speed: a fixed piece of work is timed before and after, and what it took longer
than usual divides the result. So a slow processor, or a tracer, allows longer turns.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any, ClassVar, Final

LONGEST_SECONDS: Final = 0.050
"""What tests allow a turn: five times the 10 ms that the broker should keep to, for slow machines and coverage."""


_USUAL_SECONDS: Final = 0.005
"""What `_reference_seconds` measures on a machine of usual speed."""


class HeldLoop:
    """What was measured so far."""

    current: ClassVar[HeldLoop | None] = None
    """The one that measures now. Callbacks of the clients run in contexts of their own, so this is no context variable."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.turns = 0
        self.total_seconds = 0.0
        self._excluded = 0.0
        self._inside = False

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
        if self._inside:
            yield
            return
        self._inside = True
        before = time.thread_time()
        try:
            yield
        finally:
            self._excluded += time.thread_time() - before
            self._inside = False

    def divide(self, slowness: float) -> None:
        """State the seconds as those of a machine that is `slowness` times as fast."""
        self.longest_seconds /= slowness
        self.total_seconds /= slowness

    def __repr__(self) -> str:
        longest, total = self.longest_seconds * 1000, self.total_seconds * 1000
        return f"longest turn {longest:.1f} ms, {self.turns} turns, {total:.0f} ms in all"


def work_of_the_test() -> AbstractContextManager[None]:
    """What a test's client does in here is not counted, where a loop is measured; no await inside."""
    held = HeldLoop.current
    return nullcontext() if held is None else held.not_counted()


def _reference_seconds() -> float:
    """CPU seconds of a fixed piece of work; the best of three, because the first one may find cold caches."""
    found = []
    for _ in range(3):
        before, total = time.thread_time(), 0
        for number in range(150_000):
            total += number
        found.append(time.thread_time() - before)
    return min(found)


@asynccontextmanager
async def held_loop() -> AsyncIterator[HeldLoop]:
    """Measure every turn of the running loop, which has to be asyncio's own."""
    loop: Any = asyncio.get_running_loop()
    run_once = loop._run_once
    held = HeldLoop()

    def measured() -> None:
        before = time.thread_time()
        run_once()
        if HeldLoop.current is held:  # the turn in which the measuring ended goes on with the test's own work
            held.ran(time.thread_time() - before)

    slowness = _reference_seconds() / _USUAL_SECONDS
    await asyncio.sleep(0)
    collecting = gc.isenabled()
    gc.disable()
    loop._run_once = measured
    HeldLoop.current = held
    try:
        await asyncio.sleep(0)  # what was before belongs to no turn of ours
        held.longest_seconds = held.total_seconds = 0.0
        yield held
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        HeldLoop.current = None
        del loop._run_once
        if collecting:
            gc.enable()
        held.divide(max(1.0, slowness, _reference_seconds() / _USUAL_SECONDS))
