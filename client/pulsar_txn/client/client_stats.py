"""A frozen picture of a client."""

from __future__ import annotations

import attrs

from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.txn.observers import TransactionCounts


@attrs.frozen
class ClientStats:
    """The connections, producers, consumers and transactions of a client at one moment.

    `connections` are the `host:port` of the open ones. `producers` and `consumers` (readers included) are those not
    closed. `coordinators`: how many transaction coordinators were found, 0 before the first transaction.
    """

    connections: tuple[str, ...]
    producers: int
    consumers: int
    coordinators: int
    transactions: TransactionCounts


def client_stats(core: Core, coordinators: int, transactions: TransactionCounts) -> ClientStats:
    """The picture of now."""
    resources = core.resources()
    return ClientStats(
        connections=tuple(connection.endpoint for connection in core.pool.current()),
        producers=sum(isinstance(each, AsyncProducer) for each in resources),
        consumers=sum(isinstance(each, AsyncConsumer) for each in resources),
        coordinators=coordinators,
        transactions=transactions,
    )
