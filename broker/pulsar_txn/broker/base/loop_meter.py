"""Meter of the broker's loop: the turns in which it worked, and how late a timer comes, for metrics and one log line.

While something holds the loop nobody else is served, so no turn should take more than ten milliseconds. Two things are
measured, and neither costs anything per message. A *turn* begins when the first work is put off to its end and is over
when everything is written; what was slowest in it is known. And a *beat* every tenth of a second sees by how much it comes
late, whatever held the loop. Both are wall time: a machine that is too busy shows here as well.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from .runtime import Runtime

_logger = logging.getLogger(__name__)

BOUNDS_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histograms' buckets; one more bucket takes the rest."""

BEAT_SECONDS: Final = 0.1
WARN_SECONDS: Final = 0.25
"""A turn or a beat of at least this is worth a line in the log."""

_WARN_EVERY_SECONDS: Final = 30.0


class Histogram:
    """Counts by duration, and their sum in seconds."""

    __slots__ = ("counts", "longest", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total = 0.0
        self.longest = 0.0

    def note(self, seconds: float) -> None:
        """One more."""
        self.total += seconds
        if seconds <= BOUNDS_SECONDS[0]:  # nearly all of them
            self.counts[0] += 1
        else:
            self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
            self.longest = max(self.longest, seconds)

    def buckets(self) -> list[tuple[str, float]]:
        """Prometheus's view: (upper bound as text, how many up to it)."""
        found: list[tuple[str, float]] = []
        count = 0
        for bound, here in zip((*BOUNDS_SECONDS, None), self.counts, strict=True):
            count += here
            found.append(("+Inf" if bound is None else str(bound), count))
        return found


class LoopMeter:
    """The two histograms of one broker, and the log line. `start()` begins the beats, `stop()` ends them."""

    __slots__ = ("_due", "_quiet_until", "_runtime", "_timer", "_unsaid", "late", "turns")

    def __init__(self, runtime: Runtime) -> None:
        self.turns = Histogram()
        self.late = Histogram()
        self._runtime = runtime
        self._timer: Any = None
        self._due = 0.0
        self._quiet_until = 0.0
        self._unsaid = 0

    @property
    def longest_seconds(self) -> float:
        """The longest that the loop was seen held since the start."""
        return max(self.turns.longest, self.late.longest)

    def start(self) -> None:
        """Beat from now on."""
        self._due = self._runtime.monotonic() + BEAT_SECONDS
        self._timer = self._runtime.call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        """No more beats. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def turn_ended(self, seconds: float, slowest_seconds: float, slowest: Callable[[], None] | None) -> None:
        """A turn is over; `slowest` took most of it among what was put off, None when nothing was."""
        turns = self.turns
        if seconds <= BOUNDS_SECONDS[0]:  # nearly all of them: no further call
            turns.total += seconds
            turns.counts[0] += 1
            return
        turns.note(seconds)
        if seconds >= WARN_SECONDS:
            self._warn(
                seconds, f"; the slowest of its work was {_name_of(slowest)}, {slowest_seconds:.3f} s" if slowest else ""
            )

    def _beat(self) -> None:
        now = self._runtime.monotonic()
        late = max(0.0, now - self._due)
        self.late.note(late)
        self._due = now + BEAT_SECONDS
        self._timer = self._runtime.call_later(BEAT_SECONDS, self._beat)
        if late >= WARN_SECONDS:
            self._warn(late, "")

    def _warn(self, seconds: float, why: str) -> None:
        now = self._runtime.monotonic()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more such blocks since the last of these lines)" if self._unsaid else ""
        self._quiet_until, self._unsaid = now + _WARN_EVERY_SECONDS, 0
        text = (
            "the event loop was blocked for %.3f s%s: no client was served meanwhile%s. If it repeats, look for a busy machine"
        )
        _logger.warning(f"{text}, and at pulsar_txn_broker_loop_* in /metrics", seconds, why, more)


def _name_of(work: Callable[[], None]) -> str:
    """Name of a deferred call, with its owner's class."""
    function: Any = work
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__qualname__", repr(function))
    return name if owner is None else f"{name} of {owner!r}"
