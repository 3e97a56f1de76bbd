"""Bounds on what a producer has in flight: messages and bytes, over all of its partitions."""

from __future__ import annotations

import asyncio
from collections import deque


class Budget:
    """Counts messages and bytes; `full` once either bound is reached. One message always fits into an empty budget."""

    __slots__ = (
        "_done_bytes",
        "_done_messages",
        "_waiters",
        "bytes",
        "failed",
        "full",
        "max_bytes",
        "max_messages",
        "messages",
    )

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = self.bytes = self.failed = 0
        self._done_messages = self._done_bytes = 0
        self.full = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def all_messages(self) -> int:
        """Messages that were queued since the beginning."""
        return self._done_messages + self.messages

    @property
    def all_bytes(self) -> int:
        """Their bytes."""
        return self._done_bytes + self.bytes

    def take(self, messages: int, size: int) -> None:
        """Messages were queued."""
        self.messages += messages
        self.bytes += size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes

    def give_back(self, messages: int, size: int) -> None:
        """Messages have their receipt, or failed."""
        self.messages -= messages
        self.bytes -= size
        self._done_messages += messages
        self._done_bytes += size
        self.full = self.messages >= self.max_messages or self.bytes >= self.max_bytes
        if not self.full and self._waiters:
            self._wake(self.max_messages - self.messages)

    def wake_all(self) -> None:
        """Let every waiter look again: the producer is closing."""
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while self._waiters and count > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def room(self) -> None:
        """Wait until the budget may not be full any more; look again, others may have been faster. Safe to cancel."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # this one was woken and will not use its turn
            raise
