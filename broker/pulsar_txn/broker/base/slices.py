"""Long work in slices: all of it together gets a few milliseconds of each turn of the loop, however many works there are.

Who works long on the loop (a fold, a scan, a list of 100,000 names, a cold request) asks here before each piece. The first
pieces of a turn run at once; when the turn's milliseconds are used up, the others wait, in the order in which they
came, and go on in later turns. In between the loop reads sockets and dispatches. There is one `LoopBudget` per broker.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

from .runtime import Runtime

ItemT = TypeVar("ItemT")

SLICE_SECONDS: Final = 0.004
"""Time that all long work together may use in one turn of the loop, the last piece begun in it apart."""

_WOKEN_PER_TURN: Final = 16
_ITEMS_PER_LOOK: Final = 32
_AT_ONCE: Final = 64


class LoopBudget:
    """The milliseconds of each loop turn that long work may use, and the works that wait for some, longest first."""

    __slots__ = ("_is_open", "_monotonic", "_number", "_runtime", "_scheduled", "_until", "_waiting", "waiters")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._is_open = False
        self._scheduled = False
        self._until = 0.0
        self._number = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # a heap: a woken work keeps its place
        self.waiters = 0

    def is_spent(self) -> bool:
        """True if long work has to wait for another turn of the loop; the first one that asks in a turn need not."""
        if self._is_open:
            return self._monotonic() >= self._until
        self._is_open = True
        self._until = self._monotonic() + SLICE_SECONDS
        self._schedule()
        return False

    async def enter(self) -> None:
        """Before the first piece of a work: return at once, or after all works that already wait.

        If cancelled: the place in the queue is given up.
        """
        if self.waiters or self.is_spent():
            await self._wait()

    async def pause(self) -> None:
        """Between two pieces of a work: return at once, or in a later turn. If cancelled: the work should end."""
        if self.is_spent():
            await self._wait()

    async def each(self, items: Iterable[ItemT], at_a_time: int = _ITEMS_PER_LOOK) -> AsyncIterator[ItemT]:
        """The items, with a pause now and then; a collection that may change meanwhile is copied by the caller."""
        countdown = 0
        for item in items:
            if not countdown:
                countdown = at_a_time
                if self.is_spent():
                    await self._wait()
            countdown -= 1
            yield item

    async def for_all(self, items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[object]]) -> None:
        """Carry out `work` for each item, many at a time, so that what waits for the disk waits together.

        Raises what the first failure raises, after the others were cancelled. If cancelled: so is what is under way.
        """
        left = iter(items)

        async def work_on() -> None:
            for item in left:
                await self.pause()
                await work(item)

        tasks = [asyncio.create_task(work_on()) for _ in range(_AT_ONCE)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> None:
        self._number += 1
        number = self._number
        self.waiters += 1
        try:
            while True:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                heapq.heappush(self._waiting, (number, future))
                self._schedule()
                await future
                if not self.is_spent():
                    return
        finally:
            self.waiters -= 1

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Open the budget of a new turn, and wake some of those who wait: as many as use it up go on."""
        self._scheduled = self._is_open = False
        waiting, woken = self._waiting, 0
        while waiting and woken < _WOKEN_PER_TURN:
            future = heapq.heappop(waiting)[1]
            if not future.done():  # not cancelled
                future.set_result(None)
                woken += 1
        if waiting:
            self._schedule()
