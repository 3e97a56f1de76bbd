"""The consistent reader that programs use: cuts through its topics, each with whole transactions only."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, Self, TypeVar

import attrs

from pulsar_txn.client._options import options_of
from pulsar_txn.client._validation import number_of_seconds, refused, seconds_of, validate_whole, whole
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration
from pulsar_txn.client.net.bounded import bounded
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.receive.consistent.planner import Limits
from pulsar_txn.client.receive.consistent.position import CutPosition
from pulsar_txn.client.receive.consistent.reading import ConsistentReading
from pulsar_txn.client.receive.consistent.start_positions import StartPositions
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

T = TypeVar("T")


@attrs.frozen
class Cut(Generic[T]):
    """Messages that come together: every transaction among them is whole, over all topics of the reader.

    They are in the order of their partition, partition by partition. `position` is the place after them.
    """

    messages: Sequence[Message[T]]
    position: CutPosition

    def __iter__(self) -> Iterator[Message[T]]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)


class AsyncConsistentReader(Generic[T]):
    """Reads topics so that no transaction is seen in part. Made by `Client.consistent_reader`; an async context manager.

    It is an async iterator of cuts; `messages()` is one of messages.
    Messages of one partition come in order. A transaction comes in one cut, as soon as each partition has been read
    far enough. So it waits for a transaction that is open before it in one of the partitions.
    """

    def __init__(self, reading: ConsistentReading[T]) -> None:
        self._reading = reading

    @property
    def topics(self) -> list[str]:
        """The full names of the partitions (and of the topics without partitions) that it reads."""
        return self._reading.topics

    @property
    def position(self) -> CutPosition:
        """The place after the last cut that was handed out; where the reader began, before the first one."""
        return self._reading.position

    async def next_cut(self, timeout: float | timedelta | None = None, *, max_messages: int = 1000) -> Cut[T]:
        """Wait for the next cut and return it; OperationTimeout after `timeout`, seconds or a timedelta.

        It has about `max_messages` messages at most; more when transactions hang together.
        Raises AlreadyClosed; CutTooLarge, MessagesMissing and whatever else ends the reading, again at each call.
        If cancelled, nothing is lost.
        """
        validate_whole("max_messages", max_messages, 1)
        seconds = math.inf if timeout is None else number_of_seconds(timeout, "timeout")
        async with bounded(seconds, f"no cut is complete within {seconds:g} s"):
            messages = await self._reading.cut(max_messages)
        return Cut(messages, self._reading.position)

    async def messages(self) -> AsyncIterator[Message[T]]:
        """All messages, one after another, until the reader is closed; `position` is after the whole cut of the last one."""
        while True:
            try:
                cut = await self.next_cut()
            except AlreadyClosed:
                return
            for message in cut.messages:
                yield message

    async def close(self) -> None:
        """Close; idempotent. If cancelled, it is closed."""
        await self._reading.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Cut[T]:
        try:
            return await self.next_cut()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


_NOT_HERE: Final = {
    "read_compacted": "a compacted topic has lost parts of transactions; a consistent reader reads all messages",
    "auto_update_partitions": "new partitions are looked for when a transaction may have messages in one",
    "durable": "a reader's subscription goes with it",
    "consumer_name": "leave it out",
    "start_message_id": "give start=",
    "start_message_id_inclusive": "give start=",
}
"""Options of readers and consumers that have no place here, and why."""


@attrs.frozen(kw_only=True)
class Bounds:
    """Bounds of what a consistent reader keeps, and of how often it asks; see `Client.consistent_reader`."""

    max_ahead: int = attrs.field(validator=whole(1))
    max_cut_messages: int = attrs.field(validator=whole(1))
    max_cut_bytes: int = attrs.field(validator=whole(1))
    check_interval: float | timedelta


async def open_consistent_reader(
    core: Core,
    topics: Sequence[TopicName],
    start: MessageId | CutPosition,
    schema: Schema[Any],
    options: Mapping[str, Any],
    bounds: Bounds,
) -> AsyncConsistentReader[Any]:
    """Check everything, and begin to read. Raises as `Client.consistent_reader`."""
    core.check_open()
    if not topics:
        raise InvalidConfiguration("no topic to read")
    if not isinstance(start, MessageId | CutPosition):
        raise refused("start", start, "EARLIEST_ID, LATEST_ID or the position of a cut")
    for name, why in _NOT_HERE.items():
        if options.get(name):
            raise InvalidConfiguration(f"a consistent reader takes no {name}", hint=why)
    chosen = options_of(ConsumerOptions, {**options, "durable": False, "auto_update_partitions": 0}, "consistent_reader")
    if not chosen.consumer_type.is_single:
        raise InvalidConfiguration("a consistent reader keeps the order, and is alone", hint="leave out consumer_type")
    limits = Limits(bounds.max_ahead, bounds.max_cut_messages, bounds.max_cut_bytes)
    start_positions = StartPositions(core, list(dict.fromkeys(topics)), start)
    interval = seconds_of(bounds.check_interval, "check_interval")
    reading: ConsistentReading[Any] = ConsistentReading(core, start_positions, schema, chosen, limits, interval)
    reader: AsyncConsistentReader[Any] = AsyncConsistentReader(reading)
    await reading.start(reader)
    return reader
