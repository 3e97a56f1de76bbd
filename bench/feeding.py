"""The input of transactions, received before it is needed; for the drivers here and in `client/`."""

from __future__ import annotations

from collections import deque

from pulsar_txn.client import AsyncConsumer, Message


class Input:
    """Received messages, so many ahead of what is used that waiting for them is in no timed step."""

    def __init__(self, consumer: AsyncConsumer[bytes], left: int) -> None:
        self.consumer = consumer
        self.left = left
        self._ready: deque[Message[bytes]] = deque()

    async def take(self, count: int) -> list[Message[bytes]]:
        """The next ones; empty at the end."""
        if self.left < count:
            return []
        self.left -= count
        while len(self._ready) < count:
            self._ready += await self.consumer.receive_many(500)
        return [self._ready.popleft() for _ in range(count)]
