"""Surroundings that the subscriptions of a topic share: its log, its buffer, and the logs of pending acknowledgements.

Subscriptions know no more of their topic, and none of them calls it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.base.turn import Turn
from pulsar_txn.broker.catalog.catalog import pending_ack_log_name
from pulsar_txn.broker.txn.participants import Registrations
from pulsar_txn.ledger.protocols import Cursor, Log, LogStore
from pulsar_txn.rm_pending_ack.requests import PendingAck
from pulsar_txn.wire.topics import TopicName

from .buffer_host import BufferHost
from .compaction import Compaction


class PendingAckLogs:
    """Handles of pending acknowledgements and their logs, for all topics of a broker.

    `scratch` takes the logs of subscriptions that are not durable.
    """

    def __init__(self, store: LogStore, scratch: LogStore, factory: Callable[..., PendingAck], config: BrokerConfig) -> None:
        self._store = store
        self._scratch = scratch
        self._factory = factory
        self._config = config

    async def open(self, topic: TopicName, cursor: Cursor, *, durable: bool) -> tuple[PendingAck, Log]:
        """A new handle for the subscription with this cursor, and its log. Raises LedgerError."""
        store = self._store if durable else self._scratch
        name = pending_ack_log_name(topic, cursor.name)
        if not durable:
            await store.delete(name)
        log = await store.open(name)
        handle = self._factory(
            str(topic),
            cursor.name,
            cursor,
            max_transaction_bytes=self._config.max_pending_ack_bytes_per_transaction,
            max_bytes=self._config.max_pending_ack_bytes_per_subscription,
        )
        return handle, log

    def exists(self, topic: TopicName, subscription: str) -> bool:
        """True if acknowledgements in transactions were ever made on this durable subscription."""
        return self._store.exists(pending_ack_log_name(topic, subscription))

    async def delete(self, topic: TopicName, subscription: str, *, durable: bool) -> None:
        """Delete the log of a subscription that goes. Raises LedgerError."""
        await (self._store if durable else self._scratch).delete(pending_ack_log_name(topic, subscription))


@attrs.frozen
class TopicContext:
    """Surroundings of the subscriptions of one topic."""

    name: TopicName
    log: Log
    host: BufferHost
    turn: Turn
    config: BrokerConfig
    compaction: Compaction
    registrations: Registrations
    pending_acks: PendingAckLogs
