"""Transactions as `compat` hands them out: ours, and what they raise has its official name."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, NoReturn

from pulsar_txn.client import TransactionState, TxnId
from pulsar_txn.client.errors import PulsarError, TransactionOperationFailed
from pulsar_txn.client.stats import TransactionStats
from pulsar_txn.compat._arguments import awaiting, blocking, done
from pulsar_txn.compat.exceptions import mapped, translated


class Unit:
    """A transaction of the blocking or of the asyncio client: what both kinds of `Transaction` are."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._refused: list[BaseException] = []

    def native(self) -> Any:
        """For the client: the transaction that it knows."""
        return self._native

    def refuse(self, error: BaseException) -> None:
        """For `send_async`: a send was refused, and only its callback was told. The transaction must not commit."""
        self._refused.append(error)

    def check_complete(self) -> None:
        """TransactionOperationFailed when a send of it was refused."""
        if self._refused:
            raise TransactionOperationFailed(
                f"{len(self._refused)} sends were refused, so the transaction was aborted; first: {self._refused[0]}",
                txn_id=self.id,
                hint="run the unit again, in a new transaction",
                failures=self._refused,
            ) from self._refused[0]

    @property
    def id(self) -> TxnId | None:
        """As `pulsar_txn.client.Transaction.id`."""
        return self._native.id  # type: ignore[no-any-return]  # either kind's

    @property
    def name(self) -> str | None:
        """As `pulsar_txn.client.Transaction.name`."""
        return self._native.name  # type: ignore[no-any-return]  # either kind's

    @property
    def state(self) -> TransactionState:
        """As `pulsar_txn.client.Transaction.state`."""
        return self._native.state  # type: ignore[no-any-return]  # either kind's

    @property
    def doomed(self) -> bool:
        """True if an operation failed, so that it can only be aborted."""
        return bool(self._refused) or self._native.doomed

    @property
    def doom_cause(self) -> BaseException | None:
        """The first failure."""
        return self._refused[0] if self._refused else self._native.doom_cause

    @property
    def deadline(self) -> float | None:
        """As `pulsar_txn.client.Transaction.deadline`."""
        return self._native.deadline  # type: ignore[no-any-return]  # either kind's

    @property
    def remaining(self) -> float | None:
        """As `pulsar_txn.client.Transaction.remaining`."""
        return self._native.remaining  # type: ignore[no-any-return]  # either kind's

    @mapped
    def stats(self) -> TransactionStats:
        """A frozen picture of the transaction."""
        return self._native.stats()  # type: ignore[no-any-return]  # either kind's

    @mapped
    def savepoint(self) -> NoReturn:
        """Refused: Pulsar has no savepoints."""
        self._native.savepoint()
        raise AssertionError

    def rollback(self) -> NoReturn:
        """Leave the managed block at once, quietly, with an abort."""
        self._native.rollback()
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unit) and self._native == other.native()

    def __hash__(self) -> int:
        return hash(self._native)

    def __repr__(self) -> str:
        return repr(self._native)


def native(txn: Any) -> Any:
    """The transaction that our client knows; what is no transaction of `compat` is handed on, and our client judges it."""
    return txn.native() if isinstance(txn, Unit) else txn


async def _send(self: Unit, producer: Any, value: Any, **options: Any) -> Any:
    """`producer.send(value, txn=self, **options)`."""
    ours = type(producer).__module__.startswith(__package__)
    return await done(producer.send(value, txn=self if ours else self.native(), **options))


async def _acknowledge(self: Unit, consumer: Any, message: Any) -> None:
    """`consumer.acknowledge(message, txn=self)`."""
    ours = type(consumer).__module__.startswith(__package__)
    await done(consumer.acknowledge(message, txn=self if ours else self.native()))


async def _commit(self: Unit, *, timeout: float | timedelta | None = None) -> None:
    """Wait for the operations, then commit; as `pulsar_txn.client.Transaction.commit`."""
    try:
        self.check_complete()
    except TransactionOperationFailed:
        await done(self.native().abort(timeout=timeout))
        raise
    await done(self.native().commit(timeout=timeout))


async def _abort(self: Unit, *, timeout: float | timedelta | None = None) -> None:
    """Abort; as `pulsar_txn.client.Transaction.abort`."""
    await done(self.native().abort(timeout=timeout))


async def _wait_closed(self: Unit) -> None:
    """Wait for a commit or abort that is on its way; raises what it raises."""
    await done(self.native().wait_closed())


async def _resolve(self: Unit) -> TransactionState:
    """Ask the coordinator for the outcome; as `pulsar_txn.client.Transaction.resolve`."""
    state: TransactionState = await done(self.native().resolve())
    return state


class Transaction(Unit):
    """Transaction of `client.begin_transaction()`, or of a block of `client.transaction()`; give it as `txn=`."""

    send = blocking(_send)
    acknowledge = blocking(_acknowledge)
    commit = blocking(_commit)
    abort = blocking(_abort)
    wait_closed = blocking(_wait_closed)
    resolve = blocking(_resolve)


class AsyncTransaction(Unit):
    """Transaction that `client.begin_transaction()` of the asyncio client returns, and its blocks yield; give it as `txn=`."""

    send = awaiting(_send, of_unit=True)
    acknowledge = awaiting(_acknowledge, of_unit=True)
    commit = awaiting(_commit)
    abort = awaiting(_abort)
    wait_closed = awaiting(_wait_closed)
    resolve = awaiting(_resolve)


@contextmanager
def _officially(passing: BaseException | None) -> Generator[None]:
    """Our errors get their official names; the program's own exception, which passes a block, does not."""
    try:
        yield
    except PulsarError as error:
        if error is passing:
            raise
        raise translated(error) from error


class ManagedTransaction:
    """Context manager that `client.transaction()` returns, used once. The program's own exceptions pass unchanged."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self._txn: Transaction

    def __enter__(self) -> Transaction:
        """Begin."""
        with _officially(None):
            self._txn = Transaction(self._block.__enter__())
        return self._txn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """Commit, or abort."""
        with _officially(error):
            if error is None:
                try:
                    self._txn.check_complete()
                except TransactionOperationFailed as refused:
                    self._block.__exit__(type(refused), refused, refused.__traceback__)
                    raise
            return bool(self._block.__exit__(kind, error, traceback))


class AsyncManagedTransaction:
    """As `ManagedTransaction`, of the asyncio client."""

    def __init__(self, block: Any) -> None:
        self._block = block

    async def __aenter__(self) -> AsyncTransaction:
        """Begin. If cancelled: as the block that is entered."""
        with _officially(None):
            return AsyncTransaction(await self._block.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Commit, or abort. If cancelled: as the block that is left."""
        with _officially(error):
            return bool(await self._block.__aexit__(kind, error, traceback))
