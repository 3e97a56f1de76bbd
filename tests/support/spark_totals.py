"""A query of the tests: totals by key in complete mode, each micro-batch to two topics in one transaction.

`python spark_totals.py JSON` runs it in a driver of its own, to be killed at a point of `examples/flights/spark_crash.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import spark_local

CRASH_FOLDER = str(Path(__file__).resolve().parents[2] / "examples" / "flights")
"""Where `spark_crash` is; it must be on the PYTHONPATH of a driver that is to be killed."""

KEYS = 7
"""Keys 0 to 6; totals of 0, 1, 2 go to topic `a`, the others to topic `b`."""


@attrs.frozen
class Totals:
    """The query: from where, to where, its checkpoint folder, and options of its sink."""

    service_url: str
    source: str
    checkpoint: str
    per_trigger: int = 50
    options: dict[str, str] = attrs.field(factory=dict)

    @property
    def targets(self) -> tuple[str, str]:
        """The topics of the totals."""
        return (f"{self.source}-a", f"{self.source}-b")

    @property
    def control_topic(self) -> str:
        """Where the sink keeps its markers."""
        return f"{self.source}-control"

    def start(self, spark: Any, **sink_options: str) -> Any:
        """Start the query on what is committed now; `awaitTermination` waits for its end."""
        from pyspark.sql import functions as F  # noqa: N812  # its usual name; tests without Spark import us

        rows = (
            spark.readStream.format("pulsar")
            .option("service.url", self.service_url)
            .option("topic", self.source)
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", str(self.per_trigger))
            .load()
        )
        parsed = rows.select(F.from_json(F.col("value").cast("string"), "k int, v long").alias("row")).select("row.*")
        totals = parsed.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("sum"))
        target = F.when(F.col("k") < 3, self.targets[0]).otherwise(self.targets[1])
        out = totals.select(
            F.col("k").cast("string").alias("key"), F.to_json(F.struct("k", "n", "sum")).alias("value"), target.alias("topic")
        )
        writer = out.writeStream.format("pulsar").outputMode("complete").trigger(availableNow=True)
        options = {
            "service.url": self.service_url,
            "checkpointLocation": self.checkpoint,
            "controlTopic": self.control_topic,
            **self.options,
            **sink_options,
        }
        return writer.options(**options).start()


def message(number: int) -> bytes:
    """The row with this number."""
    return json.dumps({"k": number % KEYS, "v": number}).encode()


if __name__ == "__main__":
    spark_local.prepare_environment()
    os.environ["PYTHONPATH"] = CRASH_FOLDER
    sys.path.insert(0, CRASH_FOLDER)
    import spark_crash

    session = spark_local.session()
    spark_crash.arm(session)
    Totals(**json.loads(sys.argv[1])).start(session).awaitTermination()
