"""Columns of the sink, as encoded messages of a Pulsar batch: whole columns at a time, no Python object per row.

A message is a size of 4 bytes, SingleMessageMetadata of that size, and the value. Every part of it is a column of bytes
here, and the row is their concatenation. What depends on a number only (a length, a time) is made once per distinct number.

`check_columns` checks the names and types of the columns, `Grouping` sorts rows by their targets, and `MessageWriter` encodes
rows with a schema.
"""

from __future__ import annotations

import base64
import json
import struct
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from pulsar_txn.client.encoded import SchemaInfo, join_pair, topic_schema
from pulsar_txn.client.inside import key_partition, varint
from pulsar_txn.client.options import HashingScheme
from pulsar_txn.client.schemas import KeyValueEncoding
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import END_OF_TIME_MS, Options
from pulsar_txn.pipeline.spark.schemas.definitions import definition_of
from pulsar_txn.pipeline.spark.schemas.parts import TopicType, asks_for_bytes, check_schema_options, chosen_schema, topic_type
from pulsar_txn.pipeline.spark.schemas.primitives import UnfitValueError
from pulsar_txn.pipeline.spark.schemas.values import PartWriter, check_part

_SIZE: Final = struct.Struct(">I")
_NO_BYTES: Final = pa.scalar(b"", pa.binary())


@attrs.frozen
class EncodedRows:
    """Rows as messages: `messages` is a binary array, `sizes` are the bytes of their values."""

    messages: Any
    sizes: Any

    def take(self, indices: Any) -> EncodedRows:
        """Take these rows, in this order."""
        return EncodedRows(self.messages.take(indices), self.sizes.take(indices))


@attrs.frozen
class Columns:
    """The columns of a record batch that make messages; None for those that are absent. `keys` are text.

    `keys_are_base64` says of each row whether its key is Base64 of the key; None when none is.
    """

    values: Any
    keys: Any = None
    event_times_ms: Any = None
    properties: Any = None
    ordering_keys: Any = None
    keys_are_base64: Any = None


def encode_rows(columns: Columns, constant: Mapping[str, str]) -> EncodedRows:
    """Encode rows; each gets the properties `constant` as well, which win over its own of the same name."""
    values = columns.values
    sizes = pc.fill_null(pc.binary_length(values), 0)
    parts: list[Any] = [_properties(columns.properties, constant)]
    if columns.keys is not None:
        parts += _text(b"\x12", columns.keys.cast(pa.binary()))
    parts.append(_by_number(sizes, lambda size: b"\x18" + varint(size)))
    if columns.event_times_ms is not None:
        parts.append(_by_number(columns.event_times_ms, lambda ms: b"\x28" + varint(ms) if ms else b""))
    if columns.keys_are_base64 is not None and columns.keys is not None:
        parts.append(pc.if_else(columns.keys_are_base64, pa.scalar(b"\x30\x01", pa.binary()), _NO_BYTES))
    if columns.ordering_keys is not None:
        parts += _text(b"\x3a", columns.ordering_keys)
    if values.null_count:
        parts.append(pc.if_else(pc.is_null(values), pa.scalar(b"\x48\x01", pa.binary()), _NO_BYTES))
    metadata = _joined(parts)
    heads = _by_number(pc.binary_length(metadata), _SIZE.pack)
    return EncodedRows(_joined([heads, metadata, values]), sizes)


def _joined(parts: list[Any]) -> Any:
    """The parts of each row, one after the other; a null is nothing."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, _NO_BYTES, null_handling="replace", null_replacement=b"")


def _by_number(numbers: Any, make: Callable[[int], bytes]) -> Any:
    """Apply `make` to each number, once per distinct one; null for null."""
    distinct = numbers.dictionary_encode()
    made = pa.array([make(number) for number in distinct.dictionary.to_pylist()], pa.binary())
    return made.take(distinct.indices)


def _text(tag: bytes, column: Any) -> list[Any]:
    """A field of bytes, as tag with length, and content; both null where the column is null."""
    return [_by_number(pc.binary_length(column), lambda size: tag + varint(size)), column]


def _property(name: str, value: str) -> bytes:
    raw = [text.encode() for text in (name, value)]
    pair = b"\x0a" + varint(len(raw[0])) + raw[0] + b"\x12" + varint(len(raw[1])) + raw[1]
    return b"\x0a" + varint(len(pair)) + pair


def _properties(column: Any, constant: Mapping[str, str]) -> Any:
    """The properties of each row, and those of all."""
    shared = pa.scalar(b"".join(_property(*pair) for pair in constant.items()), pa.binary())
    if column is None:
        return shared
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    names, values = (child.slice(first, last - first).cast(pa.binary()) for child in (column.keys, column.items))
    if values.null_count:
        raise OptionError("column 'properties': a property's value is null; leave the property out instead")
    pair = _joined([*_text(b"\x0a", names), *_text(b"\x12", values)])
    field = _joined(_text(b"\x0a", pair))
    if constant:
        overruled = pc.is_in(names, value_set=pa.array([name.encode() for name in constant], pa.binary()))
        field = pc.if_else(overruled, _NO_BYTES, field)
    # A row's properties are neighbours among all of them, so its bytes are theirs.
    starts = pa.Array.from_buffers(pa.int32(), len(field) + 1, [None, field.buffers()[1]], offset=field.offset)
    own = starts.take(pc.subtract(offsets, offsets[0]))
    rows = pa.BinaryArray.from_buffers(pa.binary(), len(column), [None, own.buffers()[1], field.buffers()[2]])
    if column.null_count:
        rows = pc.if_else(column.is_valid(), rows, _NO_BYTES)
    return _joined([rows, shared])


def written_type(options: Options, columns: StructType) -> TopicType | None:
    """The schema that the options ask for, checked with the columns; None for bytes. OptionError, before any task runs."""
    check_schema_options(options)
    if asks_for_bytes(options):
        return None
    name = options.topics[0] if options.topics else "this sink"
    if options.schema == "topic":
        info = _topics_own(options)
        if info is None:
            raise OptionError(
                f'{name} has no schema: say which with .option("schema", "avro") or "json", and it gets that of column value'
            )
    else:
        info = chosen_schema(
            options, lambda column, _: json.dumps(definition_of(_kind(columns, column))), lambda: _topics_own(options)
        )
    if info is None:
        return None
    typed = topic_type(name, info)
    check_part(typed.value, _kind(columns, "value"), "value")
    if typed.key is not None:
        check_part(typed.key, _kind(columns, "key"), "key")
    elif "key" in columns.names and not isinstance(columns["key"].dataType, StringType | BinaryType):
        raise OptionError(f"column 'key' is {columns['key'].dataType.simpleString()}; the sink takes string or binary")
    return typed


def _kind(columns: StructType, name: str) -> Any:
    if name not in columns.names:
        raise OptionError(f"the schema has pairs of key and value, so the sink needs a column {name!r}")
    return columns[name].dataType


def _topics_own(options: Options) -> SchemaInfo | None:
    if not options.topics:
        raise OptionError("rows with a column topic go to many topics: name the schema, instead of asking one topic for it")
    local = background()
    return local.run(topic_schema(local.run(local.client(options)), options.topics[0]))


class UnfitColumnError(UnfitValueError):
    """A value that the schema does not take, in a column."""

    def __init__(self, error: UnfitValueError, column: str) -> None:
        super().__init__(error.number, str(error))
        self.column = column


class MessageWriter:
    """Rows as payloads, and keys of messages where the schema says that they are there."""

    def __init__(self, typed: TopicType) -> None:
        self._value = PartWriter("value", typed.value)
        self._key = None if typed.key is None else PartWriter("key", typed.key)
        self._encoding = typed.encoding

    @property
    def has_keys(self) -> bool:
        """True if the column `key` belongs to the schema."""
        return self._key is not None

    @property
    def keys_are_base64(self) -> bool:
        """True if the keys of the messages are."""
        return self._encoding is KeyValueEncoding.SEPARATED

    def written(self, values: Any, keys: Any) -> tuple[Any, Any]:
        """Payloads, and the keys of the messages, if they have some. UnfitColumnError."""
        payloads = _part(self._value, values, "value")
        if self._key is None:
            return payloads, None
        raw = _part(self._key, keys, "key")
        if self.keys_are_base64:
            texts = [None if each is None else base64.b64encode(each).decode() for each in raw.to_pylist()]
            return payloads, pa.array(texts, pa.string())
        pairs = zip(raw.to_pylist(), payloads.to_pylist(), strict=True)
        return pa.array([join_pair(*pair) for pair in pairs], pa.binary()), None


def _part(writer: PartWriter, column: Any, name: str) -> Any:
    try:
        return writer.payloads(column)
    except UnfitValueError as error:
        raise UnfitColumnError(error, name) from None


_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "event_time": ("timestamp", "timestamp_ntz", "bigint"),
    "properties": ("map<string,string>",),
    "ordering_key": ("string", "binary"),
}
_IGNORED: Final = frozenset({"partition", "message_id", "publish_time", "producer_name", "sequence_id", "schema_version"})
_KEYS_KEPT: Final = 100_000
_SLICE_BYTES: Final = 256 * 1024 * 1024
"""Rows encoded at a time: Arrow's offsets have 32 bits."""


def check_columns(columns: Mapping[str, str], options: Options) -> None:
    """`columns`: Spark's type names (`simpleString`) by name. OptionError says what is wrong, before any task runs.

    What a schema decides is checked later (`typed`).
    """
    typed = {"value"} if options.schema != "bytes" else set()
    if options.key_schema is not None or options.schema == "topic":
        typed.add("key")
    for name, kind in columns.items():
        if name in _IGNORED:
            continue
        if name not in _COLUMNS:
            hint = "struct(*)" if typed else "to_json(struct(*))"
            raise OptionError(
                f"the sink has no column {name!r}; it takes {', '.join(_COLUMNS)}: put the rest into value, for instance with "
                f"{hint}"
            )
        if name not in typed and kind not in _COLUMNS[name] and kind != "void":
            hint = " (or give the option schema)" if name == "value" else ""
            raise OptionError(f"column {name!r} is {kind}; the sink takes {' or '.join(_COLUMNS[name])}{hint}")
    if "value" not in columns:
        raise OptionError(f"the sink needs a column 'value' ({'of its schema' if typed else 'string or binary'})")
    if len(options.topics) > 1:
        raise OptionError(f"the sink writes to one topic, or to those of a column 'topic'; the option names {options.topics}")
    if "topic" not in columns and not options.topics:
        raise OptionError("where to? give the sink a column 'topic' or the option topic")


@attrs.frozen
class Group:
    """Rows of one topic in their order. `partition`: -1 for a topic without partitions, None for rows that any may get."""

    topic: str
    partition: int | None
    rows: EncodedRows
    numbers: Any
    """Rows of the task; None for all of them."""


class RowError(OptionError):
    """A row that cannot be sent. `number` counts the rows of the record batch from 0."""

    def __init__(self, number: int, column: str, what: str) -> None:
        super().__init__(f"row {number}, column {column!r}: {what}")
        self.number, self.column, self.what = number, column, what


class Grouping:
    """Turns record batches into groups of encoded rows by their targets.

    `partitions` answers how many partitions a topic has (0: not partitioned). The option `topic` wins over the column. With
    `typed`, values and keys are encoded by its schema. `time_zone` is the session's, for times without one.
    """

    def __init__(
        self,
        options: Options,
        partitions: Callable[[str], int],
        properties: Mapping[str, str],
        typed: TopicType | None = None,
        time_zone: str | None = None,
    ) -> None:
        self._time_zone = time_zone
        self._writer = None if typed is None else MessageWriter(typed)
        self._topic = options.topics[0] if options.topics else None
        self._partitions = partitions
        self._properties = properties
        self._routes: dict[tuple[str, int], int] = {}

    def groups(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Group]]:
        """The groups of some rows, each with the number of the first row of its slice. RowError."""
        rows_at_once = max(1, batch.num_rows * _SLICE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows_at_once):
            for group in self._groups(batch.slice(start, rows_at_once), start):
                yield start, group

    def _groups(self, batch: pa.RecordBatch, start: int) -> Iterator[Group]:
        writer = self._writer
        if writer is None:
            values, (keys, are_base64) = _bytes(batch, "value"), _keys(batch)
        else:
            values, keys, are_base64 = self._written(writer, batch, start)
        columns = Columns(
            values,
            keys,
            _milliseconds(batch, start, self._time_zone),
            _column(batch, "properties"),
            _bytes(batch, "ordering_key"),
            are_base64,
        )
        encoded = encode_rows(columns, self._properties)
        for topic, of_topic in self._by_topic(batch, start):
            count = self._partitions(topic)
            if not count:
                yield _group(topic, -1, encoded, of_topic)
            elif keys is None:
                yield _group(topic, None, encoded, of_topic)
            else:
                yield from self._by_key(topic, count, encoded, keys, of_topic)

    def _written(self, writer: MessageWriter, batch: pa.RecordBatch, start: int) -> tuple[Any, Any, Any]:
        """Values, the keys of the messages, by the schema, and which of these are Base64."""
        index = batch.schema.get_field_index("key")
        try:
            values, keys = writer.written(batch.column("value"), None if index < 0 else batch.column(index))
        except UnfitColumnError as error:
            raise RowError(start + error.number, error.column, f"it does not fit the schema: {error}") from None
        if not writer.has_keys:
            return values, *_keys(batch)
        return values, keys, keys.is_valid() if writer.keys_are_base64 else None

    def _by_topic(self, batch: pa.RecordBatch, start: int) -> Iterator[tuple[str, Any]]:
        """Topics, with the numbers of their rows; None for all."""
        if self._topic is not None:
            yield self._topic, None
            return
        topics = batch.column("topic")
        if topics.null_count:
            number = pc.index(pc.is_null(topics), True).as_py()
            raise RowError(start + number, "topic", "null, and there is no option topic")
        distinct = topics.dictionary_encode()
        names = distinct.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], None
            return
        for code, numbers in _split(distinct.indices):
            yield names[code], numbers

    def _by_key(self, topic: str, count: int, encoded: EncodedRows, keys: Any, of_topic: Any) -> Iterator[Group]:
        mine = keys if of_topic is None else keys.take(of_topic)
        distinct = mine.dictionary_encode()
        routes = [self._route(key, count) for key in distinct.dictionary.to_pylist()]
        chosen = pc.fill_null(pa.array(routes, pa.int32()).take(distinct.indices), -1)
        for partition, numbers in _split(chosen):
            rows = numbers if of_topic is None else of_topic.take(numbers)
            yield _group(topic, None if partition < 0 else partition, encoded, rows)

    def _route(self, key: str, count: int) -> int:
        found = self._routes.get((key, count))
        if found is None:
            if len(self._routes) >= _KEYS_KEPT:
                self._routes.clear()
            found = self._routes[key, count] = key_partition(HashingScheme.JAVA_STRING, key, count)
        return found


def _group(topic: str, partition: int | None, encoded: EncodedRows, numbers: Any) -> Group:
    return Group(topic, partition, encoded if numbers is None else encoded.take(numbers), numbers)


def _split(codes: Any) -> Iterator[tuple[int, Any]]:
    """Each code, with the numbers of its rows in their order."""
    order = pc.array_sort_indices(codes)  # a stable sort
    runs = pc.run_end_encode(codes.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield code, order.slice(start, end - start)
        start = end


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """None when it is absent, or has nothing but nulls."""
    index = batch.schema.get_field_index(name)
    column = None if index < 0 else batch.column(index)
    return None if column is None or column.null_count == len(column) else column


def _bytes(batch: pa.RecordBatch, name: str) -> Any:
    column = _column(batch, name)
    if column is not None:
        return column.cast(pa.binary())
    return pa.nulls(batch.num_rows, pa.binary()) if name == "value" else None


def _keys(batch: pa.RecordBatch) -> tuple[Any, Any]:
    """Keys as text, and which of them are Base64 (None: none is): those that are no UTF-8, as Java's `keyBytes` sends all."""
    column = _column(batch, "key")
    if column is None:
        return None, None
    try:
        return column.cast(pa.string()), None
    except pa.ArrowInvalid:
        texts = [None if key is None else _text_of(key) for key in column.to_pylist()]
    keys = [each and each[0] for each in texts]
    return pa.array(keys, pa.string()), pa.array([each is not None and each[1] for each in texts])


def _text_of(key: bytes) -> tuple[str, bool]:
    try:
        return key.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(key).decode(), True


def _milliseconds(batch: pa.RecordBatch, start: int, time_zone: str | None) -> Any:
    column = _column(batch, "event_time")
    if column is None:
        return None
    unit = 1
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            column = _instants(column, start, time_zone)
        column, unit = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), 1000
    low, high = (pc.min_max(column)[each].as_py() for each in ("min", "max"))
    if low < 0 or high >= END_OF_TIME_MS * unit:
        bad = pc.or_(pc.less(column, 0), pc.greater_equal(column, END_OF_TIME_MS * unit))
        number = pc.index(pc.fill_null(bad, False), True).as_py()
        why = "before 1970, which Pulsar cannot express: leave it null"
        if (time := column[number].as_py()) > 0:
            why = f"{time // unit} ms is after the year 9999, which no query could read: is it in milliseconds?"
        raise RowError(start + number, "event_time", why)
    return column if unit == 1 else pc.divide(column, unit)


def _instants(column: Any, start: int, time_zone: str | None) -> Any:
    """Times without a zone as instants, as Spark's cast of timestamp_ntz to timestamp does it."""
    if time_zone is None:
        raise RowError(
            start, "event_time", "a timestamp_ntz, and spark.sql.session.timeZone is not set: set it, or cast it to timestamp"
        )
    column = column.cast(pa.timestamp("us"))
    try:
        try:
            return pc.assume_timezone(column, time_zone, ambiguous="earliest")
        except pa.ArrowInvalid:  # one that no clock there showed, between winter and summer: Spark moves it on
            zone = zoneinfo.ZoneInfo(time_zone)
            times = [None if each is None else each.replace(tzinfo=zone).astimezone(UTC) for each in column.to_pylist()]
            return pa.array(times, pa.timestamp("us", tz="UTC"))
    except (ValueError, LookupError, OverflowError, pa.ArrowException) as error:
        text = f"a timestamp_ntz that cannot become an instant in the session's time zone ({error}): cast it to timestamp"
        raise RowError(start, "event_time", text) from error
