"""Questions of the driver to Pulsar: partitions and their ends, and the subscription that keeps what is not processed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from pulsar_txn.client import AsyncClient, InitialPosition, MessageId, TopicNotFound
from pulsar_txn.client.encoded import existing_partitions, matching_topics
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.heads import Heads
from pulsar_txn.pipeline.spark.source.hidden import OpenTransactions
from pulsar_txn.pipeline.spark.source.limits import Limits
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places, at_least
from pulsar_txn.pipeline.spark.source.patience import Patience

_AT_ONCE: Final = 50
_LAST_SECONDS: Final = 5.0


class Topics:
    """The topics of a source as its driver sees them; use it on the client's loop. Nothing here creates a topic."""

    def __init__(self, client: AsyncClient, options: Options) -> None:
        self.client = client
        self.heads = Heads(client)
        self.limits = Limits(client)
        self.hidden = OpenTransactions(options)
        self.missing: list[str] = []
        """Topics and partitions that were asked for last, and do not exist."""
        self._options = options
        self._subscribed: Places = {}
        """Where the subscription stands, as far as this run has moved it."""
        self._wanted: Places = {}
        self._acknowledging: asyncio.Task[None] | None = None

    async def ends(self) -> Places:
        """The last visible message of every partition; NOTHING for an empty one. Everything up to it is decided.

        Partitions are asked for each time, so that new ones are found.
        """
        wanted: dict[str, bool] = {}
        if self._options.topics_pattern is not None:
            wanted = dict.fromkeys(await matching_topics(self.client, self._options.topics_pattern), False)
        unknown: list[str] = []
        for topic in self._options.topics:
            try:
                partitions = await existing_partitions(self.client, topic)
            except TopicNotFound:
                unknown.append(topic)
                continue
            for partition in partitions:
                wanted[partition] = len(partitions) > 1  # of a topic that exists, in part perhaps only in its metadata
        ends, missing = await self.heads.ends(wanted)
        self.missing = unknown + missing
        return ends

    async def watched_ends(self) -> Places:
        """The same; and the heads wait for what comes after, in the background."""
        ends = await self.ends()
        self.heads.sit(ends)
        return ends

    async def subscribe(self, start: Mapping[str, Place]) -> None:
        """Create the durable subscription where it is missing, and move it up to `start`."""
        await self._move_to(start)

    def acknowledge(self, end: Mapping[str, Place]) -> None:
        """Tell the subscription, in the background, that everything up to `end` was processed. It never goes back.

        Raises what ended an earlier call: a broker or a subscription that could not be had for too long.
        """
        if self._acknowledging is not None and self._acknowledging.done():
            done, self._acknowledging = self._acknowledging, None
            done.result()
        self._wanted = at_least(self._wanted, end)
        if self._acknowledging is None:
            self._acknowledging = asyncio.get_running_loop().create_task(self._acknowledge())

    async def acknowledged(self) -> None:
        """Wait until the subscription stands where it was told to stand last. Raises as `acknowledge`."""
        if self._acknowledging is not None:
            done, self._acknowledging = self._acknowledging, None
            await done

    async def _acknowledge(self) -> None:
        while True:
            moved = {topic: place for topic, place in self._wanted.items() if place > self._subscribed.get(topic, NOTHING)}
            if not moved:
                return
            patience = Patience(self._options.fail_after_ms)
            await patience.insist(partial(self._move_to, moved), f"acknowledging on {self._options.subscription_name}")

    async def _move_to(self, places: Mapping[str, Place]) -> None:
        """Move the subscription; what succeeds is not done again after an error."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(topic: str, place: Place) -> None:
            async with at_once:
                if self._subscribed.get(topic) != place:
                    await self._move(topic, place)
                    self._subscribed[topic] = place

        for result in await asyncio.gather(*(one(*each) for each in places.items()), return_exceptions=True):
            if result is not None:
                raise result

    async def _move(self, topic: str, place: Place) -> None:
        """With a consumer for this moment only: one that stays would make a topic again that somebody deletes."""
        name = self._options.subscription_name or ""
        position = InitialPosition.EARLIEST
        there = self.heads.topics()
        if there and topic not in there:
            return  # deleted meanwhile
        async with await self.client.subscribe(topic, name, initial_position=position, receiver_queue_size=1) as consumer:
            if place != NOTHING:
                await consumer.acknowledge_cumulative(MessageId(*place), receipt=True)

    async def close(self) -> None:
        """Close the readers. What is still to be acknowledged is acknowledged by the next run."""
        if self._acknowledging is not None:
            await asyncio.wait([self._acknowledging], timeout=_LAST_SECONDS)
            self._acknowledging.cancel()
            await asyncio.wait([self._acknowledging])
        await self.hidden.close()
        await self.limits.close()
        await self.heads.close()
