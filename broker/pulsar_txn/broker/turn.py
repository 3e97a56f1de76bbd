"""What is put off to the end of a loop turn: dispatching, deadlines, and one write per connection.

Confirmations of the ledger arrive in groups, one call per log. Each of them may wake many dispatchers and answer many
requests; all of that is carried out once per loop turn: first the deferred work, then one write for each connection
that has something to say. There is one `Turn` per broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from .loop_meter import LoopMeter
from .runtime import Clock, Runtime
from .slices import LoopBudget

_log = logging.getLogger(__name__)


class Flushable(Protocol):
    """A connection with bytes to write."""

    def flush(self) -> None:
        """Write everything collected since the last flush."""


class Turn:
    """The work of one loop turn, carried out together. Callers keep a flag of their own so as to defer once per turn."""

    __slots__ = ("_began", "_flushes", "_monotonic", "_scheduled", "_work", "budget", "clock", "meter", "runtime")

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self.runtime = runtime
        self.clock = clock
        self.budget = LoopBudget(runtime)
        self.meter = LoopMeter(runtime)
        self._monotonic = runtime.monotonic
        self._began = 0.0
        self._work: list[Callable[[], None]] = []
        self._flushes: list[Flushable] = []
        self._scheduled = False

    def defer(self, work: Callable[[], None]) -> None:
        """Call `work` once, at the end of this turn or in the next one."""
        self._work.append(work)
        if not self._scheduled:
            self._schedule()

    def flush_later(self, connection: Flushable) -> None:
        """Flush `connection` after all work of the turn."""
        self._flushes.append(connection)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._began = self._monotonic()
        self.runtime.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        work, self._work = self._work, []
        monotonic, began = self._monotonic, self._began
        before, longest, slowest = monotonic(), 0.0, None
        for each in work:
            try:
                each()
            except Exception:  # noqa: BLE001 - one topic's fault must not take the turn from the others
                _log.exception("deferred work failed: %r", each)
            after = monotonic()
            if after - before > longest:
                longest, slowest = after - before, each
            before = after
        flushes, self._flushes = self._flushes, []
        for connection in flushes:
            connection.flush()
        self.meter.turn_ended(monotonic() - began, longest, slowest)
