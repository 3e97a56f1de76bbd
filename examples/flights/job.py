"""The pipeline: Spark settles flights and sums them up, two queries that run until they are told to stop.

    settle   flights → settlements, postings, refused: each micro-batch is one transaction over the three topics
    totals   settlements → totals-carrier, totals-route: each micro-batch writes all totals again, one transaction over both

A query needs nothing but its checkpoint to go on exactly where it was: so does this program after its Java was killed
(start it again), and so does a query that failed while this program lives on (`Query.keep` starts it again).

    python job.py --url pulsar://… --scratch DIR --events FILE [--prefix …] [--per-batch 20000]

SIGTERM ends it. `--events` gets a line of JSON for each start, failure and micro-batch of a query.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cluster import session
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from settle_spark import outputs
from topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SETTLEMENT: Final = "carrier STRING, route STRING, net_cents BIGINT"
_RESTARTS_AT_MOST: Final = 20
_POLL_SECONDS: Final = 0.2
_TRIGGER: Final = "500 milliseconds"


class Events:
    """The file that tells the demo what the queries do."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def note(self, what: str, **known: Any) -> None:
        """Add a line."""
        self._file.write(json.dumps({"what": what, "time_ms": time.time_ns() // 1_000_000, **known}) + "\n")
        self._file.flush()


class Query:
    """One query: started, watched, and started again on its checkpoint when it fails."""

    def __init__(self, name: str, writer: Callable[[], DataStreamWriter], checkpoint: Path, events: Events) -> None:
        self.name = name
        self._writer = writer
        self._checkpoint = checkpoint
        self._events = events
        self._running: StreamingQuery | None = None
        self._starts = 0
        self._told = -1

    @property
    def has_worked(self) -> bool:
        """Whether a micro-batch of this query was ever finished, in this run of the program or an earlier one."""
        return any((self._checkpoint / "commits").glob("[0-9]*"))

    def keep(self) -> None:
        """Start the query if it does not run, and note what it has done. Raises what ends it too often."""
        if self._running is not None:
            self._note_batches(self._running)
            if self._running.isActive:
                return
            self._note_failure(self._running)
        options = {"checkpointLocation": str(self._checkpoint)}
        self._running = self._writer().queryName(self.name).options(**options).trigger(processingTime=_TRIGGER).start()
        self._starts += 1
        self._events.note("started", query=self.name)

    def stop(self) -> None:
        """End it between two micro-batches or within one; its checkpoint knows."""
        if self._running is not None:
            self._running.stop()
            self._note_batches(self._running)

    def _note_failure(self, query: StreamingQuery) -> None:
        failure = query.exception()
        if failure is None or self._starts > _RESTARTS_AT_MOST:
            raise failure or RuntimeError(f"query {self.name} ended by itself")
        self._events.note("failed", query=self.name, cause=_cause(failure))
        sys.stderr.write(f"query {self.name} failed, and is started again on its checkpoint: {failure}\n")

    def _note_batches(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            if progress.batchId > self._told and progress.durationMs.get("addBatch") is not None:
                self._told = progress.batchId
                known = {"batch": progress.batchId, "rows": progress.numInputRows, "took_ms": progress.batchDuration}
                self._events.note("batch", query=self.name, **known)


def _cause(failure: StreamingQueryException) -> str:
    """The last line with a text of what Python raised, or Spark's own first line."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    raised = [line for line in lines if line.split(":")[0].rsplit(".", 1)[-1].endswith(("Error", "Lost", "Timeout", "Failed"))]
    return (raised or lines)[-1 if raised else 0][:300]


class Job:
    """The two queries between the topics."""

    def __init__(self, spark: SparkSession, url: str, topics: Topics, per_batch: int, sink: str = "pulsar") -> None:
        self._spark = spark
        self._url = url
        self._topics = topics
        self._per_batch = per_batch
        self._sink = sink

    def settle(self) -> DataStreamWriter:
        """Every flight becomes a settlement and a posting, or is refused."""
        rows = outputs(self._read(self._topics.flights), self._topics)
        return self._write(rows, self._sink, "settle").outputMode("append")

    def totals(self) -> DataStreamWriter:
        """Flights and cents over two dimensions, in one aggregation."""
        parsed = f.from_json(f.col("value").cast("string"), SETTLEMENT).alias("settlement")
        settlements = self._read(self._topics.settlements).select(parsed)
        parts = f.explode(f.array(*(_part(name) for name in self._topics.totals))).alias("part")
        summed = f.sum("part.net_cents").alias("net_cents")
        totals = settlements.select(parts).groupBy("part.dimension", "part.key").agg(f.count("*").alias("flights"), summed)
        target = f.create_map(*(f.lit(text) for pair in self._topics.totals.items() for text in pair))
        value = f.to_json(f.struct("dimension", "key", "flights", "net_cents"))
        rows = totals.select(target[f.col("dimension")].alias("topic"), f.col("key"), value.alias("value"))
        return self._write(rows, "pulsar", "totals").outputMode("complete")

    def _read(self, topic: str) -> DataFrame:
        stream = self._spark.readStream.format("pulsar").option("service.url", self._url).option("topic", topic)
        stream = stream.option("waitForTopic", "true")  # the publisher may be late
        return stream.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", self._per_batch).load()

    def _write(self, rows: DataFrame, sink: str, query: str) -> DataStreamWriter:
        stream = rows.writeStream.format(sink).option("service.url", self._url)
        stream = stream.option("stagingTopic", self._topics.staging(query))
        return stream.option("controlTopic", self._topics.control(query))


def _part(name: str) -> Column:
    """What a settlement adds to the total of its key in a dimension."""
    key = f.col(f"settlement.{name}").alias("key")
    return f.struct(f.lit(name).alias("dimension"), key, f.col("settlement.net_cents").alias("net_cents"))


def run(job: Job, checkpoints: Path, events: Events, stopping: Callable[[], bool]) -> None:
    """Keep both queries running. The totals begin when something is settled, so that none of their micro-batches is empty."""
    settle = Query("settle", job.settle, checkpoints / "settle", events)
    totals = Query("totals", job.totals, checkpoints / "totals", events)
    while not stopping():
        settle.keep()
        if settle.has_worked:
            totals.keep()
        time.sleep(_POLL_SECONDS)
    for query in (settle, totals):
        query.stop()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--per-batch", type=int, default=20_000)
    parser.add_argument("--sink", default="pulsar", help="the name of a format; pulsar_armed can be killed at named points")
    given = parser.parse_args()
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    spark = session(given.scratch)
    events = Events(given.events)
    events.note("up")
    job = Job(spark, given.url, Topics(given.prefix), given.per_batch, given.sink)
    run(job, given.scratch / "checkpoints", events, lambda: bool(told))
    spark.stop()


if __name__ == "__main__":
    main()
