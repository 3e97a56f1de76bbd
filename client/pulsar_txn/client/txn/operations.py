"""The sends and acknowledgements of one transaction: what is under way, what failed, and the wait for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.txn.enlist import Flushable
from pulsar_txn.client.txn.registrar import Target

LOOK_AT: Final = 64
"""Calls that are noted before it is looked which of them have started."""


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
        self._calls: list[Coroutine[Any, Any, Any]] = []
        self._look_at = LOOK_AT
        self._busy_targets = 0
        self._seconds_busy = self._busy_since = 0.0

    @property
    def any_started(self) -> bool:
        """True if any operation was started, or may have been."""
        return bool(self._targets)

    def called(self, call: Coroutine[Any, Any, Any]) -> None:
        """An operation was called; whether somebody awaits it is seen at the end."""
        self._calls.append(call)
        if len(self._calls) >= self._look_at:
            self._calls = _not_begun(self._calls)
            self._look_at = max(LOOK_AT, 2 * len(self._calls))

    def forget_calls(self) -> None:
        """Nobody looks any more which of them have started."""
        self._calls = []

    def check_awaited(self) -> None:
        """A call that nobody has awaited is no part of what is committed, so it fails."""
        forgotten = _not_begun(self._calls)
        self._calls = []
        if not forgotten:
            return
        error = TransactionStateError(
            f"{_name_of(forgotten[0])} was called in the transaction and never awaited"
            + (f", and {len(forgotten) - 1} more calls" if len(forgotten) > 1 else ""),
            hint="wait for the call, or give it to a task that the block waits for",
        )
        error.fatal = True  # the program is at fault, and no message
        self._failed(error)
        for each in forgotten:
            each.close()

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


def _not_begun(calls: list[Any]) -> list[Any]:
    """Coroutines that nobody has awaited so far, and nobody has closed."""
    return [each for each in calls if each.cr_frame is not None and not each.cr_suspended and not each.cr_running]


def _name_of(call: Any) -> str:
    """As a program calls it, and of what it is a method."""
    given = call.cr_frame.f_locals
    owner = given["self"] if "self" in given else given["args"][0]
    return f"{call.__qualname__}() of {owner!r}{_origin_of(call)}"


def _origin_of(call: Any) -> str:
    """Where it was called, which Python notes in asyncio's debug mode only."""
    return f" at {call.cr_origin[0][0]}:{call.cr_origin[0][1]}" if call.cr_origin else ""
