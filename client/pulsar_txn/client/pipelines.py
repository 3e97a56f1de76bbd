"""Pipelines and transactional batches: their options, poison messages, and results."""

from pulsar_txn.client.loop.options import PipelineOptionsDict, PipelineResult, Poison
from pulsar_txn.client.receive.batch import AsyncTransactionalBatch
from pulsar_txn.client.sync import TransactionalBatch

__all__ = [
    "AsyncTransactionalBatch",
    "PipelineOptionsDict",
    "PipelineResult",
    "Poison",
    "TransactionalBatch",
]
