"""The part that clients and coordinators share: they begin transactions, and show those that are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from pulsar_txn.client._callables import awaited, check_takes_one, opens
from pulsar_txn.client._checks import check_text, refused, seconds_of
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.state.prepared import PreparedToken, token_of
from pulsar_txn.client.state.transaction import TransactionOptions
from pulsar_txn.client.txn.attempts import DEFAULT_ATTEMPTS, Attempts, Pauses, growing_pauses
from pulsar_txn.client.txn.check_groups import AsyncCheckGroup
from pulsar_txn.client.txn.checks import checked
from pulsar_txn.client.txn.described import TransactionalIdInfo
from pulsar_txn.client.txn.managed import AsyncManagedTransaction
from pulsar_txn.client.txn.questions import DEFAULT_CHECK_TIMEOUT, DEFAULT_CONCURRENCY, Check, CheckTerms, OnDecided
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.transactions import Transactions
from pulsar_txn.wire.ids import TxnId

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 60.0
"""Seconds after which a transaction is aborted, unless the program says otherwise."""


class BeginsTransactions:
    """Whoever has transactions. `_core` is its own inside."""

    _core: Core
    _transactions: Transactions

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
        check_text("transactional_id", transactional_id)
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
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=backoff or growing_pauses(self._core))
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
