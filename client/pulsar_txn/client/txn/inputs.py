"""The input of a transaction: what was received in it, is acknowledged by its commit and comes again when it aborts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from pulsar_txn.client.txn.enlist import Input


class Inputs:
    """The inputs that have joined one transaction."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.looked_for = False
        """Whether the program has asked for input in the transaction, also when none came."""
        self._failed = failed
        self._joined: dict[Input, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._joined)

    def join(self, joining: Input) -> None:
        """It belongs to the transaction from now on."""
        self.looked_for = True
        self._joined[joining] = None
        self._loop = asyncio.get_running_loop()

    def acknowledge(self) -> None:
        """The commit begins: have everything acknowledged in the transaction."""
        for each in list(self._joined):
            try:
                each.acknowledge()
            except Exception as error:  # noqa: BLE001 - nothing of the unit may be committed without its input
                self._failed(error)

    def bring_back(self) -> None:
        """The transaction cannot be committed any more: what was not acknowledged in it comes again."""
        joined, self._joined = self._joined, {}
        for each in joined:
            each.bring_back()

    def settled(self) -> None:
        """The commit took effect."""
        self._joined.clear()

    def dropped(self) -> None:
        """Nobody has the transaction any more, and nobody ended it. Safe in any thread, as the collector needs it."""
        if self._joined and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # a loop that is closed delivers nothing again
                self._loop.call_soon_threadsafe(self.bring_back)
