"""Way of a coordinator to the participants of its transactions, and of them to it.

In process now; between brokers END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION go over the wire, after the same
protocol. Every participant is told until it answers: a topic that cannot be opened keeps only its own transactions waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.ledger.hosting import Answer
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import LANE_BIT, Participant, TxnId

_logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 0.1
_LAST_RETRY_SECONDS: Final = 10.0
_SETTLED_ERRORS: Final = frozenset({ServerError.TopicNotFound, ServerError.SubscriptionNotFound})
"""A participant that is gone holds nothing of a transaction: it counts as told (Pulsar answers success as well)."""


class Participants(Protocol):
    """Tells participants the outcome of transactions."""

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None]) -> None:
        """Tell one participant until it holds the outcome durably, then call `told(txn_id)` once. Never raises."""


class Registrations(Protocol):
    """The coordinators, as all participants ask them; see `ledger.hosting.Registration`."""

    def knows(self, txn_id: TxnId, participant: Participant) -> bool:
        """True: the transaction is open, and the participant is durably registered in it."""

    def ask(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """For whoever is not known at once."""


class NoRegistrations:
    """A broker without coordinators."""

    def knows(self, txn_id: TxnId, participant: Participant) -> bool:
        """Nothing is registered."""
        return False

    def ask(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """Nothing is registered."""
        answer(False)


def is_external(txn_id: TxnId) -> bool:
    """True if a coordinator beside this broker gave the id."""
    return txn_id.most > 0 and bool(txn_id.most & LANE_BIT) and txn_id.least >= 0


class WithExternal:
    """The registrations of a broker that has other coordinators beside it: theirs are not known here, and so are all believed.

    A transaction of theirs that nobody ends holds its topics back, as on stock Pulsar: no timeout of it runs here. What is
    sent after its end is refused by the low watermark that came with the end.
    """

    def __init__(self, own: Registrations) -> None:
        self._own = own

    def knows(self, txn_id: TxnId, participant: Participant) -> bool:
        """See `Registrations.knows`."""
        return is_external(txn_id) or self._own.knows(txn_id, participant)

    def ask(self, txn_id: TxnId, participant: Participant, answer: Callable[[bool | None], None]) -> None:
        """See `Registrations.ask`."""
        if is_external(txn_id):
            answer(True)
        else:
            self._own.ask(txn_id, participant, answer)


class RegistrationOf:
    """The registrations of one participant."""

    __slots__ = ("_all", "_participant", "_turn", "knows")

    def __init__(self, registrations: Registrations, participant: Participant, turn: Turn) -> None:
        self._all = registrations
        self._participant = participant
        self._turn = turn
        self.knows: Callable[[TxnId], bool] = partial(registrations.knows, participant=participant)

    def ask(self, txn_id: TxnId, answer: Callable[[bool | None], None]) -> None:
        """See `Registrations.ask`; it is asked at the end of the turn."""
        self._turn.defer(partial(self._all.ask, txn_id, self._participant, answer))


class InProcessParticipants:
    """All topics are ours: a call of `end` for each, at the end of the turn, with back-off while the answer is an error."""

    def __init__(self, turn: Turn, end: Callable[[TellParticipant, Answer], None]) -> None:
        self._turn = turn
        self._end = end
        self._closed = False

    def tell(self, effect: TellParticipant, told: Callable[[TxnId], None], retry_seconds: float = _FIRST_RETRY_SECONDS) -> None:
        """See `Participants.tell`. `retry_seconds`: when it is told again, if it does not take the outcome now."""
        if not self._closed:
            self._turn.defer(partial(self._end, effect, partial(self._answered, effect, told, retry_seconds)))

    def close(self) -> None:
        """Retry nothing any more (the outcome is in the coordinator's log and is told after the next start)."""
        self._closed = True

    def _answered(
        self,
        effect: TellParticipant,
        told: Callable[[TxnId], None],
        retry_seconds: float,
        value: Any,
        error: ServerError | None,
        message: str,
    ) -> None:
        if error is None or error in _SETTLED_ERRORS:
            self._turn.defer(partial(told, effect.txn_id))
        elif error is ServerError.InvalidTxnStatus:
            # The participant settled the other way (a low watermark passed it by): repeating cannot change that.
            text = "%s of %s at %s is refused, because it has ended there the other way: %s; look with pulsar-txn doctor"
            _logger.error(text, effect.action.name, effect.txn_id, effect.participant, message)
            self._turn.defer(partial(told, effect.txn_id))
        elif not self._closed:
            _logger.warning("%s of %s at %s is repeated: %s", effect.action.name, effect.txn_id, effect.participant, message)
            later = min(2 * retry_seconds, _LAST_RETRY_SECONDS)
            self._turn.runtime.call_later(retry_seconds, self.tell, effect, told, later)
