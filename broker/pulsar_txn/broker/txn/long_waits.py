"""Warnings about transactions that wait for somebody for too long: prepared ones for their end, parked ones for an operator.

Both hold back readers of their topics, and no timeout ends them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.broker.base.turn import Turn

from .coordinators import Coordinators

_logger = logging.getLogger(__name__)

WAITS_SECONDS: Final = 60.0
_KINDS: Final = (
    ("prepared", "prepared_since_ms", "whoever has its token, its check group or an operator has to commit or abort it"),
    ("parked", "parked_since_ms", "nobody knew its outcome; an operator has to commit, abort or resume it"),
)


class LongWaits:
    """`look()` now and then: one line for each coordinator and kind, again when as much time has passed. `after_ms` 0: none."""

    def __init__(self, turn: Turn, coordinators: Callable[[], Coordinators | None], after_ms: int) -> None:
        self._turn = turn
        self._coordinators = coordinators
        self._after_ms = after_ms
        self._warned_ms: dict[tuple[int, str], int] = {}

    async def look(self) -> None:
        """Warn of what waits for too long."""
        coordinators, now_ms = self._coordinators(), self._turn.clock.now_ms()
        if coordinators is None or not self._after_ms:
            return
        for tc_id in coordinators.here:
            host = coordinators.ready(tc_id)
            machine: Any = None if host is None else host.machine
            for kind, since, advice in _KINDS:
                self._look_at(tc_id, kind, getattr(machine, since, ()), advice, now_ms)

    def _look_at(self, tc_id: int, kind: str, since_ms: Any, advice: str, now_ms: int) -> None:
        oldest_ms, key = min(since_ms, default=now_ms), (tc_id, kind)
        if now_ms - oldest_ms < self._after_ms:
            self._warned_ms.pop(key, None)
            return
        if now_ms - self._warned_ms.get(key, 0) >= self._after_ms:
            self._warned_ms[key] = now_ms
            text = "coordinator %d: %d transactions are %s, the first for %d s; readers of its topics wait: %s (%s)"
            listed = f"pulsar-txn transactions list --{kind}"
            _logger.warning(text, tc_id, len(since_ms), kind, (now_ms - oldest_ms) // 1000, advice, listed)
