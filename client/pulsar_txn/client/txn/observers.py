"""A frozen picture of a transaction with its counters and times, and the observers of a client's transactions.

Observers are those that programs add, the log, and the counters of `client.stats()`. One of a program is any object with some
of the methods of `TransactionObserver`. They are called on the loop, in the order of what happens, and must not wait; the
blocking client tells them a moment later, on a thread for that. An exception in one is logged; it affects neither the
transaction nor the other observers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

import attrs

from pulsar_txn.client.state.transaction import State, TransactionMachine, TransactionState
from pulsar_txn.wire.ids import TxnAction, TxnId

if TYPE_CHECKING:
    from pulsar_txn.client.txn.transaction import AsyncTransaction


@attrs.frozen
class PartitionStats:
    """Counters of a transaction at one topic partition: messages started, receipted, failed, and bytes."""

    topic: str
    registered: bool
    sent: int
    confirmed: int
    failed: int
    bytes: int


@attrs.frozen
class SubscriptionStats:
    """Counters of a transaction at one subscription: messages acknowledged (started), confirmed, failed."""

    topic: str
    subscription: str
    registered: bool
    acked: int
    confirmed: int
    failed: int
    cumulative: bool


@attrs.frozen
class Phases:
    """Milliseconds that a transaction has spent so far, by phase.

    `begin`: NEW_TXN. `register`: the registrations, one after another or at once, added up. `send`: while at least one
    operation was under way. `wait_ops`: between the call of the end and the last operation's answer. `end`: END_TXN.
    """

    begin: float = 0.0
    register: float = 0.0
    send: float = 0.0
    wait_ops: float = 0.0
    end: float = 0.0


@attrs.frozen
class TransactionStats:
    """A transaction at a moment. Counters of operations are messages.

    `opened_at` is on the clock of `loop.time()`, None before NEW_TXN was answered. `retries`: requests to the coordinator
    that were sent again. `coordinator_endpoint`: `host:port` of the broker that answered the last of them.
    """

    id: TxnId | None
    name: str | None
    state: TransactionState
    opened_at: float | None
    age_ms: int
    partitions: tuple[PartitionStats, ...]
    subscriptions: tuple[SubscriptionStats, ...]
    sends_in_flight: int
    acks_in_flight: int
    doomed: bool
    doom_cause: BaseException | None
    phases: Phases
    retries: int
    coordinator_id: int | None
    coordinator_endpoint: str | None

    @property
    def operations_in_flight(self) -> int:
        """Sends and acknowledgements under way."""
        return self.sends_in_flight + self.acks_in_flight


logger = logging.getLogger("pulsar_txn.client.txn")

_LEVELS: Final = {TransactionState.UNKNOWN: logging.WARNING, TransactionState.ERROR: logging.WARNING}


class TransactionObserver:
    """The events of transactions. An observer has some of these methods; it may derive from this class, but need not."""

    def txn_opened(self, txn: AsyncTransaction) -> None:
        """The coordinator gave the transaction its id."""

    def txn_registered(self, txn: AsyncTransaction, targets: Sequence[tuple[str, str | None]]) -> None:
        """Targets were registered together: topic partitions as (topic, None), or (topic, subscription)."""

    def txn_doomed(self, txn: AsyncTransaction, error: BaseException) -> None:
        """An operation of the transaction failed, for the first time: it can only be aborted."""

    def txn_ending(self, txn: AsyncTransaction, action: TxnAction) -> None:
        """A commit or an abort has begun: first the operations under way are waited for."""

    def txn_ended(self, txn: AsyncTransaction) -> None:
        """`txn.state` says how: COMMITTED, ABORTED or ERROR; or TIMED_OUT or UNKNOWN, which another call may follow."""


@attrs.frozen
class TransactionCounts:
    """The transactions of a client since it was made; `open` are those of now, by state.

    `unknown` are those whose outcome this client does not know to this day, also because it was left to a check group;
    `doomed` ones were aborted, or will be.
    """

    begun: int
    committed: int
    aborted: int
    unknown: int
    doomed: int
    open: dict[TransactionState, int]


class Observed(Protocol):
    """Transaction of a program, whose machine the log and the counters read."""

    machine: TransactionMachine


U = TypeVar("U", bound=Observed)


class Observers(Generic[U]):
    """Tells all observers, writes the log, and counts. `show(unit)` is what observers of the program are given."""

    def __init__(self, show: Callable[[U], AsyncTransaction]) -> None:
        self._show = show
        self._observers: list[Any] = []
        self._begun = self._doomed = 0
        self._ends = dict.fromkeys(TransactionState, 0)
        self._unknown: set[TxnId | None] = set()
        self._left: WeakSet[U] = WeakSet()
        self._left_count = 0

    def add(self, observer: object) -> None:
        """From now on; a second time changes nothing."""
        if observer not in self._observers:
            self._observers.append(observer)

    def remove(self, observer: object) -> None:
        """No longer; no effect when it was not added."""
        if observer in self._observers:
            self._observers.remove(observer)

    def opened(self, unit: U) -> None:
        """See `TransactionObserver`, here and below."""
        self._begun += 1
        self._log(logging.DEBUG, "transaction %s was opened", unit)
        self._tell("txn_opened", unit)

    def registered(self, unit: U, targets: Sequence[tuple[str, str | None]]) -> None:
        """Targets were registered."""
        self._tell("txn_registered", unit, targets)

    def doomed(self, unit: U, error: BaseException) -> None:
        """The first failure."""
        self._doomed += 1
        self._log(logging.DEBUG, "transaction %s is doomed: %s", unit, error)
        self._tell("txn_doomed", unit, error)

    def ending(self, unit: U, action: TxnAction) -> None:
        """An end has begun."""
        self._tell("txn_ending", unit, action)

    def ended(self, unit: U) -> None:
        """Note that nothing more can be done with it for now."""
        machine, state = unit.machine, unit.machine.shown
        is_left = machine.state is State.LEFT
        if state is not TransactionState.UNKNOWN:
            self._unknown.discard(machine.id)
            self._left_count -= unit in self._left
            self._left.discard(unit)
            self._ends[state] += 1
        elif not is_left:
            self._unknown.add(machine.id)
        elif unit not in self._left:  # counted: a client may leave very many, of which it never hears again
            self._left.add(unit)
            self._left_count += 1
        level = logging.DEBUG if is_left else _LEVELS.get(state, logging.DEBUG)
        self._log(level, "transaction %s has ended: %s", unit, state.value)
        self._tell("txn_ended", unit)

    def counts(self, units: Sequence[U]) -> TransactionCounts:
        """The counters, with the given units as those that are open."""
        states = [unit.machine.shown for unit in units]
        return TransactionCounts(
            begun=self._begun,
            committed=self._ends[TransactionState.COMMITTED],
            aborted=self._ends[TransactionState.ABORTED],
            unknown=len(self._unknown) + self._left_count,
            doomed=self._doomed,
            open={state: states.count(state) for state in TransactionState if state in states},
        )

    def _log(self, level: int, text: str, unit: U, *rest: object) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, text, unit.machine.id, *rest, extra=_extra(unit))

    def _tell(self, method: str, unit: U, *arguments: object) -> None:
        if not self._observers:
            return
        txn = self._show(unit)
        for observer in list(self._observers):
            call = getattr(observer, method, None)
            if call is not None:
                try:
                    call(txn, *arguments)
                except Exception:  # an observer must not break what it observes
                    logger.exception("%s of %r failed", method, observer, extra=_extra(unit))


def _extra(unit: Observed) -> dict[str, str]:
    return {"txn_id": str(unit.machine.id), "state": unit.machine.shown.value}
