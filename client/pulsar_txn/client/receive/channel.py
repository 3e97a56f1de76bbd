"""The channel of one partition's consumer to its broker: who it is, and over which connection it speaks now."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from pulsar_txn.client.errors import ConnectionLost
from pulsar_txn.client.net.attachment import Attachment
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.requests import Waiter
from pulsar_txn.client.net.sides import ConnectionListener
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hot import AckId
from pulsar_txn.wire.ids import AckKey, TxnId

T = TypeVar("T")

Answer: TypeAlias = "asyncio.Future[Any]"


class Channel(Attachment):
    """Identity of one consumer, its tie to the broker, and its requests over whatever connection it has."""

    def __init__(
        self,
        core: Core,
        topic: str,
        partition: int,
        subscription: str,
        options: ConsumerOptions,
        consumer: ConnectionListener,
    ) -> None:
        super().__init__(core, topic, consumer)
        self.id = core.next_resource_id()
        self.target = core.target(topic)
        """Name of the topic in transactions."""
        self.partition = partition
        self.subscription = subscription
        self.options = options
        self._acker = int.from_bytes(core.runtime.secret(8))
        self._ack_numbers = itertools.count(1)

    def say(self, name: str, **fields: Any) -> None:
        """Send a command of this consumer that is not answered; nothing happens without a connection."""
        if self.connection is not None:
            self.connection.write([command(name, consumer_id=self.id, **fields)])

    async def ask(self, connection: Connection, name: str, **fields: Any) -> Any:
        """Send a command of this consumer and wait for its answer; raises the broker's error, ConnectionLost."""
        return await connection.request(name, self.core.next_request_id(), consumer_id=self.id, **fields)

    async def until_answered(self, what: str, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask what may be asked twice: again when the consumer was closed, or its connection lost; safe to cancel."""
        end = self.core.runtime.monotonic() + self.core.settings.operation_timeout
        while True:
            connection = await self.connected(what)
            try:
                return await ask(connection)
            except ConnectionLost:
                if self.core.runtime.monotonic() >= end:
                    raise

    async def ask_until_answered(self, what: str, name: str, **fields: Any) -> Any:
        """As `ask`, with `until_answered`."""
        return await self.until_answered(what, lambda connection: self.ask(connection, name, **fields))

    def next_ack_key(self) -> AckKey:
        """The key of the next acknowledgement in a transaction. The same one sent again, over any connection, keeps it."""
        return self._acker, next(self._ack_numbers)

    def ask_ack(
        self,
        connection: Connection,
        ids: Sequence[AckId],
        *,
        cumulative: bool,
        txn_id: TxnId | None = None,
        key: AckKey | None = None,
    ) -> Answer:
        """Send an ACK that is answered."""
        request_id = self.core.next_request_id()
        frame = hot.encode_ack(self.id, cumulative, ids, txn=txn_id, request_id=request_id, key=key)
        return connection.request_frames("ack", request_id, [frame], consumer_id=self.id)

    def ask_ack_by(
        self, waiter: Waiter, connection: Connection, ids: Sequence[AckId], *, cumulative: bool, txn_id: TxnId, key: AckKey
    ) -> None:
        """As `ask_ack`, for somebody who is told of the answer at once."""
        request_id = self.core.next_request_id()
        frame = hot.encode_ack(self.id, cumulative, ids, txn=txn_id, request_id=request_id, key=key)
        connection.ask(waiter, "ack", request_id, frame, self.core.settings.operation_timeout, consumer_id=self.id)
