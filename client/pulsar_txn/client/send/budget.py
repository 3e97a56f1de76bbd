"""Bounds on what a producer has in flight: messages and bytes, over all of its partitions.

A look at the bounds is one attribute, `Budget.full`. Therefore the client's `MemoryLimit` tells each producer when it is
reached.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from pulsar_txn.client.errors import MemoryBufferIsFull, ProducerQueueFull
from pulsar_txn.client.net.memory_limit import MemoryLimit


class Budget:
    """Counts messages and bytes; `full` once either bound is reached. One message always fits into an empty budget."""

    __slots__ = (
        "__weakref__",
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

    def count_failed(self, messages: int) -> None:
        """Count messages that failed."""
        self.failed += messages

    def give_back(self, messages: int, size: int) -> None:
        """Messages have their receipt, or failed."""
        self.messages -= messages
        self.bytes -= size
        self._done_messages += messages
        self._done_bytes += size
        if self.full:  # waiters for room have seen it so, or have their turn after this
            self.look()

    def look(self) -> None:
        """See whether there is room; the sends that wait for it are woken then."""
        self.full = self._is_full()
        if not self.full and self._waiters:
            self._wake(self.max_messages - self.messages)

    def _is_full(self) -> bool:
        return self.messages >= self.max_messages or self.bytes >= self.max_bytes

    def has_room(self, waiting: int, size: int) -> bool:
        """True when another message has room after `waiting` others; `size` is of all of them, in bytes."""
        return self.messages + waiting < self.max_messages and self.bytes + size < self.max_bytes

    def refusal(self, topic: str) -> ProducerQueueFull:
        """Error of a message for which there is no room."""
        return ProducerQueueFull(f"{self.messages} messages with {self.bytes} bytes are in flight to {topic}")

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
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # it was woken in the same moment
                    self._waiters.remove(waiter)
            loop.call_soon(self.look)  # after what this one does now: if it takes no room, the next one may


class LimitedBudget(Budget):
    """The bounds of a producer whose client has one as well."""

    __slots__ = ("_memory",)

    def __init__(self, max_messages: int, max_bytes: int, memory: MemoryLimit) -> None:
        super().__init__(max_messages, max_bytes)
        self._memory = memory
        self.full = memory.full
        memory.add(self)

    def take(self, messages: int, size: int) -> None:
        """Messages were queued."""
        super().take(messages, size)
        self._memory.take(size)
        self.full = self.full or self._memory.full

    def give_back(self, messages: int, size: int) -> None:
        """Messages have their receipt, or failed."""
        self._memory.give_back(size)
        super().give_back(messages, size)

    def _is_full(self) -> bool:
        return self._memory.full or super()._is_full()

    def has_room(self, waiting: int, size: int) -> bool:
        """See `Budget.has_room`."""
        memory = self._memory
        return not memory.full and memory.used + size < memory.limit and super().has_room(waiting, size)

    def refusal(self, topic: str) -> ProducerQueueFull:
        """Error of a message for which there is no room."""
        memory = self._memory
        if memory.full:
            return MemoryBufferIsFull(f"{memory.used} bytes of all producers are in flight, memory_limit is {memory.limit}")
        return super().refusal(topic)
