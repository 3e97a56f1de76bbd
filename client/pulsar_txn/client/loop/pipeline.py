"""Consume, process, produce as a loop: `await client.pipeline(consumer, handler)`.

Each batch is one transaction: what the handler sends in `batch.txn` and the acknowledgement of the batch happen together
or not at all. What happens when they do not:

| the transaction was aborted because of | then |
|---|---|
| a conflict, a lost connection, a coordinator that is away | tried again after a growing pause |
| an exception of the handler, a rollback, the timeout | the same, and each message of the batch counts one abort |
| `max_aborts` of a message | batches with it are halved, without a pause, until it fails alone |
| `max_aborts` of a message alone | it is poison |
| poison | `Poison.DEAD_LETTER`: one transaction sends it to the dead-letter topic and acknowledges it |
| | `Poison.SKIP`: it is acknowledged; `Poison.RAISE`: the handler's error is raised |
| poison, the tenth one, and nothing was committed yet | the handler's error is raised, whatever the policy |
| a lost answer to the commit | the outcome is asked for first; if it stays unknown, CommitOutcomeUnknown is raised |
| an error that is `fatal`, a closed client, a transaction used wrongly | raised |

Lanes (`concurrency`) are by partition on Exclusive and Failover, by key on Key_Shared, by entry on Shared, so that the order
that the subscription has is kept. A lane that cannot go on holds the others up once they have run out of messages.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from pulsar_txn.client._callables import awaited, check_takes_one
from pulsar_txn.client.loop.lanes import Lane, Shared
from pulsar_txn.client.loop.options import PipelineEvent, PipelineOptions, PipelineResult, Poison
from pulsar_txn.client.loop.poison import Remedy, Work
from pulsar_txn.client.loop.report import Report
from pulsar_txn.client.loop.suspects import Suspects
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.consumer import AsyncConsumer, reception_of
from pulsar_txn.client.receive.holder import Holder
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerType
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.txn.transactions import Transactions

T = TypeVar("T")


class Pipeline(Generic[T]):
    """One run of `Client.pipeline`."""

    def __init__(
        self,
        core: Core,
        transactions: Transactions,
        create_producer: Callable[..., Awaitable[AsyncProducer[bytes]]],
        consumer: AsyncConsumer[T],
        handler: Work[T],
        options: PipelineOptions,
        stop: asyncio.Event,
        observer: Callable[[PipelineEvent], object] | None,
    ) -> None:
        check_takes_one(handler, "the handler")
        suspects = Suspects(options.max_aborts)
        self._options = options
        self._stop = stop
        self._holder = Holder(reception_of(consumer))
        self._kind = consumer.consumer_type
        self._room = asyncio.Event()
        self._report = Report(observer, skips=options.on_poison is Poison.SKIP)
        self._remedy = Remedy(consumer, options, suspects, create_producer)
        shared = Shared(
            core=core,
            transactions=transactions,
            consumer=consumer,
            holder=self._holder,
            handler=functools.partial(awaited, handler),
            options=options,
            stop=stop,
            suspects=suspects,
            remedy=self._remedy,
            report=self._report,
            room=self._room,
            queued_for=self._queued_for,
        )
        self._lanes = [Lane(shared) for _ in range(options.concurrency)]

    async def run(self) -> PipelineResult:
        """See `Client.pipeline`."""
        stopping = asyncio.create_task(self._stop.wait())
        try:
            if len(self._lanes) == 1:
                await self._run_one(stopping)
            else:
                await self._run_many(stopping)
        finally:
            stopping.cancel()
            for lane in self._lanes:
                lane.leave()
            await self._remedy.close()
        return self._report.result()

    async def _run_one(self, stopping: asyncio.Task[Any]) -> None:
        while not self._stop.is_set():
            await self._receive(stopping)
            if self._lanes[0].ready:
                await self._lanes[0].work(self._lanes[0].take(self._options.max_messages))

    async def _run_many(self, stopping: asyncio.Task[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(_heard(self._run_lane(lane)))
                while not self._stop.is_set():
                    await self._receive(stopping)
                    await self._wait_for_room(stopping)
                for lane in self._lanes:
                    lane.woken.set()
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _run_lane(self, lane: Lane[T]) -> None:
        while True:
            while not lane.ready:
                if self._stop.is_set():
                    lane.leave()
                    return
                lane.woken.clear()
                await lane.woken.wait()
            taken = lane.take(self._options.max_messages)
            self._room.set()
            await lane.work(taken)

    async def _wait_for_room(self, stopping: asyncio.Task[Any]) -> None:
        while self._waiting() >= self._options.max_messages and not self._stop.is_set():
            self._room.clear()
            room = asyncio.create_task(self._room.wait())
            try:
                await asyncio.wait({room, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                room.cancel()

    def _waiting(self) -> int:
        """Messages that lanes could work on; a lane that has to wait may wait for what is in the queue."""
        return sum(len(lane.backlog) for lane in self._lanes if not lane.waits)

    async def _receive(self, stopping: asyncio.Task[Any]) -> None:
        """Put the next messages into the lanes; none when nothing came, or the pipeline is to stop."""
        receiving = asyncio.create_task(self._hand_out())
        try:
            await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            receiving.cancel()
        if receiving.done():
            await receiving

    async def _hand_out(self) -> None:
        """From the queue into the lanes in one step: a lane that recalls its messages finds all of them. Safe to cancel."""
        for message in await self._holder.take(self._options.max_messages, self._options.max_wait):
            self._lanes[self._lane_of(message)].add(message)

    def _lane_of(self, message: Message[Any]) -> int:
        """The lane that keeps this message's order."""
        kind = self._kind
        if kind is ConsumerType.KEY_SHARED:
            return zlib.crc32(message.ordering_key or (message.key or "").encode()) % len(self._lanes)
        if kind is ConsumerType.SHARED:
            return sum(message.entry.position) % len(self._lanes)
        return zlib.crc32(message.topic.encode()) % len(self._lanes)

    def _queued_for(self, lane: Lane[T]) -> list[Message[T]]:
        """Messages queued at a Key_Shared consumer for a lane that gives messages back: they must not go before those."""
        if self._kind is not ConsumerType.KEY_SHARED:
            return []
        return self._holder.take_queued(lambda message: self._lanes[self._lane_of(message)] is lane)


class _CancelledLaneError(Exception):
    """A handler has raised CancelledError, although nobody has cancelled its lane."""


async def _heard(lane: Coroutine[Any, Any, None]) -> None:
    """Run a lane. A group of tasks would take its CancelledError for an end that was asked for, and wait for the others."""
    try:
        await lane
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _CancelledLaneError from error


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of the lanes, out of its groups."""
    first = group.exceptions[0]
    if isinstance(first, _CancelledLaneError) and first.__cause__ is not None:
        return first.__cause__
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
