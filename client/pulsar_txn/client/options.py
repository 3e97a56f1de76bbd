"""Options of clients, producers, consumers and readers, and the enums that they take."""

from pulsar_txn.client.net.failover import AutoClusterFailover
from pulsar_txn.client.receive.dead_letters import DeadLetterPolicy
from pulsar_txn.client.receive.options import (
    ConsumerOptions,
    ConsumerOptionsDict,
    ConsumerType,
    InitialPosition,
    KeySharedPolicy,
    ReaderOptionsDict,
    RedeliveryBackoff,
    RegexSubscriptionMode,
)
from pulsar_txn.client.send.options import AccessMode, BatchingType, Compression, ProducerOptions, ProducerOptionsDict
from pulsar_txn.client.send.routing import HashingScheme, Router, RoutingMode

__all__ = [
    "AccessMode",
    "AutoClusterFailover",
    "BatchingType",
    "Compression",
    "ConsumerOptions",
    "ConsumerOptionsDict",
    "ConsumerType",
    "DeadLetterPolicy",
    "HashingScheme",
    "InitialPosition",
    "KeySharedPolicy",
    "ProducerOptions",
    "ProducerOptionsDict",
    "ReaderOptionsDict",
    "RedeliveryBackoff",
    "RegexSubscriptionMode",
    "Router",
    "RoutingMode",
]
