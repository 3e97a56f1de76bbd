"""Workers that have a successor and live on: some of them sleep while it takes over."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from typing import Final

LIVES_ON_SECONDS: Final = 0.7
"""After it was refused for the first time."""
REFUSED_WITHIN_SECONDS: Final = 20.0
"""After its successor has taken over, and it is awake."""


class Zombie:
    """One of them. `slept`: whether it sleeps until its successor has taken over.

    `succeeded()`, `refused()`: whether a successor has taken over, and whether this one was refused since. `end(self)` is
    called when it may go; `in_time` says whether it was refused by then.
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        *,
        slept: bool,
        succeeded: Callable[[], bool],
        refused: Callable[[], bool],
        end: Callable[[Zombie], None],
    ) -> None:
        self.name = name
        self.process = process
        self.slept = slept
        self.in_time = False
        self._succeeded = succeeded
        self._refused = refused
        self._end = end
        self._since: float | None = None
        self._noticed: float | None = None
        if slept:
            process.send_signal(signal.SIGSTOP)

    def step(self) -> bool:
        """Whatever is due; whether it has ended."""
        now = time.monotonic()
        if self._since is None:
            if self._succeeded():
                self._since = now
                self.process.send_signal(signal.SIGCONT)
        elif self._noticed is None:
            if self._refused():
                self._noticed, self.in_time = now, True
            elif now > self._since + REFUSED_WITHIN_SECONDS:
                self._end(self)
                return True
        elif now > self._noticed + LIVES_ON_SECONDS:
            self._end(self)
            return True
        return False
