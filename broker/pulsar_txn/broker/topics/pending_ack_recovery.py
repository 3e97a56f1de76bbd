"""Recovery of a topic's pending acks: a redo log that cannot be read keeps its subscription from serving, and no other.

Consumers of such a subscription are refused with what is wrong: without the log nobody knows which messages wait for the
decision of a transaction. The log is tried again, later and later, until it can be read or the topic is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.protocols import LedgerError, StorageFailed
from pulsar_txn.wire.errors import WireError

_logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 60.0


class Recoverable(Protocol):
    """Subscription, as far as the recovery asks it. `host`: of its pending acks, None until they are open."""

    failure: Exception | None

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def host(self) -> object | None:
        """The host of its pending acknowledgements; None until they are open."""

    async def open_pending_ack(self) -> None:
        """Open and recover the handle. Raises LedgerError."""

    def open_pending_ack_soon(self) -> None:
        """Open it in the background, unless that is under way."""

    def fail(self, error: Exception) -> None:
        """Refuse consumers with this error."""


SubscriptionT = TypeVar("SubscriptionT", bound=Recoverable)


class PendingAckRecovery(Generic[SubscriptionT]):
    """Opens the pending acks of the subscriptions of one topic. `is_here` tells whether the topic still serves one."""

    def __init__(self, turn: Turn, is_here: Callable[[SubscriptionT], bool]) -> None:
        self._turn = turn
        self._is_here = is_here

    async def open(self, subscription: SubscriptionT) -> None:
        """Open them now, or have consumers refused and try again later. Raises StorageFailed."""
        try:
            await subscription.open_pending_ack()
        except StorageFailed:
            raise
        except (LedgerError, WireError) as error:
            subscription.fail(error)
            self._later(subscription, error, _FIRST_RETRY_SECONDS)

    def _later(self, subscription: SubscriptionT, error: Exception, delay: float) -> None:
        _logger.warning("pending acks of %r are opened again in %s s: %s", subscription.name, delay, error)
        self._turn.runtime.call_later(delay, self._again, subscription, error, delay)

    def _again(self, subscription: SubscriptionT, error: Exception, delay: float) -> None:
        if not self._is_here(subscription):
            return
        if subscription.host is None:
            subscription.open_pending_ack_soon()
            self._later(subscription, error, min(2 * delay, _LAST_RETRY_SECONDS))
        elif subscription.failure is error:  # it was opened since
            subscription.failure = None
