"""PySpark: `format("pulsar")`, a source that reads what is committed and a sink that publishes a micro-batch at once, once.

Shared by both: `errors`, `options`, `background` (the client in Spark's processes). `source`: `offsets`, `columns`, `topics`,
`reader`. `sink`: `control`, `committer` (the protocol, without IO), `staged` (rows to batches), `store`, `writer`. On top:
`datasource`, Spark's door to both. Spark finds it through the top-level module `pyspark_pulsar_txn`.
"""

from pulsar_txn.pipeline.spark.datasource import PulsarDataSource, PulsarTxnDataSource, register
from pulsar_txn.pipeline.spark.errors import (
    CheckpointOlderThanSink,
    CommitUndecided,
    DataLossError,
    ForeignCheckpoint,
    GroupRefused,
    OptionError,
    PartitionsGrew,
    RowsMissing,
    SinkError,
    SinkFenced,
    SinkStateLost,
    SparkPulsarError,
    StoreFailed,
)

__all__ = [
    "CheckpointOlderThanSink",
    "CommitUndecided",
    "DataLossError",
    "ForeignCheckpoint",
    "GroupRefused",
    "OptionError",
    "PartitionsGrew",
    "PulsarDataSource",
    "PulsarTxnDataSource",
    "RowsMissing",
    "SinkError",
    "SinkFenced",
    "SinkStateLost",
    "SparkPulsarError",
    "StoreFailed",
    "register",
]
