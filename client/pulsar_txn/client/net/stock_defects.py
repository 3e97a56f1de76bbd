"""Warns of the defects of stock servers that a client cannot keep its program out of (both seen on 4.0.8 and 4.2.4).

* On a Shared or Key_Shared subscription, the abort of a transaction with individual acknowledgements can deadlock the whole
  broker, when the topic itself was written by transactions.
* A cumulative acknowledgement in a transaction that ends inside a batch is replayed, when the topic is loaded again, as one of
  the whole batch: its other messages are lost.

`docs/stock-pulsar.md` says what to do.
"""

from __future__ import annotations

import logging
import re
from typing import Final

logger = logging.getLogger("pulsar_txn.client.consumer")

_STOCK_VERSION: Final = re.compile(r"Pulsar Server[- ]?(\d+)\.(\d+)\.(\d+)")
_SEEN: Final = (((4, 0, 0), (4, 0, 8)), ((4, 1, 0), (4, 2, 4)))
"""First and last version, each included, of the releases that have these defects."""


def is_defective(server_version: str) -> bool:
    """True if a server that calls itself this is known to have them."""
    match = _STOCK_VERSION.match(server_version)
    if match is None:
        return False
    version = (int(match[1]), int(match[2]), int(match[3]))
    return any(first <= version <= last for first, last in _SEEN)


class DefectWarnings:
    """Says each once for a client."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def _first(self, what: str, server_version: str) -> bool:
        if what in self._said or not is_defective(server_version):
            return False
        self._said.add(what)
        return True

    def on_abort(self, server_version: str, topic: str, subscription: str) -> None:
        """A transaction that had acknowledged messages of a Shared or Key_Shared subscription one by one was aborted."""
        if not self._first("deadlock", server_version):
            return
        logger.warning(
            "%s can deadlock when a transaction with acknowledgements on a Shared or Key_Shared subscription is aborted and "
            "the topic was written by transactions (subscription %r of %s): use Exclusive or Failover for such inputs; see "
            "docs/stock-pulsar.md",
            server_version,
            subscription,
            topic,
        )

    def on_cumulative_in_batch(self, server_version: str, topic: str, subscription: str) -> None:
        """A transaction is about to acknowledge cumulatively up to a message that is not the last one of its batch."""
        if not self._first("cumulative", server_version):
            return
        logger.warning(
            "%s loses the rest of a batch when a cumulative acknowledgement inside of it was committed and the topic is loaded "
            "again (subscription %r of %s): acknowledge a list, or up to the last message of a batch; see docs/stock-pulsar.md",
            server_version,
            subscription,
            topic,
        )
