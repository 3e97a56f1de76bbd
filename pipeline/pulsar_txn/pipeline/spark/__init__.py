"""PySpark: `format("pulsar")`, a source that reads what is committed and a sink that publishes a micro-batch at once, once.

Layers, each knowing only those before it: `errors`, `options`, `control`, `committer` (the protocol, no IO), `staged`
(rows to batches), `offsets`, `columns`, then what talks to Pulsar (`background`, `store`, `topics`), then Spark's classes
(`sink`, `source`, `datasource`). Spark finds them through the top-level module `pyspark_pulsar_txn`.
"""

from pulsar_txn.pipeline.spark.datasource import PulsarDataSource, PulsarTxnDataSource, register
from pulsar_txn.pipeline.spark.errors import (
    CheckpointOlderThanSink,
    CommitUndecided,
    DataLossError,
    OptionError,
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
    "OptionError",
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
