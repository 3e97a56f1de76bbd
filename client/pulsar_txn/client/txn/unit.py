"""The shell around the machine of a transaction: requests, futures, the timer, and who is told.

What happens is told to `state.transaction.TransactionMachine`, and what it answers is performed here. Each topic partition and
subscription is registered once with the coordinator, before the first operation leaves; those asked for in one turn of the loop
travel together. The first registration opens the transaction, and a coordinator beside clusters takes both in one request.

A commit that is on its way belongs to the transaction, not to its caller: cancelling the caller does not cancel it. One end is
on its way at a time. An abort takes the place of a prepare; nothing takes the place of a commit or an abort.

Sources: PIP-31; the protocol's transaction commands 50 to 57.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import warnings
import weakref
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Final

from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    NotAllowedError,
    PulsarError,
    TransactionStateError,
)
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.state import transaction as steps
from pulsar_txn.client.state.prepared import SECRET_BYTES, PreparedToken
from pulsar_txn.client.state.transaction import FINAL, State, Target, TransactionMachine, TransactionOptions, TransactionState
from pulsar_txn.client.txn.coordinators import TransactionCoordinators
from pulsar_txn.client.txn.encoding import Named
from pulsar_txn.client.txn.enlist import Caller, Flushable, Input, WhenEnded
from pulsar_txn.client.txn.forgotten import Forgotten, UnawaitedCalls, calling_place
from pulsar_txn.client.txn.observers import Observers, PartitionStats, Phases, SubscriptionStats, TransactionStats
from pulsar_txn.client.txn.session import RequestTally
from pulsar_txn.wire.ids import TxnAction, TxnId, coordinator_of

logger = logging.getLogger("pulsar_txn.client.txn")

_NOTHING_AROUND: Final = contextvars.Context()
"""The context of timers. A cancelled one is kept by the loop for a while, and what was around the program with it."""


class Unit:
    """One transaction; hashable by identity, because batches are keyed by it. Not thread-safe.

    Programs hold an `AsyncTransaction` over it; producers, consumers and loops call it.
    """

    def __init__(
        self,
        core: Core,
        coordinators: TransactionCoordinators,
        options: TransactionOptions,
        *,
        txn_id: TxnId | None = None,
        prepared: PreparedToken | None = None,
        observers: Observers[Unit] | None = None,
        forgotten: Forgotten | None = None,
        others: Collection[object] = (),
        alone_among: Collection[Unit] = (),
    ) -> None:
        self.check_here = core.check_here
        """Raises WrongEventLoop outside of the event loop of its client."""
        self._alone_among = alone_among
        self._monotonic = core.runtime.monotonic
        known = txn_id if prepared is None else prepared.txn_id
        self.machine = TransactionMachine(options, self._monotonic(), known, prepared)
        self.options = options
        self.begun = False
        """True if the program has begun it, and has not been told that this failed."""
        self._core = core
        self._coordinators = coordinators
        self._others = others  # cores of further clients, whose producers and consumers take part
        self._secret = core.runtime.secret
        self._observers = observers
        self._forgotten = Forgotten() if forgotten is None else forgotten
        self._commit_timeout = core.settings.operation_timeout if options.commit_timeout is None else options.commit_timeout
        # its id and its registrations
        self._tally = RequestTally()
        self._first_request: asyncio.Task[TxnId] | None = None
        self._opened_with: frozenset[Named] = frozenset()
        self._registrations: dict[Target, asyncio.Future[TxnId]] = {}
        self._to_register: list[Target] = []
        self._registering: set[asyncio.Task[None]] = set()
        # its operations and its input
        self._calls = UnawaitedCalls()
        self.called = self._calls.add
        """Note a call of an operation, which starts when it is awaited: the commit looks whether it was."""
        self._flushables: dict[Flushable, None] = {}
        self._idle: asyncio.Future[bool] | None = None
        self._inputs: dict[Input, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # its end
        self._running: asyncio.Task[Any] | None = None
        self._asked: tuple[TxnAction | None, asyncio.Task[None] | None] = (None, None)
        self._preparing: asyncio.Task[None] | None = None
        self._place: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._when_ended: list[WhenEnded] = []
        self._told = False
        # seconds, for its statistics
        self._seconds = dict.fromkeys(("begin", "register", "send", "wait_ops", "end"), 0.0)
        self._busy_since = 0.0

    def __del__(self) -> None:
        machine = self.machine
        if machine.state is State.OPEN and machine.deadline is not None:
            # Not repr(): it asks the loop for the time, and the collector may run where no loop is.
            text = f"transaction {machine.id} was never ended; its coordinator aborts it at its timeout"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        elif machine.usable and self._inputs:
            text = "a transaction that has received messages was never ended; they come again"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        if self._inputs and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # a loop that is closed delivers nothing again
                self._loop.call_soon_threadsafe(_bring_back, list(self._inputs))

    # --- looking at it ----------------------------------------------------------------------------------------------

    @property
    def id(self) -> TxnId | None:
        """The id, which the program does not see by this."""
        return self.machine.id

    @property
    def state(self) -> TransactionState:
        """Its state, as the program sees it."""
        return self.machine.shown

    @property
    def usable(self) -> bool:
        """True if operations are taken."""
        return self.machine.usable

    @property
    def failures(self) -> Sequence[BaseException]:
        """Failures of its operations, in their order."""
        return self.machine.failures

    @property
    def left_to_group(self) -> bool:
        """True if its outcome was left to its check group."""
        return self.machine.state is State.LEFT

    @property
    def closed_by(self) -> PulsarError | None:
        """The reason for which its client has aborted it."""
        return self.machine.closed_by

    @property
    def is_unknown_abort(self) -> bool:
        """True if an abort was asked for whose effect nobody knows here, and no commit before it."""
        return self.machine.state in (State.ABORT_UNKNOWN, State.GIVEN_UP)

    @property
    def remaining(self) -> float | None:
        """Seconds until operations are refused; None for a transaction begun elsewhere or not opened yet."""
        deadline = self.machine.deadline
        return None if deadline is None else deadline - self._monotonic()

    @property
    def has_work(self) -> bool:
        """True if its coordinator has to be told of its end, or messages come again after its abort."""
        return self.machine.id is not None or self._is_opening or bool(self._inputs)

    @property
    def is_on_its_way(self) -> bool:
        """True if a commit, an abort or a prepare has begun and has no outcome yet."""
        return self._running is not None and not self._running.done()

    @property
    def is_begun_here(self) -> bool:
        """True if this client has to end it before it begins another one, when it has one at a time."""
        return self.begun and (self.usable or self.state is TransactionState.PREPARING or self.is_on_its_way)

    @property
    def _is_opening(self) -> bool:
        return self._first_request is not None and not self._first_request.done()

    def begin(self) -> None:
        """The program begins it. TransactionStateError when the client has one at a time, and that has not ended."""
        for other in self._alone_among:
            if other.is_begun_here:
                raise TransactionStateError(
                    f"the client has one transaction at a time, and {other!r} has not ended",
                    txn_id=other.id,
                    hint="end it first, or make the client without one_transaction_at_a_time=True",
                )
        self.begun = True

    def belongs_to(self, core: object) -> bool:
        """True if producers and consumers of the client with this core may take part."""
        return core is self._core or core in self._others

    def stats(self) -> TransactionStats:
        """Return a frozen picture of the transaction."""
        machine, tally = self.machine, self._tally
        self._count_sends()
        sends = tuple(
            _partition_stats(each, self._registrations.get(each)) for each in machine.targets if each.subscription is None
        )
        acks = tuple(
            _subscription_stats(each, self._registrations.get(each))
            for each in machine.targets
            if each.subscription is not None
        )
        now, seconds = self._monotonic(), self._seconds
        busy = seconds["send"] + (now - self._busy_since if machine.busy_targets else 0.0)
        return TransactionStats(
            id=machine.id,
            name=self.options.name,
            state=machine.shown,
            opened_at=None if machine.id is None else machine.opened_at,
            age_ms=int(((machine.ended_at or now) - machine.opened_at) * 1000),
            partitions=sends,
            subscriptions=acks,
            sends_in_flight=sum(each.sent - each.confirmed - each.failed for each in sends),
            acks_in_flight=sum(each.acked - each.confirmed - each.failed for each in acks),
            doomed=bool(machine.failures),
            doom_cause=machine.failures[0] if machine.failures else None,
            phases=Phases(**{phase: each * 1000 for phase, each in (seconds | {"send": busy}).items()}),
            retries=tally.retries,
            coordinator_id=None if machine.id is None else coordinator_of(machine.id.most),
            coordinator_endpoint=tally.endpoint,
        )

    def __repr__(self) -> str:
        machine = self.machine
        self._count_sends()
        topics = sum(each.subscription is None for each in machine.targets)
        left = "" if self.remaining is None or not machine.usable else f" {self.remaining:.1f}s left"
        label = f" {self.options.name!r}" if self.options.name else ""
        counts = f"{topics} topics {len(machine.targets) - topics} subscriptions"
        return f"<Transaction {machine.id or '(not opened)'}{label} {machine.shown.value} {counts}{left}>"

    # --- its operations (see `enlist`) ------------------------------------------------------------------------------

    def enlist_send(
        self, core: object, topic: str, messages: int, size: int, flushable: Flushable
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start `messages` sends (`size` bytes together) to one topic partition; see the module's text for the order.

        `core` is the client's core object, compared by identity to find objects of another client; `topic` is what its
        `target` says. `flushable` is to be flushed when the transaction waits for its operations.
        Raises TransactionStateError or TransactionTimedOut; then nothing was started.
        """
        self._check_usable(core)
        self._flushables[flushable] = None
        return self._registration(self._start(topic, None, messages, size))

    def enlist_more(self, topic: str, messages: int, size: int) -> None:
        """Count further sends to a topic partition, while sends that `enlist_send` has counted are not finished.

        The first message of a batch is counted by `enlist_send`, the others at once when the batch is complete.
        """
        self.machine.sends_added(topic, messages, size)

    def enlist_ack(
        self, core: object, topic: str, subscription: str, messages: int, *, cumulative: bool
    ) -> TxnId | asyncio.Future[TxnId]:
        """Start the acknowledgement of `messages` messages of one subscription of a topic partition; as `enlist_send`."""
        self._check_usable(core)
        return self._registration(self._start(topic, subscription, messages, cumulative=cumulative))

    def _start(self, topic: str, subscription: str | None, messages: int, size: int = 0, *, cumulative: bool = False) -> Target:
        machine = self.machine
        if not machine.busy_targets:
            self._busy_since = self._monotonic()
        return machine.operation_starts(topic, subscription, messages, size, cumulative=cumulative)

    def send_finished(self, topic: str, messages: int, error: BaseException | None) -> None:
        """Sends have their receipt, or failed."""
        self._finish(topic, None, messages, error)

    def ack_finished(self, topic: str, subscription: str, messages: int, error: BaseException | None) -> None:
        """Acknowledgements are answered, or failed."""
        self._finish(topic, subscription, messages, error)

    def _finish(self, topic: str, subscription: str | None, messages: int, error: BaseException | None) -> None:
        machine = self.machine
        machine.operation_ends(topic, subscription, messages, error)
        if error is not None:
            self._perform()
        if not machine.busy_targets:
            self._seconds["send"] += self._monotonic() - self._busy_since
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(True)

    @property
    def may_be_fenced(self) -> bool:
        """True if a broker may refuse its sends because somebody took over; `why_refused` finds out."""
        return self._coordinators.may_be_fenced

    async def why_refused(self, error: NotAllowedError) -> PulsarError:
        """The error of a send that its broker does not allow: ProducerFenced where its coordinator says so, else `error`."""
        return (await self._coordinators.why_refused(error)).with_details(txn_id=self.machine.id)

    def sent_again(self) -> None:
        """Note that an operation was written again on another connection: the first one may still reach its broker, late."""
        self.machine.operation_repeated()

    def looks_for_input(self, core: object) -> None:
        """Note that a consumer is asked for messages in this transaction. Raises as `enlist_send`; opens nothing."""
        self._check_usable(core)
        self.machine.looks_for_input()

    def join(self, core: object, joining: Input) -> None:
        """Add messages that were received in this transaction: its commit acknowledges them, and its abort brings them back.

        The same object may join again, without effect. Raises as `enlist_send`. Nothing is opened by it: the id is taken
        when the first operation needs it.
        """
        self._check_usable(core)
        self.machine.looks_for_input()
        self._inputs[joining] = None
        self._loop = asyncio.get_running_loop()

    def in_time(self) -> bool:
        """True if its time is not over: what leaves later may arrive after its abort."""
        in_time = self.machine.in_time(self._monotonic())
        if self.machine.effects:
            self._perform()
        return in_time

    def left_out(self, caller: Caller) -> None:
        """Note an operation without `txn=` inside the block of this transaction, which does not join it."""
        if self.usable and self.belongs_to(caller.core):
            self._forgotten.left_out(caller.operation)

    def doom(self, error: BaseException) -> None:
        """An operation failed before it was started, where nobody could be told: nothing of the unit is to be committed."""
        self.machine.fail(error)
        self._perform()

    def _check_usable(self, core: object) -> None:
        if core is not self._core and core not in self._others:
            raise TransactionStateError(
                "this transaction belongs to another client",
                txn_id=self.machine.id,
                hint="use producers and consumers of the client that began it, or of one that shares its coordinator",
            )
        try:
            self.machine.check_usable(self._monotonic())
        finally:
            if self.machine.effects:
                self._perform()

    def _count_sends(self) -> None:
        for flushable in self._flushables:
            flushable.count_sends(self)

    def _acknowledge_input(self) -> None:
        """An end begins that may commit it: have everything acknowledged in it that was received in it."""
        if not self._inputs or not self.machine.input_is_due(self._monotonic()):
            self._perform()
            return
        for each in list(self._inputs):
            try:
                each.acknowledge()
            except Exception as error:  # noqa: BLE001 - nothing of the unit may be committed without its input
                self.doom(error)

    # --- its id, and what its coordinator knows ---------------------------------------------------------------------

    async def open(self, first: Sequence[Named] = ()) -> TxnId:
        """Return the id, which the coordinator is asked for once; callers share one request, which no caller cancels.

        `first` is registered with it, where the coordinator can do that (`_opened_with`).
        """
        if self.machine.id is not None:
            return self.machine.id
        if self._first_request is None:
            self._first_request = asyncio.get_running_loop().create_task(self._open(first))
            self._first_request.add_done_callback(_retrieve)  # all who waited for it may have been cancelled
        return await asyncio.shield(self._first_request)

    async def open_now(self) -> None:
        """Open it before its first operation. If cancelled, a transaction that was opened meanwhile is aborted."""
        try:
            await self.open()
        except asyncio.CancelledError:
            self.abandon()
            raise
        except BaseException:
            self.begun = False
            raise

    async def _open(self, first: Sequence[Named]) -> TxnId:
        before = self._monotonic()
        new_txn, timeout_ms, checked = self._coordinators.new_txn, int(self.options.timeout * 1000), self.options.checked
        txn_id = None
        if first and self._coordinators.registers_first:
            # What is wrong with `first` is answered to its own registration, as it is later on.
            with contextlib.suppress(NotAllowedError):
                txn_id = await new_txn(timeout_ms, tally=self._tally, first=first, checked=checked)
                self._opened_with = frozenset(first)
        if txn_id is None:
            txn_id = await new_txn(timeout_ms, tally=self._tally, checked=checked)
        self._seconds["begin"] = self._monotonic() - before
        self.machine.opened(txn_id, before)
        self._perform()
        return txn_id

    def _registration(self, target: Target) -> TxnId | asyncio.Future[TxnId]:
        """Return the id when `target` is registered, else a future of it, one and the same for all."""
        future = self._registrations.get(target)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._registrations[target] = loop.create_future()
            if not self._to_register:
                loop.call_soon(self._register)
            self._to_register.append(target)
        elif future.done() and future.exception() is None:
            return future.result()
        return future

    def _register(self) -> None:
        targets, self._to_register = self._to_register, []
        first = [(each.topic, each.subscription) for each in targets]
        topics = [each for each in targets if each.subscription is None]
        subscriptions = [each for each in targets if each.subscription is not None]
        for group in (topics, subscriptions):
            if group:
                task = asyncio.get_running_loop().create_task(self._register_group(group, first))
                self._registering.add(task)
                task.add_done_callback(self._registering.discard)

    async def _register_group(self, group: list[Target], first: list[Named]) -> None:
        before = None
        try:
            txn_id = await self.open(first)
            before = self._monotonic()
            await self._add(txn_id, [each for each in group if (each.topic, each.subscription) not in self._opened_with])
        except Exception as error:  # noqa: BLE001 - it goes to every waiter, as it is
            for future in map(self._registrations.__getitem__, group):
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # a waiter may have gone; its operation fails, and dooms the transaction
        else:
            for future in map(self._registrations.__getitem__, group):
                if not future.done():
                    future.set_result(txn_id)
            if self._observers is not None:
                self._observers.registered(self, [(each.topic, each.subscription) for each in group])
        finally:
            if before is not None:
                self._seconds["register"] += self._monotonic() - before

    async def _add(self, txn_id: TxnId, group: list[Target]) -> None:
        if not group:
            return
        if group[0].subscription is None:
            await self._coordinators.add_partitions(txn_id, [each.topic for each in group], tally=self._tally)
        else:
            pairs = [(each.topic, each.subscription or "") for each in group]
            await self._coordinators.add_subscriptions(txn_id, pairs, tally=self._tally)

    # --- its end ----------------------------------------------------------------------------------------------------

    async def finish(self, action: TxnAction, timeout: float | None = None) -> None:
        """Commit or abort, within so many seconds (the commit timeout). Concurrent callers share one end."""
        machine, budget = self.machine, self._commit_timeout if timeout is None else timeout
        if action is TxnAction.COMMIT and machine.usable and machine.is_empty:
            self._place = calling_place()
        asked, end = self._asked
        if end is None or end.done() or asked is not action:
            # A task of its own: tasks that were made before this call begin before it, and may send. No caller cancels it.
            end = asyncio.get_running_loop().create_task(self._run_end(action, budget))
            end.add_done_callback(_retrieve)
            self._asked = action, end
        await asyncio.shield(end)

    async def _run_end(self, action: TxnAction, budget: float) -> None:
        step = self._begin(action, budget)
        if step is None:
            await self.wait_closed()
            return
        self._running = asyncio.current_task()
        await self._drive(step, self._preparing)

    def abandon(self) -> None:
        """Abort, and let nobody wait for it: who wanted the transaction is gone."""
        self._carry_out(self._begin(TxnAction.ABORT, self._commit_timeout))

    def _begin(self, action: TxnAction, budget: float) -> steps.Step | None:
        """Return the first step of an end; None: it is on its way, or done."""
        machine = self.machine
        if action is TxnAction.COMMIT:
            if machine.closed_by is None and not self._is_preparing:
                self._acknowledge_input()
            return machine.commit(self._monotonic(), budget)
        step = machine.abort(self._monotonic(), budget)
        if step is None and not machine.is_on_its_way:
            self._running = None  # it is aborted: nobody is told again why
        return step

    @property
    def _is_preparing(self) -> bool:
        return self._preparing is not None and not self._preparing.done()

    def _carry_out(self, step: steps.Step | None) -> None:
        if step is not None:
            self._perform()
            self._run(self._drive(step, self._preparing))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._running = asyncio.get_running_loop().create_task(work)
        self._running.add_done_callback(_retrieve)
        return self._running

    async def _drive(self, step: steps.Step, instead_of: asyncio.Task[None] | None = None) -> None:
        """Carry out the steps of an end, from this one to its answer, which is raised. A prepare is given up for it."""
        if instead_of is not None and not instead_of.done():
            instead_of.cancel()
            await asyncio.wait([instead_of])
        while True:
            self._perform()
            if isinstance(step, steps.Answer):
                if isinstance(step.error, CommitOutcomeUnknown):
                    step.error.resolver = self.resolve
                if step.error is None:
                    return
                raise step.error
            try:
                step = await self._carried_out(step)
            except BaseException:
                self.machine.broken(step, self._monotonic())
                self._perform()
                raise

    async def _carried_out(self, step: steps.Step) -> steps.Step:
        """Carry out one step of an end; returns the next one."""
        machine = self.machine
        match step:
            case steps.AwaitOperations(until, whole):
                all_ended = await self._operations_end(until)
                if whole:
                    self._fail_unawaited_calls()
                return machine.operations_ended(all_ended, self._monotonic())
            case steps.AwaitId(until):
                if self._first_request is not None:
                    await asyncio.wait([self._first_request], timeout=max(0.0, until - self._monotonic()))
                return machine.id_awaited(self._monotonic())
            case steps.PrepareTxn(token, timeout):
                request = self._coordinators.prepare_txn(token, timeout=timeout, tally=self._tally)
            case steps.EndTxn():
                request = self._end_txn(step)
            case _:
                raise AssertionError(step)
        sent, error = self._tally.sent, None
        try:
            await request
        except PulsarError as failed:
            error = failed
        return machine.answered(error, self._monotonic(), left=self._tally.sent > sent)

    async def _operations_end(self, until: float) -> bool:
        """Flush, and wait for all operations until then on the clock; returns True if all have ended."""
        if not self.machine.busy_targets:
            return True
        before, loop = self._monotonic(), asyncio.get_running_loop()
        for flushable in self._flushables:
            loop.call_soon(flushable.flush_nowait, context=_NOTHING_AROUND)
        idle: asyncio.Future[bool] = loop.create_future()
        self._idle = idle
        timer = loop.call_later(max(0.0, until - before), _set_false, idle, context=_NOTHING_AROUND)
        try:
            return await idle
        finally:
            timer.cancel()
            self._seconds["wait_ops"] += self._monotonic() - before

    def _fail_unawaited_calls(self) -> None:
        error = self._calls.failure()
        if error is not None:
            self.doom(error)

    async def _end_txn(self, step: steps.EndTxn) -> None:
        before = self._monotonic()
        try:
            await self._coordinators.end_txn(
                step.txn_id,
                step.action,
                timeout=step.timeout,
                tally=self._tally,
                group=step.group,
                abort_others=step.abort_others,
                prepared=step.prepared,
                at_decision=step.at_decision,
                all_answered=step.all_answered,
            )
        finally:
            self._seconds["end"] += self._monotonic() - before

    async def wait_closed(self) -> None:
        """Wait for an end that is on its way; raises what it raises. Returns at once if absent."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def commit_early(self) -> None:
        """Have its commit answered at the decision. FeatureUnsupported where its coordinator cannot do that."""
        if self.machine.id is not None:
            await self._coordinators.needs_checks(self.machine.id, "commit(visible=False)")
        self.machine.answer_early()

    async def commit_together(self, group: Sequence[TxnId], *, aborts_others: bool) -> None:
        """Commit it and, by the same record, transactions that were begun elsewhere. Raises as `finish`."""
        self.machine.commit_together(group, aborts_others=aborts_others)
        await self.finish(TxnAction.COMMIT)

    async def prepare(self, timeout: float | None = None, secret: bytes | None = None) -> PreparedToken:
        """See `AsyncTransaction.prepare`. Concurrent callers share one prepare, and the secret of its first call."""
        machine = self.machine
        if machine.state is not State.PREPARED:
            if not self._is_preparing:
                if self.options.force_abort:
                    raise TransactionStateError(
                        "a dry run cannot be prepared", txn_id=machine.id, hint="leave force_abort= out"
                    )
                if machine.state is not State.PREPARE_LOST:
                    self._check_usable(self._core)
                self._preparing = self._run(self._prepare(self._commit_timeout if timeout is None else timeout, secret))
            if self._preparing is not None:
                await self._join_prepare(self._preparing)
        if machine.prepared is None:
            raise TransactionStateError(f"the transaction is {machine.shown.value}", txn_id=machine.id)
        return machine.prepared

    async def _join_prepare(self, running: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.cancelled():
                raise
            text = "the transaction was aborted while it was being prepared"
            raise TransactionStateError(text, txn_id=self.machine.id) from None

    async def _prepare(self, budget: float, secret: bytes | None) -> None:
        machine, end = self.machine, self._monotonic() + budget
        txn_id = await self.open()
        if machine.state is not State.PREPARE_LOST:  # else the answer of an attempt before was lost
            await self._coordinators.needs_checks(txn_id, "prepare()")
            self._acknowledge_input()
        token = PreparedToken(txn_id, secret or self._secret(SECRET_BYTES))
        step = machine.prepare(token, now := self._monotonic(), end - now)
        if step is not None:
            await self._drive(step)

    async def leave_to_check(self) -> None:
        """See `AsyncTransaction.leave_to_check`."""
        machine = self.machine
        machine.check_leavable()
        if self.is_on_its_way:
            raise TransactionStateError(f"the transaction is {machine.shown.value}", txn_id=machine.id)
        end = self._monotonic() + self._commit_timeout
        if machine.id is not None or self._is_opening:
            self._acknowledge_input()
        all_ended = await self._operations_end(end if machine.deadline is None else min(end, machine.deadline))
        machine.check_leavable()
        self._fail_unawaited_calls()
        step = machine.waited(all_ended, now := self._monotonic(), end - now)
        if step is None:
            self._leave()
            await asyncio.sleep(0)  # those that wait for its end are told before the program goes on
            return
        self._carry_out(step)
        await self.wait_closed()

    def leave_now(self) -> None:
        """Leave it to its check group without waiting for operations, for a program that ends."""
        if self.machine.id is not None or self._is_opening:
            self._acknowledge_input()
        self._leave()

    def _leave(self) -> None:
        self.machine.leave(self._monotonic(), is_opening=self._is_opening)
        self._perform()

    def drop(self, error: PulsarError) -> None:
        """Its client leaves the cluster: what is under way fails, and the coordinator aborts it at its timeout."""
        self.machine.drop(error, self._monotonic())
        self._perform()

    def run_out(self, error: PulsarError) -> None:
        """Its client closes, and has no time to abort it: its coordinator does at its timeout."""
        self.machine.run_out(error, self._monotonic(), is_opening=self._is_opening)
        self._perform()

    async def close(self, error: PulsarError, seconds: float) -> bool:
        """Its client closes: wait for an end that is on its way, abort what is open. Returns True if ended. Never raises."""
        try:
            step = self.machine.close(error, self._monotonic(), seconds, is_opening=self._is_opening)
            self._carry_out(step)
            self._perform()
            if step is not None or self.is_on_its_way:
                async with asyncio.timeout(seconds):
                    await self.wait_closed()
        except (PulsarError, TimeoutError) as failed:
            logger.debug("transaction %s has not ended with its client: %s", self.machine.id, failed)
        return self.state in FINAL

    async def resolve(self) -> TransactionState:
        """See `AsyncTransaction.resolve`."""
        asked = self.machine.question(self._commit_timeout)
        if asked is None:
            return self.state
        sent, error = self._tally.sent, None
        try:
            await self._end_txn(asked)
        except PulsarError as failed:
            error = failed
        try:
            return self.machine.question_answered(asked, error, self._monotonic(), left=self._tally.sent > sent)
        finally:
            self._perform()

    def forget_calls(self) -> None:
        """Leave calls that were never awaited to the warnings of Python, because it has ended."""
        self._calls.clear()

    # --- what the machine wants -------------------------------------------------------------------------------------

    def when_ended(self, callback: WhenEnded) -> None:
        """Call `callback(outcome)`, on the loop, when the transaction has ended or can no longer be used here.

        COMMIT or ABORT once that is known. Before it, at most once, None: its time is over, or its outcome is unknown.
        Consumers use it to forget which messages were acknowledged in it, and to have them again after an abort.
        When that is already so, it is called in the next turn of the loop.
        """
        if self._told:
            asyncio.get_running_loop().call_soon(callback, self.machine.outcome)
        if self.state not in FINAL:
            self._when_ended.append(callback)

    def _perform(self) -> None:
        effects = self.machine.effects
        while effects:
            effect = effects.pop(0)
            match effect:
                case steps.StartTimer(at):
                    # Weakly: a transaction that the program dropped is to be collected, which warns.
                    delay = max(0.0, at - self._monotonic())
                    self._timer = asyncio.get_running_loop().call_later(
                        delay, _expire, weakref.ref(self), context=_NOTHING_AROUND
                    )
                case steps.StopTimer():
                    if self._timer is not None:
                        self._timer.cancel()
                        self._timer = None
                case steps.BringInputBack():
                    joined, self._inputs = self._inputs, {}
                    _bring_back(list(joined))
                case steps.ForgetInput():
                    self._inputs.clear()
                case steps.TellEnd(outcome, final):
                    self._tell(outcome, final=final)
                case steps.WarnEmpty():
                    self._forgotten.warn(self.options.name, self._place)
                case _:
                    if self._observers is not None:
                        self._observe(self._observers, effect)

    def _observe(self, observers: Observers[Unit], effect: steps.Effect) -> None:
        match effect:
            case steps.Opened():
                observers.opened(self)
            case steps.Doomed(error):
                observers.doomed(self, error)
            case steps.Ending(action):
                observers.ending(self, action)
            case steps.Ended():
                observers.ended(self)

    def _tell(self, outcome: TxnAction | None, *, final: bool) -> None:
        if self._told and not final:
            return
        self._told = True
        callbacks = self._when_ended
        if final:
            self._when_ended = []
        loop = asyncio.get_running_loop()
        for callback in list(callbacks):  # who is told may be the caller of what has ended it
            loop.call_soon(callback, outcome, context=_NOTHING_AROUND)

    def expire(self) -> None:
        """Its time is over."""
        self.machine.expire(self._monotonic())
        self._perform()


def _expire(unit: weakref.ref[Unit]) -> None:
    alive = unit()
    if alive is not None:
        alive.expire()


def _bring_back(joined: Sequence[Input]) -> None:
    for each in joined:
        each.bring_back()


def _set_false(idle: asyncio.Future[bool]) -> None:
    if not idle.done():
        idle.set_result(False)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """The caller of an end may be gone; its result was recorded in the state."""
    if not task.cancelled():
        task.exception()


def _is_registered(future: asyncio.Future[TxnId] | None) -> bool:
    return future is not None and future.done() and not future.cancelled() and future.exception() is None


def _partition_stats(target: Target, registration: asyncio.Future[TxnId] | None) -> PartitionStats:
    counts = (target.started, target.confirmed, target.failed, target.bytes)
    return PartitionStats(target.topic, _is_registered(registration), *counts)


def _subscription_stats(target: Target, registration: asyncio.Future[TxnId] | None) -> SubscriptionStats:
    counts = (target.started, target.confirmed, target.failed, target.cumulative)
    return SubscriptionStats(target.topic, target.subscription or "", _is_registered(registration), *counts)
