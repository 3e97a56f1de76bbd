"""Statistics of clients, producers, consumers and transactions."""

from pulsar_txn.client.client_stats import ClientStats
from pulsar_txn.client.net.resource_stats import ConsumerStats, ProducerStats
from pulsar_txn.client.txn.observers import PartitionStats, Phases, SubscriptionStats, TransactionStats

__all__ = [
    "ClientStats",
    "ConsumerStats",
    "PartitionStats",
    "Phases",
    "ProducerStats",
    "SubscriptionStats",
    "TransactionStats",
]
