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
    """Messages as Arrow, always of ARROW_SCHEMA: Spark checks the first batch only. Times are UTC."""
    ids = [message.message_id for message in messages]
    columns: list[list[Any]] = [
        [None if message.key is None else message.key.encode() for message in messages],
        [None if message.is_tombstone else message.data for message in messages],
        [message.topic for message in messages],
        [message_id.partition for message_id in ids],
        [f"{each.ledger_id}:{each.entry_id}:{each.partition}:{each.batch_index}" for each in ids],
        [message.publish_time_ms * 1000 for message in messages],
        [None if message.event_time_ms is None else message.event_time_ms * 1000 for message in messages],
        [list(message.properties.items()) for message in messages],
        [message.ordering_key for message in messages],
        [message.producer_name for message in messages],
        [message.sequence_id for message in messages],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
