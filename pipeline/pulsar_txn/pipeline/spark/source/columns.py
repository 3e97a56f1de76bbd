"""Entries of the source as Arrow record batches with a query's columns.

Keys and values of one topic become typed columns. `Malformed` deals with messages that do not fit the schema, or Spark's
types, by the option `mode`.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from pulsar_txn.client.encoded import OpenedEntry, SchemaInfo, parts_of, split_entry_payload, split_pair
from pulsar_txn.client.schemas import KeyValueEncoding
from pulsar_txn.pipeline.spark.errors import UndecodableValue
from pulsar_txn.pipeline.spark.options import END_OF_TIME_MS
from pulsar_txn.pipeline.spark.schemas.parts import KEY_VALUE, TopicType
from pulsar_txn.pipeline.spark.schemas.primitives import UNFIT, Unfit, cast_column
from pulsar_txn.pipeline.spark.schemas.values import Asked, PartReader, Versions
from pulsar_txn.pipeline.spark.source.layout import CORRUPT, SCHEMA, Layout
from pulsar_txn.pipeline.spark.source.offsets import Place

logger = logging.getLogger(__name__)


class Malformed:
    """Counter of the unfit messages of one range of a topic partition; with FAILFAST the first one ends the query."""

    def __init__(self, topic: str, mode: str) -> None:
        self._topic = topic
        self._mode = mode
        self._count = 0

    @property
    def drops(self) -> bool:
        """True if their rows are left out."""
        return self._mode == "DROPMALFORMED"

    def settle(self, unfit: Unfit, message_id: Callable[[int], str]) -> None:
        """UndecodableValue, or a warning for the first of them."""
        first = min(unfit)
        error = unfit[first]
        where = f"{self._topic}: the message {message_id(first)} does not fit the query's columns"
        if self._mode == "FAILFAST":
            raise UndecodableValue(
                f"{where} ({error}); mode=PERMISSIVE reads null instead, and columnNameOfCorruptRecord keeps its bytes; "
                "with .schema(…) the query has only the columns that it needs"
            ) from error
        if not self._count:
            logger.warning("%s (%s), and is %s (mode=%s)", where, error, self._fate, self._mode)
        self._count += len(unfit)

    @property
    def _fate(self) -> str:
        return "left out" if self.drops else "read as null"

    def finish(self) -> None:
        """Log the number of unfit messages."""
        if self._count:
            text = "%s: %d messages of this range do not fit the query's columns, and were %s (mode=%s)"
            logger.warning(text, self._topic, self._count, self._fate, self._mode)


Bytes = Sequence[bytes | None]


class MessageReader:
    """Decoder of the messages of one topic. `asked` is for the schemas that messages were written with."""

    def __init__(self, topic: str, typed: TopicType, asked: Asked) -> None:
        self._asked = asked
        self._encoding = typed.encoding
        self._value = PartReader(topic, typed.value, asked if typed.key is None else self._part_of(1))
        self._key = None if typed.key is None else PartReader(topic, typed.key, self._part_of(0))

    @property
    def needs_keys(self) -> bool:
        """True if the keys of messages are keys of pairs."""
        return self._encoding is KeyValueEncoding.SEPARATED

    def columns(self, payloads: Bytes, keys: Bytes, versions: Versions) -> tuple[Any, Any, Unfit]:
        """Keys (None for those of the messages), values, and what is wrong with which message."""
        unfit: Unfit = {}
        if self._encoding is KeyValueEncoding.INLINE:
            keys, payloads, unfit = _split(payloads)
        value, wrong = self._value.column(payloads, versions)
        unfit |= wrong
        if self._key is None:
            return None, value, unfit
        key, wrong = self._key.column(keys, versions)
        return key, value, unfit | wrong

    def _part_of(self, number: int) -> Callable[[bytes], SchemaInfo | None]:
        def asked(version: bytes) -> SchemaInfo | None:
            info = self._asked(version)
            return parts_of(info)[number] if info is not None and info.type == KEY_VALUE else None

        return asked


def _split(payloads: Bytes) -> tuple[list[bytes | None], list[bytes | None], Unfit]:
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    unfit: Unfit = {}
    for number, payload in enumerate(payloads):
        key = value = None
        try:
            if payload is not None:
                key, value = split_pair(payload)
        except UNFIT as error:
            unfit[number] = error
        keys.append(key)
        values.append(value)
    return keys, values, unfit


_TIME: Final = pa.timestamp("us", tz="UTC")
_UNTYPED: Final = Layout(SCHEMA, tuple(SCHEMA.names))


class Rows:
    """Collects messages of one topic partition, and makes record batches of a query's columns of them.

    A message that has only a payload costs no Python object but that; what an entry's messages share is repeated by Arrow.
    """

    def __init__(self, topic: str, partition: int, layout: Layout = _UNTYPED, reader: MessageReader | None = None) -> None:
        """With a `reader`, keys and values are decoded."""
        self._topic = topic
        self._partition = partition
        self._sources = layout.sources
        self._schema = to_arrow_schema(layout.schema, timezone="UTC")
        self._reader = reader
        self._malformed = Malformed(topic, layout.mode)
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        """Rows that wait."""
        self.size = 0
        """Bytes of their values."""
        self._payloads: list[Any] = []
        self._entries: list[
            tuple[int, str, int, str, int, bytes]
        ] = []  # rows, front of the message id, publish time, producer, sequence id, version of the schema
        self._indexes: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._others: dict[int, Any] = {}

    def add(self, place: Place, entry: OpenedEntry) -> None:
        """The messages of an entry. UnreadableEntryError, without an effect."""
        split = split_entry_payload(entry)
        payloads: list[Any] = split[0]
        numbers, others = split[1:]
        first, metadata = self.count, entry.metadata
        indexes = np.arange(len(payloads)) if entry.batch_size else _NOT_IN_A_BATCH
        if others:
            gone = [index for index, row in others.items() if row[7]]
            if gone:
                payloads, numbers, others, indexes = _without(gone, payloads, numbers, others, indexes)
            for index, row in others.items():
                self._others[first + index] = row
                if row[4] is not None:
                    self._numbers[first + index] = signed(row[4])
        for index, number in numbers.items():
            self._numbers[first + index] = signed(number)
        for index, row in others.items():
            if row[6]:
                payloads[index] = None
        self._payloads += payloads
        self._indexes.append(indexes)
        front = f"{place[0]}:{place[1]}:{self._partition}:"
        self._entries.append(
            (
                len(payloads),
                front,
                metadata.publish_time,
                metadata.producer_name,
                signed(metadata.sequence_id),
                metadata.schema_version,
            )
        )
        self.count += len(payloads)
        self.size += len(entry.payload)

    def batch(self) -> pa.RecordBatch:
        """All rows that wait; none wait any more. UndecodableValue."""
        unfit: Unfit = {}
        made: dict[str, Any] = {}
        if self._reader is not None and not {"key", "value"}.isdisjoint(self._sources):
            made, unfit = self._typed(self._reader)
        shared = _Shared(self._entries, self._indexes)
        arrays = []
        for name, field in zip(self._sources, self._schema, strict=True):
            column = made.get(name)
            if column is None and name != CORRUPT:
                column, wrong = self._made(name, shared)
                made[name] = column
                unfit = wrong | unfit
            if column is not None:
                column, wrong = cast_column(column, field.type)
                unfit = wrong | unfit
            arrays.append(column)
        if unfit:
            self._malformed.settle(unfit, shared.message_id)
        for position, column in enumerate(arrays):
            if column is None:
                arrays[position] = self._payloads_of(unfit).cast(self._schema.field(position).type)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if unfit and self._malformed.drops:
            kept = np.ones(self.count, bool)
            kept[list(unfit)] = False
            batch = batch.filter(pa.array(kept))
        self._clear()
        return batch

    def finish(self) -> None:
        """Say in the log what there is to say of all rows."""
        self._malformed.finish()

    def _typed(self, reader: MessageReader) -> tuple[dict[str, Any], Unfit]:
        versions = [(entry[0], entry[5]) for entry in self._entries]
        keys, wrong = self._per_message(key_of) if reader.needs_keys else ((), {})
        key, value, unfit = reader.columns(self._payloads, keys, versions)
        return {"value": value} if key is None else {"key": key, "value": value}, wrong | unfit

    def _payloads_of(self, unfit: Unfit) -> pa.Array:
        return pa.array([payload if index in unfit else None for index, payload in enumerate(self._payloads)], pa.binary())

    def _made(self, name: str, shared: _Shared) -> tuple[Any, Unfit]:
        """A column of the messages themselves, and what cannot be in it."""
        match name:
            case "key":
                return self._column(pa.binary(), key_of)
            case "value":
                return pa.array(self._payloads, pa.binary()), {}
            case "topic":
                return pa.repeat(self._topic, self.count), {}
            case "partition":
                return pa.repeat(pa.scalar(self._partition, pa.int32()), self.count), {}
            case "message_id":
                return shared.message_ids(), {}
            case "publish_time":
                return shared.publish_times()
            case "event_time":
                return self._column(_TIME, lambda row: micros("event_time", row[3]) if row[3] else None)
            case "properties":
                return self._properties(), {}
            case "ordering_key":
                return self._column(pa.binary(), lambda row: row[5])
            case "producer_name":
                return shared.producers(), {}
        return shared.sequence_ids(self._numbers), {}

    def _column(self, kind: pa.DataType, convert: Callable[[Any], Any]) -> tuple[pa.Array, Unfit]:
        """A field that few messages have."""
        if not self._others:
            return pa.nulls(self.count, kind), {}
        values, unfit = self._per_message(convert)
        return pa.array(values, kind), unfit

    def _per_message(self, convert: Callable[[Any], Any]) -> tuple[list[Any], Unfit]:
        values: list[Any] = [None] * self.count
        unfit: Unfit = {}
        for index, row in self._others.items():
            try:
                values[index] = convert(row)
            except ValueError as error:
                unfit[index] = error
        return values, unfit

    def _properties(self) -> pa.Array:
        counts = np.zeros(self.count + 1, np.int32)
        names: list[str] = []
        values: list[str] = []
        for index, row in sorted(self._others.items()):
            if row[1]:
                counts[index + 1] = len(row[1])
                names += row[1].keys()
                values += row[1].values()
        offsets = pa.array(np.cumsum(counts, dtype=np.int32))
        return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), pa.array(values, pa.string()))


class _Shared:
    """Values that the messages of an entry share, repeated for each of them."""

    def __init__(self, entries: Sequence[tuple[int, str, int, str, int, bytes]], indexes: Sequence[Any]) -> None:
        self._counts, self._fronts, self._times, self._producers, self._sequences, _ = zip(*entries, strict=True)
        self._indexes = np.concatenate(indexes)
        self._which = np.repeat(np.arange(len(entries), dtype=np.int32), self._counts)

    def message_id(self, number: int) -> str:
        """Id of one message."""
        return f"{self._fronts[self._which[number]]}{self._indexes[number]}"

    def message_ids(self) -> pa.Array:
        fronts = pa.array(self._fronts).take(pa.array(self._which))
        return pc.binary_join_element_wise(fronts, pa.array(self._indexes).cast(pa.string()), "")

    def publish_times(self) -> tuple[pa.Array, Unfit]:
        bad: dict[int, ValueError] = {}
        times = np.zeros(len(self._times), np.int64)
        for number, time_ms in enumerate(self._times):
            try:
                times[number] = micros("publish_time", time_ms)
            except ValueError as error:
                bad[number] = error
        column = pa.array(np.repeat(times, self._counts)).view(_TIME)
        if not bad:
            return column, {}
        unfit: Unfit = {index: bad[entry] for index, entry in enumerate(self._which.tolist()) if entry in bad}
        mask = np.zeros(len(column), bool)
        mask[list(unfit)] = True
        return pc.if_else(pa.array(mask), pa.scalar(None, _TIME), column), unfit

    def producers(self) -> pa.Array:
        if len(set(self._producers)) == 1:
            return pa.repeat(self._producers[0], len(self._which))
        return pa.array(self._producers).take(pa.array(self._which))

    def sequence_ids(self, own: Mapping[int, int]) -> pa.Array:
        """`own`: those that messages have themselves."""
        numbers = np.repeat(np.array(self._sequences, np.int64), self._counts) + np.maximum(self._indexes, 0)
        if own:
            numbers[np.fromiter(own.keys(), np.int64)] = np.fromiter(own.values(), np.int64)
        return pa.array(numbers)


_NOT_IN_A_BATCH: Final = np.array([-1])


def signed(number: int) -> int:
    """A number of 64 bits as Java has it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def micros(name: str, time_ms: int) -> int:
    """A time in Spark's unit. ValueError for one after the year 9999, where Spark's and Python's calendars end."""
    if not 0 <= time_ms < END_OF_TIME_MS:
        hint = "; it looks like nanoseconds or microseconds" if signed(time_ms) > 0 else ""
        raise ValueError(f"{name} is {signed(time_ms)} ms, which is not between 1970 and 9999{hint}")
    return time_ms * 1000


def key_of(row: Any) -> bytes | None:
    """The bytes of a message's key. ValueError for what says that it is Base64, and is not."""
    if row[2] is None:
        return None
    return base64.b64decode(row[2], validate=True) if row[8] else bytes(row[2].encode())


def _without(
    gone: Sequence[int], payloads: list[bytes], numbers: dict[int, int], others: dict[int, Any], indexes: Any
) -> tuple[list[bytes], dict[int, int], dict[int, Any], Any]:
    """The messages of a compacted entry that are still there."""
    dropped = set(gone)
    kept = [index for index in range(len(payloads)) if index not in dropped]
    where = {index: number for number, index in enumerate(kept)}
    return (
        [payloads[index] for index in kept],
        {where[index]: number for index, number in numbers.items() if index in where},
        {where[index]: row for index, row in others.items() if index in where},
        indexes[kept],
    )
