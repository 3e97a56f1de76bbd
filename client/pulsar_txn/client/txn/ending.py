"""How a transaction ends: what commits it, aborts it, and finds out which of the two has happened.

The diagram of its states is at the head of `life.py`. Rules that the code below keeps, in order of importance:

* A commit that is on its way belongs to the transaction, not to its caller: cancelling the caller does not cancel it.
* An operation that failed dooms the transaction, whether or not somebody looked at the error: part of a unit is never
  committed.
* `CommitOutcomeUnknown` is raised only when END_TXN may have reached the coordinator.
* The input of a unit is acknowledged by its commit, and comes again when it cannot be committed any more.
* What others may commit as well (members of its check group, who holds its token) is aborted when its coordinator says so, and
  not when this client has given it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

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
from pulsar_txn.client.txn.life import FINAL, HELD, USABLE, Life
from pulsar_txn.client.txn.opening import Opening
from pulsar_txn.client.txn.operations import Operations
from pulsar_txn.client.txn.prepared import PreparedToken
from pulsar_txn.client.txn.preparing import Preparing
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
        secret: Callable[[int], bytes],
    ) -> None:
        self.seconds = 0.0
        """How long END_TXN has taken."""
        self.closed_by: PulsarError | None = None
        """Why the client has aborted it, if the client did: the program did not ask for that."""
        self.group: Sequence[TxnId] = ()
        """Further transactions of its coordinator that are committed by the same record; an abort leaves them alone."""
        self.aborts_others = False
        """Whether its commit aborts all else that the transactional id has open."""
        self.visible = life.options.visible
        """Whether its commit waits until readers see it."""
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
        """What is under way, or was; None: a prepare."""
        self._given_up: TransactionAborted | None = None
        """Why it cannot be committed here, although its group may have done so."""
        self._left = False
        """Whether its outcome was left to its group."""
        self._preparing = Preparing(
            life,
            opening,
            inputs,
            coordinators,
            monotonic=monotonic,
            secret=secret,
            settle=self._settle,
            check_whole=self._check_whole,
        )

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

    async def prepare(self, timeout: float | None = None) -> PreparedToken:
        """See `AsyncTransaction.prepare`. Concurrent callers share one prepare."""
        life = self._life
        if life.state is not TransactionState.PREPARED and not self._prepares:
            self._check_preparable()
            self._action = None
            self._run(self._preparing.run(self._commit_timeout if timeout is None else timeout))
        running = self._running
        if life.state is not TransactionState.PREPARED and running is not None:
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                if not running.cancelled():
                    raise
                text = "the transaction was aborted while it was being prepared"
                raise TransactionStateError(text, txn_id=life.id) from None
        if life.prepared is None:
            raise TransactionStateError(f"the transaction is {life.state.value}", txn_id=life.id)
        return life.prepared

    def _check_preparable(self) -> None:
        life = self._life
        if life.options.force_abort:
            raise TransactionStateError("a dry run cannot be prepared", txn_id=life.id, hint="leave force_abort= out")
        if self.is_under_way or life.state is not TransactionState.PREPARING:
            life.check_usable()

    @property
    def is_left(self) -> bool:
        """Whether its outcome was left to its group."""
        return self._left

    @property
    def _prepares(self) -> bool:
        """Whether a prepare is on its way."""
        return self.is_under_way and self._action is None

    async def leave_to_check(self) -> None:
        """See `AsyncTransaction.leave_to_check`."""
        self._check_leavable()
        end = self._monotonic() + self._commit_timeout
        await self._settle(end)
        await self._check_whole(end)
        self.leave_now()

    def leave_now(self) -> None:
        """The same without waiting for operations, for a program that ends."""
        nowhere = self._life.id is None and not self._opening.is_under_way
        self._left = not nowhere
        self._life.move(TransactionState.ABORTED if nowhere else TransactionState.UNKNOWN)

    def _check_leavable(self) -> None:
        life = self._life
        if life.options.check_group is None:
            raise TransactionStateError(
                "nobody would be asked for the outcome: the transaction has no check group",
                txn_id=life.id,
                hint="begin it with check_group=, or commit() or abort() it",
            )
        if self.is_under_way or life.state not in {*USABLE, *HELD, TransactionState.TIMED_OUT}:
            raise TransactionStateError(f"the transaction is {life.state.value}", txn_id=life.id)

    async def wait_closed(self) -> None:
        """Wait for an end that is on its way; raises what it raises. Returns at once if absent."""
        if self._running is not None:
            await asyncio.shield(self._running)

    @property
    def is_under_way(self) -> bool:
        """Whether a commit, an abort or a prepare has begun and has no outcome yet."""
        return self._running is not None and not self._running.done()

    def leave(self, error: PulsarError) -> None:
        """The client closes, and has no time to abort it: its coordinator does at its timeout."""
        life = self._life
        if life.usable and not life.attached:
            if self._is_left_to_others:
                self.leave_now()
                return
            self.closed_by = error
            life.leave(error)

    @property
    def _is_left_to_others(self) -> bool:
        """Whether closing the client leaves it as it is, because somebody else decides on it."""
        life = self._life
        if life.state is TransactionState.PREPARED:
            return True
        return life.options.check_group is not None and life.id is not None and not life.failures

    async def close(self, error: PulsarError, seconds: float) -> bool:
        """The client closes: wait for an end that is on its way, abort what is open. Whether it has ended. Never raises."""
        life = self._life
        try:
            if not self.is_under_way or self._prepares:
                if life.state is TransactionState.UNKNOWN or (life.attached and life.usable):
                    return False  # nothing of ours to end
                if self._is_left_to_others and not self._prepares:
                    if life.state is not TransactionState.PREPARED:
                        self.leave_now()
                    return False
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
        prepare = self._running if self._prepares else None
        self._action = action
        self._left = False  # the program decides after all
        self._begins(action)
        self._run(self._commit(budget) if commits else self._abort_instead(prepare, budget))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._running = asyncio.get_running_loop().create_task(work)
        self._running.add_done_callback(_retrieve)

    async def _abort_instead(self, prepare: asyncio.Task[None] | None, budget: float) -> None:
        """Abort. A prepare that is on its way is given up, and has no effect after the abort."""
        if prepare is not None:
            prepare.cancel()
            await asyncio.wait([prepare])
        await self._abort(budget)

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
            if self._prepares:
                return False
        if running and self._action is action:
            return True
        other = TransactionState.UNKNOWN if action is TxnAction.ABORT else TransactionState.ABORTING
        no_commit_left = self._left or self._given_up is not None
        if running or state in FINAL or (state is other and not no_commit_left):
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
        held = life.state if life.state in HELD else None
        if self._given_up is not None:
            await self._abort_because(self._given_up, budget, settled=True)
            return
        if len(self._inputs) and life.state is TransactionState.OPEN:
            life.in_time()  # late acknowledgements would be refused one by one
        if life.state is TransactionState.TIMED_OUT:
            await self._abort_because(life.timed_out(), budget)
            return
        if not life.failures and held is None:
            self._inputs.acknowledge()
        life.move(TransactionState.COMMITTING)
        if not again or life.attached:
            await self._settle(end)
        await self._check_whole(end)
        if life.options.force_abort:
            await self._abort(max(ABORT_WAIT_SECONDS, end - self._monotonic()), settled=True)
            return
        if life.id is None:
            if self._is_empty:
                self._empty.warn(life.options.name, self._place)
        else:
            await self._end_commit(life.id, max(0.001, end - self._monotonic()), maybe_before=again, held=held)
        self._committed()

    async def _check_whole(self, end: float) -> None:
        """Abort, and say why, when an operation has failed."""
        if self._life.failures:
            await self._abort_because(self._operation_failed(), end - self._monotonic(), settled=True)

    def _committed(self) -> None:
        self._inputs.settled()
        self._life.move(TransactionState.COMMITTED)

    async def _abort_because(self, reason: TransactionAborted, budget: float, *, settled: bool = False) -> None:
        """Abort what cannot be committed, and raise why it cannot, whatever becomes of the abort.

        Returns only when a member of its group had committed it, as a whole, before its time was over here.
        """
        life = self._life
        try:
            await self._abort(max(ABORT_WAIT_SECONDS, budget), settled=settled)
        except PulsarError as failed:
            if life.state is TransactionState.COMMITTED:
                if life.failures:
                    raise failed from reason
                return
            if life.options.check_group is not None:
                self._given_up = reason
                raise self._unknown(failed) from reason
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
            answered = commits and not (group or alone or self._life.prepared or self._life.may_come_late)
            await self._coordinators.end_txn(
                txn_id,
                action,
                timeout=timeout,
                tally=self.tally,
                group=group,
                abort_others=alone,
                prepared=self._life.prepared,
                at_decision=commits and not self.visible,
                all_answered=answered,
            )
        finally:
            self.seconds += self._monotonic() - before

    async def _end_commit(self, txn_id: TxnId, budget: float, *, maybe_before: bool, held: TransactionState | None) -> None:
        """`held`: the state that it is in again when END_TXN has not left, because it has no timeout."""
        sent, life = self.tally.sent, self._life
        try:
            await self._end_txn(txn_id, TxnAction.COMMIT, budget)
        except (TransactionNotFound, InvalidTransactionStatus) as error:
            repeated = maybe_before or error.maybe_processed or self._ended_by_somebody(error)
            if repeated and not self._never_happened(error):
                raise self._unknown(error) from error
            life.move(TransactionState.ABORTED)
            raise self._ended_elsewhere(error) from error
        except PulsarError as error:
            never_left = self.tally.sent == sent or isinstance(error, TimeoutError | ConnectionError)
            if maybe_before or error.maybe_processed or not never_left:
                if not self._never_happened(error):
                    raise self._unknown(error) from error
                never_left = False
            if never_left and held is not None:
                life.move(held)
                raise
            if never_left and life.may_be_ended_elsewhere:
                raise self._unknown(error) from error
            # When it never left, the coordinator cannot have committed: it aborts at its timeout.
            life.move(TransactionState.TIMED_OUT if never_left else TransactionState.ABORTED)
            if isinstance(error, UsageError | TransactionFenced):  # the client was closed, or has a successor
                raise
            raise TransactionTimedOut(f"the commit could not be sent: {error.message}", txn_id=txn_id) from error

    def _ended_by_somebody(self, error: PulsarError) -> bool:
        """Whether the transaction is gone although its time is not over: the client that ended it may have committed it."""
        if not isinstance(error, TransactionNotFound):
            return False
        deadline = self._life.deadline
        return self._life.may_be_ended_elsewhere or (deadline is not None and self._monotonic() < deadline)

    def _never_happened(self, error: PulsarError) -> bool:
        """Whether a refused commit cannot be the repeat of one that was carried out.

        A client that was fenced does not hear what others have decided on its transaction.
        """
        if isinstance(error, TransactionFenced):
            return error.definite and not self._life.may_be_ended_elsewhere
        return isinstance(error, InvalidTransactionStatus) and error.definite

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
        if self._left:
            raise TransactionStateError(
                "the outcome was left to the check of its group, and asking for it here would decide it",
                txn_id=life.id,
                hint="wait for the group, or call commit() or abort()",
            )
        if self._given_up is not None:
            return await self._resolve_by_abort(life.id)
        try:
            await self._end_txn(life.id, TxnAction.COMMIT, self._commit_timeout)
        except (InvalidTransactionStatus, TransactionNotFound, TransactionFenced) as error:
            if not self._never_happened(error):
                return TransactionState.UNKNOWN
            life.move(TransactionState.ABORTED)
        else:
            self._committed()
        return life.state

    async def _resolve_by_abort(self, txn_id: TxnId) -> TransactionState:
        """How one that was given up has ended, or ends now: a commit must not be what asks for it."""
        try:
            await self._end_txn(txn_id, TxnAction.ABORT, self._commit_timeout)
        except (TransactionNotFound, TransactionFenced):
            return TransactionState.UNKNOWN
        except InvalidTransactionStatus:
            self._committed()
        else:
            self._life.move(TransactionState.ABORTED)
        return self._life.state

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
                if life.may_be_ended_elsewhere:
                    life.move(TransactionState.UNKNOWN)
                    raise
                extra = {"txn_id": str(life.id), "state": life.state.value}
                logger.debug("transaction %s was over before its abort", life.id, extra=extra)
            except InvalidTransactionStatus:
                if life.may_be_ended_elsewhere:
                    self._committed()
                else:
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


def _retrieve(task: asyncio.Task[None]) -> None:
    """The caller of an end may be gone; its result was recorded in the state."""
    if not task.cancelled():
        task.exception()
