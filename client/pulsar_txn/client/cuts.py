"""Consistent reading: cuts of several topics in which each transaction is whole or absent."""

from pulsar_txn.client.receive.consistent.position import CutPosition
from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader, Cut
from pulsar_txn.client.sync import ConsistentReader

__all__ = [
    "AsyncConsistentReader",
    "ConsistentReader",
    "Cut",
    "CutPosition",
]
