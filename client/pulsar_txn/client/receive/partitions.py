"""The partitions that one consumer receives from: found, grown with the topic, followed by a pattern, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from pulsar_txn.client.errors import InvalidConfiguration, PulsarError
from pulsar_txn.client.net.core import Core
from pulsar_txn.client.net.growth import TopicPattern, listen_to_topics, new_partitions, watch
from pulsar_txn.client.net.tasks import close_all, run_all
from pulsar_txn.client.receive.inbox import Inbox
from pulsar_txn.client.receive.message import EARLIEST_ID, Message
from pulsar_txn.client.receive.options import ConsumerOptions, InitialPosition
from pulsar_txn.client.receive.partition_consumer import Common, PartitionConsumer
from pulsar_txn.wire.ids import MessageId
from pulsar_txn.wire.topics import TopicName

logger = logging.getLogger("pulsar_txn.client.consumer")


class Partitions:
    """The partitions of one consumer."""

    def __init__(
        self,
        core: Core,
        inbox: Inbox[Any],
        common: Common,
        options: ConsumerOptions,
        topics: Sequence[tuple[str, int]],
        *,
        pattern: TopicPattern | None,
        partitioned: Mapping[TopicName, int],
        extra_topics: Iterable[str],
    ) -> None:
        self.all = [PartitionConsumer(common, name, index, options) for name, index in topics]
        self.only = self.all[0] if len(self.all) == 1 and pattern is None else None
        """The partition, when there is one and there never was another."""
        self._core = core
        self._inbox = inbox
        self._common = common
        self._options = options
        self._pattern = pattern
        self._partitioned = dict(partitioned)
        self._extra_topics = frozenset(extra_topics)
        self._watchers: list[asyncio.Task[None]] = []
        self._tell_inbox()

    def __iter__(self) -> Iterator[PartitionConsumer]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def __contains__(self, part: object) -> bool:
        return part in self.all

    def _tell_inbox(self) -> None:
        self._inbox.comes_from(len(self.all), self.only)

    @property
    def topic(self) -> str:
        """The whole pattern, if there is one; else the topic's name, of the first one when there are several."""
        if self._pattern is not None:
            return str(self._pattern)
        return self.all[0].topic

    # --- finding ------------------------------------------------------------------------------------------------------

    def own(self, source: object) -> PartitionConsumer | None:
        """The partition that is the source of a message, if it is one of these."""
        if source is self.only:
            return self.only
        return next((part for part in self.all if part is source), None)

    def of_message(self, message: Message[Any]) -> PartitionConsumer | None:
        """None when the consumer has left its topic. The ids of what another consumer received mean the same here."""
        own = message.entry.consumer
        known = self.own(own)
        if known is not None:
            return known
        for part in self.all:
            if part.topic == own.topic:
                return part
        if self._pattern is not None and isinstance(own, PartitionConsumer) and own.inbox is self._inbox:
            return None
        raise InvalidConfiguration(f"the message is of {own.topic}, which this consumer does not receive from")

    def of_id(self, message_id: MessageId) -> PartitionConsumer:
        """InvalidConfiguration when the id does not say which topic is meant."""
        if self.only is not None:
            return self.only
        found = [part for part in self.all if part.partition == message_id.partition]
        if len(found) != 1:
            raise InvalidConfiguration(
                f"the id {message_id} does not say which topic it belongs to", hint="give the message instead of its id"
            )
        return found[0]

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Subscribe everywhere; raises the first error when all have succeeded or failed."""
        await run_all([part.start() for part in self.all])

    def follow(self) -> None:
        """Look for partitions and topics that come and go."""
        core, options = self._core, self._options
        if self._pattern is not None:
            changed, period = asyncio.Event(), options.pattern_discovery_period
            self._watchers.append(core.spawn(watch(core, period, self._follow_pattern, self.topic, changed)))
            self._watchers.append(core.spawn(listen_to_topics(core, self._pattern.namespace, changed)))
        elif self._partitioned and options.auto_update_partitions:
            self._watchers.append(core.spawn(watch(core, options.auto_update_partitions, self._grow, self.topic)))

    def stop_following(self) -> None:
        """Look no more."""
        for task in self._watchers:
            task.cancel()

    async def close(self) -> None:
        """Close all."""
        await close_all(self.all)

    def failed(self, part: PartitionConsumer, error: PulsarError) -> None:
        """A partition will never receive again, which ends the consumer. The others of a pattern go on without it."""
        if self._pattern is not None and part in self.all:
            logger.warning("the consumer goes on without %s: %s", part.topic, error)
            self._leave(part)
            return
        logger.error("the consumer lost %s and has failed, create a new one: %s", part.topic, error)
        self._inbox.fail(error)

    def _leave(self, part: PartitionConsumer) -> None:
        self.all.remove(part)
        self._tell_inbox()
        part.drop_queued()

    async def _grow(self) -> None:
        known = dict(self._partitioned)
        await self._add(await new_partitions(self._core, known))
        self._partitioned = known

    async def _follow_pattern(self) -> None:
        """Receive from what has come into being and matches; leave what has gone."""
        if self._pattern is None:
            return
        found = set(await self._pattern.find(self._core, self._options.regex_subscription_mode))
        gone = [part for part in self.all if part.topic not in found and part.topic not in self._extra_topics]
        for part in gone:
            self._leave(part)
        await close_all(gone)
        new = sorted(found - {part.topic for part in self.all})
        await self._add([(topic, TopicName.parse(topic).partition) for topic in new])

    async def _add(self, topics: Sequence[tuple[str, int]]) -> None:
        """Receive from these as well, from their beginning: they are younger than the consumer, so nothing is missed."""
        options = attrs.evolve(self._options, initial_position=InitialPosition.EARLIEST)
        if not options.durable:
            options = attrs.evolve(options, start_message_id=EARLIEST_ID)
        for name, index in topics:
            part = PartitionConsumer(self._common, name, index, options)
            self.only = None
            self.all.append(part)
            self._tell_inbox()
            try:
                await part.start()
            except BaseException:
                if part in self.all:
                    self.all.remove(part)
                    self._tell_inbox()
                await part.close()
                raise
