"""How long the demo waits: as long as something moves. A busy machine gets the time that it needs; what stands still ends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from processes import DemoFailedError, processes_below

_STILL_SECONDS: Final = 300.0
"""So long nothing may move, when the processes could work."""
_WORKED_SECONDS: Final = 300.0
"""CPU time in which something should have moved."""
_IDLE_SECONDS: Final = 3.0
"""CPU time of processes that want none: they wait for something that does not come."""
_LOOK_SECONDS: Final = 1.0


def cpu_seconds() -> float | None:
    """The CPU time of this program and all below it, with that of children that have ended; None where nobody tells."""
    ticks = 0
    for pid in (os.getpid(), *(pid for pid, _ in processes_below(os.getpid()))):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += sum(int(each) for each in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


class Patience:
    """Watches signs of progress; any change of them starts it anew."""

    def __init__(
        self,
        signs: Callable[[], Any],
        now: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float | None] = cpu_seconds,
    ) -> None:
        self._signs, self._now, self._cpu = signs, now, cpu
        self._seen: Any = None
        self._since = now()
        self._looked = -_LOOK_SECONDS
        self._cpu_then = cpu()

    @property
    def still_seconds(self) -> float:
        """How long nothing has moved."""
        return self._now() - self._since

    def is_over(self) -> bool:
        """Whether nothing has moved for long, although the processes had the CPU, or wanted none."""
        if self._now() - self._looked < _LOOK_SECONDS:
            return False
        self._looked = self._now()
        seen = self._signs()
        if seen != self._seen:
            self._seen, self._since, self._cpu_then = seen, self._now(), self._cpu()
        if self.still_seconds < _STILL_SECONDS:
            return False
        cpu = self._cpu()
        if cpu is None or self._cpu_then is None:
            return True
        return not _IDLE_SECONDS < cpu - self._cpu_then < _WORKED_SECONDS

    async def until(self, holds: Callable[[], bool], what: Callable[[], str], poll_seconds: float) -> None:
        """Wait until something holds. DemoFailedError when patience is over, with what was waited for."""
        while not holds():
            if self.is_over():
                raise DemoFailedError(f"{what()}: nothing has moved for {self.still_seconds:.0f} s")
            await asyncio.sleep(poll_seconds)
