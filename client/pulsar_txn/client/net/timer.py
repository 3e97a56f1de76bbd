"""One timer of the event loop for the nearest of many deadlines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from pulsar_txn.client.net.runtime import Runtime


class NearestTimer:
    """Calls `on_due(now)` once, at the earliest time that it was set to since then; set it again there for what is left.

    `now` is never before that time: loops fire timers up to a millisecond early, and what was due is due then.
    """

    __slots__ = ("_due", "_handle", "_on_due", "_runtime")

    def __init__(self, runtime: Runtime, on_due: Callable[[float], None]) -> None:
        self._runtime = runtime
        self._on_due = on_due
        self._due = math.inf
        self._handle: asyncio.Handle | None = None

    def set(self, due: float) -> None:
        """Call at `due` on the runtime's clock, unless it is set to an earlier time already; never for `math.inf`."""
        if due >= self._due:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = self._runtime.call_later(max(0.0, due - self._runtime.monotonic()), self._fire)

    def cancel(self) -> None:
        """Do not call; it may be set again."""
        self._due = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        due, self._due, self._handle = self._due, math.inf, None
        self._on_due(max(due, self._runtime.monotonic()))
