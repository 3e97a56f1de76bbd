"""How the end of a transaction is carried out: what commits it, what aborts it, and what the coordinator's answers mean.

Rules that the code below keeps, in order of importance:

* Part of a unit is never committed: an operation that failed aborts it, whether or not somebody looked at the error.
* `CommitOutcomeUnknown` is raised only when END_TXN may have reached the coordinator, or when others may end the transaction.
* The input of a unit is acknowledged by its commit, and comes again when it cannot be committed any more.
* What others may commit as well (members of its check group, who holds its token, who knows its id) is aborted when its
  coordinator says so, and not when this client has given it up, or the coordinator does not know it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionFenced,
    TransactionNotFound,
    TransactionOperationFailed,
    TransactionTimedOut,
    UsageError,
)
from pulsar_txn.client.txn.empty_commits import EmptyCommits
from pulsar_txn.client.txn.inputs import Inputs
from pulsar_txn.client.txn.life import HELD, Life
from pulsar_txn.client.txn.opening import Opening
from pulsar_txn.client.txn.operations import Operations
from pulsar_txn.client.txn.registrar import CoordinatorSessions
from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.wire.ids import TxnAction, TxnId

logger = logging.getLogger("pulsar_txn.client.txn")

ABORT_WAIT_SECONDS: Final = 2.0
"""How long leaving a block on cancellation waits for its abort; the coordinator's timeout does the rest."""


_MAYBE_COMMITTED: Final = (
    "it never was, belongs to another role, or has ended and is forgotten, so it may be committed: look for its output"
)


class Decision:
    """What ends one transaction. Budgets are seconds."""

    def __init__(
        self,
        life: Life,
        opening: Opening,
        operations: Operations,
        inputs: Inputs,
        coordinators: CoordinatorSessions,
        *,
        monotonic: Callable[[], float],
        empty: EmptyCommits,
    ) -> None:
        self.seconds = 0.0
        """How long END_TXN has taken."""
        self.group: Sequence[TxnId] = ()
        """Further transactions of its coordinator that are committed by the same record; an abort leaves them alone."""
        self.aborts_others = False
        """Whether its commit aborts all else that the transactional id has open."""
        self.visible = life.options.visible
        """Whether its commit waits until readers see it."""
        self.given_up: TransactionAborted | None = None
        """Why it cannot be committed here, although its group may have done so."""
        self.commit_left = False
        """Whether END_TXN commit may have reached the coordinator."""
        self.place: str | None = None
        """Where the program commits it, for a warning."""
        self.resolver: Any = None
        """What errors of unknown outcomes ask."""
        self._life = life
        self._opening = opening
        self._operations = operations
        self._inputs = inputs
        self._coordinators = coordinators
        self._monotonic = monotonic
        self._empty = empty

    @property
    def is_empty(self) -> bool:
        """True if it has no id, and nothing was done in it that would need one."""
        return self._life.id is None and not self._operations.any_started and not self._inputs.looked_for

    @property
    def only_aborts(self) -> bool:
        """True if an abort was asked for, and no commit before: the outcome is asked for by asking for the abort again."""
        return self._life.aborts and not self.commit_left

    async def commit(self, budget: float) -> None:
        """Wait for its operations, then END_TXN, within so many seconds."""
        life, end = self._life, self._monotonic() + budget
        again = life.state is TransactionState.UNKNOWN or life.attached
        held = life.state if life.state in HELD else None
        if self.given_up is not None:
            await self._abort_because(self.given_up, budget, settled=True)
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
            await self.settle(end)
        await self.check_whole(end)
        if life.options.force_abort:
            await self.abort(max(ABORT_WAIT_SECONDS, end - self._monotonic()), settled=True)
            return
        if life.id is None:
            if self.is_empty:
                self._empty.warn(life.options.name, self.place)
        else:
            await self._end_commit(life.id, max(0.001, end - self._monotonic()), maybe_before=again, held=held)
        self._committed()

    async def check_whole(self, end: float) -> None:
        """Abort, and say why, when an operation has failed, or was called and never awaited."""
        self._operations.check_awaited()
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
            await self.abort(max(ABORT_WAIT_SECONDS, budget), settled=settled)
        except PulsarError as failed:
            if life.state is TransactionState.COMMITTED:
                if life.failures:
                    raise failed from reason
                return
            if life.options.check_group is not None or (life.attached and life.state is TransactionState.UNKNOWN):
                self.given_up = reason
                raise self._unknown(failed) from reason
            reason.add_note(self.unaborted(failed))
        raise reason

    async def settle(self, end: float) -> None:
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
        before, sent = self._monotonic(), self._opening.tally.sent
        commits = action is TxnAction.COMMIT
        try:
            group, alone = (self.group, self.aborts_others) if commits else ((), False)
            answered = commits and not (group or alone or self._life.prepared or self._life.may_come_late)
            await self._coordinators.end_txn(
                txn_id,
                action,
                timeout=timeout,
                tally=self._opening.tally,
                group=group,
                abort_others=alone,
                prepared=self._life.prepared,
                at_decision=commits and not self.visible,
                all_answered=answered,
            )
        finally:
            self.seconds += self._monotonic() - before
            self.commit_left |= commits and self._opening.tally.sent > sent

    async def _end_commit(self, txn_id: TxnId, budget: float, *, maybe_before: bool, held: TransactionState | None) -> None:
        """`held`: the state that it is in again when END_TXN has not left, because it has no timeout."""
        sent, life = self._opening.tally.sent, self._life
        try:
            await self._end_txn(txn_id, TxnAction.COMMIT, budget)
        except (TransactionNotFound, InvalidTransactionStatus) as error:
            repeated = maybe_before or error.maybe_processed or self._ended_by_somebody(error)
            if repeated and not self._never_happened(error):
                raise self._unknown(error) from error
            life.move(TransactionState.ABORTED)
            raise self._ended_elsewhere(error) from error
        except PulsarError as error:
            never_left = self._opening.tally.sent == sent or isinstance(error, TimeoutError | ConnectionError)
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
        """True if the transaction is gone although its time is not over: the client that ended it may have committed it."""
        if not isinstance(error, TransactionNotFound):
            return False
        life = self._life
        if life.may_be_ended_elsewhere or life.is_known_to_others:
            return True
        return life.deadline is not None and self._monotonic() < life.deadline

    def _never_happened(self, error: PulsarError) -> bool:
        """True if a refused commit cannot be the repeat of one that was carried out.

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
        error.resolver = self.resolver
        return error

    async def resolve(self, budget: float) -> TransactionState:
        """Ask for the outcome by asking for it again; raises what stands in the way of the question."""
        life = self._life
        if life.id is None:
            return life.state
        if self.given_up is not None or self.only_aborts:
            return await self._resolve_by_abort(life.id, budget)
        try:
            await self._end_txn(life.id, TxnAction.COMMIT, budget)
        except (InvalidTransactionStatus, TransactionNotFound, TransactionFenced) as error:
            if not self._never_happened(error):
                return TransactionState.UNKNOWN
            life.move(TransactionState.ABORTED)
        else:
            self._committed()
        return life.state

    async def _resolve_by_abort(self, txn_id: TxnId, budget: float) -> TransactionState:
        """How one that was given up, or aborted, has ended, or ends now: a commit must not be what asks for it."""
        try:
            await self._end_txn(txn_id, TxnAction.ABORT, budget)
        except (TransactionNotFound, TransactionFenced):
            return TransactionState.UNKNOWN
        except InvalidTransactionStatus as error:
            if not self._says_committed(error):
                return TransactionState.UNKNOWN
            self._committed()
        else:
            self._life.move(TransactionState.ABORTED)
        return self._life.state

    def _says_committed(self, error: InvalidTransactionStatus) -> bool:
        """True if a refused abort means that somebody has committed. A stock coordinator may just be aborting it itself."""
        return error.definite or self._life.may_be_ended_elsewhere

    # --- abort --------------------------------------------------------------------------------------------------------

    async def abort(self, budget: float, *, settled: bool = False) -> None:
        """Wait for its operations, unless they are `settled`, then END_TXN, within so many seconds."""
        life, end = self._life, self._monotonic() + budget
        life.move(TransactionState.ABORTING)
        failures = list(life.failures)
        if not settled:
            # An acknowledgement that reaches its broker after the abort would stay pending there: wait for the operations,
            # but leave END_TXN the time that it needs.
            await self.settle(end - min(ABORT_WAIT_SECONDS, budget) / 2)
        life.failures[:] = failures or life.failures
        if life.id is None:
            await self._opening.wait(end)
        life.aborts = True
        if life.id is not None:
            try:
                await self._end_abort(life.id, end)
            except (TransactionNotFound, TransactionFenced) as error:
                if life.may_be_ended_elsewhere or life.is_known_to_others or self.commit_left:
                    life.move(TransactionState.UNKNOWN)
                    if isinstance(error, TransactionNotFound):
                        error.hint = _MAYBE_COMMITTED
                    raise
                extra = {"txn_id": str(life.id), "state": life.state.value}
                logger.debug("transaction %s was over before its abort", life.id, extra=extra)
            except InvalidTransactionStatus as error:
                if not (life.may_be_ended_elsewhere or life.is_known_to_others):
                    life.move(TransactionState.ERROR)
                elif self._says_committed(error):
                    self._committed()
                else:
                    life.move(TransactionState.UNKNOWN)
                raise
        life.move(TransactionState.ABORTED)

    def unaborted(self, failed: BaseException) -> str:
        """What to say of an abort that failed."""
        if self._life.state is TransactionState.UNKNOWN:
            return f"its coordinator does not know the transaction, so nobody knows here how it has ended: {failed}"
        return f"the abort failed, so its coordinator aborts it at its timeout: {failed}"

    async def _end_abort(self, txn_id: TxnId, end: float) -> None:
        try:
            await self._end_txn(txn_id, TxnAction.ABORT, max(0.001, end - self._monotonic()))
        except InvalidTransactionStatus as error:
            if error.definite:
                raise
            # A stock coordinator refuses an abort in the moment in which its own timeout aborts; it takes the next one.
            await self._end_txn(txn_id, TxnAction.ABORT, max(0.001, end - self._monotonic()))
