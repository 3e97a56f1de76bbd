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
| a lost answer to the commit | the outcome is asked for first; if it stays unknown, CommitOutcomeUnknown is raised |
| an error that is `fatal`, a closed client, a transaction used wrongly | raised |

Lanes (`concurrency`) are by partition on Exclusive and Failover, by key on Key_Shared, by entry on Shared, so that the order
that the subscription has is kept. A lane that cannot go on holds the others up once they have run out of messages.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

import attrs

from pulsar_txn.client._callables import awaited, check_takes_one
from pulsar_txn.client._checks import as_seconds, one_of, seconds, whole
from pulsar_txn.client.loop.lanes import Lane
from pulsar_txn.client.loop.suspects import Suspects
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.batch import AsyncTransactionalBatch
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.dead_letters import check_letters, check_topic, letter_topic
from pulsar_txn.client.receive.holder import Holder
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerType
from pulsar_txn.client.send.producer import AsyncProducer

logger = logging.getLogger("pulsar_txn.client.pipeline")

T = TypeVar("T")
Handler: TypeAlias = Callable[[AsyncTransactionalBatch[T]], Awaitable[object]]

ERROR_CHARACTERS: Final = 1000
"""How much of an error's text travels with a dead letter."""


class Poison(enum.Enum):
    """What becomes of a message that fails again and again."""

    DEAD_LETTER = "dead_letter"
    """Sent to the dead-letter topic and acknowledged, in one transaction."""
    RAISE = "raise"
    """The pipeline ends with the handler's error; the message stays unacknowledged."""
    SKIP = "skip"
    """Acknowledged, in a transaction of its own, and logged."""


@attrs.frozen
class PipelineEvent:
    """What an observer is called with. `kind`: committed, aborted, dead_letter or skipped; `error` is why, if so."""

    kind: str
    messages: tuple[Message[Any], ...]
    error: BaseException | None = None


@attrs.frozen
class PipelineResult:
    """Counts of a pipeline that ended. `committed` and `aborted` are transactions of the handler, the others messages."""

    committed: int
    aborted: int
    messages: int
    dead_lettered: int
    skipped: int


def _on_poison(given: object) -> Poison:
    return one_of(Poison, given, "on_poison")


@attrs.frozen(kw_only=True)
class PipelineOptions:
    """Arguments of `Client.pipeline`; seconds."""

    max_messages: int = attrs.field(default=500, validator=whole(1))
    max_wait: float = attrs.field(default=0.2, converter=as_seconds, validator=seconds(0))
    timeout: float = 30.0
    concurrency: int = attrs.field(default=1, validator=whole(1))
    on_poison: Poison = attrs.field(default=Poison.DEAD_LETTER, converter=_on_poison)
    max_aborts: int = attrs.field(default=3, validator=whole(1))
    dead_letter_topic: str | None = None


class Pipeline(Generic[T]):
    """One run of `Client.pipeline`."""

    def __init__(
        self,
        core: Core,
        create_producer: Callable[..., Awaitable[AsyncProducer[bytes]]],
        consumer: AsyncConsumer[T],
        handler: Handler[T],
        options: PipelineOptions,
        stop: asyncio.Event,
        observer: Callable[[PipelineEvent], object] | None,
    ) -> None:
        check_takes_one(handler, "the handler")
        if options.on_poison is Poison.DEAD_LETTER and options.dead_letter_topic is None:
            check_letters(consumer.subscription, topics=consumer.topics)  # now, and not when the first letter is due
        if options.dead_letter_topic is not None:
            check_topic(options.dead_letter_topic)
        self.core = core
        self.consumer = consumer
        self.holder = Holder(consumer.inside)
        """Has what the lanes have."""
        self.handler: Handler[T] = functools.partial(awaited, handler)
        self.options = options
        self.stop = stop
        self.suspects = Suspects(options.max_aborts)
        self._create_producer = create_producer
        self._observer = observer
        self._counts = dict.fromkeys(("committed", "aborted", "messages", "dead_lettered", "skipped"), 0)
        self._lanes = [Lane(self) for _ in range(options.concurrency)]
        self._room = asyncio.Event()
        self._dead_letters: dict[str, asyncio.Future[AsyncProducer[bytes]]] = {}

    async def run(self) -> PipelineResult:
        """See `Client.pipeline`."""
        stopping = asyncio.create_task(self.stop.wait())
        try:
            if len(self._lanes) == 1:
                await self._run_one(stopping)
            else:
                await self._run_many(stopping)
        finally:
            stopping.cancel()
            for lane in self._lanes:
                lane.leave()
            await self._close_producers()
        return PipelineResult(**self._counts)

    async def _run_one(self, stopping: asyncio.Task[Any]) -> None:
        while not self.stop.is_set():
            await self._receive(stopping)
            if self._lanes[0].ready:
                await self._lanes[0].work(self._lanes[0].take(self.options.max_messages))

    async def _run_many(self, stopping: asyncio.Task[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(_heard(self._run_lane(lane)))
                while not self.stop.is_set():
                    await self._receive(stopping)
                    await self._wait_for_room(stopping)
                for lane in self._lanes:
                    lane.woken.set()
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _run_lane(self, lane: Lane[T]) -> None:
        while True:
            while not lane.ready:
                if self.stop.is_set():
                    lane.leave()
                    return
                lane.woken.clear()
                await lane.woken.wait()
            taken = lane.take(self.options.max_messages)
            self.look_for_room()
            await lane.work(taken)

    async def _wait_for_room(self, stopping: asyncio.Task[Any]) -> None:
        while self._waiting() >= self.options.max_messages and not self.stop.is_set():
            self._room.clear()
            room = asyncio.create_task(self._room.wait())
            try:
                await asyncio.wait({room, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                room.cancel()

    def look_for_room(self) -> None:
        """A lane holds less, or holds what it has for others to come."""
        self._room.set()

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
        for message in await self.holder.take(self.options.max_messages, self.options.max_wait):
            self._lanes[self.lane_of(message)].add(message)

    def lane_of(self, message: Message[Any]) -> int:
        """The lane that keeps this message's order."""
        kind = self.consumer.consumer_type
        if kind is ConsumerType.KEY_SHARED:
            return zlib.crc32(message.ordering_key or (message.key or "").encode()) % len(self._lanes)
        if kind is ConsumerType.SHARED:
            return sum(message.entry.position) % len(self._lanes)
        return zlib.crc32(message.topic.encode()) % len(self._lanes)

    def recalled(self, lane: Lane[T]) -> list[Message[Any]]:
        """A lane gives its messages back: what waits for it in a Key_Shared consumer must not go before them."""
        self.look_for_room()
        if self.consumer.consumer_type is not ConsumerType.KEY_SHARED:
            return []
        return self.holder.take_queued(lambda message: self._lanes[self.lane_of(message)] is lane)

    # --- poison -------------------------------------------------------------------------------------------------------

    def against_poison(self, group: Sequence[Message[T]], error: Exception) -> Handler[T]:
        """What to do in a transaction with the one message of the group; raises the error with Poison.RAISE."""
        message = group[0]
        if self.options.on_poison is Poison.RAISE:
            error.add_note(f"message {message.message_id} of {message.topic} failed {self.suspects.aborts(message)} times")
            raise error
        if self.options.on_poison is Poison.SKIP:
            return _nothing
        return lambda batch: self._send_dead_letter(batch, error)

    async def _send_dead_letter(self, batch: AsyncTransactionalBatch[T], error: Exception) -> None:
        message = batch[0]
        producer = await self._dead_letter_producer(message.topic)
        await producer.send(
            None if message.is_tombstone else message.data,
            txn=batch.txn,
            key=message.key,
            ordering_key=message.ordering_key,
            event_time_ms=message.event_time_ms,
            properties={
                **message.properties,
                "REAL_TOPIC": message.topic,
                "REAL_SUBSCRIPTION": self.consumer.subscription,
                "ORIGIN_MESSAGE_ID": str(message.message_id),
                "EXCEPTION": f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS],
                "ABORTS": str(self.suspects.aborts(message)),
            },
        )

    async def _dead_letter_producer(self, topic: str) -> AsyncProducer[bytes]:
        name = self.options.dead_letter_topic or letter_topic(topic, self.consumer.subscription)
        task = self._dead_letters.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            making = self._create_producer(name, chunking=True)  # what came in chunks, or compressed, may be too large for one
            task = self._dead_letters[name] = asyncio.ensure_future(making)
        return await asyncio.shield(task)

    async def _close_producers(self) -> None:
        for task in self._dead_letters.values():
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                await task.result().close()

    # --- what happened ------------------------------------------------------------------------------------------------

    def committed(self, group: Sequence[Message[T]]) -> None:
        """A group is done."""
        self._counts["messages"] += len(group)
        self._count("committed", "committed", group)

    def aborted(self, group: Sequence[Message[T]], error: BaseException) -> None:
        """A group was aborted."""
        logger.info("a transaction of %d messages was aborted: %s", len(group), error)
        self._count("aborted", "aborted", group, error)

    def removed(self, group: Sequence[Message[T]], error: BaseException) -> None:
        """A poison message is out of the way."""
        message = group[0]
        kind, count = ("skipped", "skipped") if self.options.on_poison is Poison.SKIP else ("dead_letter", "dead_lettered")
        logger.warning("message %s of %s: %s after %s", message.message_id, message.topic, kind, error)
        self._count(count, kind, group, error)

    def _count(self, count: str, kind: str, group: Sequence[Message[T]], error: BaseException | None = None) -> None:
        self._counts[count] += 1
        if self._observer is not None:
            try:
                self._observer(PipelineEvent(kind, tuple(group), error))
            except Exception:  # an observer must not break what it observes
                logger.exception("the observer %r failed", self._observer)


async def _nothing(_batch: AsyncTransactionalBatch[Any]) -> None:
    """To acknowledge is enough."""


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
