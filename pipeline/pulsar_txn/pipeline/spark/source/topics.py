"""What the source asks of Pulsar: partitions, ends, how far a number of messages reaches, the messages of a range."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from pulsar_txn.client import (
    EARLIEST_ID,
    LATEST_ID,
    AsyncClient,
    AsyncConsumer,
    AsyncReader,
    InitialPosition,
    Message,
    MessageId,
    OperationTimeout,
)
from pulsar_txn.pipeline.spark.errors import DataLossError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places

logger = logging.getLogger(__name__)

_SLICE_SECONDS: Final = 1.0
_QUEUE: Final = 5000


class Topics:
    """The topics of a source as its driver sees them. Keeps one reader per partition; use it on the client's loop."""

    def __init__(self, client: AsyncClient, options: Options) -> None:
        self._client = client
        self._options = options
        self._heads: dict[str, AsyncReader[Any]] = {}
        self._walks: dict[str, Walk] = {}
        self._subscriptions: dict[str, AsyncConsumer[Any]] = {}

    async def ends(self) -> Places:
        """The last visible message of every partition; NOTHING for an empty one. Everything up to it is decided."""
        partitions = [name for topic in self._options.topics for name in await self._client.get_topic_partitions(topic)]
        for partition in partitions:
            if partition not in self._heads:
                self._heads[partition] = await self._client.create_reader(partition, LATEST_ID, receiver_queue_size=1)
        last = await asyncio.gather(*(self._heads[partition].get_last_message_id() for partition in partitions))
        return {name: each.position if each.entry_id >= 0 else NOTHING for name, each in zip(partitions, last, strict=True)}

    async def limited(self, start: Mapping[str, Place], end: Mapping[str, Place], messages: int) -> Places:
        """How far `messages` messages reach, shared over the partitions; whole entries, at least one of each partition.

        Pulsar's ids do not count messages, so they are read ahead; the place is kept for the next call.
        """
        reached = dict(end)
        behind = sorted(topic for topic in end if start.get(topic, NOTHING) < end[topic])
        for number, topic in enumerate(behind):
            share = max(1, messages // (len(behind) - number))
            reached[topic], counted = await self._walk(topic, start.get(topic, NOTHING), end[topic], share)
            messages = max(0, messages - counted)
        return reached

    async def _walk(self, topic: str, start: Place, end: Place, messages: int) -> tuple[Place, int]:
        walk = self._walks.get(topic)
        if walk is None or walk.place != start:
            if walk is not None:
                await walk.reader.close()
            reader = await open_reader(self._client, topic, start, queue=min(_QUEUE, max(messages, 10)))
            walk = self._walks[topic] = Walk(reader, start)
        return await walk.go(end, messages)

    async def subscribe(self, start: Mapping[str, Place]) -> None:
        """Create the durable subscription where it is missing, and move it up to `start`."""
        for topic in start:
            await self._subscription(topic)
        await self.acknowledge(start)

    async def acknowledge(self, end: Mapping[str, Place]) -> None:
        """Tell the subscription that everything up to `end` was processed. It never goes back."""
        for topic, place in end.items():
            if place != NOTHING:
                consumer = await self._subscription(topic)
                await consumer.acknowledge_cumulative(MessageId(*place), receipt=True)

    async def _subscription(self, topic: str) -> AsyncConsumer[Any]:
        found = self._subscriptions.get(topic)
        if found is None:
            name = self._options.subscription_name or ""
            found = await self._client.subscribe(
                topic, name, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1, ack_receipt=True
            )
            self._subscriptions[topic] = found
        return found

    async def close(self) -> None:
        """Close readers and consumers."""
        open_now: list[AsyncReader[Any] | AsyncConsumer[Any]] = [
            *self._heads.values(),
            *(walk.reader for walk in self._walks.values()),
            *self._subscriptions.values(),
        ]
        self._heads, self._walks, self._subscriptions = {}, {}, {}
        for each in open_now:
            await each.close()


class Walk:
    """A reader that has read up to `place`, to find out how far a number of messages reaches."""

    def __init__(self, reader: AsyncReader[Any], place: Place) -> None:
        self.reader = reader
        self.place = place

    async def go(self, end: Place, messages: int) -> tuple[Place, int]:
        """Read `messages` more, to the end of their last entry or up to `end`; the place, and how many they were."""
        count = 0
        while self.place < end and count < messages:
            try:
                message = await self.reader.read_next(_SLICE_SECONDS)
            except OperationTimeout:
                if await self.reader.has_message_available():
                    continue
                self.place = end  # the rest is gone; whoever reads the range says so
                break
            count += 1
            if _ends_entry(message):
                self.place = message.message_id.position
            elif count >= messages:
                messages += 1
        return min(self.place, end), count


class RangeReader:
    """Reads the messages of one topic partition after `start` up to and with the entry `end`. Use it on the loop."""

    def __init__(self, client: AsyncClient, options: Options, topic: str, start: Place, end: Place) -> None:
        self._client = client
        self._options = options
        self._topic = topic
        self._start = start
        self._end = end
        self._reader: AsyncReader[Any] | None = None
        self._place = start
        self._done = start >= end

    async def next(self, most: int) -> list[Message[Any]]:
        """Some more messages; empty at the end. DataLossError when the end cannot be reached any more."""
        if self._reader is None and not self._done:
            self._reader = await open_reader(self._client, self._topic, self._start, queue=_QUEUE)
        waited = 0.0
        while not self._done:
            assert self._reader is not None  # noqa: S101  # opened above
            try:
                async with asyncio.timeout(_SLICE_SECONDS):
                    messages = await self._reader.read_many(most)
            except TimeoutError:
                waited += _SLICE_SECONDS
                await self._check_stalled(waited)
                continue
            inside = [message for message in messages if message.message_id.position <= self._end]
            if inside:
                self._place = inside[-1].message_id.position
            newest = messages[-1]
            self._done = len(inside) < len(messages) or (self._place == self._end and _ends_entry(newest))
            if self._done and self._place < self._end:
                self._report_loss()
            if inside:
                return inside
        return []

    async def _check_stalled(self, waited: float) -> None:
        assert self._reader is not None  # noqa: S101  # it was opened by `next`
        if not await self._reader.has_message_available():
            self._report_loss()
            self._done = True
        elif waited * 1000 >= self._options.poll_timeout_ms:
            raise OperationTimeout(
                f"{self._topic}: nothing came after {self._place} for {waited:g} s, though {self._end} should be there"
            )

    def _report_loss(self) -> None:
        report_loss(self._options, f"{self._topic}: messages after {self._place} up to {self._end} are missing")

    async def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            await self._reader.close()


def report_loss(options: Options, text: str) -> None:
    """Raise DataLossError, or log a warning when the option `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}: retention, expiry or a deleted topic took what was not processed; failOnDataLoss=false goes on without "
            "it, and subscriptionName keeps it from happening"
        )
    logger.warning("%s; going on, as failOnDataLoss=false says", text)


async def open_reader(client: AsyncClient, topic: str, start: Place, *, queue: int) -> AsyncReader[Any]:
    """A reader of one topic partition after the whole entry `start`."""
    first = EARLIEST_ID if start == NOTHING else MessageId(*start)
    return await client.create_reader(topic, first, receiver_queue_size=queue)


def _ends_entry(message: Message[Any]) -> bool:
    message_id = message.message_id
    return message_id.batch_index < 0 or message_id.batch_index >= message_id.batch_size - 1
