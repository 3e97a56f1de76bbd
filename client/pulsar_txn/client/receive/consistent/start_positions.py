"""Start of a consistent reader: its partitions, and a consistent position in all of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TypeAlias

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.bounded import bounded
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.growth import new_partitions
from pulsar_txn.client.net.retries import count_partitions
from pulsar_txn.client.receive.consistent.half_topic import SampledEnds
from pulsar_txn.client.receive.consistent.position import CutPosition, PartitionPlace
from pulsar_txn.client.receive.consistent.scout import ends_of_new_reader
from pulsar_txn.client.receive.message import EARLIEST_ID, LATEST_ID
from pulsar_txn.wire.ids import MessageId, Position
from pulsar_txn.wire.topics import TopicName

Found: TypeAlias = "tuple[str, int, PartitionPlace]"
"""A partition: its full name, its number (-1 for a topic without partitions), and the place in it."""


class StartPositions:
    """Finds the partitions of some topics, and knows where reading begins in each."""

    def __init__(self, core: Core, topics: Sequence[TopicName], start: MessageId | CutPosition) -> None:
        self._core = core
        self._topics = topics
        self._start = start
        self._known: dict[TopicName, int] = {}
        for topic in topics:
            if not topic.is_persistent:
                raise InvalidConfiguration(f"{topic} keeps nothing, so a consistent reader cannot read it")
        if isinstance(start, CutPosition):
            _check_topics(topics, start)
        elif start not in (EARLIEST_ID, LATEST_ID):
            raise InvalidConfiguration(
                f"{start} is a place in one partition", hint="begin at EARLIEST_ID, LATEST_ID or the position of a cut"
            )

    @property
    def may_grow(self) -> bool:
        """True if there are topics with partitions."""
        return bool(self._known)

    async def partitions(self) -> list[Found]:
        """All partitions, each with its place. Raises as `Client.create_reader`."""
        counts = await asyncio.gather(*(count_partitions(self._core, topic) for topic in self._topics))
        self._known = {topic: count for topic, count in zip(self._topics, counts, strict=True) if count}
        names = [name for topic in self._topics for name in self._names(topic)]
        if self._start == LATEST_ID:
            return await self._at_the_end(names)
        places = self._start.places if isinstance(self._start, CutPosition) else {}
        return [(name, partition, places.get(name, PartitionPlace())) for name, partition in names]

    def _names(self, topic: TopicName) -> list[tuple[str, int]]:
        count = self._known.get(topic, 0)
        return [(str(topic.with_partition(index)), index) for index in range(count)] or [(str(topic), topic.partition)]

    async def new_partitions(self) -> list[Found]:
        """Those that were not there before; they are read from their beginning. Raises a BrokerError, ConnectionLost."""
        known = dict(self._known)
        found = await new_partitions(self._core, known)
        self._known = known
        return [(name, partition, PartitionPlace()) for name, partition in found]

    async def _at_the_end(self, names: Sequence[tuple[str, int]]) -> list[Found]:
        """First what can be read in all partitions, then their physical ends.

        A transaction that has a message before the first was decided before the second. So it has no message after the
        physical end of any partition, and what it has between the two is known by that.
        """
        first = await asyncio.gather(*(ends_of_new_reader(self._core, *name) for name in names))
        second = await asyncio.gather(*(self._end(*name) for name in names))
        return [
            (*name, PartitionPlace(before.last, since=end if end[1] >= 0 else None))
            for name, before, end in zip(names, first, second, strict=True)
        ]

    async def _end(self, topic: str, partition: int) -> Position:
        """A physical end after everything that is decided by now; so it waits for what waits beside the topic."""
        ends, pause = SampledEnds(), self._core.backoff()
        text = f"transactions were open beside {topic} for longer than the operation timeout"
        async with bounded(self._core.settings.operation_timeout, text, hint="begin at a position"):
            for number in itertools.count(1):
                ends.begin()
                asked = await ends_of_new_reader(self._core, topic, partition)
                if ends.answered(number, asked.half_messages):
                    return asked.passed
                await asyncio.sleep(pause.next())
        raise AssertionError("itertools.count ends")


def _check_topics(topics: Sequence[TopicName], start: CutPosition) -> None:
    """A topic that the position does not know may have a part of a transaction that was handed out before."""
    known = {TopicName.parse(name).base for name in start.places} | {TopicName.parse(name) for name in start.places}
    new = [str(topic) for topic in topics if topic not in known]
    if new:
        raise InvalidConfiguration(
            f"the position is one in other topics, without {', '.join(new)}", hint="read new topics with a new reader"
        )
