"""Watch over whether the storage still answers: a disk that hangs fails nothing, and confirms nothing either.

It decides when a wait is too long, and says so once, in the log and to whoever asks about health. It never ends anything: what
hangs may go on.
"""

from __future__ import annotations

import logging
from typing import Final

from pulsar_txn.ledger.protocols import LogStore

from .runtime import Runtime

_logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
_GAP_SECONDS: Final = 5.0
"""Between two looks: after more, this process stood still itself, and knows nothing of the disk."""


class StorageWatch:
    """`look()` every second. `seconds`: what may wait so long without any confirmation (0: for ever)."""

    def __init__(self, store: LogStore, runtime: Runtime, seconds: float) -> None:
        self._store = store
        self._runtime = runtime
        self._most = seconds
        self._seen: object | None = None
        self._since = self._looked = runtime.monotonic()
        self._told = False

    @property
    def stalled_seconds(self) -> float:
        """For how long something waits, and nothing was confirmed; 0 when nothing waits."""
        seen, now = self._store.progress, self._runtime.monotonic()
        if seen is None or seen != self._seen or now - self._looked > _GAP_SECONDS:
            self._seen, self._since = seen, now
        self._looked = now
        return now - self._since

    def complaint(self) -> str | None:
        """Complaint about what is wrong, as a sentence; None while all is well.

        The log hears of each change, whoever notices it first.
        """
        seconds = self.stalled_seconds
        stalls = 0 < self._most <= seconds
        text = f"the storage has confirmed nothing for {seconds:.0f} s, and writes wait for it (storageStallTimeoutInSeconds)"
        if stalls and not self._told:
            _logger.error("%s; nothing is answered until the disk goes on: check it", text)
        elif self._told and not stalls:
            _logger.warning("the storage confirms writes again")
        self._told = stalls
        return text if stalls else None

    async def look(self) -> None:
        """Notice what nobody asks about."""
        self.complaint()
