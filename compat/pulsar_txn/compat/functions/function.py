"""`pulsar.functions.function`."""

from pulsar_txn.pipeline.functions.interface import Function

__all__ = ["Function"]
