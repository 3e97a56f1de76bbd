"""Who is told of the transactions of a client: observers that programs add, the log, and the counters of `client.stats()`.

An observer is any object with some of the methods of `TransactionObserver`. They are called on the loop, in the order of
what happens, and must not wait; the sync client tells them a moment later, on a thread for that. An exception in one is
logged, and neither the transaction nor the other observers notice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.wire.ids import TxnAction, TxnId

if TYPE_CHECKING:
    from pulsar_txn.client.txn.transaction import AsyncTransaction

logger = logging.getLogger("pulsar_txn.client.txn")

_LEVELS: Final = {TransactionState.UNKNOWN: logging.WARNING, TransactionState.ERROR: logging.WARNING}


class TransactionObserver:
    """What an observer can be told; a base with methods that do nothing, which nobody has to derive from."""

    def txn_opened(self, txn: AsyncTransaction) -> None:
        """The coordinator gave it an id."""

    def txn_registered(self, txn: AsyncTransaction, targets: Sequence[tuple[str, str | None]]) -> None:
        """Targets were registered together: topic partitions as (topic, None), or (topic, subscription)."""

    def txn_doomed(self, txn: AsyncTransaction, error: BaseException) -> None:
        """Its first operation failed: it can only be aborted."""

    def txn_ending(self, txn: AsyncTransaction, action: TxnAction) -> None:
        """A commit or an abort has begun: first the operations under way are waited for."""

    def txn_ended(self, txn: AsyncTransaction) -> None:
        """`txn.state` says how: COMMITTED, ABORTED or ERROR; or TIMED_OUT or UNKNOWN, which another call may follow."""


@attrs.frozen
class TransactionCounts:
    """The transactions of a client since it was made; `open` are those of now, by state.

    `unknown` are those whose outcome is not known to this day; `doomed` ones were aborted, or will be.
    """

    begun: int
    committed: int
    aborted: int
    unknown: int
    doomed: int
    open: dict[TransactionState, int]


class Observers:
    """Tells all observers, writes the log, and counts."""

    def __init__(self) -> None:
        self._observers: list[Any] = []
        self._begun = self._doomed = 0
        self._ends = dict.fromkeys(TransactionState, 0)
        self._unknown: set[TxnId | None] = set()

    def add(self, observer: object) -> None:
        """From now on; a second time changes nothing."""
        if observer not in self._observers:
            self._observers.append(observer)

    def remove(self, observer: object) -> None:
        """No longer; no effect when it was not added."""
        if observer in self._observers:
            self._observers.remove(observer)

    def opened(self, txn: AsyncTransaction) -> None:
        """See `TransactionObserver`, here and below."""
        self._begun += 1
        self._log(logging.DEBUG, "transaction %s was opened", txn)
        self._tell("txn_opened", txn)

    def registered(self, txn: AsyncTransaction, targets: Sequence[tuple[str, str | None]]) -> None:
        """Targets were registered."""
        self._tell("txn_registered", txn, targets)

    def doomed(self, txn: AsyncTransaction, error: BaseException) -> None:
        """The first failure."""
        self._doomed += 1
        self._log(logging.DEBUG, "transaction %s is doomed: %s", txn, error)
        self._tell("txn_doomed", txn, error)

    def ending(self, txn: AsyncTransaction, action: TxnAction) -> None:
        """An end has begun."""
        self._tell("txn_ending", txn, action)

    def ended(self, txn: AsyncTransaction) -> None:
        """It has reached a state in which nothing more can be done with it."""
        if txn.state is TransactionState.UNKNOWN:
            self._unknown.add(txn.id)
        else:
            self._unknown.discard(txn.id)
            self._ends[txn.state] += 1
        level = _LEVELS.get(txn.state, logging.DEBUG)
        self._log(level, "transaction %s has ended: %s", txn, txn.state.value)
        self._tell("txn_ended", txn)

    def counts(self, transactions: Sequence[AsyncTransaction]) -> TransactionCounts:
        """The counters, with the given transactions as those that are open."""
        states = [txn.state for txn in transactions]
        return TransactionCounts(
            begun=self._begun,
            committed=self._ends[TransactionState.COMMITTED],
            aborted=self._ends[TransactionState.ABORTED],
            unknown=len(self._unknown),
            doomed=self._doomed,
            open={state: states.count(state) for state in TransactionState if state in states},
        )

    def _log(self, level: int, text: str, txn: AsyncTransaction, *rest: object) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, text, txn.id, *rest, extra={"txn_id": str(txn.id), "state": txn.state.value})

    def _tell(self, method: str, txn: AsyncTransaction, *arguments: object) -> None:
        for observer in list(self._observers):
            call = getattr(observer, method, None)
            if call is not None:
                try:
                    call(txn, *arguments)
                except Exception:  # an observer must not break what it observes
                    logger.exception(
                        "%s of %r failed", method, observer, extra={"txn_id": str(txn.id), "state": txn.state.value}
                    )
