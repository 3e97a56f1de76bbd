"""The way of the rows on the driver: to their topics, from the tasks' messages or from the staging topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AsyncTransaction,
    MessageId,
    PulsarError,
)
from pulsar_txn.client.encoded import EncodedSchema, SchemaInfo
from pulsar_txn.client.errors import ConsumerBusy
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.sink.committer import Steps
from pulsar_txn.pipeline.spark.sink.control import Forward, OpenStaging, Place, Publish, ReadStaging, Receipts
from pulsar_txn.pipeline.spark.sink.staged import Parked, Payload, rows_by_topic
from pulsar_txn.pipeline.spark.sink.staging import subscribe

logger = logging.getLogger(__name__)

RowRequest: TypeAlias = Publish | OpenStaging | ReadStaging | Forward | Receipts

_ENTRIES_AHEAD: Final = 32
"""Staged entries that wait in the driver to be forwarded; each has at most `batchingMaxBytes`, or is one large row."""


class Rows:
    """Carries out the requests about rows, for one micro-batch at a time."""

    def __init__(self, client: AsyncClient, staging_topic: str, options: Options) -> None:
        self._targets = Targets(client)
        self._forwarder = Forwarder(client, staging_topic, self._targets, options)
        self._payloads: Sequence[Payload] = ()

    def expect(self, payloads: Sequence[Payload], parked: Sequence[Parked], schema: SchemaInfo | None = None) -> None:
        """Expect what the tasks have handed over, with its schema."""
        self._payloads = payloads
        self._targets.schema = schema
        self._forwarder.expect(parked)

    async def perform(self, request: RowRequest, txn: AsyncTransaction) -> Any:
        """The reply to a request; PulsarError, TimeoutError."""
        match request:
            case Publish():
                return await self._targets.publish(self._payloads, txn)
            case OpenStaging(first):
                return await self._forwarder.open(first)
            case ReadStaging():
                return await self._forwarder.read()
            case Forward(_, place):
                return await self._forwarder.forward(place, txn)
            case Receipts():
                return await self._forwarder.receipts()

    async def fill(self, steps: Steps, txn: AsyncTransaction) -> None:
        """Drive `committer.fill` to its end."""
        reply: Any = None
        while True:
            try:
                request = steps.send(reply)
            except StopIteration:
                return
            reply = await self.perform(request, txn)  # type: ignore[arg-type]  # `fill` has no others

    async def release(self, last: Place) -> None:
        """Let Pulsar delete the staging topic up to and with this place."""
        await self._forwarder.release(last)

    async def close(self) -> None:
        """Give up the staging topic and the targets."""
        await self._forwarder.close()
        await self._targets.close()


async def create_target(client: AsyncClient, topic: str, schema: SchemaInfo | None) -> AsyncProducer[bytes]:
    """A producer for payloads that tasks have encoded, by this schema."""
    return await client.create_producer(topic, schema=None if schema is None else EncodedSchema(schema))


class Targets:
    """The producers of the topics that a sink writes to. They are kept for the next micro-batch."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.schema: SchemaInfo | None = None
        """Of the payloads that come."""
        self._producers: dict[str, tuple[AsyncProducer[bytes], SchemaInfo | None]] = {}
        self._tickets: list[asyncio.Future[MessageId]] = []

    async def send(self, payload: Payload, txn: AsyncTransaction) -> None:
        """Queue a payload; `receipts` waits for it."""
        producer = await self._producer(payload)
        await producer.wait_for_room()
        partition = None if payload.partition < 0 else payload.partition
        self._tickets.append(producer.send_encoded_nowait(payload.batch, txn=txn, partition=partition))

    async def receipts(self) -> None:
        """Wait for all receipts; the first error."""
        tickets, self._tickets = self._tickets, []
        results = await asyncio.gather(*tickets, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def publish(self, payloads: Sequence[Payload], txn: AsyncTransaction) -> dict[str, int]:
        """Send payloads and wait for their receipts; rows by topic."""
        await self.forget()
        for payload in payloads:
            await self.send(payload, txn)
        await self.receipts()
        return rows_by_topic(payloads)

    async def forget(self) -> None:
        """Wait for what an attempt that failed has left, whatever becomes of it: its transaction is not committed."""
        tickets, self._tickets = self._tickets, []
        await asyncio.gather(*tickets, return_exceptions=True)

    async def _producer(self, payload: Payload) -> AsyncProducer[bytes]:
        found, schema = self._producers.get(payload.topic, (None, None))
        if found is not None and (payload.partition >= max(found.partitions, 1) or schema != self.schema):
            await found.close()  # the topic has grown since, or its schema is another one
            found = None
        if found is None:
            found = await create_target(self._client, payload.topic, self.schema)
            self._producers[payload.topic] = (found, self.schema)
        return found

    async def close(self) -> None:
        """Close the producers."""
        await self.forget()
        producers, self._producers = self._producers, {}
        for producer, _ in producers.values():
            await producer.close()


class Forwarder:
    """Copies what tasks have put on the staging topic to its targets, entry by entry, without looking inside."""

    def __init__(self, client: AsyncClient, topic: str, targets: Targets, options: Options) -> None:
        self._client = client
        self._topic = topic
        self._targets = targets
        self._timeout = options.operation_timeout_ms / 1000
        self._reader: AsyncReader[bytes] | None = None
        self._subscription: AsyncConsumer[bytes] | None = None
        self._parked: dict[Place, Parked] = {}
        self._read: dict[Place, bytes] = {}
        self._sent: list[Parked] = []

    def expect(self, parked: Sequence[Parked]) -> None:
        """The entries of a micro-batch."""
        self._parked = {each.place: each for each in parked}

    async def open(self, first: Place) -> None:
        """Read from this place on."""
        await self._close_reader()
        self._sent = []
        self._reader = await self._client.create_reader(
            self._topic, MessageId(*first), start_inclusive=True, receiver_queue_size=_ENTRIES_AHEAD
        )

    async def read(self) -> list[Place]:
        """The next entries that are there; none at the end of the topic."""
        assert self._reader is not None  # noqa: S101  # `open` comes first
        if not await self._reader.has_message_available():
            return []
        async with asyncio.timeout(self._timeout):
            messages = await self._reader.read_many(_ENTRIES_AHEAD)
        self._read = {message.message_id.position: message.data for message in messages}
        return list(self._read)

    async def forward(self, place: Place, txn: AsyncTransaction) -> None:
        """Queue one of the last `read`."""
        parked = self._parked[place]
        await self._targets.send(parked.unparked(self._read.pop(place)), txn)
        self._sent.append(parked)

    async def receipts(self) -> dict[str, int]:
        """Wait for the receipts of all that were queued; rows by topic."""
        await self._close_reader()
        await self._targets.receipts()
        return rows_by_topic((), self._sent)

    async def release(self, last: Place) -> None:
        """Acknowledge everything up to `last`. Entries of dropped attempts go with it."""
        self._parked, self._read, self._sent = {}, {}, []
        try:
            if self._subscription is None:
                self._subscription = await subscribe(self._client, self._topic)
            await self._subscription.acknowledge_cumulative(MessageId(*last), receipt=True)
        except ConsumerBusy:
            logger.info("%s: another run holds the subscription; staged entries are released later", self._topic)
        except PulsarError as error:
            logger.warning("%s: staged entries could not be released: %s", self._topic, error)

    async def _close_reader(self) -> None:
        reader, self._reader, self._read = self._reader, None, {}
        if reader is not None:
            await reader.close()

    async def close(self) -> None:
        """Close the reader and the subscription."""
        await self._close_reader()
        consumer, self._subscription = self._subscription, None
        if consumer is not None:
            await consumer.close()
