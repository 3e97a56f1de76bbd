"""PySpark: `format("pulsar")`, a source that reads what is committed and a sink that publishes a micro-batch at once, once.

Shared by both: `errors`, `options` (the table; `option_values`, `client_options`, `foreign_options`), `connecting` and
`background` (the client in Spark's processes), `admin` (HTTP). `source`: `reader` (what Spark calls), on the driver `topics`,
`heads`, `limits`, `planning`, `hidden` and `report`, in tasks `tasks`, `ranges`, `chunks`, `columns`; `offsets`, `patience`,
`loss` in both. `sink`: `control`, `committer` (the protocol, without IO), `staged` (rows to batches), `store`, `writer`. On
top: `datasource`, Spark's entry point to both, `foreach_batch`, and `progress`. Spark finds it through the top-level module
`pyspark_pulsar_txn`.
"""

from pulsar_txn.pipeline.spark.errors import (
    AckConflict,
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
    SkipRefused,
    SparkPulsarError,
    StoreFailed,
    UndecodableValue,
    UnreadableEntry,
)
from pulsar_txn.pipeline.spark.progress import PartitionProgress, SourceProgress, source_progress
from pulsar_txn.pipeline.spark.requirements import why_not

try:
    from pulsar_txn.pipeline.spark.datasource import PulsarDataSource, PulsarTxnDataSource, register
    from pulsar_txn.pipeline.spark.foreach_batch import write_batch
except ImportError as error:
    if (reason := why_not()) is None:
        raise
    raise ImportError(reason) from error

__all__ = [
    "AckConflict",
    "CheckpointOlderThanSink",
    "CommitUndecided",
    "DataLossError",
    "ForeignCheckpoint",
    "GroupRefused",
    "OptionError",
    "PartitionProgress",
    "PartitionsGrew",
    "PulsarDataSource",
    "PulsarTxnDataSource",
    "RowsMissing",
    "SinkError",
    "SinkFenced",
    "SinkStateLost",
    "SkipRefused",
    "SourceProgress",
    "SparkPulsarError",
    "StoreFailed",
    "UndecodableValue",
    "UnreadableEntry",
    "register",
    "source_progress",
    "write_batch",
]
