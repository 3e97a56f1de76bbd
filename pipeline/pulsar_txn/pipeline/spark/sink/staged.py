"""Rows of the protocol `staged`: encoded by the tasks as final Pulsar batches, and sent by the driver without looking inside.

The batches travel in the tasks' messages, or over the staging topic, outside of any transaction. An entry of that topic means
nothing by itself. A commit takes the entries that the messages of its tasks name. Entries of attempts that failed, were
truncated or came late are named by nobody, and go when the entries around them are released.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncReader,
    AsyncTransaction,
    InitialPosition,
    MessageId,
    PulsarError,
)
from pulsar_txn.client.encoded import EncodedBatch, EncodedSchema, SchemaInfo, pack_batch
from pulsar_txn.client.errors import ConsumerBusy
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.errors import OptionError, PartitionsGrew
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.columns import Group, Grouping, RowError
from pulsar_txn.pipeline.spark.sink.committer import Steps
from pulsar_txn.pipeline.spark.sink.control import Forward, OpenStaging, Place, Publish, ReadStaging, Receipts

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
"""Largest batch with the default of `maxMessageSize`; a broker with less says so when the batch is sent."""


class Payload(NamedTuple):
    """One batch for one topic; `partition` -1 for a topic without partitions."""

    topic: str
    partition: int
    batch: EncodedBatch


class Parked(NamedTuple):
    """A payload that waits on the staging topic, at `place`; the entry there holds the bytes of the batch alone."""

    place: Place
    topic: str
    partition: int
    num_messages: int
    uncompressed_size: int
    compression: int

    def unparked(self, payload: bytes) -> Payload:
        """The payload again, with the bytes that were read at the place."""
        batch = EncodedBatch(payload, self.num_messages, self.uncompressed_size, self.compression)
        return Payload(self.topic, self.partition, batch)


@attrs.frozen
class Staged(WriterCommitMessage):
    """Result of one task for the commit: which query and Spark partition it belongs to, and its payloads.

    They are here, or on the staging topic (`parked`). `partitions` are the numbers by which keys were routed.
    """

    query_id: str
    partition: int
    payloads: list[Payload]
    parked: list[Parked] = attrs.field(factory=list)
    partitions: dict[str, int] = attrs.field(factory=dict)
    schema: SchemaInfo | None = None
    """Metadata of the payloads for the broker."""


class Routed(Protocol):
    """Result of a task for the commit, whatever the protocol."""

    @property
    def query_id(self) -> str:
        """The query that it belongs to."""

    @property
    def partitions(self) -> Mapping[str, int]:
        """The numbers of partitions by which keys were routed, by topic."""


def rows_by_topic(payloads: Iterable[Payload], parked: Iterable[Parked] = ()) -> dict[str, int]:
    """Number of messages for each topic."""
    counts: dict[str, int] = {}
    for payload in payloads:
        counts[payload.topic] = counts.get(payload.topic, 0) + payload.batch.num_messages
    for each in parked:
        counts[each.topic] = counts.get(each.topic, 0) + each.num_messages
    return counts


def handed_over(messages: Iterable[Staged]) -> tuple[list[Payload], list[Parked]]:
    """Payloads that tasks have handed to the commit, in the order of Spark's partitions: here, and on the staging topic."""
    in_order = sorted(messages, key=lambda each: each.partition)
    return [each for message in in_order for each in message.payloads], [
        each for message in in_order for each in message.parked
    ]


def schema_of(messages: Iterable[Staged]) -> SchemaInfo | None:
    """The schema of their payloads: all tasks of a micro-batch have the same one."""
    return next((message.schema for message in messages if message.schema is not None), None)


def check_partitions(messages: Iterable[Routed]) -> None:
    """PartitionsGrew when tasks have routed keys by different numbers of partitions of a topic."""
    seen: dict[str, int] = {}
    for message in messages:
        for topic, count in message.partitions.items():
            if seen.setdefault(topic, count) != count:
                raise PartitionsGrew(
                    f"{topic} has {max(count, seen[topic])} partitions now and had {min(count, seen[topic])} when the "
                    "micro-batch began, so its tasks have sent the same key to different ones. Nothing was published; restart "
                    "the query: the replay sees one number"
                )


class Carrier:
    """Keeps a task's payloads for the commit: in its message while they are few, on the staging topic when they are many."""

    def __init__(self, inline_max_bytes: int, staging: Callable[[], TaskStaging]) -> None:
        self._inline_max_bytes = inline_max_bytes
        self._open = staging
        self._staging: TaskStaging | None = None
        self._bytes = 0
        self.payloads: list[Payload] = []
        """Properties of the message."""
        self._sent: list[Payload] = []

    def put(self, payload: Payload) -> None:
        """One more."""
        self._bytes += len(payload.batch.payload)
        if self._staging is None and self._bytes > self._inline_max_bytes:
            self._staging = self._open()
            earlier, self.payloads = self.payloads, []
            for each in earlier:
                self._send(self._staging, each)
        if self._staging is None:
            self.payloads.append(payload)
        else:
            self._send(self._staging, payload)

    def _send(self, staging: TaskStaging, payload: Payload) -> None:
        staging.send(payload)
        self._sent.append(Payload(payload.topic, payload.partition, attrs.evolve(payload.batch, payload=b"")))

    def parked(self) -> list[Parked]:
        """Payloads on the staging topic; they are stored when this returns."""
        if self._staging is None:
            return []
        places = self._staging.places()
        return [
            Parked(place, topic, partition, batch.num_messages, batch.uncompressed_size, batch.compression)
            for place, (topic, partition, batch) in zip(places, self._sent, strict=True)
        ]


class _Open:
    """A batch that is being filled."""

    __slots__ = ("count", "pieces", "row", "size")

    def __init__(self, row: int) -> None:
        self.pieces: list[Any] = []
        self.count = self.size = 0
        self.row = row  # of the task, the first in it


class Stager:
    """Collects rows per topic and partition, and makes payloads of them.

    `partitions` answers how many partitions a topic has (0: not partitioned). `spread` is where keyless rows begin. `where`
    names micro-batch and task in errors. `time_zone` is the session's.
    """

    def __init__(
        self,
        options: Options,
        partitions: Callable[[str], int],
        *,
        properties: Mapping[str, str],
        spread: int,
        where: str = "",
        typed: TopicType | None = None,
        time_zone: str | None = None,
    ) -> None:
        self._options = options
        self._count_partitions = partitions
        self._grouping = Grouping(options, self._partitions, properties, typed, time_zone)
        self._spread = spread
        self._where = where
        self._open: dict[tuple[str, int], _Open] = {}
        self._next: dict[str, int] = {}
        self._rows = 0
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic by which rows were routed."""

    def add(self, batch: pa.RecordBatch) -> Iterator[Payload]:
        """The payloads that are complete with rows as Spark hands them over. OptionError names the row that cannot be sent."""
        try:
            for start, group in self._grouping.groups(batch):
                yield from self._fill(group, self._rows + start)
        except RowError as error:
            raise self._refusal(self._rows + error.number, error.column, error.what) from None
        self._rows += batch.num_rows

    def finish(self) -> Iterator[Payload]:
        """The payloads that are open."""
        for target in list(self._open):
            yield self._seal(*target)

    def _partitions(self, topic: str) -> int:
        found = self.partitions.get(topic)
        if found is None:
            found = self.partitions[topic] = self._count_partitions(topic)
        return found

    def _fill(self, group: Group, first_row: int) -> Iterator[Payload]:
        """Put the rows of a group into the open batch of its target, and into new ones when it is full."""
        rows, options = group.rows, self._options
        data, offsets = _contents(rows.messages)
        ends = memoryview(pc.cumulative_sum(rows.sizes.cast(pa.int64())).buffers()[1]).cast("q")
        at, total = 0, len(rows.messages)
        while at < total:
            target = (group.topic, self._turn(group.topic) if group.partition is None else group.partition)
            work = self._open.get(target)
            if work is None:
                row = first_row + (at if group.numbers is None else group.numbers[at].as_py())
                work = self._open[target] = _Open(row)
            before = ends[at - 1] if at else 0
            fits = bisect_right(ends, before + options.batching_max_bytes - work.size, at, total)
            until = min(fits, at + options.batching_max_messages - work.count)
            if until == at and not work.count:
                until = at + 1  # a row that is larger than a batch is one alone
            if until > at:
                work.pieces.append(data[offsets[at] : offsets[until]])
                work.count += until - at
                work.size += ends[until - 1] - before
                at = until
            if at < total or work.count >= options.batching_max_messages or work.size >= options.batching_max_bytes:
                yield self._seal(*target)

    def _turn(self, topic: str) -> int:
        return self._next.setdefault(topic, self._spread) % self.partitions[topic]

    def _seal(self, topic: str, partition: int) -> Payload:
        work = self._open.pop((topic, partition))
        self._next[topic] = self._next.get(topic, self._spread) + 1
        batch = pack_batch(b"".join(work.pieces), work.count, compression=self._options.compression)
        if len(batch.payload) > MAX_MESSAGE_BYTES and work.count == 1:
            what = f"its message has {len(batch.payload)} bytes, and a broker takes {MAX_MESSAGE_BYTES}"
            raise self._refusal(work.row, "value", f"{what}: make it smaller, or set compression")
        return Payload(topic, partition, batch)

    def _refusal(self, row: int, column: str, what: str) -> OptionError:
        return OptionError(f"{self._where}row {row}, column {column!r}: {what}")


def _contents(messages: Any) -> tuple[memoryview, memoryview]:
    """The bytes of an array of binaries, and where each begins and the last ends."""
    _, offsets, data = messages.buffers()
    first = messages.offset
    return memoryview(data), memoryview(offsets).cast("i")[first : first + len(messages) + 1]


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
    """Remove the subscription, so that Pulsar deletes the staged entries and then the topic. A failure is only logged."""
    try:
        consumer = await subscribe(client, topic)
        await consumer.unsubscribe()
    except PulsarError as error:
        logger.warning(
            "%s: subscription %s was not removed (%s); unsubscribe it, or the topic stays", topic, SUBSCRIPTION, error
        )


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
            logger.warning("%s: staged entries were not released (%s); the next micro-batch tries again", self._topic, error)

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
