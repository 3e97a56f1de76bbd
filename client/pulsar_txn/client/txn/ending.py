"""Who may end a transaction, and when: what the program asks for, what the close of its client does, who shares an end.

The diagram of its states is at the head of `life.py`; `deciding` carries the ends out.

* A commit that is on its way belongs to the transaction, not to its caller: cancelling the caller does not cancel it.
* One end is on its way at a time. An abort takes the place of a prepare; nothing takes the place of a commit or an abort.
* What others decide on (members of its check group, who holds its token) is not ended by the close of its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from pulsar_txn.client.errors import PulsarError, TransactionStateError
from pulsar_txn.client.txn.deciding import Decision
from pulsar_txn.client.txn.empty_commits import EmptyCommits, calling_place
from pulsar_txn.client.txn.inputs import Inputs
from pulsar_txn.client.txn.life import FINAL, HELD, USABLE, Life
from pulsar_txn.client.txn.opening import Opening
from pulsar_txn.client.txn.operations import Operations
from pulsar_txn.client.txn.prepared import PreparedToken
from pulsar_txn.client.txn.preparing import Preparing
from pulsar_txn.client.txn.registrar import CoordinatorSessions
from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.wire.ids import TxnAction

logger = logging.getLogger("pulsar_txn.client.txn")


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
        self.closed_by: PulsarError | None = None
        """Why the client has aborted it, if the client did: the program did not ask for that."""
        self.decision = Decision(life, opening, operations, inputs, coordinators, monotonic=monotonic, empty=empty)
        self.decision.resolver = self.resolve
        self._life = life
        self._opening = opening
        timeout = life.options.commit_timeout
        self._commit_timeout = operation_timeout if timeout is None else timeout
        self._monotonic = monotonic
        self._begins = begins
        self._running: asyncio.Task[None] | None = None
        self._action: TxnAction | None = None
        """What is under way, or was; None: a prepare."""
        self._preparing = Preparing(
            life,
            opening,
            inputs,
            coordinators,
            monotonic=monotonic,
            secret=secret,
            settle=self.decision.settle,
            check_whole=self.decision.check_whole,
        )

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

    async def prepare(self, timeout: float | None = None, secret: bytes | None = None) -> PreparedToken:
        """See `AsyncTransaction.prepare`. Concurrent callers share one prepare, and the secret of its first call."""
        life = self._life
        if life.state is not TransactionState.PREPARED and not self._prepares:
            self._check_preparable()
            self._action = None
            self._run(self._preparing.run(self._commit_timeout if timeout is None else timeout, secret))
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
    def _prepares(self) -> bool:
        """True if a prepare is on its way."""
        return self.is_under_way and self._action is None

    async def leave_to_check(self) -> None:
        """See `AsyncTransaction.leave_to_check`."""
        self._check_leavable()
        end = self._monotonic() + self._commit_timeout
        await self.decision.settle(end)
        await self.decision.check_whole(end)
        self.leave_now()

    def leave_now(self) -> None:
        """The same without waiting for operations, for a program that ends."""
        nowhere = self._life.id is None and not self._opening.is_under_way
        self._life.left_to_group = not nowhere
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
        """True if a commit, an abort or a prepare has begun and has no outcome yet."""
        return self._running is not None and not self._running.done()

    @property
    def is_unknown_abort(self) -> bool:
        """True if an abort was asked for whose effect nobody knows here, and no commit before it."""
        return self._life.state is TransactionState.UNKNOWN and self.decision.only_aborts

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
        """True if closing the client leaves it as it is, because somebody else decides on it."""
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
        if commits and self.decision.is_empty:
            self.decision.place = calling_place()
        prepare = self._running if self._prepares else None
        self._action = action
        self._life.left_to_group = False  # the program decides after all
        self._begins(action)
        self._run(self.decision.commit(budget) if commits else self._abort_instead(prepare, budget))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._running = asyncio.get_running_loop().create_task(work)
        self._running.add_done_callback(_retrieve)

    async def _abort_instead(self, prepare: asyncio.Task[None] | None, budget: float) -> None:
        """Abort. A prepare that is on its way is given up, and has no effect after the abort."""
        if prepare is not None:
            prepare.cancel()
            await asyncio.wait([prepare])
        await self.decision.abort(budget)

    def _join(self, action: TxnAction) -> bool:
        """True if an end that is on its way, or done, is the answer; TransactionStateError when it is the other one.

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
        no_commit_left = self._life.left_to_group or self.decision.given_up is not None
        if self.is_unknown_abort and not self._life.may_be_ended_elsewhere:
            # It was to be aborted: that may be asked for again, and a commit may not.
            other, no_commit_left = TransactionState.UNKNOWN, action is TxnAction.ABORT
        if running or state in FINAL or (state is other and not no_commit_left):
            raise TransactionStateError(
                f"{action.name.lower()} of a transaction that is {state.value}",
                txn_id=self._life.id,
                hint="ask the error's resolve() for the outcome"
                if state is TransactionState.UNKNOWN
                else "begin a new transaction for further work",
            )
        return False

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
        if life.left_to_group:
            raise TransactionStateError(
                "the outcome was left to the check of its group, and asking for it here would decide it",
                txn_id=life.id,
                hint="wait for the group, or call commit() or abort()",
            )
        outcome: TransactionState = await self.decision.resolve(self._commit_timeout)
        return outcome


def _retrieve(task: asyncio.Task[None]) -> None:
    """The caller of an end may be gone; its result was recorded in the state."""
    if not task.cancelled():
        task.exception()
