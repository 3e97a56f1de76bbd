"""The queue of one consumer: what has come from all its partitions, and the calls that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.net.runtime import Guard
from pulsar_txn.client.receive.key_order import KeyOrder
from pulsar_txn.client.receive.message import Message, Source
from pulsar_txn.wire.ids import Position

T = TypeVar("T")
Post: TypeAlias = Callable[[Callable[[], object]], object]
"""Function that has another one called on the loop, from any thread."""


class Inbox(Generic[T]):
    """Messages that wait to be received.

    With `shared`, threads of the blocking client take messages as well, and whoever takes messages or drops them holds the
    `guard`.
    """

    def __init__(self) -> None:
        self.queue: deque[Message[T]] = deque()
        self.guard = Guard()
        self.shared = False
        self.received = 0
        """Messages that the program has got."""
        self.failure: PulsarError | None = None
        """Error that ends the inbox for ever."""
        self.sources = 0
        """From how many partitions messages come."""
        self.only: Source | None = None
        """The partition, when there is one and there never was another."""
        self.keys: KeyOrder | None = None
        """Units by key, on Key_Shared."""
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def share(self) -> None:
        """From now on threads take messages as well."""
        self.shared = True

    def divide(self, keys: KeyOrder) -> None:
        """Units take messages by key from now on."""
        self.keys = keys

    def comes_from(self, sources: int, only: Source | None) -> None:
        """Note the number of partitions that messages come from, and the only one that there ever was, if it is one."""
        self.sources, self.only = sources, only

    # --- what comes in ------------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[Message[T]]) -> None:
        """Messages have come."""
        if self.shared:
            with self.guard:
                self.queue.extend(messages)
        else:
            self.queue.extend(messages)
        if self.keys is not None:
            self.keys.came(messages)
        if self._waiters:
            self.wake()

    def drop(self, source: Source) -> int:
        """Drop what is queued from there, because it will come again; returns the number of messages."""
        with self.guard:
            before = len(self.queue)
            if source is self.only:
                self.queue.clear()
            else:
                self.queue = deque(message for message in self.queue if message.entry.consumer is not source)
            return before - len(self.queue)

    def positions(self, source: Source) -> set[Position]:
        """Of which entries from there messages are queued."""
        with self.guard:
            return {message.entry.position for message in self.queue if message.entry.consumer is source}

    def fail(self, error: PulsarError) -> None:
        """Nothing can be received any more."""
        self.failure = self.failure or error
        self.wake()

    def close(self, error: PulsarError) -> None:
        """The consumer is closed."""
        self.queue.clear()
        self.failure = error
        self.wake()

    def check(self) -> None:
        """Raise the failure, if there is one and nothing is left to receive."""
        if self.failure is not None and not self.queue:
            raise self.failure.with_traceback(None)  # else it grows each time

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def wait(self, messages: int, deadline: float | None) -> bool:
        """Until so many are queued; False when the time is over before. Raises the failure. Safe to cancel."""
        loop = asyncio.get_running_loop()
        while len(self.queue) < messages:
            if self.failure is not None:
                self.check()
                return True
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
                    self.wake()  # those after it may need fewer
                raise
            finally:
                if not waiter.done() or waiter.cancelled():
                    self._remove(waiter)
                elif self.queue:
                    self.wake()  # this one may leave with fewer than it was woken for
        return True

    def _remove(self, waiter: asyncio.Future[None]) -> None:
        self._waiters = deque(entry for entry in self._waiters if entry[0] is not waiter)

    def wake(self) -> None:
        """Let those go on for whom there is enough."""
        if self.keys is not None:
            self.keys.wake()
        ready = len(self.queue)
        while self._waiters and (ready >= self._waiters[0][1] or self.failure is not None):
            waiter, needed = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                ready -= needed

    # --- taking -------------------------------------------------------------------------------------------------------

    def take(self, max_messages: int) -> list[Message[T]]:
        """Up to so many of those that are there. The caller tells their partitions (`Source.handed_out`), under the guard."""
        with self.guard:
            queue = self.queue
            if len(queue) <= max_messages:
                taken = list(queue)
                queue.clear()
            else:
                taken = [queue.popleft() for _ in range(max_messages)]
            self.received += len(taken)
        return taken

    def take_one(self) -> Message[T]:
        """The first one; IndexError if absent."""
        message = self.queue.popleft()
        self.received += 1
        return message

    def take_whole(self, max_messages: int) -> list[Message[T]]:
        """As `take`, entries as a whole where `max_messages` allows it."""
        with self.guard:  # what another thread takes comes before all of it, or after
            return self.take(whole_entries(self.queue, max_messages))

    def take_these(self, those: Sequence[Message[T]], most: int, *, whole: bool) -> list[Message[T]]:
        """Up to `most` of these that are queued, in this order; see `take_whole`."""
        with self.guard:
            taken = list(those[: whole_entries(those, most) if whole else most])
            if all(here is message for here, message in zip(self.queue, taken, strict=False)):
                for _ in taken:
                    self.queue.popleft()
            else:
                chosen = {id(message) for message in taken}
                self.queue = deque(message for message in self.queue if id(message) not in chosen)
            self.received += len(taken)
        return taken

    def take_matching(self, matches: Callable[[Message[T]], bool]) -> list[Message[T]]:
        """Those that match, which do not count as received."""
        with self.guard:
            taken = [message for message in self.queue if matches(message)]
            if taken:
                self.queue = deque(message for message in self.queue if not matches(message))
        return taken

    def sort_matching(self, matches: Callable[[Message[T]], bool], order: Callable[[Message[T]], Any]) -> None:
        """Put those that match in order, in their places in the queue."""
        with self.guard:
            those = [message for message in self.queue if matches(message)]
            ordered = sorted(those, key=order)
            if ordered != those:
                following = iter(ordered)
                self.queue = deque(next(following) if matches(message) else message for message in self.queue)

    def has(self, enough: int) -> bool:
        """True if so many are there, and no call on the loop waits for them."""
        return len(self.queue) >= enough and not self._waiters


def whole_entries(queued: Sequence[Message[Any]], most: int) -> int:
    """The number of messages to take, at most `most`, so that the messages of an entry stay together; `most` where they cannot.

    Stock servers keep the acknowledgement of a part of an entry badly when they load a topic again: of a cumulative one
    they lose the rest of the entry, of a list they may deliver the part again (seen on 4.0.8 and 4.2.4).
    """
    if len(queued) <= most:
        return most
    split = queued[most].entry
    count = most
    while count and queued[count - 1].entry is split:
        count -= 1
    return count or most
