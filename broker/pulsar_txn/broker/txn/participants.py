"""How a coordinator reaches the participants of its transactions, and they it.

In process now; between brokers END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION go over the wire, behind the same
protocol. Every participant is told until it answers: a topic that cannot be opened keeps only its own transactions waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

from .host import Answer

_logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 0.1
_LAST_RETRY_SECONDS: Final = 10.0
_SETTLED_ERRORS: Final = frozenset({ServerError.TopicNotFound, ServerError.SubscriptionNotFound})
"""A participant that is gone holds nothing of a transaction: it counts as told (Pulsar answers success, too)."""


class Participants(Protocol):
    """Tells participants the outcome of transactions."""

    def tell(self, effect: TellParticipant, done: Callable[[], None]) -> None:
        """Tell one participant until it holds the outcome durably, then call `done` once. Never raises."""


class EndsTransactions(Protocol):
    """What a directory of topics offers to the participants' teller."""

    def end_on_partition(self, topic: str, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer) -> None:
        """End a transaction on a topic partition; opens the topic when it must."""

    def end_on_subscription(
        self, topic: str, subscription: str, txn_id: TxnId, action: TxnAction, low_watermark: int, answer: Answer
    ) -> None:
        """End a transaction on a subscription; opens the topic when it must."""


class InProcessParticipants:
    """All topics are ours: a call each, repeated with back-off while the answer is an error."""

    def __init__(self, turn: Turn, topics: EndsTransactions) -> None:
        self._turn = turn
        self._topics = topics
        self._closed = False

    def tell(self, effect: TellParticipant, done: Callable[[], None]) -> None:
        """See `Participants.tell`."""
        self._tell(effect, done, _FIRST_RETRY_SECONDS)

    def close(self) -> None:
        """Retry nothing any more (the outcome is in the coordinator's log and is told after the next start)."""
        self._closed = True

    def _tell(self, effect: TellParticipant, done: Callable[[], None], delay: float) -> None:
        if self._closed:
            return
        participant = effect.participant
        answer = partial(self._answered, effect, done, delay)
        if participant.subscription is None:
            self._topics.end_on_partition(participant.topic, effect.txn_id, effect.action, effect.low_watermark, answer)
        else:
            self._topics.end_on_subscription(
                participant.topic, participant.subscription, effect.txn_id, effect.action, effect.low_watermark, answer
            )

    def _answered(
        self,
        effect: TellParticipant,
        done: Callable[[], None],
        delay: float,
        value: Any,
        error: ServerError | None,
        message: str,
    ) -> None:
        if error is None or error in _SETTLED_ERRORS:
            done()
        elif error is ServerError.InvalidTxnStatus:
            # The participant settled the other way (a low watermark passed it by): repeating cannot change that.
            _logger.error("%s of %s at %s came too late: %s", effect.action.name, effect.txn_id, effect.participant, message)
            done()
        elif not self._closed:
            _logger.warning("%s of %s at %s is told again: %s", effect.action.name, effect.txn_id, effect.participant, message)
            later = min(2 * delay, _LAST_RETRY_SECONDS)
            self._turn.runtime.call_later(delay, self._tell, effect, done, later)
