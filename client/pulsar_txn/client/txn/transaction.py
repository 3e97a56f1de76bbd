"""A transaction as a program holds it: what is enlisted, what failed, how it ends.

    NOT_STARTED ─first operation─► OPEN ─commit─► COMMITTING ─► COMMITTED
    (lazy only)                     │ │               │  ├────► ABORTED     an operation failed, or it was ended already
                                    │ │               │  └────► UNKNOWN     END_TXN may have worked, its answer is lost
                                    │ └─abort─────► ABORTING ──► ABORTED
                                    └─deadline────► TIMED_OUT ─► ABORTED    (the coordinator aborts it, too)

Rules that the code below keeps, in order of importance:

* A commit that is on its way belongs to the transaction, not to its caller: cancelling the caller does not cancel it.
* An operation that failed dooms the transaction, whether or not somebody looked at the error: part of a unit is never
  committed.
* `CommitOutcomeUnknown` is raised only when END_TXN may have reached the coordinator.
* Operations are registered with the coordinator before they leave (ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN), once per
  target, and those asked for in one turn of the loop travel together.

Sources: PIP-31; the protocol's transaction commands 50 to 57; the coordinator's status machine for which answer says what.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.txn.ending import ABORT_WAIT_SECONDS, FINAL, OUTCOMES, USABLE, Ending, TransactionOptions
from pulsar_txn.client.txn.enlist import Flushable, SendCounter, WhenEnded
from pulsar_txn.client.txn.observers import Observers
from pulsar_txn.client.txn.registrar import CoordinatorSessions, Registrar, Target
from pulsar_txn.client.txn.stats import (
    PartitionStats,
    Phases,
    SubscriptionStats,
    TransactionState,
    TransactionStats,
)
from pulsar_txn.wire.ids import MessageId, TxnAction, TxnId

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import Acknowledged, AsyncConsumer
    from pulsar_txn.client.send.producer import AsyncProducer

T = TypeVar("T")


class Rollback(Exception):  # noqa: N818 - control flow, not an error
    """Raised by `Transaction.rollback()`; the managed block of its transaction swallows it after the abort."""

    def __init__(self, txn: AsyncTransaction) -> None:
        super().__init__(f"rollback of {txn!r}")
        self.txn = txn


class AsyncTransaction(Ending):
    """A unit of sends and acknowledgements that takes effect as a whole or not at all. Not thread-safe.

    Made by `client.transaction()`, `client.begin_transaction()` or `client.attach_transaction()`.
    """

    def __init__(
        self,
        core: object,
        coordinators: CoordinatorSessions,
        options: TransactionOptions,
        *,
        operation_timeout: float,
        monotonic: Callable[[], float],
        txn_id: TxnId | None = None,
        on_end: Callable[[AsyncTransaction], None] = lambda _txn: None,
        observers: Observers | None = None,
    ) -> None:
        super().__init__(coordinators, options, monotonic, operation_timeout=operation_timeout, txn_id=txn_id)
        self._core = core
        self._opened_at = monotonic()
        self._seconds_begin = 0.0
        self._observers = Observers() if observers is None else observers
        self._registrar = Registrar(self.open, coordinators, self._tally, monotonic, self._note_registered)
        self._end_callbacks.append(lambda _outcome: on_end(self))

    def belongs_to(self, core: object) -> bool:
        """From any thread: whether `core` is that of its client."""
        return core is self._core

    # --- looking at it --------------------------------------------------------------------------------------------

    @property
    def id(self) -> TxnId | None:
        """The transaction's id; None only while a lazily opened one has no operation yet."""
        return self._id

    @property
    def name(self) -> str | None:
        """The name it was given, for logs and statistics."""
        return self._options.name

    @property
    def state(self) -> TransactionState:
        """Where it stands, as far as this client knows."""
        return self._state

    @property
    def doomed(self) -> bool:
        """Whether an operation failed, so that it can only be aborted."""
        return bool(self._failures)

    @property
    def doom_cause(self) -> BaseException | None:
        """The first failure."""
        return self._failures[0] if self._failures else None

    @property
    def deadline(self) -> float | None:
        """When operations are refused, on the clock of `loop.time()`; None as `remaining`."""
        return self._deadline

    @property
    def remaining(self) -> float | None:
        """Seconds until operations are refused; None for a transaction begun elsewhere or not begun yet."""
        return None if self._deadline is None else self._deadline - self._monotonic()

    def stats(self) -> TransactionStats:
        """A frozen picture of the transaction."""
        targets = self._operations.targets
        sends = [each for each in targets if each.subscription is None]
        acks = [each for each in targets if each.subscription is not None]
        return TransactionStats(
            id=self._id,
            name=self.name,
            state=self._state,
            opened_at=None if self._id is None else self._opened_at,
            age_ms=int(((self._ended_at or self._monotonic()) - self._opened_at) * 1000),
            partitions=tuple(each.partition_stats() for each in sends),
            subscriptions=tuple(each.subscription_stats() for each in acks),
            sends_in_flight=sum(each.in_flight for each in sends),
            acks_in_flight=sum(each.in_flight for each in acks),
            doomed=self.doomed,
            doom_cause=self.doom_cause,
            phases=self._phases(),
            retries=self._tally.retries,
            coordinator_id=None if self._id is None else self._id.most,
            coordinator_endpoint=self._tally.endpoint,
        )

    def _phases(self) -> Phases:
        work = self._operations
        seconds = (self._seconds_begin, self._registrar.seconds, work.seconds_busy, work.seconds_waited, self._seconds_end)
        return Phases(*(each * 1000 for each in seconds))

    def __repr__(self) -> str:
        targets = self._operations.targets
        topics = sum(each.subscription is None for each in targets)
        left = "" if self.remaining is None or self._state not in USABLE else f" {self.remaining:.1f}s left"
        label = f" {self.name!r}" if self.name else ""
        counts = f"{topics} topics {len(targets) - topics} subscriptions"
        return f"<Transaction {self._id or '(not begun)'}{label} {self._state.value} {counts}{left}>"

    def __del__(self) -> None:
        if self._state is TransactionState.OPEN and self._deadline is not None:
            # Not repr(): it asks the loop for the time, and the collector may run where no loop is.
            text = f"transaction {self._id} was never ended; its coordinator aborts it at its timeout"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    # --- using it -----------------------------------------------------------------------------------------------------

    async def send(self, producer: AsyncProducer[T], value: T | None, **options: Any) -> MessageId:
        """`producer.send(value, txn=self, **options)`."""
        return await producer.send(value, txn=self, **options)

    async def acknowledge(self, consumer: AsyncConsumer[Any], message: Acknowledged | Sequence[Acknowledged]) -> None:
        """`consumer.acknowledge(message, txn=self)`."""
        await consumer.acknowledge(message, txn=self)

    def savepoint(self) -> NoReturn:
        """Refused with TransactionStateError: Pulsar has no savepoints."""
        raise TransactionStateError(
            "Pulsar has no savepoints: a transaction takes effect as a whole or not at all",
            txn_id=self._id,
            hint="use several transactions; one inside another is a second, independent one",
        )

    def rollback(self) -> NoReturn:
        """Leave the managed block at once, quietly, with an abort. TransactionStateError where there is no block."""
        if not self._options.managed:
            raise TransactionStateError(
                "rollback() leaves a managed block, and this transaction has none", txn_id=self._id, hint="call txn.abort()"
            )
        raise Rollback(self)

    # --- opening --------------------------------------------------------------------------------------------------

    async def open(self) -> TxnId:
        """NEW_TXN, unless that was done; concurrent callers share one request. If cancelled: the request goes on."""
        if self._id is not None:
            return self._id
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> TxnId:
        before = self._monotonic()
        timeout = self._options.timeout
        self._id = await self._coordinators.new_txn(int(timeout * 1000), tally=self._tally)
        self._opened_at = before
        self._seconds_begin = self._monotonic() - before
        self._deadline = before + timeout - min(1.0, timeout * 0.05)
        if self._state is TransactionState.NOT_STARTED:
            self._state = TransactionState.OPEN
        delay = self._deadline - self._monotonic()
        # Weakly: a transaction that the program dropped is to be collected, which warns.
        when_late = weakref.WeakMethod(self._time_out)
        self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), _call, when_late)
        self._observers.opened(self)
        return self._id

    def _time_out(self) -> None:
        if self._state is TransactionState.OPEN:
            self._set_state(TransactionState.TIMED_OUT)

    # --- what producers and consumers call (see _enlist) ------------------------------------------------------------

    def enlist_send(
        self, core: object, topic: str, messages: int, size: int, flushable: Flushable
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start sends; see `_enlist.Enlisting`."""
        self._check_usable(core)
        target = self._operations.start(topic, None, messages, flushable)
        target.bytes += size
        return self._registrar.registration(target)

    def sends_to(self, topic: str) -> SendCounter:
        """See `_enlist.Enlisting`."""
        return self._operations.sends_to(topic)

    def enlist_ack(
        self, core: object, topic: str, subscription: str, messages: int, *, cumulative: bool
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start acknowledgements; see `_enlist.Enlisting`."""
        self._check_usable(core)
        target = self._operations.start(topic, subscription, messages)
        target.cumulative |= cumulative
        return self._registrar.registration(target)

    def send_finished(self, topic: str, messages: int, error: BaseException | None) -> None:
        """Sends have their receipt, or failed."""
        self._operations.finish(topic, None, messages, error)

    def ack_finished(self, topic: str, subscription: str, messages: int, error: BaseException | None) -> None:
        """Acknowledgements are answered, or failed."""
        self._operations.finish(topic, subscription, messages, error)

    def when_ended(self, callback: WhenEnded) -> None:
        """Call back when it can no longer be used, and when its outcome is known; see `_enlist.Enlisting`."""
        if self._told_ended:
            asyncio.get_running_loop().call_soon(callback, OUTCOMES.get(self._state))
        if self._state not in FINAL:
            self._end_callbacks.append(callback)

    def in_time(self) -> bool:
        """Whether its time is not over; looks at the clock, because a program that computes holds up the timer."""
        if self._aborts:
            return False
        if self._deadline is None or self._monotonic() < self._deadline:
            return True
        self._time_out()
        return False

    def _check_usable(self, core: object) -> None:
        if core is not self._core:
            raise TransactionStateError(
                "this transaction belongs to another client",
                txn_id=self._id,
                hint="use producers and consumers of the client that began it",
            )
        if self._state in USABLE and self.in_time():
            return
        if self._state is TransactionState.TIMED_OUT:
            raise self._timed_out()
        raise TransactionStateError(
            f"the transaction is {self._state.value}", txn_id=self._id, hint="begin a new one for further operations"
        )

    def _note_registered(self, targets: list[Target]) -> None:
        self._observers.registered(self, [(each.topic, each.subscription) for each in targets])

    def _note_doomed(self, error: BaseException) -> None:
        self._observers.doomed(self, error)

    def _note_ending(self, action: TxnAction) -> None:
        self._observers.ending(self, action)

    def _note_ended(self) -> None:
        self._observers.ended(self)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    bound = method()
    if bound is not None:
        bound()


__all__ = [
    "ABORT_WAIT_SECONDS",
    "AsyncTransaction",
    "CoordinatorSessions",
    "PartitionStats",
    "Phases",
    "Rollback",
    "SubscriptionStats",
    "TransactionOptions",
    "TransactionState",
    "TransactionStats",
]
