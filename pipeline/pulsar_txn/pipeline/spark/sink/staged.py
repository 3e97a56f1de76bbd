"""Rows of a task as final Pulsar batches, built on the executor; the driver sends them without looking inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn.client import HashingScheme
from pulsar_txn.client.encoded import EncodedBatch, encode_batch, row
from pulsar_txn.client.inside import key_partition
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options


class Payload(NamedTuple):
    """One batch for one topic; `partition` -1 for a topic without partitions."""

    topic: str
    partition: int
    batch: EncodedBatch


@attrs.frozen
class Staged(WriterCommitMessage):
    """What one task hands to the commit: its payloads, and which query and Spark partition it belongs to."""

    query_id: str
    partition: int
    payloads: list[Payload]


def rows_by_topic(payloads: Iterable[Payload]) -> dict[str, int]:
    """How many messages go to each topic."""
    counts: dict[str, int] = {}
    for payload in payloads:
        counts[payload.topic] = counts.get(payload.topic, 0) + payload.batch.num_messages
    return counts


Row: TypeAlias = bytes | tuple[Any, ...]

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "event_time": ("timestamp", "timestamp_ntz", "bigint"),
    "properties": ("map<string,string>",),
    "ordering_key": ("string", "binary"),
}
_IGNORED: Final = frozenset({"partition", "message_id", "publish_time", "producer_name", "sequence_id", "schema_version"})


def check_columns(columns: Mapping[str, str], options: Options) -> None:
    """`columns`: Spark's type names (`simpleString`) by name. OptionError says what is wrong, before any task runs."""
    for name, kind in columns.items():
        if name in _IGNORED:
            continue
        if name not in _COLUMNS:
            raise OptionError(
                f"the sink has no column {name!r}; it takes {', '.join(_COLUMNS)}: put the rest into value, "
                "for instance with to_json(struct(*))"
            )
        if kind not in _COLUMNS[name] and kind != "void":
            raise OptionError(f"column {name!r} is {kind}; the sink takes {' or '.join(_COLUMNS[name])}")
    if "value" not in columns:
        raise OptionError("the sink needs a column 'value' (string or binary)")
    if "topic" not in columns and len(options.topics) != 1:
        raise OptionError("where to? give the sink a column 'topic' or the option topic")


class Stager:
    """Collects rows per topic and partition and seals them into payloads.

    `partitions` answers how many partitions a topic has (0: not partitioned). `spread` is where keyless rows begin.
    """

    def __init__(self, options: Options, partitions: Any, *, properties: Mapping[str, str], spread: int) -> None:
        self._options = options
        self._partitions = partitions
        self._properties = dict(properties)
        self._open: dict[tuple[str, int], tuple[list[Row], int]] = {}
        self._next: dict[str, int] = {}
        self._spread = spread
        self._bytes = 0
        self.payloads: list[Payload] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows as Spark hands them over."""
        columns = [_column(batch, name) for name in ("value", "key", "topic", "event_time", "properties", "ordering_key")]
        columns[3] = _milliseconds(batch, columns[3])
        topics = self._options.topics
        only = topics[0] if len(topics) == 1 else None
        for value, key, topic, event_time_ms, properties, ordering_key in zip(*columns, strict=True):
            target = topic if topic is not None else only
            if target is None:
                raise OptionError("a row has no topic: its column 'topic' is null and there is no option topic")
            text = None if key is None else _as_text(key)
            given = self._properties if properties is None else {**dict(properties), **self._properties}
            ordering = None if ordering_key is None else _as_bytes(ordering_key)
            payload = b"" if value is None else _as_bytes(value)
            self._put(target, text, row(payload, text, given, event_time_ms or 0, None, ordering, value is None), len(payload))

    def finish(self) -> list[Payload]:
        """Seal what is open; all payloads, in the order of the rows for each partition."""
        for topic, partition in list(self._open):
            self._seal(topic, partition)
        return self.payloads

    def _put(self, topic: str, key: str | None, message: Row, size: int) -> None:
        count = self._partitions(topic)
        if not count:
            partition = -1
        elif key is not None:
            partition = key_partition(HashingScheme.JAVA_STRING, key, count)
        else:
            partition = self._next.setdefault(topic, self._spread) % count
        rows, held = self._open.setdefault((topic, partition), ([], 0))
        rows.append(message)
        self._open[topic, partition] = (rows, held + size)
        if held + size >= self._options.batching_max_bytes or len(rows) >= self._options.batching_max_messages:
            self._seal(topic, partition)
            self._next[topic] = self._next.get(topic, 0) + 1

    def _seal(self, topic: str, partition: int) -> None:
        rows, _ = self._open.pop((topic, partition))
        payload = Payload(topic, partition, encode_batch(rows, compression=self._options.compression))
        self._bytes += len(payload.batch.payload)
        if self._bytes > self._options.inline_max_bytes:
            raise OptionError(
                f"one task's rows take more than inlineMaxBytes={self._options.inline_max_bytes}, and all rows of a "
                "micro-batch pass through the driver: use more partitions, smaller batches (maxMessagesPerTrigger), or raise "
                "inlineMaxBytes together with spark.driver.memory and spark.driver.maxResultSize"
            )
        self.payloads.append(payload)


def _column(batch: pa.RecordBatch, name: str) -> Sequence[Any]:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * batch.num_rows
    column = batch.column(index)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())  # microseconds, whatever the time zone that it is labelled with
    values: list[Any] = column.to_pylist()
    return values


def _milliseconds(batch: pa.RecordBatch, values: Sequence[Any]) -> Sequence[Any]:
    index = batch.schema.get_field_index("event_time")
    if index < 0 or not pa.types.is_timestamp(batch.schema.field(index).type):
        return values
    return [None if value is None else value // 1000 for value in values]


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _as_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    try:
        return bytes(key).decode()
    except UnicodeDecodeError:
        raise OptionError(f"the key {bytes(key)[:32]!r} is no UTF-8 text: encode it, for instance with base64(key)") from None


def ordered(messages: Iterable[Staged | None]) -> Iterator[Payload]:
    """All payloads, in the order of Spark's partitions; a task without a message has nothing to say."""
    for message in sorted((each for each in messages if each is not None), key=lambda each: each.partition):
        yield from message.payloads
