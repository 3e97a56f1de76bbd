"""The source's columns: Spark's schema, Arrow's equal one, and entries as record batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pulsar_txn.client.encoded import OpenedEntry, split_entry_payload
from pulsar_txn.pipeline.spark.source.offsets import Place
from pulsar_txn.pipeline.spark.source.values import Values

SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("message_id", StringType()),
        StructField("publish_time", TimestampType()),
        StructField("event_time", TimestampType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("ordering_key", BinaryType()),
        StructField("producer_name", StringType()),
        StructField("sequence_id", LongType()),
    ]
)
"""What `load()` gives; all of it may be null. `message_id` is `ledger:entry:partition:batch index`."""

_TIME: Final = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("message_id", pa.string()),
        pa.field("publish_time", _TIME),
        pa.field("event_time", _TIME),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("ordering_key", pa.binary()),
        pa.field("producer_name", pa.string()),
        pa.field("sequence_id", pa.int64()),
    ]
)


class Rows:
    """Collects messages of one topic partition, and makes record batches of ARROW_SCHEMA of them (Spark checks the first only).

    A message that has only a payload costs no Python object but that; what an entry's messages share is repeated by Arrow.
    """

    def __init__(self, topic: str, partition: int, values: Values | None = None, kind: pa.DataType | None = None) -> None:
        """With `values` payloads are decoded to values of the type `kind`."""
        self._topic = topic
        self._partition = partition
        self._values = values
        self._schema = ARROW_SCHEMA if kind is None else ARROW_SCHEMA.set(1, pa.field("value", kind))
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        """Rows that wait."""
        self.size = 0
        """Bytes of their values."""
        self._payloads: list[Any] = []
        self._entries: list[
            tuple[int, str, int, str, int]
        ] = []  # rows, front of the message id, publish time, producer, sequence id
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
                    self._numbers[first + index] = row[4]
        for index, number in numbers.items():
            self._numbers[first + index] = number
        for index, row in others.items():
            if row[6]:
                payloads[index] = None
        if self._values is not None:
            payloads = self._values.decoded(payloads, metadata.schema_version, place)
        self._payloads += payloads
        self._indexes.append(indexes)
        front = f"{place[0]}:{place[1]}:{self._partition}:"
        self._entries.append(
            (len(payloads), front, metadata.publish_time * 1000, metadata.producer_name, _signed(metadata.sequence_id))
        )
        self.count += len(payloads)
        self.size += len(entry.payload)

    def batch(self) -> pa.RecordBatch:
        """All rows that wait; none wait any more."""
        counts, fronts, times, producers, sequences = zip(*self._entries, strict=True)
        which = pa.array(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
        indexes = np.concatenate(self._indexes)
        numbers = np.repeat(np.array(sequences, np.int64), counts) + np.maximum(indexes, 0)
        if self._numbers:
            numbers[np.fromiter(self._numbers.keys(), np.int64)] = np.fromiter(self._numbers.values(), np.int64)
        ids = pc.binary_join_element_wise(pa.array(fronts).take(which), pa.array(indexes).cast(pa.string()), "")
        arrays = [
            self._column(pa.binary(), 2, str.encode),
            self._value_column(),
            pa.repeat(self._topic, self.count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), self.count),
            ids,
            pa.array(np.repeat(np.array(times, np.int64), counts)).view(_TIME),
            self._column(_TIME, 3, lambda time_ms: time_ms * 1000 if time_ms else None),
            self._properties(),
            self._column(pa.binary(), 5, lambda key: key),
            pa.repeat(producers[0], self.count) if len(set(producers)) == 1 else pa.array(producers).take(which),
            pa.array(numbers),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _value_column(self) -> pa.Array:
        kind = self._schema.field(1).type
        if self._values is None:
            return pa.array(self._payloads, kind)
        try:
            return pa.array(self._payloads, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.concat_arrays([self._one_value(self._values, value, kind) for value in self._payloads])

    def _one_value(self, values: Values, value: Any, kind: pa.DataType) -> pa.Array:
        try:
            return pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            values.unfit(error)
            return pa.nulls(1, kind)

    def _column(self, kind: pa.DataType, field: int, convert: Callable[[Any], Any]) -> pa.Array:
        """A field that few messages have."""
        if not self._others:
            return pa.nulls(self.count, kind)
        values: list[Any] = [None] * self.count
        for index, row in self._others.items():
            if row[field] is not None:
                values[index] = convert(row[field])
        return pa.array(values, kind)

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


_NOT_IN_A_BATCH: Final = np.array([-1])


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


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
