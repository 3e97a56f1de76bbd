"""How a program takes messages from a consumer: the half of `Consumer` with the queue and those who wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Generic, Self, TypeVar

from pulsar_txn.client._checks import as_seconds, check_whole, number_of_seconds
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, OperationTimeout, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.growth import TopicPattern
from pulsar_txn.client.net.runtime import Guard
from pulsar_txn.client.receive.interceptors import ConsumerChain
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.partition_consumer import PartitionConsumer, Post
from pulsar_txn.client.receive.redelivery import AckTimeouts

logger = logging.getLogger("pulsar_txn.client.consumer")

T = TypeVar("T")


class Receiving(Generic[T]):
    """Receiving, and what partition consumers hand in. The attributes are set by `Consumer`."""

    timeouts: AckTimeouts | None
    _core: Core
    _options: ConsumerOptions
    _chain: ConsumerChain | None
    _observed: bool
    _parts: list[PartitionConsumer]
    _only: PartitionConsumer | None
    _pattern: TopicPattern | None
    _queue: deque[Message[T]]
    _waiters: deque[tuple[asyncio.Future[None], int]]
    _failure: PulsarError | None
    _closed: bool
    _received: int
    shared: bool
    """Whether threads of the sync client take messages, too (`take_beside`)."""
    guard: Guard
    """Held while messages leave the queue, then."""

    @property
    def topic(self) -> str:
        """The topic's name, of the first one when there are several; the pattern when it stands for none yet."""
        if self._parts or self._pattern is None:
            return self._parts[0].topic
        return f"{self._pattern.namespace}/{self._pattern.names.pattern}"

    async def receive(self, timeout: float | timedelta | None = None) -> Message[T]:
        """The next message, waiting for it; OperationTimeout after `timeout` (seconds or a timedelta).

        Raises AlreadyClosed, or what ended the consumer for good. If cancelled, no message is lost.
        """
        deadline = None
        while True:
            if not self._queue:
                if self._failure is not None:
                    raise self._failure.with_traceback(None)  # else it grows with each
                deadline = deadline or self._deadline(timeout, "timeout")
                if not await self._wait(1, deadline) and not self._queue:
                    raise OperationTimeout(f"no message on {self.topic} within {as_seconds(timeout or 0):g} s")
            if not self.shared:
                break
            if taken := self._take(1):
                return taken[0]
        message = self._queue.popleft()
        part = message.entry.consumer
        part.last_dequeued = message
        part.give_permits_back(1)
        self._received += 1
        if self._observed:
            self._observe([message])
        return message

    async def receive_many(self, max_messages: int = 500, *, max_wait: float | timedelta | None = None) -> list[Message[T]]:
        """Up to `max_messages`: those that are there, after waiting for so many or until `max_wait` seconds are over.

        The list is empty when nothing came in time. Without `max_wait`: at least one, as many as there are then.
        Raises as `receive`. If cancelled, no message is lost.
        """
        while True:
            await self._ready(max_messages, max_wait)
            taken = self._take(max_messages)
            if taken or max_wait is not None:  # a thread of the sync client may have been faster
                return taken

    def enough(self, max_messages: int, max_wait: float | timedelta | None) -> int:
        """How many messages `receive_many` waits for."""
        check_whole("max_messages", max_messages)
        return 1 if max_wait is None else min(max_messages, self._options.receiver_queue_size)

    async def _ready(self, max_messages: int, max_wait: float | timedelta | None) -> None:
        enough = self.enough(max_messages, max_wait)
        if max_messages < 1:
            raise InvalidConfiguration(f"max_messages must be at least 1, not {max_messages}")
        if len(self._queue) < enough:
            if self._failure is not None and not self._queue:
                raise self._failure.with_traceback(None)  # else it grows with each
            await self._wait(enough, self._deadline(max_wait, "max_wait"))

    def receive_nowait(self, max_messages: int = 500) -> list[Message[T]]:
        """Up to `max_messages` of those that are queued; does not wait, may be empty. Raises as `receive`."""
        if self._failure is not None and not self._queue:
            raise self._failure.with_traceback(None)  # else it grows with each
        check_whole("max_messages", max_messages)
        return self._take(max_messages)

    def _take(self, max_messages: int) -> list[Message[T]]:
        with self.guard:
            taken = self._popped(max_messages)
            for message in taken[-1:] if self._only is not None else taken:
                message.entry.consumer.last_dequeued = message
        if not taken:
            return taken
        if self._observed:
            self._observe(taken)
        if self._only is not None:
            self._only.give_permits_back(len(taken))
        else:
            for message in taken:
                message.entry.consumer.give_permits_back(1)
        return taken

    def take_beside(self, max_messages: int, enough: int, post: Post) -> list[Message[T]] | None:
        """For the sync client, in the thread that receives: what is queued, without asking the loop for it.

        None where the loop has to be asked: fewer than `enough` are there, others wait for them, or somebody has to be
        told. `post` has a function called on the loop.
        """
        if len(self._queue) < enough or self._waiters or self._observed or self._closed:
            return None
        with self.guard:
            if len(self._queue) < enough:
                return None
            taken = self._popped(max_messages)
            for message in taken:
                message.entry.consumer.took_beside(message, post)
        return taken

    def take_one_beside(self, post: Post) -> Message[T] | None:
        """As `take_beside`, a single one."""
        if not self._queue or self._waiters or self._observed or self._closed:
            return None
        with self.guard:
            if not self._queue:
                return None
            message = self._queue.popleft()
            message.entry.consumer.took_beside(message, post)
            self._received += 1
        return message

    def _popped(self, max_messages: int) -> list[Message[T]]:
        queue = self._queue
        if len(queue) <= max_messages:
            taken = list(queue)
            queue.clear()
        else:
            taken = [queue.popleft() for _ in range(max_messages)]
        self._received += len(taken)
        return taken

    def _observe(self, messages: Sequence[Message[T]]) -> None:
        if self.timeouts is not None:
            self.timeouts.received(messages)
        if self._chain is not None:
            self._chain.received(messages)

    def _deadline(self, timeout: float | timedelta | None, what: str) -> float | None:
        if timeout is None:
            return None
        seconds = number_of_seconds(timeout, what)
        return None if seconds == math.inf else self._core.runtime.monotonic() + seconds

    async def _wait(self, messages: int, deadline: float | None) -> bool:
        """Until so many are queued; False when the time is over before."""
        for part in self._parts:
            part.flush_permits()
        loop = asyncio.get_running_loop()
        while len(self._queue) < messages:
            if self._failure is not None:
                if self._queue:
                    return True
                raise self._failure.with_traceback(None)  # else it grows with each
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append((waiter, messages))
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return False  # the caller takes all there is, so that there is nobody to wake
            except BaseException:
                if waiter.cancelled():
                    self._remove(waiter)
                    self._wake()  # those behind it may need fewer
                raise
            finally:
                if not waiter.done() or waiter.cancelled():
                    self._remove(waiter)
                elif self._queue:
                    self._wake()  # this one may leave with fewer than it was woken for
        return True

    def _remove(self, waiter: asyncio.Future[None]) -> None:
        self._waiters = deque(entry for entry in self._waiters if entry[0] is not waiter)

    def enqueue(self, messages: Sequence[Message[T]]) -> None:
        """For partition consumers: messages have come."""
        if self.shared:
            with self.guard:
                self._queue.extend(messages)
        else:
            self._queue.extend(messages)
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        ready = len(self._queue)
        while self._waiters and (ready >= self._waiters[0][1] or self._failure is not None):
            waiter, needed = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                ready -= needed

    def drop_queued(self, part: PartitionConsumer) -> None:
        """For partition consumers: what is queued from there will come again."""
        part.chunks.clear()
        with self.guard:
            before = len(self._queue)
            if part is self._only:
                self._queue.clear()
            else:
                self._queue = deque(message for message in self._queue if message.entry.consumer is not part)
            dropped = before - len(self._queue)
        held = part.drop_held() + (0 if part.writers is None else part.writers.drop())
        part.give_permits_back(dropped + held)

    def part_failed(self, part: PartitionConsumer, error: PulsarError) -> None:
        """For partition consumers: this one has ended for good. The others of a pattern go on without it."""
        if self._pattern is not None and part in self._parts:
            logger.warning("%s is not received from any more: %s", part.topic, error)
            self._parts.remove(part)
            self.drop_queued(part)
            return
        logger.error("%s is not received from any more, which ends the consumer: %s", part.topic, error)
        self.fail(error)

    def fail(self, error: PulsarError) -> None:
        """For partition consumers: nothing can be received any more."""
        self._failure = self._failure or error
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"the consumer of {self.topic} is closed")
