"""The last minute of an instance: the difference between its counts now and those of a minute ago."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import attrs

SECONDS: Final = 60.0


@attrs.frozen
class _Counts:
    received: int
    successes: int
    system_exceptions: int
    user_exceptions: int
    milliseconds: float
    """In `process` altogether."""

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> _Counts:
        calls = stats.get("processed_successfully", 0) + stats.get("user_exceptions", 0)
        return cls(
            stats.get("received", 0),
            stats.get("processed_successfully", 0),
            stats.get("system_exceptions", 0),
            stats.get("user_exceptions", 0),
            stats.get("process_latency_ms", 0.0) * calls,
        )


_NOTHING: Final = _Counts(0, 0, 0, 0, 0.0)


class LastMinute:
    """Noted each second or so. A process that began again counts from nothing."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, _Counts]] = deque()
        self._base = _NOTHING
        """The counts at the beginning of the last minute."""

    def note(self, now: float, stats: Mapping[str, Any]) -> None:
        """Note what a process has counted by `now`."""
        counts = _Counts.of(stats)
        if self._noted and counts.received < self._noted[-1][1].received:
            self._noted.clear()
            self._base = _NOTHING
        self._noted.append((now, counts))
        self._forget(now)

    def figures(self, now: float) -> dict[str, Any]:
        """With Pulsar's names."""
        self._forget(now)
        last, base = self._noted[-1][1] if self._noted else self._base, self._base
        calls = last.successes + last.user_exceptions - base.successes - base.user_exceptions
        return {
            "receivedTotal": last.received - base.received,
            "processedSuccessfullyTotal": last.successes - base.successes,
            "systemExceptionsTotal": last.system_exceptions - base.system_exceptions,
            "userExceptionsTotal": last.user_exceptions - base.user_exceptions,
            "avgProcessLatency": (last.milliseconds - base.milliseconds) / calls if calls else 0.0,
        }

    def _forget(self, now: float) -> None:
        while self._noted and self._noted[0][0] <= now - SECONDS:
            self._base = self._noted.popleft()[1]
