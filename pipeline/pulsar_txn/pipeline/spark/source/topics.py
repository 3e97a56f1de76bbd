"""What the source's driver asks of Pulsar: partitions and their ends, and the subscription that keeps what is not processed."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_txn.client import AsyncClient, InitialPosition, MessageId, TopicNotFound
from pulsar_txn.client.encoded import existing_partitions, matching_topics
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.source.heads import Heads
from pulsar_txn.pipeline.spark.source.hidden import OpenTransactions
from pulsar_txn.pipeline.spark.source.limits import Limits
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, Places


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
        for topic, place in start.items():
            await self._acknowledge(topic, place)

    async def acknowledge(self, end: Mapping[str, Place]) -> None:
        """Tell the subscription that everything up to `end` was processed. It never goes back."""
        for topic, place in end.items():
            if place != NOTHING:
                await self._acknowledge(topic, place)

    async def _acknowledge(self, topic: str, place: Place) -> None:
        """With a consumer for this moment only: one that stays would make a topic again that somebody deletes."""
        name = self._options.subscription_name or ""
        position = InitialPosition.EARLIEST
        async with await self.client.subscribe(topic, name, initial_position=position, receiver_queue_size=1) as consumer:
            if place != NOTHING:
                await consumer.acknowledge_cumulative(MessageId(*place), receipt=True)

    async def close(self) -> None:
        """Close the readers."""
        await self.hidden.close()
        await self.limits.close()
        await self.heads.close()
