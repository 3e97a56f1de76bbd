"""Work that is put off to the end of a loop turn: answers, dispatching, deadlines, and one write per connection.

Confirmations of the ledger arrive in groups, one call per log. Each of them may wake many dispatchers and answer many
requests; all of that is carried out once per loop turn: first the answers, in the order in which they came, then the deferred
work, then one write for each connection that has something to say. When that takes long, because thousands of dispatchers have
something to do at once, the loop looks at its sockets in between: what is left comes in the next turn. There is one `Turn` per
broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from .loop_meter import LoopMeter
from .runtime import Clock, Runtime
from .slices import LoopBudget

_log = logging.getLogger(__name__)

WORK_SECONDS: Final = 0.005
"""For the answers of one turn, before and after its work, for this work and for its writes; what is left after so much waits
for the next one, in its order."""


class Flushable(Protocol):
    """A connection with bytes to write."""

    def flush(self) -> None:
        """Write everything collected since the last flush."""


class TakesPart(Protocol):
    """Whoever needs the time of a turn. `in_turn`: it has entered. `looks`: it wants `look` at the end of the turn."""

    in_turn: bool
    looks: bool

    def look(self) -> None:
        """The turn ends: look at what is due."""


class Turn:
    """The work of one loop turn, carried out together. Callers keep a flag of their own so as to defer once per turn.

    `now_ms`: the time of this turn, read once when its first work is deferred; old while nothing is deferred.
    """

    __slots__ = (
        "_answers",
        "_began",
        "_entered",
        "_flushes",
        "_monotonic",
        "_scheduled",
        "_work",
        "budget",
        "clock",
        "meter",
        "now_ms",
        "runtime",
    )

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self.runtime = runtime
        self.clock = clock
        self.budget = LoopBudget(runtime)
        self.meter = LoopMeter(runtime)
        self.now_ms = clock.now_ms()
        self._monotonic = runtime.monotonic
        self._began = 0.0
        self._answers: list[tuple[Callable[[Any, Any, str], None], Any, Any, str]] = []
        self._work: list[Callable[[], None]] = []
        self._entered: list[TakesPart] = []
        self._flushes: list[Flushable] = []
        self._scheduled = False

    def answer(self, answer: Callable[[Any, Any, str], None], value: Any, error: Any, message: str) -> None:
        """Call `answer` with the rest at the end of this turn, ahead of its work and of its writes."""
        self._answers.append((answer, value, error, message))
        if not self._scheduled:
            self._schedule()

    def defer(self, work: Callable[[], None]) -> None:
        """Call `work` once, at the end of this turn or in the next one."""
        self._work.append(work)
        if not self._scheduled:
            self._schedule()

    def enter(self, each: TakesPart) -> None:
        """`each` takes part in this turn. The mark that it has entered is taken back when the turn ends."""
        self._entered.append(each)
        if not self._scheduled:
            self._schedule()

    def time_ms(self) -> int:
        """The time of this turn; the first call begins a turn."""
        if not self._scheduled:
            self._schedule()
        return self.now_ms

    def observe(self, newest_ms: int) -> None:
        """A log holds a time: this turn, and all turns after it, are not before it."""
        self.clock.observe(newest_ms)
        self.now_ms = self.clock.now_ms()

    def flush_later(self, connection: Flushable) -> None:
        """Flush `connection` after all work of the turn."""
        self._flushes.append(connection)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        self._began = self._monotonic()
        self.now_ms = self.clock.now_ms()
        self.runtime.call_soon(self._run)

    def _run(self) -> None:
        if self._answers:
            self._give_answers()
        self._scheduled = False
        work, self._work = self._work, []
        entered, self._entered = self._entered, []
        for each in entered:
            each.in_turn = False
            if each.looks:
                work.append(each.look)
        began = self._began
        longest, slowest = self._carry_out(work) if work else (0.0, None)
        if self._answers:
            self._give_answers()
        self._flush()
        ended = self._began = self._monotonic()  # of the next turn, if there is one already
        self.meter.turn_ended(ended - began, longest, slowest)

    def _give_answers(self) -> None:
        """Give as many as a turn may, those that come meanwhile included.

        What is left is given later, as if the log had confirmed it later: nobody may know how soon it does.
        """
        monotonic = self._monotonic
        until = monotonic() + WORK_SECONDS
        while self._answers:
            answers, self._answers = self._answers, []
            for done, (answer, value, error, message) in enumerate(answers, 1):
                try:
                    answer(value, error, message)
                except Exception:  # noqa: BLE001 - the others are to have theirs
                    _log.exception("an answer failed: %r", answer)
                if monotonic() > until:
                    self._answers = answers[done:] + self._answers
                    if self._answers:
                        self._go_on()
                    return

    def _carry_out(self, work: list[Callable[[], None]]) -> tuple[float, Callable[[], None] | None]:
        """As much of it as a turn may take; the seconds of the slowest, and which it was."""
        monotonic = self._monotonic
        longest, slowest = 0.0, None
        before = monotonic()
        until = before + WORK_SECONDS
        for done, each in enumerate(work, 1):
            try:
                each()
            except Exception:  # noqa: BLE001 - one topic's fault must not take the turn from the others
                _log.exception("deferred work failed: %r", each)
            after = monotonic()
            if after - before > longest:
                longest, slowest = after - before, each
            before = after
            if after > until and done < len(work):
                self._work = work[done:] + self._work
                self._go_on()
                break
        return longest, slowest

    def _flush(self) -> None:
        flushes, self._flushes = self._flushes, []
        if len(flushes) == 1:
            flushes[0].flush()
            return
        monotonic = self._monotonic
        until = monotonic() + WORK_SECONDS
        for done, connection in enumerate(flushes, 1):
            connection.flush()
            if done < len(flushes) and monotonic() > until:
                self._flushes = flushes[done:] + self._flushes
                self._go_on()
                break

    def _go_on(self) -> None:
        """There is more than one turn may take."""
        if not self._scheduled:
            self._schedule()
