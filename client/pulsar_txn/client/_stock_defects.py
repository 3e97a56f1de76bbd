"""Warns of the one defect of stock servers that a client cannot keep its program out of.

On a Shared or Key_Shared subscription, the abort of a transaction with individual acknowledgements can deadlock the whole
broker, when the topic itself was written by transactions (seen on 4.0.8 and 4.2.4). `docs/stock-pulsar.md` says what to do.
"""

from __future__ import annotations

import logging
import re
from typing import Final

logger = logging.getLogger("pulsar_txn.client.consumer")

_STOCK_VERSION: Final = re.compile(r"Pulsar Server[- ]?(\d+)\.(\d+)\.(\d+)")
_DEADLOCKS: Final = (((4, 0, 0), (4, 0, 8)), ((4, 1, 0), (4, 2, 4)))
"""First and last version, each included, of the releases that have the lock order of the deadlock."""


def can_deadlock(server_version: str) -> bool:
    """Whether a server that calls itself this is known to have the deadlock."""
    match = _STOCK_VERSION.match(server_version)
    if match is None:
        return False
    version = (int(match[1]), int(match[2]), int(match[3]))
    return any(first <= version <= last for first, last in _DEADLOCKS)


class DeadlockWarning:
    """Says it once for a client."""

    def __init__(self) -> None:
        self._said = False

    def on_abort(self, server_version: str, topic: str, subscription: str) -> None:
        """A transaction that had acknowledged messages of a Shared or Key_Shared subscription one by one was aborted."""
        if self._said or not can_deadlock(server_version):
            return
        self._said = True
        logger.warning(
            "%s can deadlock when a transaction with acknowledgements on a Shared or Key_Shared subscription is aborted and "
            "the topic was written by transactions (subscription %r of %s): use Exclusive or Failover for such inputs; see "
            "docs/stock-pulsar.md",
            server_version,
            subscription,
            topic,
        )
