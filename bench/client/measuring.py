"""What the Python drivers share: the counted part of a run, its CPU, and the line of JSON that is its result."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any


def cpu_seconds() -> float:
    """User and system time of this process, of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def topic_name(what: str) -> str:
    """A topic that nobody else uses."""
    return f"persistent://public/default/bench-client-{what}-{time.time_ns()}"


class Part:
    """A counted part: seconds and CPU from its beginning to `end`."""

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self.began = time.perf_counter()

    def end(self, count: int, **more: Any) -> dict[str, Any]:
        """What it cost to do something so many times."""
        return {"count": count, "seconds": time.perf_counter() - self.began, "cpu": cpu_seconds() - self._cpu} | more


def tell(result: dict[str, Any]) -> None:
    """The result, on a line of its own."""
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    sys.stdout.flush()


def asked() -> Iterator[int]:
    """Of a driver that is told when it is its turn: how many sends are wanted, as often as somebody asks on standard input."""
    for line in sys.stdin:
        yield int(line)


class Turn:
    """Collects what one turn of such a driver took."""

    def __init__(self) -> None:
        self._part, self._times = Part(), list[float]()

    def took(self, seconds: float) -> None:
        """One send."""
        self._times.append(seconds * 1e3)

    def end(self) -> None:
        """Tell it."""
        tell(self._part.end(len(self._times), latencies_ms=self._times))


def send_in_turns(send: Callable[[], object]) -> None:
    """All turns of a driver whose sends block."""
    for count in asked():
        turn = Turn()
        for _ in range(count):
            began = time.perf_counter()
            send()
            turn.took(time.perf_counter() - began)
        turn.end()
