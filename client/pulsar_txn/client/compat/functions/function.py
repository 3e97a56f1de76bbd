"""`pulsar.functions.function`."""

from pulsar_txn.client.functions.interface import Function

__all__ = ["Function"]
