"""Listeners of a connection: what comes in is told them, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pulsar_txn.client.errors import PulsarError

if TYPE_CHECKING:
    from pulsar_txn.client.net.connection import Connection

Message: TypeAlias = Any  # what wire.hot.decode_message returns


class ProducerSide(Protocol):
    """Events that a connection tells a producer."""

    def on_receipt(self, sequence_id: int, ledger_id: int, entry_id: int) -> None:
        """SEND_RECEIPT."""
        ...

    def on_send_error(self, sequence_id: int, error: PulsarError) -> None:
        """SEND_ERROR."""
        ...

    def on_closed_by_broker(self) -> None:
        """CLOSE_PRODUCER: the broker wants us to connect again."""
        ...


class ConsumerSide(Protocol):
    """Events that a connection tells a consumer."""

    def on_message(self, frame: Message) -> None:
        """MESSAGE, as `wire.hot.decode_message` returns it."""
        ...

    def on_closed_by_broker(self) -> None:
        """CLOSE_CONSUMER: the broker wants us to connect again."""
        ...

    def on_active_change(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE of a failover subscription."""
        ...

    def on_end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC: terminated, and everything was delivered."""
        ...


class ConnectionListener(Protocol):
    """Listener that must know that a connection is gone."""

    def on_connection_lost(self, connection: Connection, error: PulsarError) -> None:
        """The connection ended; called once."""
        ...
