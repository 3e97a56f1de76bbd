"""Recovery of a topic's pending acks: a redo log that cannot be read keeps its subscription from serving, and no other.

Consumers of such a subscription are refused with what is wrong: without the log nobody knows which messages wait for the
decision of a transaction. The log is tried again, later and later, until it can be read or the topic is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.protocols import LedgerError, StorageFailed
from pulsar_txn.wire.errors import WireError

if TYPE_CHECKING:
    from .subscription import Subscription

_logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 60.0


class PendingAckRecovery:
    """Opens the pending acks of the subscriptions of one topic. `is_here` tells whether the topic still serves one."""

    def __init__(self, turn: Turn, is_here: Callable[[Subscription], bool]) -> None:
        self._turn = turn
        self._is_here = is_here

    async def open(self, subscription: Subscription) -> None:
        """Open them now, or have consumers refused and try again later. Raises StorageFailed."""
        try:
            await subscription.open_pending_ack()
        except StorageFailed:
            raise
        except (LedgerError, WireError) as error:
            subscription.fail(error)
            self._later(subscription, error, _FIRST_RETRY_SECONDS)

    def _later(self, subscription: Subscription, error: Exception, delay: float) -> None:
        _logger.warning("pending acks of %r are opened again in %s s: %s", subscription.name, delay, error)
        self._turn.runtime.call_later(delay, self._again, subscription, error, delay)

    def _again(self, subscription: Subscription, error: Exception, delay: float) -> None:
        if not self._is_here(subscription):
            return
        if subscription.host is None:
            subscription.open_pending_ack_soon()
            self._later(subscription, error, min(2 * delay, _LAST_RETRY_SECONDS))
        elif subscription.failure is error:  # it was opened since
            subscription.failure = None
