"""What a client offers about transactions; the other half of `Client`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

from pulsar_txn.client._callables import awaited, check_takes_one
from pulsar_txn.client._checks import check_call, check_methods, check_whole, refused, seconds_of
from pulsar_txn.client.client_stats import ClientStats, client_stats
from pulsar_txn.client.errors import (
    CommitOutcomeUnknown,
    InvalidConfiguration,
    PulsarError,
    TransactionAborted,
    TransactionOperationFailed,
    UsageError,
)
from pulsar_txn.client.loop.pipeline import Handler, Pipeline, PipelineEvent, PipelineOptions, PipelineResult, Poison
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.txn.life import TransactionOptions
from pulsar_txn.client.txn.managed import AsyncManagedTransaction, open_now
from pulsar_txn.client.txn.stats import TransactionState
from pulsar_txn.client.txn.transaction import AsyncTransaction
from pulsar_txn.client.txn.transactions import Transactions
from pulsar_txn.wire.ids import TxnId

logger = logging.getLogger("pulsar_txn.client.txn")

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 60.0
DEFAULT_ATTEMPTS: Final = 5

Pauses: TypeAlias = Callable[[int], float]
"""How long to wait after the n-th attempt (1, 2, …), in seconds."""


class Attempts:
    """Judges how an attempt of `run_transaction` ended; one per call."""

    def __init__(self, attempts: int, *, retry_unknown: bool, pauses: Pauses) -> None:
        check_whole("attempts", attempts, 1)
        self._attempts = attempts
        self._done = 0
        self._retry_unknown = retry_unknown
        check_call("backoff", pauses, "a function of the number of attempts")
        self._pauses = pauses

    async def judge(self, error: Exception) -> bool:
        """Whether another attempt is to be made; not when the unit is done after all. Raises what is final."""
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


class TransactionalClient:
    """Transactions of a client. Coordinators are looked up at the first one, and not before."""

    _core: Core

    def _init_transactions(self) -> None:
        self._transactions = Transactions(self._core)
        self._core.new_transaction = self._transactions.new

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

    async def pipeline(
        self,
        consumer: AsyncConsumer[T],
        handler: Handler[T],
        *,
        max_messages: int = 500,
        max_wait: float | timedelta = 0.2,
        timeout: float | timedelta = 30.0,
        concurrency: int = 1,
        on_poison: Poison = Poison.DEAD_LETTER,
        max_aborts: int = 3,
        dead_letter_topic: str | None = None,
        stop: asyncio.Event | None = None,
        observer: Callable[[PipelineEvent], object] | None = None,
    ) -> PipelineResult:
        """Consume, process, produce, until `stop` is set: `await handler(batch)` in one transaction per batch.

        The handler sends with `txn=batch.txn`; every message of the batch is acknowledged in the same transaction.
        Batches hold up to `max_messages`, waited for up to `max_wait` seconds; `timeout` is each transaction's.
        `concurrency` lanes work at once, and keep the order of a partition (Exclusive, Failover) or key (Key_Shared).
        A message that has failed alone `max_aborts` times is poison: `on_poison` says what happens to it;
        `dead_letter_topic` is `<topic>-<subscription>-DLQ` by default. `observer` is called with each event.

        Returns the counts after `stop` is set and the messages taken are finished. Raises errors that no retry can repair
        (`fatal` errors, UsageError, AlreadyClosed), the handler's error of a poison message with `Poison.RAISE`, and
        CommitOutcomeUnknown when no coordinator can say whether a batch was committed. See `pulsar_txn.client.loop.pipeline`.
        If cancelled: open transactions are aborted, their messages come again.
        """
        options = PipelineOptions(
            max_messages=max_messages,
            max_wait=max_wait,
            timeout=seconds_of(timeout, "timeout"),
            concurrency=concurrency,
            on_poison=on_poison,
            max_aborts=max_aborts,
            dead_letter_topic=dead_letter_topic,
        )
        if not isinstance(consumer, AsyncConsumer):
            raise refused("consumer", consumer, "a consumer of this client")
        if stop is not None:
            check_methods("stop", stop, ("is_set", "wait"), "an asyncio.Event")
        if observer is not None:
            check_call("observer", observer, "a function of an event")
        # The producers of dead letters are made by the other half of the client.
        create_producer = self.create_producer  # type: ignore[attr-defined]  # of `Client`
        pipeline = Pipeline(self._core, create_producer, consumer, handler, options, stop or asyncio.Event(), observer)
        return await pipeline.run()

    def add_observer(self, observer: object) -> None:
        """Report every transaction to an object that has some of the methods of `TransactionObserver`."""
        self._transactions.observers.add(observer)

    def remove_observer(self, observer: object) -> None:
        """Stop reporting to an observer."""
        self._transactions.observers.remove(observer)

    def stats(self) -> ClientStats:
        """A frozen picture of the client: connections, producers, consumers, transactions."""
        transactions = self._transactions
        counts = transactions.observers.counts(transactions.open())
        return client_stats(self._core, transactions.coordinators.count, counts)

    def transactions(self) -> tuple[AsyncTransaction, ...]:
        """The transactions of this client that have not ended, oldest first by their ids."""
        return tuple(AsyncTransaction(unit) for unit in self._transactions.open())


def growing_pauses(core: Core) -> Pauses:
    """Growing pauses within the client's bounds."""
    backoff = core.backoff()
    return lambda _attempt: backoff.next()


def is_final(error: BaseException) -> bool:
    """Whether running the unit again cannot help, because the reason is permanent."""
    causes = error.failures if isinstance(error, TransactionOperationFailed) and error.failures else (error,)
    return any(isinstance(cause, UsageError) or (isinstance(cause, PulsarError) and cause.fatal) for cause in causes)
