"""Gets the messages of a plan: one reception per partition, which must find exactly what its scout has seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from pulsar_txn.client.errors import MessagesMissing
from pulsar_txn.client.net.tasks import run_all
from pulsar_txn.client.receive.consistent.lookahead import Run
from pulsar_txn.client.receive.consistent.planner import Plan
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.reader import newest_of
from pulsar_txn.client.receive.reception import Reception
from pulsar_txn.wire.ids import Position

T = TypeVar("T")

_TAKEN_AT_ONCE = 500


class Fetcher(Generic[T]):
    """Reads one partition after an entry. `subscribe()` begins the reception when the first messages are wanted.

    When nothing comes for `patience` seconds, it is asked whether something still can.
    """

    def __init__(self, topic: str, after: Position, subscribe: Callable[[], Awaitable[Reception[T]]], patience: float) -> None:
        self._topic = topic
        self._after = after
        self._subscribe = subscribe
        self._patience = patience
        self._reception: Reception[T] | None = None
        self._queue: deque[Message[T]] = deque()

    async def next(self, last: Position) -> Message[T]:
        """The next message; MessagesMissing when it is after `last`, or cannot come any more. If cancelled, none is lost."""
        while True:
            while self._queue and self._queue[0].entry.position <= self._after:
                self._queue.popleft()  # chunks of what comes began before the place
            if self._queue:
                break
            await self._fill(last)
        if self._queue[0].entry.position > last:
            raise self._missing(last)
        return self._queue.popleft()

    async def _fill(self, last: Position) -> None:
        if self._reception is None:
            self._reception = await self._subscribe()
        reception = self._reception
        while not await reception.wait(1, reception.deadline(self._patience, "patience")):
            if await self._is_past(reception, last):
                raise self._missing(last)
        messages = reception.take(_TAKEN_AT_ONCE, None)
        self._queue.extend(messages)
        reception.acknowledge_soon(newest_of(messages), cumulative=True)

    async def _is_past(self, reception: Reception[T], last: Position) -> bool:
        """True if an idle reader cannot get more up to `last`: it has come past it, or the topic does not have it."""
        (part,) = reception.partitions
        come = part.machine.redelivery.last_position
        if not part.is_connected:
            return False
        if come is not None and come >= last:
            return True
        reception.check_open()
        return (await part.last_message_id())[0].position < last

    def _missing(self, last: Position) -> MessagesMissing:
        return MessagesMissing(f"{self._topic} had messages up to {last}, and not all of them came again to be handed out")

    async def close(self) -> None:
        """Close the reader; idempotent."""
        if self._reception is not None:
            await self._reception.close()


class _Fetching(Generic[T]):
    """The part of a plan in one partition."""

    def __init__(self, fetcher: Fetcher[T], runs: Iterable[Run]) -> None:
        self._fetcher = fetcher
        self._runs = deque(runs)
        self._missing = self._runs[0].messages
        self.found: list[Message[T]] = []

    async def go_on(self) -> None:
        while self._runs:
            run = self._runs[0]
            while self._missing > 0:
                message = await self._fetcher.next(run.last)
                self._missing -= _count(message)
                if not run.is_dropped:
                    self.found.append(message)
            self._runs.popleft()
            self._missing = self._runs[0].messages if self._runs else 0


class PlanDelivery(Generic[T]):
    """A plan that is being carried out. It survives that a call for it is cancelled."""

    def __init__(self, plan: Plan, fetchers: Sequence[Fetcher[T]]) -> None:
        self._parts = [_Fetching(fetchers[index], runs) for index, runs in sorted(plan.runs.items())]

    async def messages(self) -> list[Message[T]]:
        """All messages, partition by partition. Raises MessagesMissing, and what ended a reader."""
        await run_all([part.go_on() for part in self._parts])
        return [message for part in self._parts for message in part.found]


def _count(message: Message[T]) -> int:
    """For how many messages of its entry this stands: of an entry that cannot be decrypted there is one for all."""
    return max(message.entry.metadata.num_messages_in_batch, 1) if message.entry.undecrypted else 1
