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
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import attrs

from pulsar_txn.client._enlist import Flushable, WhenEnded
from pulsar_txn.client._registrar import CoordinatorSessions, Registrar, Target
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
    UsageError,
)
from pulsar_txn.client.observers import Observers
from pulsar_txn.client.transaction_stats import (
    PartitionStats,
    Phases,
    RequestTally,
    SubscriptionStats,
    TransactionState,
    TransactionStats,
)
from pulsar_txn.wire.ids import MessageId, TxnAction, TxnId

if TYPE_CHECKING:
    from pulsar_txn.client.consumer import Acknowledged, Consumer
    from pulsar_txn.client.producer import Producer

logger = logging.getLogger("pulsar_txn.client.txn")

T = TypeVar("T")

ABORT_WAIT_SECONDS: Final = 2.0
"""How long leaving a block on cancellation waits for its abort; the coordinator's timeout does the rest."""


_USABLE: Final = frozenset({TransactionState.NOT_STARTED, TransactionState.OPEN})
_FINAL: Final = frozenset({TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.ERROR})
_OUTCOMES: Final = {TransactionState.COMMITTED: TxnAction.COMMIT, TransactionState.ABORTED: TxnAction.ABORT}


class Rollback(Exception):  # noqa: N818 - control flow, not an error
    """Raised by `Transaction.rollback()`; the managed block of its transaction swallows it after the abort."""

    def __init__(self, txn: Transaction) -> None:
        super().__init__(f"rollback of {txn!r}")
        self.txn = txn


@attrs.frozen(kw_only=True)
class TransactionOptions:
    """How a transaction is opened and ended; seconds."""

    timeout: float = 60.0
    commit_timeout: float | None = None
    name: str | None = None
    force_abort: bool = False
    managed: bool = False
    lazy: bool = False


class Transaction:
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
        on_end: Callable[[Transaction], None] = lambda _txn: None,
        observers: Observers | None = None,
    ) -> None:
        self._core = core
        self._coordinators = coordinators
        self._options = options
        self._monotonic = monotonic
        self._commit_timeout = operation_timeout if options.commit_timeout is None else options.commit_timeout
        self._id = txn_id
        self._state = TransactionState.NOT_STARTED if txn_id is None else TransactionState.OPEN
        self._opened_at = monotonic()
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._targets: dict[tuple[str, str | None], Target] = {}
        self._flushables: dict[Flushable, None] = {}
        self._observers = Observers() if observers is None else observers
        self._tally = RequestTally()
        self._registrar = Registrar(self.open, coordinators, self._tally, monotonic, self._note_registered)
        self._seconds_begin = self._seconds_busy = self._seconds_wait = self._seconds_end = 0.0
        self._busy_since = 0.0
        self._in_flight = 0
        self._idle: asyncio.Future[None] | None = None
        self._failures: list[BaseException] = []
        self._opening: asyncio.Task[TxnId] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._ending_action: TxnAction | None = None
        self._end_callbacks: list[WhenEnded] = [lambda _outcome: on_end(self)]
        self._told_ended = False

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
        targets = self._targets.values()
        sends = [each for each in targets if each.subscription is None]
        acks = [each for each in targets if each.subscription is not None]
        return TransactionStats(
            id=self._id,
            name=self.name,
            state=self._state,
            opened_at=None if self._id is None else self._opened_at,
            age_ms=int((self._monotonic() - self._opened_at) * 1000),
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
        busy = self._seconds_busy + (self._monotonic() - self._busy_since if self._in_flight else 0.0)
        seconds = (self._seconds_begin, self._registrar.seconds, busy, self._seconds_wait, self._seconds_end)
        return Phases(*(each * 1000 for each in seconds))

    def __repr__(self) -> str:
        topics = sum(subscription is None for _, subscription in self._targets)
        left = "" if self.remaining is None or self._state not in _USABLE else f" {self.remaining:.1f}s left"
        label = f" {self.name!r}" if self.name else ""
        counts = f"{topics} topics {len(self._targets) - topics} subscriptions"
        return f"<Transaction {self._id or '(not begun)'}{label} {self._state.value} {counts}{left}>"

    def __del__(self) -> None:
        if self._state is TransactionState.OPEN and self._deadline is not None:
            # Not repr(): it asks the loop for the time, and the collector may run where no loop is.
            text = f"transaction {self._id} was never ended; its coordinator aborts it at its timeout"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    # --- using it -----------------------------------------------------------------------------------------------------

    async def send(self, producer: Producer[T], value: T | None, **options: Any) -> MessageId:
        """`producer.send(value, txn=self, **options)`."""
        return await producer.send(value, txn=self, **options)

    async def acknowledge(self, consumer: Consumer[Any], message: Acknowledged | Sequence[Acknowledged]) -> None:
        """`consumer.acknowledge(message, txn=self)`."""
        await consumer.acknowledge(message, txn=self)

    def savepoint(self) -> NoReturn:
        """Refused with TransactionStateError: Pulsar has no savepoints."""
        raise TransactionStateError(
            "Pulsar has no savepoints: a transaction takes effect as a whole or not at all",
            txn_id=self._id,
            hint="use several transactions; one inside another is a second, independent one",
        )

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
        self._timer = asyncio.get_running_loop().call_later(max(0.0, delay), self._time_out)
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
        self._flushables[flushable] = None
        target = self._enlist(core, (topic, None), messages)
        target.bytes += size
        return self._registrar.registration(target)

    def enlist_ack(
        self, core: object, topic: str, subscription: str, messages: int, *, cumulative: bool
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start acknowledgements; see `_enlist.Enlisting`."""
        target = self._enlist(core, (topic, subscription), messages)
        target.cumulative |= cumulative
        return self._registrar.registration(target)

    def send_finished(self, topic: str, messages: int, error: BaseException | None) -> None:
        """Sends have their receipt, or failed."""
        self._finished(self._targets[topic, None], messages, error)

    def ack_finished(self, topic: str, subscription: str, messages: int, error: BaseException | None) -> None:
        """Acknowledgements are answered, or failed."""
        self._finished(self._targets[topic, subscription], messages, error)

    def when_ended(self, callback: WhenEnded) -> None:
        """Call back when it can no longer be used, and when its outcome is known; see `_enlist.Enlisting`."""
        if self._told_ended:
            asyncio.get_running_loop().call_soon(callback, _OUTCOMES.get(self._state))
        if self._state not in _FINAL:
            self._end_callbacks.append(callback)

    def _enlist(self, core: object, key: tuple[str, str | None], messages: int) -> Target:
        if core is not self._core:
            raise TransactionStateError(
                "this transaction belongs to another client",
                txn_id=self._id,
                hint="use producers and consumers of the client that began it",
            )
        self._check_usable()
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(*key)
        target.started += messages
        if self._in_flight == 0:
            self._busy_since = self._monotonic()
        self._in_flight += messages
        return target

    def _check_usable(self) -> None:
        if self._state in _USABLE:
            return
        if self._state is TransactionState.TIMED_OUT:
            raise self._timed_out()
        raise TransactionStateError(
            f"the transaction is {self._state.value}", txn_id=self._id, hint="begin a new one for further operations"
        )

    def _timed_out(self) -> TransactionTimedOut:
        return TransactionTimedOut(
            f"the transaction's {self._options.timeout:g} s are over",
            txn_id=self._id,
            hint="run the unit again, in smaller pieces or with a larger timeout=",
        )

    def _note_registered(self, targets: list[Target]) -> None:
        self._observers.registered(self, [(each.topic, each.subscription) for each in targets])

    def _finished(self, target: Target, messages: int, error: BaseException | None) -> None:
        if error is None:
            target.confirmed += messages
        else:
            target.failed += messages
            self._fail(error)
        self._in_flight -= messages
        if self._in_flight == 0:
            self._seconds_busy += self._monotonic() - self._busy_since
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        if len(self._failures) == 1:
            self._observers.doomed(self, error)

    # --- ending ---------------------------------------------------------------------------------------------------

    async def commit(self, *, timeout: float | None = None) -> None:
        """Wait for the operations, then commit.

        `timeout`: seconds for all of it (default: the commit timeout). Concurrent callers share one commit, and it may be
        called again after CommitOutcomeUnknown. If cancelled: the commit goes on, `wait_closed()` joins it.
        Raises TransactionOperationFailed (aborted, because an operation had failed), TransactionTimedOut or
        TransactionAborted (the coordinator had ended it), CommitOutcomeUnknown, TransactionStateError.
        """
        if self._options.managed:
            raise TransactionStateError(
                "the transaction is committed by leaving its block",
                txn_id=self._id,
                hint="leave the block, or abort() inside it",
            )
        await self.finish(TxnAction.COMMIT, timeout=timeout)

    async def abort(self, *, timeout: float | None = None) -> None:
        """Abort; no effect when it is aborted already. Legal from every open state. If cancelled: the abort goes on."""
        await self.finish(TxnAction.ABORT, timeout=timeout)

    def rollback(self) -> NoReturn:
        """Leave the managed block at once, quietly, with an abort."""
        raise Rollback(self)

    async def wait_closed(self) -> None:
        """Wait for a commit or abort that is on its way; raises what it raises. Returns at once when there is none."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def finish(self, action: TxnAction, *, timeout: float | None = None) -> None:
        """`commit` or `abort` without the managed block's rule; for the block itself."""
        if not self._join(action):
            budget = self._commit_timeout if timeout is None else timeout
            work = self._commit(budget) if action is TxnAction.COMMIT else self._abort(budget)
            self._ending_action = action
            self._observers.ending(self, action)
            self._ending = asyncio.get_running_loop().create_task(work)
            self._ending.add_done_callback(_retrieve)
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _join(self, action: TxnAction) -> bool:
        """Whether an end that is on its way, or done, is the answer; TransactionStateError when it is the other one."""
        running = self._ending is not None and not self._ending.done()
        if action is TxnAction.ABORT:
            if self._state is TransactionState.ABORTED:
                self._ending = None
                return True
            if running and self._state is TransactionState.ABORTING:
                return True
        if running and self._ending_action is action:
            return True
        blocked = running or self._state in _FINAL or (self._state is TransactionState.UNKNOWN and action is TxnAction.ABORT)
        if blocked:
            raise TransactionStateError(
                f"{action.name.lower()} of a transaction that is {self._state.value}",
                txn_id=self._id,
                hint="ask the error's resolve() for the outcome"
                if self._state is TransactionState.UNKNOWN
                else "begin a new transaction for further work",
            )
        return False

    async def _commit(self, budget: float) -> None:
        end = self._monotonic() + budget
        again = self._state is TransactionState.UNKNOWN
        if self._state is TransactionState.TIMED_OUT:
            await self._abort(budget)
            raise self._timed_out()
        self._set_state(TransactionState.COMMITTING)
        if not again:
            await self._settle(end)
        if self._failures or self._options.force_abort:
            await self._abort(max(ABORT_WAIT_SECONDS, end - self._monotonic()))
            if self._failures:
                raise self._operation_failed()
            return
        if self._id is None:
            self._set_state(TransactionState.COMMITTED)
            return
        await self._end_commit(self._id, max(0.001, end - self._monotonic()), maybe_before=again)

    async def _settle(self, end: float) -> None:
        """Wait for the operations; when the time is over, the transaction is aborted and the failure says why."""
        for flushable in self._flushables:
            flushable.flush_nowait()
        if self._in_flight == 0:
            return
        before = self._monotonic()
        if self._deadline is not None:
            end = min(end, self._deadline)
        self._idle = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(max(0.0, end - self._monotonic())):
                await self._idle
        except TimeoutError:
            self._fail(TransactionTimedOut(f"{self._in_flight} operations were not confirmed in time", txn_id=self._id))
        finally:
            self._seconds_wait += self._monotonic() - before

    async def _end_txn(self, txn_id: TxnId, action: TxnAction, timeout: float) -> None:
        before = self._monotonic()
        try:
            await self._coordinators.end_txn(txn_id, action, timeout=timeout, tally=self._tally)
        finally:
            self._seconds_end += self._monotonic() - before

    async def _end_commit(self, txn_id: TxnId, budget: float, *, maybe_before: bool) -> None:
        try:
            await self._end_txn(txn_id, TxnAction.COMMIT, budget)
        except (TransactionNotFound, InvalidTransactionStatus) as error:
            if (maybe_before or error.maybe_processed) and isinstance(error, TransactionNotFound):
                raise self._unknown(error) from error
            self._set_state(TransactionState.ABORTED)
            raise self._ended_elsewhere(error) from error
        except PulsarError as error:
            never_left = not (error.maybe_processed or maybe_before)
            if never_left and isinstance(error, UsageError):  # the client was closed
                self._set_state(TransactionState.TIMED_OUT)
                raise
            if never_left and isinstance(error, TimeoutError | ConnectionError):
                # END_TXN never left, so the coordinator cannot have committed: it aborts at its timeout.
                self._set_state(TransactionState.TIMED_OUT)
                raise TransactionTimedOut("the commit could not be sent in time", txn_id=txn_id) from error
            raise self._unknown(error) from error
        self._set_state(TransactionState.COMMITTED)

    def _ended_elsewhere(self, error: PulsarError) -> TransactionAborted:
        if self._deadline is not None and self._monotonic() >= self._deadline:
            return self._timed_out()
        return TransactionAborted(
            "the coordinator had ended the transaction before the commit reached it",
            txn_id=self._id,
            hint=f"run the unit again ({type(error).__name__}: {error.message})",
        )

    def _operation_failed(self) -> TransactionOperationFailed:
        first = self._failures[0]
        error = TransactionOperationFailed(
            f"{len(self._failures)} operations failed, so the transaction was aborted; first: {first}",
            txn_id=self._id,
            hint="run the unit again, in a new transaction",
        )
        error.failures = tuple(self._failures)
        error.__cause__ = first
        return error

    def _unknown(self, cause: PulsarError) -> CommitOutcomeUnknown:
        self._set_state(TransactionState.UNKNOWN)
        error = CommitOutcomeUnknown(
            f"the commit may have happened: {cause.message or type(cause).__name__}",
            txn_id=self._id,
            hint="await error.resolve() to find out, before the work is done again",
        )
        error.resolver = self.resolve
        return error

    async def resolve(self) -> TransactionState:
        """Ask the coordinator for the outcome by asking for the commit again, which is idempotent on our broker.

        COMMITTED, ABORTED, or UNKNOWN: a stock coordinator forgets a transaction once it has ended.
        Raises what prevents asking (ConnectionLost, OperationTimeout, …). Safe to cancel and to repeat.
        """
        if self._state in _FINAL or self._id is None:
            return self._state
        try:
            await self._end_txn(self._id, TxnAction.COMMIT, self._commit_timeout)
        except InvalidTransactionStatus:
            self._set_state(TransactionState.ABORTED)
        except TransactionNotFound:
            return TransactionState.UNKNOWN
        else:
            self._set_state(TransactionState.COMMITTED)
        return self._state

    async def _abort(self, budget: float) -> None:
        end = self._monotonic() + budget
        self._set_state(TransactionState.ABORTING)
        failures = list(self._failures)
        # An acknowledgement that reaches its broker behind the abort would stay pending there: wait for the operations.
        await self._settle(end)
        self._failures = failures or self._failures
        if self._opening is not None and self._id is None:
            await asyncio.wait([self._opening], timeout=max(0.0, end - self._monotonic()))
        if self._id is not None:
            try:
                await self._end_txn(self._id, TxnAction.ABORT, max(0.001, end - self._monotonic()))
            except TransactionNotFound:
                extra = {"txn_id": str(self._id), "state": self._state.value}
                logger.debug("transaction %s was over before its abort", self._id, extra=extra)
            except InvalidTransactionStatus:
                self._set_state(TransactionState.ERROR)
                raise
        self._set_state(TransactionState.ABORTED)

    def _set_state(self, state: TransactionState) -> None:
        before, self._state = self._state, state
        if state in _USABLE:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state in _FINAL or state in (TransactionState.TIMED_OUT, TransactionState.UNKNOWN):
            self._tell_ended()
            if self._id is not None and state is not before:
                self._observers.ended(self)

    def _tell_ended(self) -> None:
        final = self._state in _FINAL
        if self._told_ended and not final:
            return
        self._told_ended = True
        callbacks = self._end_callbacks
        if final:
            self._end_callbacks = []
        for callback in list(callbacks):
            callback(_OUTCOMES.get(self._state))


def _retrieve(task: asyncio.Task[None]) -> None:
    """The caller of an end may be gone; its result was recorded in the state."""
    if not task.cancelled():
        task.exception()


__all__ = [
    "ABORT_WAIT_SECONDS",
    "CoordinatorSessions",
    "PartitionStats",
    "Phases",
    "Rollback",
    "SubscriptionStats",
    "Transaction",
    "TransactionOptions",
    "TransactionState",
    "TransactionStats",
]
