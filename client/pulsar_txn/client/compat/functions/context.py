"""`pulsar.functions.context`."""

from pulsar_txn.client.functions.context import Context

__all__ = ["Context"]
