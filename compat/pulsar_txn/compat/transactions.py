"""Transactions as `compat` hands them out: those of the sync client, and what they raise has its official name, too."""

from __future__ import annotations

from pulsar_txn.client import sync
from pulsar_txn.compat.exceptions import mapped


class Transaction(sync.Transaction):
    """What `client.begin_transaction()` returns, and what a block of `client.transaction()` yields; give it as `txn=`."""

    send = mapped(sync.Transaction.send)
    acknowledge = mapped(sync.Transaction.acknowledge)
    commit = mapped(sync.Transaction.commit)
    abort = mapped(sync.Transaction.abort)
    wait_closed = mapped(sync.Transaction.wait_closed)
    resolve = mapped(sync.Transaction.resolve)
    savepoint = mapped(sync.Transaction.savepoint)
    stats = mapped(sync.Transaction.stats)


class ManagedTransaction(sync.ManagedTransaction):
    """What `client.transaction()` returns: a context manager, used once. The program's own exceptions pass unchanged."""

    @mapped
    def __enter__(self) -> Transaction:
        """Begin."""
        txn = super().__enter__()
        return Transaction(txn._loop, txn._inner)  # noqa: SLF001 - the same one

    __exit__ = mapped(sync.ManagedTransaction.__exit__)
