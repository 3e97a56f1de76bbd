"""The inside of a consistent reader: its scouts, its planner, and what is being handed out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, TypeVar

import attrs

from pulsar_txn.client.errors import AlreadyClosed, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.tasks import Closable, close_all
from pulsar_txn.client.receive.consistent.fetching import Fetcher, PlanDelivery
from pulsar_txn.client.receive.consistent.planner import Limits, Planner
from pulsar_txn.client.receive.consistent.position import CutPosition, PartitionPlace
from pulsar_txn.client.receive.consistent.scout import Scout
from pulsar_txn.client.receive.consistent.start_positions import Found, StartPositions
from pulsar_txn.client.receive.consumer import AsyncConsumer, reception_of, subscribed
from pulsar_txn.client.receive.message import EARLIEST_ID, Message
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.reception import Reception
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.wire.ids import EARLIEST, MessageId

T = TypeVar("T")
logger = logging.getLogger("pulsar_txn.client.consistent_reader")


class ConsistentReading(Generic[T]):
    """Reads the partitions of one consistent reader, looks for new ones, and carries plans out."""

    def __init__(
        self,
        core: Core,
        start_positions: StartPositions,
        schema: Schema[T],
        options: ConsumerOptions,
        limits: Limits,
        interval: float,
    ) -> None:
        self.position = CutPosition({})
        """The place after the last cut that was handed out."""
        self._core = core
        self._start_positions = start_positions
        self._schema = schema
        self._options = options
        self._interval = interval
        self._planner = Planner(limits)
        self._scouts: list[Scout] = []
        self._fetchers: list[Fetcher[T]] = []
        self._delivery: PlanDelivery[T] | None = None
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._turn = asyncio.Lock()
        self._failure: PulsarError | None = None
        self._listing: asyncio.Task[None] | None = None
        self._reading: list[asyncio.Task[None]] = []
        self._id = core.next_resource_id()

    @property
    def topics(self) -> list[str]:
        """The full names of the partitions."""
        return [scout.topic for scout in self._scouts]

    async def start(self, outside: Closable) -> None:
        """Attach to all partitions; when one fails, or this is cancelled, all are closed and the error is raised."""
        self._core.register(self._id, outside)
        try:
            await self._join(await self._start_positions.partitions())
            self.position = self._place()
            if self._start_positions.may_grow:
                self._listing = self._core.spawn(self._follow())
            else:
                self._planner.listed(1 << 62)
        except BaseException:
            await self.close()
            raise

    # --- handing out --------------------------------------------------------------------------------------------------

    async def cut(self, max_messages: int) -> list[Message[T]]:
        """The messages of the next cut; `position` is after them. One call at a time works, the others wait for their turn."""
        async with self._turn:
            messages: list[Message[T]] = []
            while not messages:  # all of a cut may have begun before the place where the reader did
                messages = await self._next(max_messages)
        return messages

    async def _next(self, max_messages: int) -> list[Message[T]]:
        try:
            self._check()
            while self._delivery is None:
                self._changed.clear()
                plan = self._planner.next(max_messages)
                if plan is not None:
                    self._delivery = PlanDelivery(plan, self._fetchers)
                    self._wake()
                else:
                    await self._changed.wait()
                    self._check()
            messages = await self._delivery.messages()
        except PulsarError as error:
            self._fail(error)
            raise
        self._delivery = None
        self.position = self._place()
        return messages

    def _place(self) -> CutPosition:
        places = {}
        for scout, lookahead in zip(self._scouts, self._planner.lookaheads, strict=True):
            after = max(lookahead.taken, scout.place.after)
            places[scout.topic] = PartitionPlace(after, scout.trail.begin(after), scout.place.since)
        return CutPosition(places)

    # --- the partitions -----------------------------------------------------------------------------------------------

    async def _join(self, found: Sequence[Found]) -> None:
        """Read these as well."""
        scouts = [
            Scout(
                self._core,
                topic,
                partition,
                place,
                self._planner,
                interval=self._interval,
                changed=self._wake,
            )
            for topic, partition, place in found
        ]
        try:
            await asyncio.gather(*(scout.start() for scout in scouts))
        except BaseException:
            await close_all(scouts)
            raise
        patience = self._core.settings.operation_timeout
        for scout in scouts:
            self._scouts.append(scout)
            self._fetchers.append(Fetcher(scout.topic, scout.place.after, lambda scout=scout: self._subscribe(scout), patience))  # type: ignore[misc]  # the default binds
            scout.join()
            self._reading += [self._core.spawn(self._guarded(scout.topic, work)) for work in (scout.look(), scout.watch())]

    async def _guarded(self, topic: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except PulsarError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("the reader of %s has failed", topic)
            hint = "make a new reader at the last position"
            self._fail(PulsarError(f"reading {topic} has ended: {error!r}", hint=hint))

    async def _subscribe(self, scout: Scout) -> Reception[T]:
        """Reception of the messages of a partition, from where the program wants them on."""
        place, number = scout.place, int(self._core.runtime.random() * 2**48)
        first = place.begin or place.after
        options = attrs.evolve(
            self._options,
            start_message_id=EARLIEST_ID if first == EARLIEST else MessageId(*first),
            start_message_id_inclusive=place.begin is not None,
        )
        topics = [(scout.topic, scout.partition)]
        consumer = AsyncConsumer(self._core, topics, f"reader-{number:012x}", self._schema, options)
        return reception_of(await subscribed(consumer))

    async def _follow(self) -> None:
        """Look for new partitions whenever a transaction was seen that could have messages in one."""
        while True:
            while not self._planner.needs_list:
                self._wanted.clear()
                await self._wanted.wait()
            number = self._planner.begin_sample()
            try:
                await self._join(await self._start_positions.new_partitions())
            except PulsarError as error:
                if not error.retriable:
                    self._fail(error)
                    return
            else:
                self._planner.listed(number)
                self._planner.mark_complete()
                self._wake()
            await asyncio.sleep(self._interval)

    def _wake(self) -> None:
        """Something is known, or was taken."""
        for event in (self._changed, self._wanted, *(scout.wanted for scout in self._scouts)):
            event.set()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._core.check_here()
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # else it grows each time

    def _fail(self, error: PulsarError) -> None:
        self._failure = self._failure or error
        self._changed.set()

    async def close(self) -> None:
        """Close; idempotent. If cancelled, it is closed."""
        self._fail(AlreadyClosed("the consistent reader is closed"))
        self._core.unregister(self._id)
        for task in (self._listing, *self._reading):
            if task is not None:
                task.cancel()
        await close_all([*self._scouts, *self._fetchers])
