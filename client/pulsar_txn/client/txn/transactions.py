"""The transactions of one client: how they begin, run again, commit together, and end when the client closes or moves.

`run_transaction` repeats an attempt that was aborted for a reason that another attempt can mend (`Attempts`).

A program that is spread over processes sends in a transaction of its own in each of them. One process then commits exactly
those whose work counts (`commit_together`): all or none. They need one coordinator, which a transactional id gives them; and
the next epoch of the id aborts whatever was left open. Brokers offer it by a feature flag (`docs/adr/0023`); stock Pulsar does
not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakSet

from pulsar_txn.client._callables import awaited, check_takes_one, opens
from pulsar_txn.client._validation import refused, seconds_of, validate_call, validate_text, validate_whole
from pulsar_txn.client.errors import (
    AlreadyClosed,
    CommitOutcomeUnknown,
    ConnectionLost,
    InvalidConfiguration,
    InvalidTransactionStatus,
    PulsarError,
    TransactionAborted,
    TransactionNotFound,
    TransactionOperationFailed,
    UsageError,
)
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.state.prepared import PreparedToken, token_of
from pulsar_txn.client.state.transaction import FINAL, TransactionOptions, TransactionState
from pulsar_txn.client.txn.check_groups import (
    DEFAULT_CHECK_TIMEOUT,
    DEFAULT_CONCURRENCY,
    AsyncCheckGroup,
    Check,
    CheckGroups,
    CheckTerms,
    OnDecided,
    checked,
)
from pulsar_txn.client.txn.coordinators import TransactionCoordinators
from pulsar_txn.client.txn.forgotten import Forgotten
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.observers import Observers
from pulsar_txn.client.txn.session import ClientIncarnation, Epoch, TransactionalIdInfo
from pulsar_txn.client.txn.transaction import AsyncTransaction, unit_of
from pulsar_txn.client.txn.unit import Unit
from pulsar_txn.wire.ids import TxnAction, TxnId, coordinator_of

logger = logging.getLogger("pulsar_txn.client.txn")

DEFAULT_ATTEMPTS: Final = 5

Pauses: TypeAlias = Callable[[int], float]
"""Time to wait after the n-th attempt (1, 2, …), in seconds."""


class Attempts:
    """Judges how an attempt of `run_transaction` ended; one per call."""

    def __init__(self, attempts: int, *, retry_unknown: bool, pauses: Pauses) -> None:
        validate_whole("attempts", attempts, 1)
        self._attempts = attempts
        self._done = 0
        self._retry_unknown = retry_unknown
        validate_call("backoff", pauses, "a function of the number of attempts")
        self._pauses = pauses

    async def judge(self, error: Exception) -> bool:
        """True if another attempt is to be made; not when the unit is done after all. Raises what is final."""
        self._done += 1
        again = isinstance(error, TransactionAborted) and not is_final(error)
        if isinstance(error, CommitOutcomeUnknown):
            outcome = await _outcome(error)
            if outcome is TransactionState.COMMITTED:
                return False
            again = self._retry_unknown or outcome is TransactionState.ABORTED
        if not again or self._done >= self._attempts:
            if again:
                error.add_note(f"given up after {self._attempts} attempts")
            raise error
        extra = {"txn_id": str(getattr(error, "txn_id", None)), "state": "retry"}
        logger.info("attempt %d of %d was not committed: %s", self._done, self._attempts, error, extra=extra)
        return True

    def pause(self) -> float:
        """Seconds to wait before the next attempt; asks the program's function."""
        return self._pauses(self._done)


async def _outcome(error: CommitOutcomeUnknown) -> TransactionState:
    """The outcome that the coordinator knows; UNKNOWN, with a note, when it cannot be asked."""
    try:
        outcome: TransactionState = await error.resolver()
    except PulsarError as failed:
        error.add_note(f"the coordinator could not be asked for the outcome: {failed}")
        return TransactionState.UNKNOWN
    return outcome


def growing_pauses(client: BeginsTransactions) -> Pauses:
    """Growing pauses within the client's bounds."""
    backoff = client._core.backoff()
    return lambda _attempt: backoff.next()


def is_final(error: BaseException) -> bool:
    """True if running the unit again cannot help, because the reason is permanent."""
    causes = error.failures if isinstance(error, TransactionOperationFailed) and error.failures else (error,)
    return any(isinstance(cause, UsageError) or (isinstance(cause, PulsarError) and cause.fatal) for cause in causes)


async def take_over(client: BeginsTransactions) -> Epoch:
    """A new epoch for the client's transactional id; its first transaction aborts what older epochs have open.

    Raises TransactionalIdUnsupported where nobody fences, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost.
    """
    return await client._transactions.coordinators.take_over()


async def act_as(client: BeginsTransactions, epoch: Epoch) -> None:
    """Be the same instance as the process that took over. Raises TransactionFenced, and as `take_over`."""
    await client._transactions.coordinators.act_as(epoch)


async def commit_together(
    client: BeginsTransactions, txn: AsyncTransaction, others: Iterable[TxnId | str], *, abort_rest: bool = False
) -> None:
    """Commit `txn` and, by the same record, transactions that were begun elsewhere; or none of them.

    `abort_rest`: whatever else this epoch of the transactional id has open is aborted directly after that record.
    Nobody may still be sending in `others`. Raises as `txn.commit()`: TransactionAborted when one of them was ended before
    (`txn` is aborted then, the others are as they were); CommitOutcomeUnknown, whose `resolve()` asks for the whole group
    again. InvalidConfiguration when one has another coordinator, or the broker ends no groups.
    """
    unit = unit_of(txn)
    group = [TxnId.parse(each) if isinstance(each, str) else each for each in others]
    txn_id = await unit.open()
    for each in group:
        if coordinator_of(each.most) != coordinator_of(txn_id.most):
            raise InvalidConfiguration(
                f"transaction {each} has another coordinator than {txn_id}", hint="begin all of them with one transactional id"
            )
    try:
        await unit.commit_together(group, aborts_others=abort_rest)
    except TransactionAborted:
        await _abort(client._transactions.coordinators, txn_id)
        raise


async def open_now(txn: AsyncTransaction) -> None:
    """Open a transaction that would wait for its first operation. Raises as `AsyncClient.begin_transaction`."""
    await unit_of(txn).open_now()


async def open_for_others(client: BeginsTransactions, timeout_ms: int) -> TxnId:
    """Open a transaction that another process will end; `client.attach_transaction` gives the handle. Raises as `take_over`."""
    return await client._transactions.coordinators.new_txn(timeout_ms)


async def is_open(client: BeginsTransactions, txn_id: TxnId | str) -> bool:
    """True if a transaction of this epoch is neither ended nor being ended. Raises TransactionFenced, and as `take_over`."""
    coordinators = client._transactions.coordinators
    try:
        await coordinators.add_partitions(TxnId.parse(txn_id) if isinstance(txn_id, str) else txn_id, ())
    except (InvalidTransactionStatus, TransactionNotFound):
        return False
    return True


async def ends_groups(client: BeginsTransactions) -> bool:
    """True if the cluster's coordinators offer what this module rests on. Raises TransactionsDisabled, and as `take_over`."""
    return await client._transactions.coordinators.end_groups()


async def abort_all(client: BeginsTransactions, timeout_ms: int = 10_000) -> None:
    """Abort whatever this epoch of the client's transactional id has open, and what older ones have. Raises as `take_over`."""
    coordinators = client._transactions.coordinators
    txn_id = await coordinators.new_txn(timeout_ms)
    await coordinators.end_txn(txn_id, TxnAction.ABORT, abort_others=True)


async def _abort(coordinators: TransactionCoordinators, txn_id: TxnId) -> None:
    """A refused group leaves its members as they were: end the one that is ours."""
    try:
        await coordinators.end_txn(txn_id, TxnAction.ABORT)
    except PulsarError as error:
        logger.info("transaction %s of a refused group is left to its timeout: %s", txn_id, error)


CLOSE_SECONDS: Final = 2.0
"""Time that closing a client waits for the ends of its open transactions; the coordinators' timeouts do the rest."""

CLOSED_TOGETHER: Final = 256
"""Transactions that a client that closes aborts at the same time."""

LEFT_PER_TURN: Final = 1000
"""Transactions that are left to their timeouts in one turn of the loop."""


class Transactions:
    """Makes the transactions of a client. Coordinators are looked up at the first one, and not before."""

    def __init__(self, core: Core, incarnation: ClientIncarnation | None = None) -> None:
        self.observers = Observers(AsyncTransaction)
        self.groups = CheckGroups(core, lambda: self.coordinators)
        self.coordinators = TransactionCoordinators(core, incarnation=incarnation, groups=self.groups)
        self.core = core
        self.incarnation = incarnation
        """Name of the client at a coordinator beside the cluster; None where the brokers have the coordinators."""
        self._units: WeakSet[Unit] = WeakSet()
        self._forgotten = Forgotten()

    def new(self, options: TransactionOptions, txn_id: TxnId | None = None, prepared: PreparedToken | None = None) -> Unit:
        """A transaction that is not open yet; with an id or a token, one that was begun elsewhere. AlreadyClosed."""
        self.core.check_open()
        unit = Unit(
            self.core,
            self.coordinators,
            options,
            txn_id=txn_id,
            prepared=prepared,
            observers=self.observers,
            forgotten=self._forgotten,
            others=() if self.incarnation is None else self.incarnation.members,
            alone_among=self._units if self.core.settings.one_transaction_at_a_time else (),
        )
        self._units.add(unit)
        unit.when_ended(lambda _outcome: self._forget(unit))
        return unit

    def _forget(self, unit: Unit) -> None:
        self._units.discard(unit)
        unit.forget_calls()
        if unit.left_to_group and self.incarnation is not None:
            self.incarnation.leaves_open()

    def open(self) -> list[Unit]:
        """Those that have not ended, oldest first by their ids."""
        return sorted(self._units, key=lambda unit: unit.id or TxnId(-1, -1))

    def leave_cluster(self, url: str) -> None:
        """Drop all transactions, because the client moves: another cluster may take their ids for others."""
        error = ConnectionLost(f"the client has moved to {url}, and its transactions cannot", hint="run the unit again")
        for unit in self.open():
            unit.drop(error)
        left, self.coordinators = self.coordinators, TransactionCoordinators(self.core, groups=self.groups)
        left.leave(error)
        self.groups.moved()

    async def close(self) -> None:
        """Abort what is open, and wait for ends that are under way: for `CLOSE_SECONDS` in all.

        So many at a time, because a hundred thousand that begin together would hold the loop for longer than that.
        """
        units = self.open()
        if not units:
            return
        known = [unit for unit in units if unit.has_work]
        error = AlreadyClosed("the client was closed, so the transaction was aborted", hint="end transactions before close()")
        end = self.core.runtime.monotonic() + CLOSE_SECONDS
        idle = iter([unit for unit in units if not unit.is_on_its_way])
        ending = [unit.close(error, CLOSE_SECONDS) for unit in units if unit.is_on_its_way]
        await asyncio.gather(*ending, *(self._abort_some(idle, error, end) for _ in range(min(CLOSED_TOGETHER, len(units)))))
        for number, unit in enumerate(idle):  # those for which there was no time
            unit.run_out(error)
            if not number % LEFT_PER_TURN:
                await asyncio.sleep(0)
        self._note_left(units)
        aborted = [unit for unit in known if unit.closed_by is not None]
        if aborted:
            late = sum(unit.state not in FINAL for unit in aborted)
            how = (
                "their timeout does that" if self.incarnation is None else "the coordinator does that when it hears the goodbye"
            )
            rest = f"; {late} of them could not be aborted in {CLOSE_SECONDS:g} s: {how}" if late else ""
            logger.warning("the client was closed with %d open transactions, which were aborted%s", len(aborted), rest)

    def _note_left(self, units: Sequence[Unit]) -> None:
        """Say what others decide on: nobody sees it otherwise."""
        prepared = [unit for unit in units if unit.state is TransactionState.PREPARED]
        checked = [unit for unit in units if unit.left_to_group]
        if prepared:
            text = (
                "the client was closed and leaves %d prepared transactions alone: end them with their tokens; the first is %s"
            )
            logger.warning(text, len(prepared), prepared[0].id)
        if checked:
            text = "the client was closed and leaves %d transactions to the check of their groups, the first is %s"
            logger.info(text, len(checked), checked[0].id)

    async def _abort_some(self, units: Iterator[Unit], error: PulsarError, end: float) -> None:
        """One after the other, while there are any and there is time."""
        while (seconds := end - self.core.runtime.monotonic()) > 0 and (unit := next(units, None)) is not None:
            await unit.close(error, seconds)


T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 60.0
"""Seconds after which a transaction is aborted, unless the program says otherwise."""


class BeginsTransactions:
    """Whoever has transactions. `_core` is its own inside."""

    _core: Core
    _transactions: Transactions
    _owns_transactions = True
    """False if they belong to a coordinator that other clients use too, and that outlives this one."""
    _closing: asyncio.Task[None] | None = None

    def transaction(
        self,
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        force_abort: bool = False,
        ambient: bool = False,
        eager: bool = False,
        check_group: str | None = None,
        check_data: bytes | None = None,
        check_after: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
        visible: bool = True,
    ) -> AsyncManagedTransaction:
        """A managed block: `async with client.transaction() as txn: …` commits at its end, and aborts on an exception.

        The first operation in it that needs its id opens it, and starts its clock: a send, an acknowledgement. With
        `eager` it is open when the block is entered. `timeout`: seconds (or a timedelta) after which the coordinator
        aborts it. `commit_timeout`: the budget of the commit (default: the operation timeout). `name` is for logs and
        statistics. `force_abort`: a dry run that ends with an abort. `ambient`: operations without `txn=` inside the
        block take part, also those of tasks that are started there; blocks and loops inside it are units of their own.

        `check_group`: when the transaction is still open `check_after` seconds after it began (default: the coordinator's
        setting, 6 s), its coordinator asks a member of this group for the outcome, and hands it `check_data` (at most 64
        KiB); see `join_check_group`. `abort_on_disconnect`: the coordinator aborts it as soon as the connection breaks over
        which it was begun. `visible=False`: leaving the block waits for the decision, and not until readers see it. The
        first operation raises FeatureUnsupported where the coordinator lacks one of these.

        Single use. `pulsar_txn.client.txn.managed` describes the exits of the block. Raises InvalidConfiguration; entering
        it raises TransactionStateError when the client has one transaction at a time and that has not ended.
        """
        unit = self._transactions.new(
            TransactionOptions(
                timeout=seconds_of(timeout, "timeout"),
                commit_timeout=None if commit_timeout is None else seconds_of(commit_timeout, "commit_timeout"),
                name=name,
                force_abort=force_abort,
                managed=True,
                checked=checked(check_group, check_data, check_after, abort_on_disconnect=abort_on_disconnect),
                visible=visible,
            )
        )
        return AsyncManagedTransaction(unit, eager=eager, ambient=ambient)

    async def begin_transaction(
        self,
        *,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        commit_timeout: float | timedelta | None = None,
        force_abort: bool = False,
        eager: bool = True,
        check_group: str | None = None,
        check_data: bytes | None = None,
        check_after: float | timedelta | None = None,
        abort_on_disconnect: bool = False,
    ) -> AsyncTransaction:
        """Begin a transaction that the caller ends with `commit()` or `abort()`. Arguments as `transaction`.

        When this returns, the transaction has an id (for `attach_transaction`), and its clock runs. Without `eager` the
        first operation in it opens it, as in a block. A request whose answer is lost is repeated; a coordinator that knows
        back-checks then gives the transaction that it has opened already.
        Raises FeatureUnsupported, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, BrokerError,
        AlreadyClosed, InvalidConfiguration, and TransactionStateError when the client has one transaction at a time and that
        has not ended. If cancelled, a transaction that was begun in the meantime is aborted.
        """
        unit = self._transactions.new(
            TransactionOptions(
                timeout=seconds_of(timeout, "timeout"),
                commit_timeout=None if commit_timeout is None else seconds_of(commit_timeout, "commit_timeout"),
                name=name,
                force_abort=force_abort,
                checked=checked(check_group, check_data, check_after, abort_on_disconnect=abort_on_disconnect),
            )
        )
        unit.begin()
        if eager:
            await unit.open_now()
        return AsyncTransaction(unit)

    def attach_transaction(self, txn_id: TxnId | str) -> AsyncTransaction:
        """Make a handle of a transaction that was begun elsewhere, from its id or the id's text `(most,least)`. Sends nothing.

        `commit()` and `abort()` end it, and operations can join it. `resolve()` asks by committing, so use it only after a
        commit was sent, or when the transaction cannot be open any longer: it commits an open one. Raises
        InvalidConfiguration when the text is not an id.
        """
        if isinstance(txn_id, str):
            try:
                txn_id = TxnId.parse(txn_id)
            except ValueError as error:
                raise InvalidConfiguration(str(error)) from None
        if not isinstance(txn_id, TxnId):
            raise InvalidConfiguration(f"a transaction id or its text is needed, not {txn_id!r}")
        return AsyncTransaction(self._transactions.new(TransactionOptions(), txn_id))

    async def attach_prepared(self, token: PreparedToken | str | bytes) -> AsyncTransaction:
        """Make a handle of a prepared transaction, from the token of `txn.prepare()` or its text.

        `commit()` and `abort()` end it, from any process, and may be repeated. Whether the transaction has ended already,
        and how, is what they say: the other one of the two raises then. Connects to the coordinators.
        Raises InvalidConfiguration for what is no token, FeatureUnsupported where coordinators know no prepared transactions,
        TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout. Safe to cancel.
        """
        known = token_of(token)
        await self._transactions.coordinators.needs_checks(known.txn_id, "attach_prepared()")
        return AsyncTransaction(self._transactions.new(TransactionOptions(), prepared=known))

    @opens
    async def join_check_group(
        self,
        group: str,
        check: Check,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        check_timeout: float | timedelta = DEFAULT_CHECK_TIMEOUT,
        on_decided: OnDecided | None = None,
    ) -> AsyncCheckGroup:
        """Become a member of a check group: coordinators ask `check(question)` about transactions of the group.

        It is called with a `CheckQuestion` when such a transaction stays open, whoever has begun it, and returns a
        `LocalOutcome`: COMMIT and ROLLBACK end the transaction, UNKNOWN has it asked again later. At most `concurrency`
        questions are asked at the same time; an exception is logged and means UNKNOWN. Give what it waits for a timeout.
        What takes longer than `check_timeout` (seconds or a timedelta) means UNKNOWN too.
        It may be a coroutine function, which is then cancelled.
        A plain function runs on the event loop and must not block it.

        `on_decided(decision)` is called with a `CheckDecision` when the coordinator has aborted, committed or parked a
        transaction of the group, and neither its client nor the group has said so: one member hears of each.
        Exceptions of it are logged.
        It may be a coroutine function.
        A decision while no member lives is told to the next one, unless the coordinator was started again in between.

        Only members with the same role (principal) as who began a transaction are asked about it. Membership is kept up over
        reconnects, and at coordinators that are added, until it is closed or the client is. Returns when one coordinator has
        taken the client in, and the others have, or two seconds have passed; the rest follows in the background.

        Raises InvalidConfiguration (also for a second membership of this client in one group), FeatureUnsupported,
        AuthorizationError, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, AlreadyClosed.
        If cancelled, the group is not joined.
        """
        return await self._transactions.groups.join(group, check, CheckTerms(concurrency, check_timeout, on_decided))

    async def take_over(self) -> int:
        """End what the predecessors with this client's transactional id have left open, and fence them; returns the epoch.

        When this returns, each of their transactions is committed at all its topics and subscriptions, or aborted; prepared
        ones stay as they are. A participant that cannot be reached is waited for up to the operation timeout. Without this
        call, the first transaction does it. Without effect when this client has taken over before.
        Raises InvalidConfiguration without a transactional id, TransactionalIdUnsupported, TransactionFenced when a successor
        has taken over since, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout.
        Source: Kafka's InitProducerId. If cancelled, the id may have been taken over.
        """
        return await self._transactions.coordinators.taken_over()

    async def describe_transactional_id(self, transactional_id: str, *, owner: str | None = None) -> TransactionalIdInfo | None:
        """Describe a transactional id: its newest epoch, and what its instances have open, prepared or ending.

        Asks the coordinators, and changes nothing; this client needs no transactional id itself. None when nothing is known:
        no instance has come with the id, or it was unused for seven days, or another role has it. A client sees the ids of
        its own role. `owner` is the role that has the id, for operators (`superUserRoles`); an empty text means an id that
        came without authentication. Of more than 1,000 transactions the oldest are shown, with the count of all.

        Raises FeatureUnsupported where the coordinators cannot tell (stock Pulsar), AuthorizationError for another's `owner`,
        InvalidConfiguration, TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, AlreadyClosed.
        Source: Kafka's DescribeTransactions; DESCRIBE_TRANSACTIONAL_ID is ours. Safe to cancel.
        """
        validate_text("transactional_id", transactional_id)
        if owner is not None and not isinstance(owner, str):
            raise refused("owner", owner, "the name of a role")
        self._core.check_open()
        return await self._transactions.coordinators.describe(transactional_id, owner)

    async def run_transaction(
        self,
        work: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        backoff: Pauses | None = None,
        retry_unknown: bool = False,
        ambient: bool = False,
    ) -> T:
        """Run `await work(txn)` in a transaction, and again in a new one when the abort was not the fault of `work`.

        Tried again, up to `attempts` times: TransactionAborted and its kinds (conflict, timeout, a failed operation),
        unless an operation failed for a permanent reason (`fatal`, or a UsageError). `backoff(n)` is the pause
        in seconds after the n-th attempt; without it pauses grow within the client's bounds. With `retry_unknown`, also
        CommitOutcomeUnknown, when the coordinator cannot say that it committed: only for work that may happen twice.
        `ambient` as for `transaction`.
        Any other exception aborts and is raised as it is.
        Returns what `work` returned; None after a rollback. If cancelled: the open transaction is aborted.
        """
        check_takes_one(work, "work")
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=backoff or growing_pauses(self))
        while True:
            result: Any = None
            try:
                async with self.transaction(timeout=timeout, name=name, ambient=ambient) as txn:
                    result = await awaited(work, txn)
            except Exception as error:  # noqa: BLE001 - judged by `Attempts`, which raises what is final
                if not await left.judge(error):
                    return result  # type: ignore[no-any-return]  # what `work` returned
                await self._core.rest(left.pause())
            else:
                return result  # type: ignore[no-any-return]  # what `work` returned

    def add_observer(self, observer: object) -> None:
        """Report every transaction to an object that has some of the methods of `TransactionObserver`."""
        self._transactions.observers.add(observer)

    def remove_observer(self, observer: object) -> None:
        """Stop reporting to an observer."""
        self._transactions.observers.remove(observer)

    def transactions(self) -> tuple[AsyncTransaction, ...]:
        """The transactions of this client that have not ended, oldest first by their ids."""
        return tuple(AsyncTransaction(unit) for unit in self._transactions.open())

    async def _close_once(self) -> None:
        """End the transactions and close the cores. If cancelled, the closing goes on."""
        self._core.check_here()
        if self._closing is None:
            self._core.shut()
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await end_open(self)
        incarnation = self._transactions.incarnation
        for core in cores_of(self):
            await core.close()
            if incarnation is not None:
                incarnation.remove_member(core)


def core_of(owner: BeginsTransactions) -> Core:
    """The core of an asyncio client or coordinator that a call was given. InvalidConfiguration when it is none."""
    if not isinstance(owner, BeginsTransactions):
        raise refused("client", owner, "an AsyncClient")
    return owner._core


def transactions_of(owner: BeginsTransactions) -> Transactions:
    """The transactions of a client or a coordinator."""
    return owner._transactions


def owns_transactions(owner: BeginsTransactions) -> bool:
    """False for a client whose transactions belong to a coordinator that it shares, and that outlives it."""
    return owner._owns_transactions


def cores_of(owner: BeginsTransactions) -> Sequence[Core]:
    """The core of a client or a coordinator, and then that of the client's own coordinator beside the cluster."""
    own, coordinator = owner._core, owner._transactions.core
    return [own] if own is coordinator or not owner._owns_transactions else [own, coordinator]


async def end_open(owner: BeginsTransactions) -> None:
    """End the open transactions that would go with the client or coordinator; see `Transactions.close`."""
    if owner._owns_transactions:
        await owner._transactions.close()


__all__ = [
    "CLOSED_TOGETHER",
    "DEFAULT_ATTEMPTS",
    "DEFAULT_TIMEOUT",
    "Attempts",
    "BeginsTransactions",
    "Pauses",
    "Transactions",
    "abort_all",
    "act_as",
    "commit_together",
    "core_of",
    "cores_of",
    "end_open",
    "ends_groups",
    "growing_pauses",
    "is_open",
    "open_for_others",
    "open_now",
    "owns_transactions",
    "take_over",
    "transactions_of",
]
