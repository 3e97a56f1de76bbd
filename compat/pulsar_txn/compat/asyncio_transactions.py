"""As `transactions`, of the asyncio client: what its methods raise has its official name as well."""

from __future__ import annotations

from types import TracebackType

from pulsar_txn.client.txn import managed, transaction
from pulsar_txn.compat.exceptions import mapped, mapped_async


class Transaction(transaction.AsyncTransaction):
    """What `client.begin_transaction()` returns, and what a block of `client.transaction()` yields; give it as `txn=`."""

    send = mapped_async(transaction.AsyncTransaction.send)
    acknowledge = mapped_async(transaction.AsyncTransaction.acknowledge)
    commit = mapped_async(transaction.AsyncTransaction.commit)
    abort = mapped_async(transaction.AsyncTransaction.abort)
    wait_closed = mapped_async(transaction.AsyncTransaction.wait_closed)
    resolve = mapped_async(transaction.AsyncTransaction.resolve)
    savepoint = mapped(transaction.AsyncTransaction.savepoint)


class ManagedTransaction:
    """What `client.transaction()` returns: an async context manager, used once. The program's own exceptions pass unchanged."""

    def __init__(self, block: managed.AsyncManagedTransaction) -> None:
        self._block = block

    @mapped_async
    async def __aenter__(self) -> Transaction:
        """Begin. If cancelled: as the block that is entered."""
        return with_official_errors(await self._block.__aenter__())

    @mapped_async
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """Commit, or abort. If cancelled: as the block that is left."""
        return await self._block.__aexit__(kind, error, traceback)


def with_official_errors(txn: transaction.AsyncTransaction) -> Transaction:
    """The same transaction."""
    return Transaction(txn.inside)
