"""`pulsar.functions.context`."""

from pulsar_txn.pipeline.functions import Context

__all__ = ["Context"]
