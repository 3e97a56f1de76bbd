"""The source's columns: Spark's schema, Arrow's equal one, and messages as record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
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

from pulsar_txn.client import Message

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


def record_batch(messages: Sequence[Message[Any]]) -> pa.RecordBatch:
    """Messages of one topic partition as Arrow, always of ARROW_SCHEMA: Spark checks the first batch only. Times are UTC."""
    count, first = len(messages), messages[0]
    columns: list[Any] = [
        [None if (key := message.key) is None else key.encode() for message in messages],
        [None if message.is_tombstone else message.data for message in messages],
        pa.repeat(first.topic, count),
        pa.repeat(pa.scalar(first.message_id.partition, pa.int32()), count),
        _message_ids(messages),
        [message.publish_time_ms * 1000 for message in messages],
        [None if (time_ms := message.event_time_ms) is None else time_ms * 1000 for message in messages],
        [list(properties.items()) if (properties := message.properties) else _NONE for message in messages],
        [message.ordering_key for message in messages],
        [message.producer_name for message in messages],
        [message.sequence_id for message in messages],
    ]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


_NONE: Final[list[tuple[str, str]]] = []


def _message_ids(messages: Sequence[Message[Any]]) -> list[str]:
    """`ledger:entry:partition:batch index`; the front is built once per entry."""
    texts, entry, front = [], None, ""
    for message in messages:
        if message.entry is not entry:
            entry = message.entry
            ledger_id, entry_id, partition = message.message_id[:3]
            front = f"{ledger_id}:{entry_id}:{partition}:"
        texts.append(f"{front}{message.index}")
    return texts
