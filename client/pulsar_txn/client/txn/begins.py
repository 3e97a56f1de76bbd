"""What clients and coordinators have in common: they begin transactions, and show those that are open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from pulsar_txn.client._callables import awaited, check_takes_one
from pulsar_txn.client._checks import seconds_of
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.txn.attempts import DEFAULT_ATTEMPTS, Attempts, Pauses, growing_pauses
from pulsar_txn.client.txn.life import TransactionOptions
from pulsar_txn.client.txn.managed import AsyncManagedTransaction, open_now
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
    ) -> AsyncManagedTransaction:
        """A managed block: `async with client.transaction() as txn: …` commits at its end, and aborts on an exception.

        The first operation in it that needs its id opens it, and starts its clock: a send, an acknowledgement. With
        `eager` it is open when the block is entered. `timeout`: seconds (or a timedelta) after which the coordinator
        aborts it. `commit_timeout`: the budget of the commit (default: the operation timeout). `name` is for logs and
        statistics. `force_abort`: a dry run that ends with an abort. `ambient`: operations without `txn=` inside the
        block take part, also those of tasks that are started there; blocks and loops inside it are units of their own.
        Single use. `pulsar_txn.client.txn.managed` describes the exits of the block.
        """
        unit = self._transactions.new(
            TransactionOptions(
                timeout=seconds_of(timeout, "timeout"),
                commit_timeout=None if commit_timeout is None else seconds_of(commit_timeout, "commit_timeout"),
                name=name,
                force_abort=force_abort,
                managed=True,
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
    ) -> AsyncTransaction:
        """Begin a transaction that the caller ends with `commit()` or `abort()`. Arguments as `transaction`.

        When this returns, the transaction has an id (for `attach_transaction`), and its clock runs. Without `eager` the
        first operation in it opens it, as in a block.
        Raises TransactionsDisabled, CoordinatorUnavailable, ConnectionLost, OperationTimeout, BrokerError, AlreadyClosed.
        If cancelled, a transaction that was begun in the meantime is aborted.
        """
        unit = self._transactions.new(
            TransactionOptions(
                timeout=seconds_of(timeout, "timeout"),
                commit_timeout=None if commit_timeout is None else seconds_of(commit_timeout, "commit_timeout"),
                name=name,
                force_abort=force_abort,
            )
        )
        if eager:
            await open_now(unit)
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

    async def run_transaction(
        self,
        work: Callable[[AsyncTransaction], Awaitable[T]],
        *,
        attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta = DEFAULT_TIMEOUT,
        name: str | None = None,
        backoff: Pauses | None = None,
        retry_unknown: bool = False,
    ) -> T:
        """Run `await work(txn)` in a transaction, and again in a new one when the abort was not the fault of `work`.

        Tried again, up to `attempts` times: TransactionAborted and its kinds (conflict, timeout, a failed operation),
        unless an operation failed for a permanent reason (`fatal`, or a UsageError). `backoff(n)` is the pause
        in seconds after the n-th attempt; without it pauses grow within the client's bounds. With `retry_unknown`, also
        CommitOutcomeUnknown, when the coordinator cannot say that it committed: only for work that may happen twice.
        Any other exception aborts and is raised as it is.
        Returns what `work` returned; None after a rollback. If cancelled: the open transaction is aborted.
        """
        check_takes_one(work, "work")
        left = Attempts(attempts, retry_unknown=retry_unknown, pauses=backoff or growing_pauses(self._core))
        while True:
            result: Any = None
            try:
                async with self.transaction(timeout=timeout, name=name) as txn:
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
