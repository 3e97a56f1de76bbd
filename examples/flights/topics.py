"""The topics of one run, and what must exist before anything is sent."""

from __future__ import annotations

import attrs

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition

SUBSCRIPTION = "settle"
"""The worker's subscription of `flights`."""

KEEP = "keep"
"""A subscription that nobody acknowledges: without one Pulsar removes what nobody has subscribed to."""

SINK = "__spark_sink"
"""The subscription with which Spark's sink keeps its own topics."""


@attrs.frozen
class Topics:
    """Names, with a prefix, so that runs do not meet on a cluster that keeps its data."""

    prefix: str = ""

    @property
    def flights(self) -> str:
        """The input, one message per flight."""
        return self.prefix + "flights"

    @property
    def settlements(self) -> str:
        """One message per settled flight."""
        return self.prefix + "settlements"

    @property
    def postings(self) -> str:
        """One message per settled flight, keyed by the carrier."""
        return self.prefix + "postings"

    @property
    def refused(self) -> str:
        """One message per flight that the rules cannot settle."""
        return self.prefix + "refused"

    @property
    def settled(self) -> list[str]:
        """The three topics that a flight may come to."""
        return [self.settlements, self.postings, self.refused]

    @property
    def totals(self) -> dict[str, str]:
        """The topic of each dimension that the pipeline sums over."""
        return {dimension: f"{self.prefix}totals-{dimension}" for dimension in ("carrier", "route")}

    def control(self, query: str) -> str:
        """Where the sink of one of Spark's queries notes what it has published; its full name, as the sink wants it."""
        return f"persistent://public/default/{self.prefix}control-{query}"

    def staging(self, query: str) -> str:
        """Where that sink keeps the rows of a large micro-batch until it is committed."""
        return f"persistent://public/default/{self.prefix}staging-{query}"

    async def forget(self, client: AsyncClient, *, spark: bool = False) -> None:
        """Give up all subscriptions, so that the cluster may remove the topics in its own time."""
        sinks = (
            [(topic(query), SINK) for query in ("settle", "totals") for topic in (self.control, self.staging)] if spark else []
        )
        for topic, name in [*self._subscriptions(), *sinks]:
            kind = ConsumerType.EXCLUSIVE if name == SINK else ConsumerType.SHARED
            consumer = await client.subscribe(topic, name, consumer_type=kind, receiver_queue_size=1)
            await consumer.unsubscribe()

    async def prepare(self, client: AsyncClient) -> None:
        """Create all subscriptions, the worker's at the start of the flights; what is there already stays as it is."""
        for topic, name in self._subscriptions():
            consumer = await client.subscribe(
                topic, name, consumer_type=ConsumerType.SHARED, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1
            )
            await consumer.close()

    def _subscriptions(self) -> list[tuple[str, str]]:
        kept = (self.settlements, self.postings, self.refused, *self.totals.values())
        return [(self.flights, SUBSCRIPTION), *((topic, KEEP) for topic in kept)]
