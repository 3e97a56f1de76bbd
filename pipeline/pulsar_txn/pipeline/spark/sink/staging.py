"""The staging topic as a task sees it: entries whose bytes are encoded batches, outside of any transaction.

Nothing there means anything by itself. A commit takes the entries that the messages of its tasks name; what attempts have left
that failed, were truncated or came late is named by nobody, and goes when the entries around it are released.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from pulsar_txn.client import AsyncClient, AsyncConsumer, AsyncProducer, InitialPosition, MessageId, PulsarError
from pulsar_txn.client.errors import ConsumerBusy
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.control import Place
from pulsar_txn.pipeline.spark.sink.staged import Payload

logger = logging.getLogger(__name__)

SUBSCRIPTION: Final = "__spark_sink"


class TaskStaging:
    """Stores the payloads of one task. Its producer is its own, so that entries keep the order of the rows."""

    def __init__(self, options: Options, topic: str) -> None:
        self._options = options
        self._topic = topic
        self._producer: AsyncProducer[bytes] | None = None
        self._tickets: list[asyncio.Future[MessageId]] = []

    def send(self, payload: Payload) -> None:
        """Begin to store a payload; waits while too much is on its way."""
        background().run(self._send(payload.batch.payload))

    async def _send(self, data: bytes) -> None:
        if self._producer is None:
            client = await background().client(self._options)
            if (await client.get_topic_partitions(self._topic))[0] != self._topic:
                raise OptionError(
                    f"{self._topic} is partitioned or no full name, and staged entries need one order: set stagingTopic to the "
                    "full name of a topic without partitions"
                )
            await ensure_subscription(client, self._topic)
            self._producer = await client.create_producer(self._topic, batching=False)
        await self._producer.wait_for_room()
        self._tickets.append(self._producer.send_nowait(data))

    def places(self) -> list[Place]:
        """Wait until everything is stored; the places, in the order of the calls."""
        return background().run(self._places())

    async def _places(self) -> list[Place]:
        return [message_id.position for message_id in await asyncio.gather(*self._tickets)]

    def close(self) -> None:
        """Close the producer. What it has stored stays, and means nothing."""
        background().run(self._close())

    async def _close(self) -> None:
        producer, self._producer = self._producer, None
        for ticket in self._tickets:
            ticket.cancel()
        if producer is not None:
            await producer.close()


async def subscribe(client: AsyncClient, topic: str) -> AsyncConsumer[bytes]:
    """The durable subscription without which Pulsar deletes staged entries before the commit reads them. ConsumerBusy."""
    return await client.subscribe(topic, SUBSCRIPTION, initial_position=InitialPosition.EARLIEST, receiver_queue_size=1)


async def ensure_subscription(client: AsyncClient, topic: str) -> None:
    """Create it when it does not exist; whoever has it at this moment keeps it."""
    try:
        consumer = await subscribe(client, topic)
    except ConsumerBusy:
        return
    await consumer.close()


async def remove_subscription(client: AsyncClient, topic: str) -> None:
    """Remove it, so that Pulsar deletes what is staged and then the topic. A failure is logged: nothing rests on it."""
    try:
        consumer = await subscribe(client, topic)
        await consumer.unsubscribe()
    except PulsarError as error:
        logger.warning("%s: its subscription %s remains: %s", topic, SUBSCRIPTION, error)
