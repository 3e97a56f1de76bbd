"""`pulsar.functions.function`."""

from pulsar_txn.pipeline.functions import Function

__all__ = ["Function"]
