"""`format("pulsar")`: what Spark looks up by name, and what it makes readers and writers of."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pulsar_txn.pipeline.spark.errors import OptionError
from pulsar_txn.pipeline.spark.options import Options, Query, read_options
from pulsar_txn.pipeline.spark.sink.columns import check_columns
from pulsar_txn.pipeline.spark.sink.writer import PulsarBatchWriter, PulsarStreamWriter
from pulsar_txn.pipeline.spark.source.layout import Layout, all_columns, chosen_columns, topics_type
from pulsar_txn.pipeline.spark.source.reader import PulsarBatchReader, PulsarStreamReader, RefusedStreamReader
from pulsar_txn.pipeline.spark.steps import OnStep

logger = logging.getLogger(__name__)


class PulsarDataSource(DataSource):
    """Source (batch and stream, read committed) and sink (a micro-batch is one transaction) for Apache Pulsar."""

    on_step: ClassVar[OnStep] = None
    """Told of the steps of source and sink (`steps`); for a subclass that tests a pipeline."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "pulsar"

    def schema(self) -> StructType:
        """The source's columns."""
        options = read_options(self.options, Query.SOURCE)
        return all_columns(options, topics_type(options)).schema

    def reader(self, schema: StructType) -> PulsarBatchReader:
        """Reader for `spark.read`."""
        return PulsarBatchReader(*self._source_options(schema, Query.BATCH_READ))

    def streamReader(self, schema: StructType) -> PulsarStreamReader:  # noqa: N802  # Spark's name
        """Reader for `spark.readStream`. For wrong options it raises OptionError at its first call."""
        try:
            options, layout = self._source_options(schema, Query.STREAM_READ)
        except OptionError as error:
            return RefusedStreamReader(error)
        return PulsarStreamReader(options, layout, self.on_step)

    def writer(self, schema: StructType, overwrite: bool) -> PulsarBatchWriter:
        """Writer for `df.write`."""
        if overwrite:
            raise OptionError('a topic cannot be overwritten: use .mode("append")')
        return PulsarBatchWriter(self._sink_options(schema, Query.BATCH_WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PulsarStreamWriter:  # noqa: N802  # Spark's name
        """Writer for `df.writeStream`, output modes append and complete (`overwrite`: each one brings all rows again)."""
        del overwrite
        options = self._sink_options(schema, Query.STREAM_WRITE)
        return PulsarStreamWriter(options, self.options.get("checkpointLocation"), self.on_step, schema)

    def _source_options(self, schema: StructType, query: Query) -> tuple[Options, Layout]:
        options = read_options(self.options, query)
        if bool(options.topics) == bool(options.topics_pattern):
            raise OptionError(
                'which topic? give the source .option("topic", "a"), with several "a,b", or .option("topicsPattern", "a-.*")'
            )
        return options, chosen_columns(all_columns(options, topics_type(options)), schema)

    def _sink_options(self, schema: StructType, query: Query) -> Options:
        options = read_options(self.options, query)
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        return options


class PulsarTxnDataSource(PulsarDataSource):
    """The same under another name, for sessions that have a JVM connector called `pulsar` on their class path."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "pulsar_txn"


def register(spark: Any) -> None:
    """Register both names in a session, where Spark's automatic search is off, or looks in another Python than this one.

    Spark starts its workers with `python3` from the PATH, unless PYSPARK_PYTHON or `spark.pyspark.python` names another one.
    That has no pulsar-txn when this program runs as `venv/bin/python job.py`, without an active environment. So with a local
    master, and without these settings, this sets PYSPARK_PYTHON to the Python of this program, also for this session.
    """
    context = getattr(spark, "sparkContext", None)  # there is none with Spark Connect
    if context is not None and _starts_any_python(context):
        logger.info("PYSPARK_PYTHON is set to %s, the Python of this program", sys.executable)
        os.environ["PYSPARK_PYTHON"] = context.pythonExec = sys.executable
    for source in (PulsarDataSource, PulsarTxnDataSource):
        spark.dataSource.register(source)


def _starts_any_python(context: Any) -> bool:
    """True if nobody has said which Python the workers of a local session run."""
    return (
        context.master.startswith("local")
        and "PYSPARK_PYTHON" not in os.environ
        and context.getConf().get("spark.pyspark.python") is None
    )
