"""Transactions: ids, states, tokens of prepared ones, and descriptions."""

from pulsar_txn.client.state.prepared import PreparedToken
from pulsar_txn.client.state.transaction import TransactionState
from pulsar_txn.client.txn.session import DescribedTransaction, TransactionalIdInfo
from pulsar_txn.client.txn.transaction import Rollback
from pulsar_txn.wire.ids import TxnId

__all__ = [
    "DescribedTransaction",
    "PreparedToken",
    "Rollback",
    "TransactionState",
    "TransactionalIdInfo",
    "TxnId",
]
