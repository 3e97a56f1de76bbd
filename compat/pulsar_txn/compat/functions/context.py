"""`pulsar.functions.context`."""

from pulsar_txn.pipeline.functions.context import Context

__all__ = ["Context"]
