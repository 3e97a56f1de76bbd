"""How a transaction ends: what commits it, aborts it, and finds out which of the two has happened.

The diagram of its states is at the head of `life.py`. Rules that the code below keeps, in order of importance:

* A commit that is on its way belongs to the transaction, not to its caller: cancelling the caller does not cancel it.
* An operation that failed dooms the transaction, whether or not somebody looked at the error: part of a unit is never
  committed.
* `CommitOutcomeUnknown` is raised only when END_TXN may have reached the coordinator.
* The input of a unit is acknowledged by its commit, and comes again when it cannot be committed any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

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
from pulsar_txn.client.txn.empty_commits import EmptyCommits, calling_place
from pulsar_txn.client.txn.inputs import Inputs
from pulsar_txn.client.txn.life import FINAL, Life
from pulsar_txn.client.txn.opening import Opening
from pulsar_txn.client.txn.operations import Operations
from pulsar_txn.client.txn.registrar import CoordinatorSessions
from pulsar_txn.client.txn.stats import RequestTally, TransactionState
from pulsar_txn.wire.ids import TxnAction, TxnId

logger = logging.getLogger("pulsar_txn.client.txn")

ABORT_WAIT_SECONDS: Final = 2.0
"""How long leaving a block on cancellation waits for its abort; the coordinator's timeout does the rest."""


class Ending:
    """The end of one transaction."""

    def __init__(
        self,
        life: Life,
        opening: Opening,
        operations: Operations,
        inputs: Inputs,
        coordinators: CoordinatorSessions,
        *,
        operation_timeout: float,
        monotonic: Callable[[], float],
        begins: Callable[[TxnAction], object],
        empty: EmptyCommits,
    ) -> None:
        self.seconds = 0.0
        """How long END_TXN has taken."""
        self.closed_by: PulsarError | None = None
        """Why the client has aborted it, if the client did: the program did not ask for that."""
        self.group: Sequence[TxnId] = ()
        """Further transactions of its coordinator that are committed by the same record; an abort leaves them alone."""
        self.aborts_others = False
        """Whether its commit aborts all else that the transactional id has open."""
        self._life = life
        self._opening = opening
        self._operations = operations
        self._inputs = inputs
        self._coordinators = coordinators
        timeout = life.options.commit_timeout
        self._commit_timeout = operation_timeout if timeout is None else timeout
        self._monotonic = monotonic
        self._begins = begins
        self._empty = empty
        self._place: str | None = None
        self._running: asyncio.Task[None] | None = None
        self._action: TxnAction | None = None

    @property
    def tally(self) -> RequestTally:
        """What its requests met on their way."""
        return self._opening.tally

    # --- asked for ----------------------------------------------------------------------------------------------------

    async def finish(self, action: TxnAction, timeout: float | None = None) -> None:
        """Commit or abort, within so many seconds (the commit timeout). Concurrent callers share one end."""
        if not self._join(action):
            self._begin(action, self._commit_timeout if timeout is None else timeout)
        await self.wait_closed()

    def abandon(self) -> None:
        """Abort, and let nobody wait for it: who wanted the transaction is gone."""
        if not self._join(TxnAction.ABORT):
            self._begin(TxnAction.ABORT, self._commit_timeout)

    async def wait_closed(self) -> None:
        """Wait for an end that is on its way; raises what it raises. Returns at once if absent."""
        if self._running is not None:
            await asyncio.shield(self._running)

    @property
    def is_under_way(self) -> bool:
        """Whether a commit or an abort has begun and has no outcome yet."""
        return self._running is not None and not self._running.done()

    def leave(self, error: PulsarError) -> None:
        """The client closes, and has no time to abort it: its coordinator does at its timeout."""
        life = self._life
        if life.usable and not life.attached:
            self.closed_by = error
            life.leave(error)

    async def close(self, error: PulsarError, seconds: float) -> bool:
        """The client closes: wait for an end that is on its way, abort what is open. Whether it has ended. Never raises."""
        life = self._life
        try:
            if not self.is_under_way:
                if life.state is TransactionState.UNKNOWN or (life.attached and life.usable):
                    return False  # nothing of ours to end
                if life.state not in FINAL:
                    self.closed_by = error
                    life.fail(error)
                    self._begin(TxnAction.ABORT, seconds)
            async with asyncio.timeout(seconds):
                await self.wait_closed()
        except (PulsarError, TimeoutError) as failed:
            logger.debug("transaction %s has not ended with its client: %s", life.id, failed)
        return life.state in FINAL

    def _begin(self, action: TxnAction, budget: float) -> None:
        commits = action is TxnAction.COMMIT
        if commits and self._is_empty:
            self._place = calling_place()
        self._action = action
        self._begins(action)
        self._running = asyncio.get_running_loop().create_task(self._commit(budget) if commits else self._abort(budget))
        self._running.add_done_callback(_retrieve)

    def _join(self, action: TxnAction) -> bool:
        """Whether an end that is on its way, or done, is the answer; TransactionStateError when it is the other one.

        A commit after the client was closed raises why the client aborted it.
        """
        running, state = self.is_under_way, self._life.state
        if self.closed_by is not None and action is TxnAction.COMMIT:
            raise self.closed_by
        if action is TxnAction.ABORT:
            if state is TransactionState.ABORTED:
                self._running = None
                return True
            if running and state is TransactionState.ABORTING:
                return True
        if running and self._action is action:
            return True
        other = TransactionState.UNKNOWN if action is TxnAction.ABORT else TransactionState.ABORTING
        if running or state in FINAL or state is other:
            raise TransactionStateError(
                f"{action.name.lower()} of a transaction that is {state.value}",
                txn_id=self._life.id,
                hint="ask the error's resolve() for the outcome"
                if state is TransactionState.UNKNOWN
                else "begin a new transaction for further work",
            )
        return False

    # --- commit -------------------------------------------------------------------------------------------------------

    @property
    def _is_empty(self) -> bool:
        """Whether it has no id, and nothing was done in it that would need one."""
        return self._life.id is None and not self._operations.any_started and not self._inputs.looked_for

    async def _commit(self, budget: float) -> None:
        life, end = self._life, self._monotonic() + budget
        again = life.state is TransactionState.UNKNOWN or life.attached
        if len(self._inputs) and life.state is TransactionState.OPEN:
            life.in_time()  # late acknowledgements would be refused one by one
        if life.state is TransactionState.TIMED_OUT:
            await self._abort_because(life.timed_out(), budget)
        if not life.failures:
            self._inputs.acknowledge()
        life.move(TransactionState.COMMITTING)
        if not again or life.attached:
            await self._settle(end)
        if life.failures:
            await self._abort_because(self._operation_failed(), end - self._monotonic(), settled=True)
        if life.options.force_abort:
            await self._abort(max(ABORT_WAIT_SECONDS, end - self._monotonic()), settled=True)
            return
        if life.id is None:
            if self._is_empty:
                self._empty.warn(life.options.name, self._place)
        else:
            await self._end_commit(life.id, max(0.001, end - self._monotonic()), maybe_before=again)
        self._committed()

    def _committed(self) -> None:
        self._inputs.settled()
        self._life.move(TransactionState.COMMITTED)

    async def _abort_because(self, reason: TransactionAborted, budget: float, *, settled: bool = False) -> NoReturn:
        """Abort what cannot be committed, and say why it cannot, whatever becomes of the abort."""
        try:
            await self._abort(max(ABORT_WAIT_SECONDS, budget), settled=settled)
        except PulsarError as failed:
            reason.add_note(f"the abort failed, so that the coordinator aborts at the transaction's timeout: {failed}")
        raise reason

    async def _settle(self, end: float) -> None:
        """Wait for the operations; when the time is over, the transaction is aborted and the failure says why."""
        deadline = self._life.deadline
        if not await self._operations.settle(end if deadline is None else min(end, deadline)):
            self._life.fail(
                TransactionTimedOut(
                    f"{self._operations.in_flight} operations were not confirmed in time",
                    txn_id=self._life.id,
                    hint="run the unit again; a larger commit_timeout= or timeout= waits longer",
                )
            )

    async def _end_txn(self, txn_id: TxnId, action: TxnAction, timeout: float) -> None:
        before = self._monotonic()
        try:
            commits = action is TxnAction.COMMIT
            group, alone = (self.group, self.aborts_others) if commits else ((), False)
            await self._coordinators.end_txn(txn_id, action, timeout=timeout, tally=self.tally, group=group, abort_others=alone)
        finally:
            self.seconds += self._monotonic() - before

    async def _end_commit(self, txn_id: TxnId, budget: float, *, maybe_before: bool) -> None:
        sent = self.tally.sent
        try:
            await self._end_txn(txn_id, TxnAction.COMMIT, budget)
        except (TransactionNotFound, InvalidTransactionStatus) as error:
            repeated = maybe_before or error.maybe_processed or self._ended_by_somebody(error)
            if repeated and not _never_happened(error):
                raise self._unknown(error) from error
            self._life.move(TransactionState.ABORTED)
            raise self._ended_elsewhere(error) from error
        except PulsarError as error:
            never_left = self.tally.sent == sent or isinstance(error, TimeoutError | ConnectionError)
            if maybe_before or error.maybe_processed or not never_left:
                if not _never_happened(error):
                    raise self._unknown(error) from error
                never_left = False
            # When it never left, the coordinator cannot have committed: it aborts at its timeout.
            self._life.move(TransactionState.TIMED_OUT if never_left else TransactionState.ABORTED)
            if isinstance(error, UsageError | TransactionFenced):  # the client was closed, or has a successor
                raise
            raise TransactionTimedOut(f"the commit could not be sent: {error.message}", txn_id=txn_id) from error

    def _ended_by_somebody(self, error: PulsarError) -> bool:
        """Whether the transaction is gone although its time is not over: the client that ended it may have committed it."""
        deadline = self._life.deadline
        return deadline is not None and self._monotonic() < deadline and isinstance(error, TransactionNotFound)

    def _ended_elsewhere(self, error: PulsarError) -> TransactionAborted:
        deadline = self._life.deadline
        if deadline is not None and self._monotonic() >= deadline:
            return self._life.timed_out()
        return TransactionAborted(
            "the coordinator had ended the transaction before the commit reached it",
            txn_id=self._life.id,
            hint=f"run the unit again ({type(error).__name__}: {error.message})",
        )

    def _operation_failed(self) -> TransactionAborted:
        failures = self._life.failures
        first = failures[0]
        if isinstance(first, TransactionTimedOut):
            return first
        error = TransactionOperationFailed(
            f"{len(failures)} operations failed, so the transaction was aborted; first: {first}",
            txn_id=self._life.id,
            hint="run the unit again, in a new transaction",
        )
        error.failures = tuple(failures)
        error.__cause__ = first
        return error

    def _unknown(self, cause: PulsarError) -> CommitOutcomeUnknown:
        self._life.move(TransactionState.UNKNOWN)
        error = CommitOutcomeUnknown(
            f"the commit may have happened: {cause.message or type(cause).__name__}",
            txn_id=self._life.id,
            hint="call error.resolve() to find out, before you do the work again",
        )
        error.resolver = self.resolve
        return error

    async def resolve(self) -> TransactionState:
        """See `AsyncTransaction.resolve`."""
        life = self._life
        if life.state in FINAL or life.id is None:
            return life.state
        if life.state is not TransactionState.UNKNOWN and not life.attached:
            raise TransactionStateError(
                f"the outcome of a transaction that is {life.state.value} cannot be asked for: the question would commit it",
                txn_id=life.id,
                hint="commit() or abort() it; resolve() is for one whose commit was sent",
            )
        try:
            await self._end_txn(life.id, TxnAction.COMMIT, self._commit_timeout)
        except (InvalidTransactionStatus, TransactionNotFound, TransactionFenced) as error:
            if not _never_happened(error):
                return TransactionState.UNKNOWN
            life.move(TransactionState.ABORTED)
        else:
            self._committed()
        return life.state

    # --- abort --------------------------------------------------------------------------------------------------------

    async def _abort(self, budget: float, *, settled: bool = False) -> None:
        life, end = self._life, self._monotonic() + budget
        life.move(TransactionState.ABORTING)
        failures = list(life.failures)
        if not settled:
            # An acknowledgement that reaches its broker after the abort would stay pending there: wait for the operations,
            # but leave END_TXN the time that it needs.
            await self._settle(end - min(ABORT_WAIT_SECONDS, budget) / 2)
        life.failures[:] = failures or life.failures
        if life.id is None:
            await self._opening.wait(end)
        life.aborts = True
        if life.id is not None:
            try:
                await self._end_abort(life.id, end)
            except (TransactionNotFound, TransactionFenced):
                extra = {"txn_id": str(life.id), "state": life.state.value}
                logger.debug("transaction %s was over before its abort", life.id, extra=extra)
            except InvalidTransactionStatus:
                life.move(TransactionState.ERROR)
                raise
        life.move(TransactionState.ABORTED)

    async def _end_abort(self, txn_id: TxnId, end: float) -> None:
        try:
            await self._end_txn(txn_id, TxnAction.ABORT, max(0.001, end - self._monotonic()))
        except InvalidTransactionStatus as error:
            if error.definite:
                raise
            # A stock coordinator refuses an abort in the moment in which its own timeout aborts; it takes the next one.
            await self._end_txn(txn_id, TxnAction.ABORT, max(0.001, end - self._monotonic()))


def _never_happened(error: PulsarError) -> bool:
    """Whether a refused commit cannot be the repeat of one that was carried out."""
    return isinstance(error, TransactionFenced | InvalidTransactionStatus) and error.definite


def _retrieve(task: asyncio.Task[None]) -> None:
    """The caller of an end may be gone; its result was recorded in the state."""
    if not task.cancelled():
        task.exception()
