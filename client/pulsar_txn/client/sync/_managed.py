"""The sync twin of the managed block, by hand: the ambient transaction is set in the caller's thread, not in the loop's."""

from __future__ import annotations

import contextvars
from types import TracebackType
from typing import TYPE_CHECKING

from pulsar_txn.client.sync._base import SyncLoop, Twin
from pulsar_txn.client.txn import managed
from pulsar_txn.client.txn.enlist import AMBIENT, Enlisting, leave_ambient

if TYPE_CHECKING:
    from pulsar_txn.client.sync._twins import Transaction


class ManagedTransaction(Twin[managed.AsyncManagedTransaction]):
    """What `client.transaction()` returns: a context manager, used once."""

    def __init__(self, loop: SyncLoop, block: managed.AsyncManagedTransaction) -> None:
        super().__init__(loop, block)
        self._reset: contextvars.Token[Enlisting | None] | None = None

    def __enter__(self) -> Transaction:
        """Begin. Raises TransactionsDisabled, ConnectionLost, OperationTimeout, …; TransactionStateError on a second use."""
        from pulsar_txn.client.sync import _twins  # it imports this module

        txn = self._loop.run(self._inner.__aenter__)
        if self._inner.ambient:
            self._reset = AMBIENT.set(txn)
        return _twins.Transaction(self._loop, txn)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        """End as the table of `pulsar_txn.client.txn.managed` says."""
        leave_ambient(self._reset)
        return self._loop.run(lambda: self._inner.__aexit__(kind, error, traceback))
