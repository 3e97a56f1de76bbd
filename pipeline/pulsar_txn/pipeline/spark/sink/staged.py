"""Rows of a task as final Pulsar batches, built on the executor; the driver sends them without looking inside."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn.client.encoded import EncodedBatch, SchemaInfo, pack_batch
from pulsar_txn.pipeline.spark.errors import OptionError, PartitionsGrew
from pulsar_txn.pipeline.spark.options import Options
from pulsar_txn.pipeline.spark.schemas.parts import TopicType
from pulsar_txn.pipeline.spark.sink.columns import Group, Grouping, RowError
from pulsar_txn.pipeline.spark.sink.control import Place

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
"""What a broker takes with the default of `maxMessageSize`; a broker with less says so when the batch is sent."""


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
    """Message of one task to the commit: which query and Spark partition it belongs to, and its payloads.

    They are here, or on the staging topic (`parked`). `partitions` are the numbers by which keys were routed.
    """

    query_id: str
    partition: int
    payloads: list[Payload]
    parked: list[Parked] = attrs.field(factory=list)
    partitions: dict[str, int] = attrs.field(factory=dict)
    schema: SchemaInfo | None = None
    """What the broker is told of the payloads."""


class Routed(Protocol):
    """Message of a task to the commit, whatever the protocol."""

    @property
    def query_id(self) -> str:
        """The query that it belongs to."""

    @property
    def partitions(self) -> Mapping[str, int]:
        """The numbers of partitions by which keys were routed, by topic."""


def rows_by_topic(payloads: Iterable[Payload], parked: Iterable[Parked] = ()) -> dict[str, int]:
    """Return how many messages go to each topic."""
    counts: dict[str, int] = {}
    for payload in payloads:
        counts[payload.topic] = counts.get(payload.topic, 0) + payload.batch.num_messages
    for each in parked:
        counts[each.topic] = counts.get(each.topic, 0) + each.num_messages
    return counts


def handed_over(messages: Iterable[Staged]) -> tuple[list[Payload], list[Parked]]:
    """Return what tasks have handed to the commit, in the order of Spark's partitions: here, and on the staging topic."""
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


class Staging(Protocol):
    """The staging topic, as a task sees it."""

    def send(self, payload: Payload) -> None:
        """Begin to store a payload there. The topic's subscription exists before the first is sent."""

    def places(self) -> list[Place]:
        """Wait until everything is stored; the places, in the order of the calls."""


class Carrier:
    """Keeps a task's payloads for the commit: in its message while they are few, on the staging topic when they are many."""

    def __init__(self, inline_max_bytes: int, staging: Callable[[], Staging]) -> None:
        self._inline_max_bytes = inline_max_bytes
        self._open = staging
        self._staging: Staging | None = None
        self._bytes = 0
        self.payloads: list[Payload] = []
        """Those for the message."""
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

    def _send(self, staging: Staging, payload: Payload) -> None:
        staging.send(payload)
        self._sent.append(Payload(payload.topic, payload.partition, attrs.evolve(payload.batch, payload=b"")))

    def parked(self) -> list[Parked]:
        """Those on the staging topic; they are stored when this returns."""
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
    """Collects rows per topic and partition and hands them on as payloads.

    `partitions` answers how many partitions a topic has (0: not partitioned). `spread` is where keyless rows begin. `where`
    names micro-batch and task in errors. `time_zone` is the session's.
    """

    def __init__(
        self,
        options: Options,
        partitions: Callable[[str], int],
        put: Callable[[Payload], None],
        *,
        properties: Mapping[str, str],
        spread: int,
        where: str = "",
        typed: TopicType | None = None,
        time_zone: str | None = None,
    ) -> None:
        self._options = options
        self._count_partitions = partitions
        self._put = put
        self._grouping = Grouping(options, self._partitions, properties, typed, time_zone)
        self._spread = spread
        self._where = where
        self._open: dict[tuple[str, int], _Open] = {}
        self._next: dict[str, int] = {}
        self._rows = 0
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic by which rows were routed."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows as Spark hands them over. OptionError names the row that cannot be sent."""
        try:
            for start, group in self._grouping.groups(batch):
                self._fill(group, self._rows + start)
        except RowError as error:
            raise self._refusal(self._rows + error.number, error.column, error.what) from None
        self._rows += batch.num_rows

    def finish(self) -> None:
        """Hand on what is open."""
        for target in list(self._open):
            self._seal(*target)

    def _partitions(self, topic: str) -> int:
        found = self.partitions.get(topic)
        if found is None:
            found = self.partitions[topic] = self._count_partitions(topic)
        return found

    def _fill(self, group: Group, first_row: int) -> None:
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
                self._seal(*target)

    def _turn(self, topic: str) -> int:
        return self._next.setdefault(topic, self._spread) % self.partitions[topic]

    def _seal(self, topic: str, partition: int) -> None:
        work = self._open.pop((topic, partition))
        self._next[topic] = self._next.get(topic, self._spread) + 1
        batch = pack_batch(b"".join(work.pieces), work.count, compression=self._options.compression)
        if len(batch.payload) > MAX_MESSAGE_BYTES and work.count == 1:
            what = f"its message has {len(batch.payload)} bytes, and a broker takes {MAX_MESSAGE_BYTES}"
            raise self._refusal(work.row, "value", f"{what}: make it smaller, or set compression")
        self._put(Payload(topic, partition, batch))

    def _refusal(self, row: int, column: str, what: str) -> OptionError:
        return OptionError(f"{self._where}row {row}, column {column!r}: {what}")


def _contents(messages: Any) -> tuple[memoryview, memoryview]:
    """The bytes of an array of binaries, and where each begins and the last ends."""
    _, offsets, data = messages.buffers()
    first = messages.offset
    return memoryview(data), memoryview(offsets).cast("i")[first : first + len(messages) + 1]
