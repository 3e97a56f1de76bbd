"""How a transaction ends: the half of `Transaction` that commits, aborts and finds out which of them happened.

The diagram of its states and the rules are at the head of `transaction.py`.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NoReturn

import attrs

from pulsar_txn.client._checks import seconds_of
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionFenced,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
    UsageError,
)
from pulsar_txn.client.txn.enlist import WhenEnded
from pulsar_txn.client.txn.operations import Operations
from pulsar_txn.client.txn.registrar import CoordinatorSessions
from pulsar_txn.client.txn.stats import RequestTally, TransactionState
from pulsar_txn.wire.ids import TxnAction, TxnId

logger = logging.getLogger("pulsar_txn.client.txn")

ABORT_WAIT_SECONDS: Final = 2.0
"""How long leaving a block on cancellation waits for its abort; the coordinator's timeout does the rest."""

USABLE: Final = frozenset({TransactionState.NOT_STARTED, TransactionState.OPEN})
FINAL: Final = frozenset({TransactionState.COMMITTED, TransactionState.ABORTED, TransactionState.ERROR})
OUTCOMES: Final = {TransactionState.COMMITTED: TxnAction.COMMIT, TransactionState.ABORTED: TxnAction.ABORT}


@attrs.frozen(kw_only=True)
class TransactionOptions:
    """How a transaction is opened and ended; seconds."""

    timeout: float = 60.0
    commit_timeout: float | None = None
    name: str | None = None
    force_abort: bool = False
    managed: bool = False
    lazy: bool = False


class Ending(abc.ABC):
    """A transaction's state and its end. What is told to others, and opening, are in `Transaction`."""

    def __init__(
        self,
        coordinators: CoordinatorSessions,
        options: TransactionOptions,
        monotonic: Callable[[], float],
        *,
        operation_timeout: float,
        txn_id: TxnId | None,
    ) -> None:
        self._coordinators = coordinators
        self._options = options
        self._monotonic = monotonic
        self._commit_timeout = operation_timeout if options.commit_timeout is None else options.commit_timeout
        self._id = txn_id
        self._attached = txn_id is not None
        self._state = TransactionState.NOT_STARTED if txn_id is None else TransactionState.OPEN
        self.usable = True
        """Whether operations are taken."""
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tally = RequestTally()
        self._operations = Operations(self, monotonic, self._fail)
        self._failures: list[BaseException] = []
        self._opening: asyncio.Task[TxnId] | None = None
        self._seconds_end = 0.0
        self._ending: asyncio.Task[None] | None = None
        self._ending_action: TxnAction | None = None
        self._end_callbacks: list[WhenEnded] = []
        self._told_ended = False
        self._ended_at: float | None = None
        self._aborts = False
        """END_TXN abort leaves or has left: whatever comes behind it comes too late."""
        self._left: PulsarError | None = None

    @abc.abstractmethod
    def _note_doomed(self, error: BaseException) -> None:
        """The first operation failed."""

    @abc.abstractmethod
    def _note_ending(self, action: TxnAction) -> None:
        """An end has begun."""

    @abc.abstractmethod
    def _note_ended(self) -> None:
        """It has reached a state in which nothing more can be done with it."""

    def _fail(self, error: BaseException) -> None:
        if self._state in FINAL:
            return
        self._failures.append(error)
        if len(self._failures) == 1:
            self._note_doomed(error)

    def doom(self, error: BaseException) -> None:
        """An operation failed before it was started, where nobody could be told: nothing of the unit is to be committed."""
        if error in self._failures:  # some refusals doom it themselves
            return
        if self._state not in FINAL and self._state is not TransactionState.UNKNOWN:
            self._fail(error)

    def leave(self, error: PulsarError) -> None:
        """Its cluster is left: what is under way fails, and the coordinator aborts it at its timeout."""
        self._deadline = self._monotonic()
        self._left = error
        if self._state in USABLE:
            self._fail(error)
            self._set_state(TransactionState.TIMED_OUT)

    async def commit(self, *, timeout: float | timedelta | None = None) -> None:
        """Wait for the operations, then commit.

        `timeout`: seconds or a timedelta for all of it (default: the commit timeout). Concurrent callers share one commit,
        and it may be called again after CommitOutcomeUnknown. If cancelled: the commit goes on, `wait_closed()` joins it.
        Raises TransactionOperationFailed (aborted, because an operation had failed), TransactionTimedOut (operations were
        not answered in time, the commit could not be sent, or the coordinator had ended it), TransactionAborted,
        CommitOutcomeUnknown, TransactionStateError. When an abort is asked for instead, and fails, a note says so.
        """
        if self._options.managed:
            raise TransactionStateError(
                "the transaction is committed by leaving its block",
                txn_id=self._id,
                hint="leave the block, or abort() inside it",
            )
        await self.finish(TxnAction.COMMIT, timeout=None if timeout is None else seconds_of(timeout, "timeout"))

    async def abort(self, *, timeout: float | timedelta | None = None) -> None:
        """Abort; no effect when it is aborted already. Legal from every open state. If cancelled: the abort goes on.

        Operations under way are waited for, up to `timeout` (seconds or a timedelta; default: the commit timeout) less what
        END_TXN needs. Raises what END_TXN met; the coordinator then aborts at the transaction's timeout.
        """
        await self.finish(TxnAction.ABORT, timeout=None if timeout is None else seconds_of(timeout, "timeout"))

    def abandon(self) -> None:
        """Abort without anybody who waits for it: who wanted the transaction is gone."""
        if not self._join(TxnAction.ABORT):
            self._begin_end(TxnAction.ABORT, self._commit_timeout)

    async def wait_closed(self) -> None:
        """Wait for a commit or abort that is on its way; raises what it raises. Returns at once when there is none."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def finish(self, action: TxnAction, *, timeout: float | None = None) -> None:
        """`commit` or `abort` without the managed block's rule; for the block itself."""
        if not self._join(action):
            self._begin_end(action, self._commit_timeout if timeout is None else timeout)
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _begin_end(self, action: TxnAction, budget: float) -> None:
        work = self._commit(budget) if action is TxnAction.COMMIT else self._abort(budget)
        self._ending_action = action
        self._note_ending(action)
        self._ending = asyncio.get_running_loop().create_task(work)
        self._ending.add_done_callback(_retrieve)

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
        other = TransactionState.UNKNOWN if action is TxnAction.ABORT else TransactionState.ABORTING
        if running or self._state in FINAL or self._state is other:
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
        again = self._state is TransactionState.UNKNOWN or self._attached
        if self._state is TransactionState.TIMED_OUT:
            await self._abort_because(self._timed_out(), budget)
        self._set_state(TransactionState.COMMITTING)
        if not again or self._attached:
            await self._settle(end)
        if self._failures:
            await self._abort_because(self._operation_failed(), end - self._monotonic(), settled=True)
        if self._options.force_abort:
            await self._abort(max(ABORT_WAIT_SECONDS, end - self._monotonic()), settled=True)
            return
        if self._id is None:
            self._set_state(TransactionState.COMMITTED)
            return
        await self._end_commit(self._id, max(0.001, end - self._monotonic()), maybe_before=again)

    async def _abort_because(self, reason: TransactionAborted, budget: float, *, settled: bool = False) -> NoReturn:
        """Abort what cannot be committed, and say why it cannot, whatever becomes of the abort."""
        try:
            await self._abort(max(ABORT_WAIT_SECONDS, budget), settled=settled)
        except PulsarError as failed:
            reason.add_note(f"the abort failed, so that the coordinator aborts at the transaction's timeout: {failed}")
        raise reason

    async def _settle(self, end: float) -> None:
        """Wait for the operations; when the time is over, the transaction is aborted and the failure says why."""
        if not await self._operations.settle(end if self._deadline is None else min(end, self._deadline)):
            count = self._operations.in_flight
            self._fail(
                TransactionTimedOut(
                    f"{count} operations were not confirmed in time",
                    txn_id=self._id,
                    hint="run the unit again; a larger commit_timeout= or timeout= waits longer",
                )
            )

    async def _end_txn(self, txn_id: TxnId, action: TxnAction, timeout: float) -> None:
        before = self._monotonic()
        try:
            await self._coordinators.end_txn(txn_id, action, timeout=timeout, tally=self._tally)
        finally:
            self._seconds_end += self._monotonic() - before

    async def _end_commit(self, txn_id: TxnId, budget: float, *, maybe_before: bool) -> None:
        sent = self._tally.sent
        try:
            await self._end_txn(txn_id, TxnAction.COMMIT, budget)
        except (TransactionNotFound, InvalidTransactionStatus) as error:
            repeated = maybe_before or error.maybe_processed or self._ended_by_somebody(error)
            if repeated and not _never_happened(error):
                raise self._unknown(error) from error
            self._set_state(TransactionState.ABORTED)
            raise self._ended_elsewhere(error) from error
        except PulsarError as error:
            never_left = self._tally.sent == sent or isinstance(error, TimeoutError | ConnectionError)
            if maybe_before or error.maybe_processed or not never_left:
                if not _never_happened(error):
                    raise self._unknown(error) from error
                never_left = False
            # When it never left, the coordinator cannot have committed: it aborts at its timeout.
            self._set_state(TransactionState.TIMED_OUT if never_left else TransactionState.ABORTED)
            if isinstance(error, UsageError | TransactionFenced):  # the client was closed, or has a successor
                raise
            raise TransactionTimedOut(f"the commit could not be sent: {error.message}", txn_id=txn_id) from error
        self._set_state(TransactionState.COMMITTED)

    def _ended_by_somebody(self, error: PulsarError) -> bool:
        """Whether the transaction is gone although its time is not over: whoever ended it may have committed it."""
        in_time = self._deadline is not None and self._monotonic() < self._deadline
        return in_time and isinstance(error, TransactionNotFound)

    def _timed_out(self) -> TransactionTimedOut:
        over = f"the transaction's {self._options.timeout:g} s are over"
        return TransactionTimedOut(
            over if self._left is None else self._left.message,
            txn_id=self._id,
            hint="run the unit again, in smaller pieces or with a larger timeout=",
        )

    def _ended_elsewhere(self, error: PulsarError) -> TransactionAborted:
        if self._deadline is not None and self._monotonic() >= self._deadline:
            return self._timed_out()
        return TransactionAborted(
            "the coordinator had ended the transaction before the commit reached it",
            txn_id=self._id,
            hint=f"run the unit again ({type(error).__name__}: {error.message})",
        )

    def _operation_failed(self) -> TransactionAborted:
        first = self._failures[0]
        if isinstance(first, TransactionTimedOut):
            return first
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
            hint="call error.resolve() to find out, before you do the work again",
        )
        error.resolver = self.resolve
        return error

    async def resolve(self) -> TransactionState:
        """Ask the coordinator for the outcome by asking for the commit again, which is idempotent on our broker.

        For a transaction whose commit was sent. Of an attached one you have to know that: it is committed if it is open.
        COMMITTED, ABORTED, or UNKNOWN: a stock coordinator forgets a transaction once it has ended, and while it ends may
        refuse the repeat of what it has done.
        Raises what prevents asking (ConnectionLost, OperationTimeout, …), and TransactionStateError before the commit was sent.
        Safe to cancel and to repeat.
        """
        if self._state in FINAL or self._id is None:
            return self._state
        if self._state is not TransactionState.UNKNOWN and not self._attached:
            raise TransactionStateError(
                f"the outcome of a transaction that is {self._state.value} is nothing to ask for: that would commit it",
                txn_id=self._id,
                hint="commit() or abort() it; resolve() is for one whose commit was sent",
            )
        try:
            await self._end_txn(self._id, TxnAction.COMMIT, self._commit_timeout)
        except (InvalidTransactionStatus, TransactionNotFound, TransactionFenced) as error:
            if not _never_happened(error):
                return TransactionState.UNKNOWN
            self._set_state(TransactionState.ABORTED)
        else:
            self._set_state(TransactionState.COMMITTED)
        return self._state

    async def _abort(self, budget: float, *, settled: bool = False) -> None:
        end = self._monotonic() + budget
        self._set_state(TransactionState.ABORTING)
        failures = list(self._failures)
        if not settled:
            # An acknowledgement that reaches its broker behind the abort would stay pending there: wait for the operations,
            # but for the time that END_TXN needs.
            await self._settle(end - min(ABORT_WAIT_SECONDS, budget) / 2)
        self._failures = failures or self._failures
        if self._opening is not None and self._id is None:
            await asyncio.wait([self._opening], timeout=max(0.0, end - self._monotonic()))
        self._aborts = True
        if self._id is not None:
            try:
                await self._end_abort(self._id, end)
            except (TransactionNotFound, TransactionFenced):
                extra = {"txn_id": str(self._id), "state": self._state.value}
                logger.debug("transaction %s was over before its abort", self._id, extra=extra)
            except InvalidTransactionStatus:
                self._set_state(TransactionState.ERROR)
                raise
        self._set_state(TransactionState.ABORTED)

    async def _end_abort(self, txn_id: TxnId, end: float) -> None:
        try:
            await self._end_txn(txn_id, TxnAction.ABORT, max(0.001, end - self._monotonic()))
        except InvalidTransactionStatus as error:
            if error.definite:
                raise
            # A stock coordinator refuses an abort in the moment in which its own timeout aborts; it takes the next one.
            await self._end_txn(txn_id, TxnAction.ABORT, max(0.001, end - self._monotonic()))

    def _set_state(self, state: TransactionState) -> None:
        before, self._state = self._state, state
        self.usable = state in USABLE
        if self.usable:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state in FINAL:
            self._ended_at = self._monotonic()
        if state in FINAL or state in (TransactionState.TIMED_OUT, TransactionState.UNKNOWN):
            self._tell_ended()
            if self._id is not None and state is not before:
                self._note_ended()

    def _tell_ended(self) -> None:
        final = self._state in FINAL
        if self._told_ended and not final:
            return
        self._told_ended = True
        callbacks = self._end_callbacks
        if final:
            self._end_callbacks = []
        for callback in list(callbacks):
            callback(OUTCOMES.get(self._state))


def _never_happened(error: PulsarError) -> bool:
    """Whether a refused commit cannot be the repeat of one that was carried out."""
    return isinstance(error, TransactionFenced | InvalidTransactionStatus) and error.definite


def _retrieve(task: asyncio.Task[None]) -> None:
    """The caller of an end may be gone; its result was recorded in the state."""
    if not task.cancelled():
        task.exception()
