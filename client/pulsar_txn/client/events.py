"""Events of a client that a program hears: observers of transactions and pipelines, and interceptors of messages."""

from pulsar_txn.client.loop.options import PipelineEvent
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerInterceptor
from pulsar_txn.client.txn.observers import TransactionObserver

__all__ = [
    "ConsumerInterceptor",
    "OutgoingMessage",
    "PipelineEvent",
    "ProducerInterceptor",
    "TransactionObserver",
]
