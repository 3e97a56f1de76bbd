"""The sends and acknowledgements of one transaction: what is under way, what failed, and the wait for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from pulsar_txn.client.txn.enlist import Flushable
from pulsar_txn.client.txn.registrar import Target


class Operations:
    """Counts the operations of `txn` by target. `failed(error)` is called with every failure."""

    def __init__(self, txn: object, monotonic: Callable[[], float], failed: Callable[[BaseException], None]) -> None:
        self.seconds_waited = 0.0
        self._txn = txn
        self._monotonic = monotonic
        self._failed = failed
        self._targets: dict[tuple[str, str | None], Target] = {}
        self._flushables: dict[Flushable, None] = {}
        self._idle: asyncio.Future[bool] | None = None
        self._busy_targets = 0
        self._seconds_busy = self._busy_since = 0.0

    @property
    def any_started(self) -> bool:
        """Whether any operation was started, or may have been."""
        return bool(self._targets)

    @property
    def in_flight(self) -> int:
        """Messages without an answer."""
        return sum(target.in_flight for target in self.targets) if self._busy_targets else 0

    @property
    def targets(self) -> Collection[Target]:
        """What was operated on, in the order of first use, with everything counted."""
        for flushable in self._flushables:
            flushable.count_sends(self._txn)
        return self._targets.values()

    @property
    def seconds_busy(self) -> float:
        """How long any operation was under way."""
        return self._seconds_busy + (self._monotonic() - self._busy_since if self._busy_targets else 0.0)

    def start(self, topic: str, subscription: str | None, messages: int, flushable: Flushable | None = None) -> Target:
        """Operations on a target begin; `flushable` has to be flushed for them to end."""
        if flushable is not None:
            self._flushables[flushable] = None
        key = (topic, subscription)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(topic, subscription)
        if not target.in_flight:
            if not self._busy_targets:
                self._busy_since = self._monotonic()
            self._busy_targets += 1
        target.started += messages
        return target

    def sends_to(self, topic: str) -> Target:
        """What `start` returned for a topic."""
        return self._targets[topic, None]

    def finish(self, topic: str, subscription: str | None, messages: int, error: BaseException | None) -> None:
        """Operations on a target were answered, or have failed."""
        target = self._targets[topic, subscription]
        if error is None:
            target.confirmed += messages
        else:
            target.failed += messages
            self._failed(error)
        if target.in_flight:
            return
        self._busy_targets -= 1
        if not self._busy_targets:
            self._seconds_busy += self._monotonic() - self._busy_since
            self._wake(all_ended=True)

    async def settle(self, end: float) -> bool:
        """Flush, and wait for all until `end` on the clock; whether all have ended."""
        for flushable in self._flushables:
            flushable.flush_nowait()
        if not self._busy_targets:
            return True
        before = self._monotonic()
        loop = asyncio.get_running_loop()
        self._idle = loop.create_future()
        timer = loop.call_later(max(0.0, end - before), self._wake, False)
        try:
            return await self._idle
        finally:
            timer.cancel()
            self.seconds_waited += self._monotonic() - before

    def _wake(self, all_ended: bool) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(all_ended)
