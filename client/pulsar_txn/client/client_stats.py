"""A frozen picture of a client."""

from __future__ import annotations

import attrs

from pulsar_txn.client._core import Core
from pulsar_txn.client.consumer import Consumer
from pulsar_txn.client.observers import TransactionCounts
from pulsar_txn.client.producer import Producer


@attrs.frozen
class ClientStats:
    """What a client has at a moment.

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
        producers=sum(isinstance(each, Producer) for each in resources),
        consumers=sum(isinstance(each, Consumer) for each in resources),
        coordinators=coordinators,
        transactions=transactions,
    )
