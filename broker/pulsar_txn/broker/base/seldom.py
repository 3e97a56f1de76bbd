"""Log lines that come seldom, however often their reason does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_AT_ONCE: Final = 10
_SECONDS: Final = 60.0


class Seldom:
    """Lets a line out ten times a minute for each key, and counts the others. For few keys."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._since: dict[str, tuple[float, int]] = {}
        self._passed: dict[str, int] = {}

    def passed(self, key: str) -> int | None:
        """None: no line now. Otherwise how many were passed over since the last one."""
        now = self._seconds()
        since, count = self._since.get(key, (now, 0))
        if now - since >= _SECONDS:
            since, count = now, 0
        self._since[key] = (since, count + 1)
        if count >= _AT_ONCE:
            self._passed[key] = self._passed.get(key, 0) + 1
            return None
        return self._passed.pop(key, 0)
