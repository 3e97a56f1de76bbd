"""Rows of the Spark sink and source without a Spark session: what a task and the driver do, in this process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from pulsar_txn.pipeline.spark import PulsarDataSource
from pulsar_txn.pipeline.spark.options import Query, read_options
from pulsar_txn.pipeline.spark.sink.columns import written_type
from pulsar_txn.pipeline.spark.sink.tasks import Encoding, stage
from pulsar_txn.pipeline.spark.sink.writer import PulsarBatchWriter


def struct(**kinds: DataType) -> StructType:
    """A struct of these fields."""
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def write(url: str, topic: str, columns: StructType, rows: list[Any], **options: str) -> None:
    """A batch job with one task: `rows` are dicts."""
    asked = read_options({"service.url": url, "topic": topic, **options}, Query.BATCH_WRITE)
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(columns, timezone="UTC"))
    encoding = Encoding(asked, 0, {}, typed=written_type(asked, columns))
    staged = stage(encoding, iter([batch]), f"{topic}-staging")
    PulsarBatchWriter(asked, columns).commit([staged])


def read(url: str, topic: str, columns: StructType | None = None, /, **options: str) -> list[dict[str, Any]]:
    """A batch read with one task per partition, with the user's `.schema(…)` or the source's columns."""
    source = PulsarDataSource({"service.url": url, "topic": topic, **options})
    wanted = source.schema() if columns is None else columns
    reader = source.reader(wanted)
    rows: list[dict[str, Any]] = []
    for work in reader.partitions():
        for batch in reader.read(work):
            assert batch.schema == to_arrow_schema(wanted, timezone="UTC"), "what Spark checks"
            rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows
