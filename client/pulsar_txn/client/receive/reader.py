"""The reader: reads a topic from any place, without a subscription that outlives it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Generic, Self, TypeVar

from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.message import Message
from pulsar_txn.wire.ids import MessageId

T = TypeVar("T")


def newest_of(messages: Iterable[Message[T]]) -> list[Message[T]]:
    """The last one of each topic: a reader's place there."""
    return list({message.topic: message for message in messages}.values())


class AsyncReader(Generic[T]):
    """Reads committed messages. Made by `Client.create_reader`; an async context manager and an async iterator.

    A reader keeps its own place, also over reconnects; nothing needs to be acknowledged.
    """

    def __init__(self, consumer: AsyncConsumer[T]) -> None:
        self._consumer = consumer

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._consumer.topic

    @property
    def is_connected(self) -> bool:
        """True while all partitions are connected."""
        return self._consumer.is_connected

    async def read_next(self, timeout: float | timedelta | None = None) -> Message[T]:
        """Wait for the next message and return it; OperationTimeout after `timeout`, seconds or a timedelta.

        If cancelled, no message is lost.
        """
        message = await self._consumer.receive(timeout)
        await self._consumer.acknowledge_cumulative(message, receipt=False)
        return message

    async def read_many(self, max_messages: int = 500, *, max_wait: float | timedelta | None = None) -> list[Message[T]]:
        """Several messages, as `Consumer.receive_many`."""
        messages = await self._consumer.receive_many(max_messages, max_wait=max_wait)
        for message in newest_of(messages):
            await self._consumer.acknowledge_cumulative(message, receipt=False)
        return messages

    async def has_message_available(self) -> bool:
        """True if `read_next` would find a message that is stored and committed at this moment.

        Raises the broker's error, ConnectionLost, OperationTimeout.
        """
        return await self._consumer.has_message_available()

    async def get_last_message_id(self) -> MessageId:
        """As `Consumer.get_last_message_id`."""
        return await self._consumer.get_last_message_id()

    async def get_last_message_ids(self) -> dict[str, MessageId]:
        """By topic partition, as `get_last_message_id`."""
        return await self._consumer.get_last_message_ids()

    async def seek(self, target: MessageId | datetime | int, *, inclusive: bool = False) -> None:
        """Go to a message or a time; as `Consumer.seek`."""
        await self._consumer.seek(target, inclusive=inclusive)

    async def close(self) -> None:
        """Close; idempotent. If cancelled, it is closed."""
        await self._consumer.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def consumer_of(reader: AsyncReader[T]) -> AsyncConsumer[T]:
    """The consumer by which a reader reads, for the blocking reader over it."""
    return reader._consumer


__all__ = ["AsyncReader", "consumer_of", "newest_of"]
