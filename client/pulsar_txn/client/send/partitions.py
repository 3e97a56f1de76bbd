"""The partitions that one producer sends to: which of them a message goes to, those that are added, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from pulsar_txn.client._tracebacks import shortened
from pulsar_txn.client._validation import refused
from pulsar_txn.client.errors import InvalidConfiguration, ProducerFenced, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.growth import new_partitions, watch
from pulsar_txn.client.net.tasks import close_all, run_all
from pulsar_txn.client.schema.base import SchemaInfo
from pulsar_txn.client.send.budget import Budget
from pulsar_txn.client.send.options import AccessMode, ProducerOptions
from pulsar_txn.client.send.partition_producer import PartitionProducer
from pulsar_txn.client.send.routing import RoundRobin, Router, RoutingMode, SinglePartition
from pulsar_txn.wire.topics import TopicName


class Partitions:
    """A producer for each partition; for a topic without partitions, one. `start()` before anything is sent."""

    def __init__(
        self, core: Core, topic: TopicName, count: int, schema: SchemaInfo | None, options: ProducerOptions, budget: Budget
    ) -> None:
        self.topic = topic
        self._core = core
        self._schema = schema
        self._options = options
        self._budget = budget
        self._known = {topic: count} if count else {}
        names = [(str(topic.with_partition(i)), i) for i in range(count)] or [(str(topic), topic.partition)]
        self._all = [self._new(name, index) for name, index in names]
        self._watcher: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._chosen()

    def _chosen(self) -> None:
        """Router of messages, for as many partitions as there are now."""
        self.router = self._new_router(len(self._all))
        """The partition of a key and a payload, where the program names none."""
        self.only = self._all[0] if len(self._all) == 1 else None
        """The partition, where there is no choice."""

    def __iter__(self) -> Iterator[PartitionProducer]:
        return iter(self._all)

    def __getitem__(self, index: int) -> PartitionProducer:
        return self._all[index]

    @property
    def count(self) -> int:
        """Number of partitions; 0 for a topic without partitions."""
        return len(self._all) if self._all[0].partition >= 0 and self.topic.partition < 0 else 0

    def at(self, index: int) -> PartitionProducer:
        """The partition of a number that the program or a router gave. Raises InvalidConfiguration."""
        try:
            if 0 <= index < len(self._all):
                return self._all[index]
        except TypeError:
            raise refused("partition", index, "a whole number") from None
        raise InvalidConfiguration(f"partition {index} of {self.topic} does not exist; it has {len(self._all)}")

    def take(self, size: int) -> bool:
        """True when a message of so many bytes would be queued, whatever its partition is."""
        return self.only.takes(size) if self.only is not None else all(each.takes(size) for each in self._all)

    async def start(self) -> None:
        """Connect all partitions; when one fails, or this is cancelled, none remains."""
        try:
            await self._start(self._all)
        except ProducerFenced as error:
            if self._options.access_mode is AccessMode.EXCLUSIVE:
                error.with_details(
                    hint="another producer is there: close it, or wait for it with AccessMode.WAIT_FOR_EXCLUSIVE"
                )
            raise
        if self._known and self._options.auto_update_partitions:
            watching = watch(self._core, self._options.auto_update_partitions, self._grow, str(self.topic))
            self._watcher = self._core.spawn(watching)

    async def close(self) -> None:
        """Send what waits, wait for receipts, close. If cancelled, the partitions are closed without waiting any longer."""
        if self._watcher is not None:
            self._watcher.cancel()
        await close_all(self._all)

    def _new_router(self, partitions: int) -> Router:
        options, runtime = self._options, self._core.runtime
        if callable(options.routing):
            return options.routing
        start = int(runtime.random() * partitions) if partitions > 1 else 0
        if options.routing is RoutingMode.SINGLE_PARTITION:
            return SinglePartition(partitions, start, options.hashing)
        return RoundRobin(
            partitions,
            start,
            options.hashing,
            messages=options.batching_max_messages if options.batching else 1,
            delay=options.batching_max_delay,
            clock=runtime.monotonic,
        )

    def _new(self, name: str, index: int) -> PartitionProducer:
        return PartitionProducer(self._core, name, index, self._options, self._budget, self._schema)

    async def _start(self, partitions: Sequence[PartitionProducer]) -> None:
        try:
            await run_all([partition.start() for partition in partitions])
        except BaseException as error:
            self._closing = asyncio.get_running_loop().create_task(close_all(partitions))
            await asyncio.shield(self._closing)  # which goes on when this is cancelled, or the client is closed
            if isinstance(error, PulsarError):
                raise shortened(error) from error.__cause__
            raise

    async def _grow(self) -> None:
        """Send to new partitions as well. Keys move to other partitions then, as with every Pulsar client."""
        before = dict(self._known)
        added = [self._new(name, index) for name, index in await new_partitions(self._core, self._known)]
        if not added:
            return
        try:
            await self._start(added)
        except BaseException:
            self._known = before
            raise
        self._all += added
        self._chosen()
