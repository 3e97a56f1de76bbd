"""Sums the settlements up with PySpark: one aggregation over (dimension, key), two topics, one transaction per micro-batch.

Each micro-batch writes all totals again (complete mode): by carrier to `totals-carrier`, by route to `totals-route`.
They appear in both at once, once, and every row carries its batch in the property `__batch_id`; also when Spark's driver
is killed at any moment and started again on the same checkpoint, which is all that a restart needs.

    python pipeline.py --url pulsar://… --checkpoint DIR [--per-batch 5000] [--prefix …]

Ends when everything that is committed in `settlements` has been summed up.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f
from spark_crash import arm
from topics import Topics

from pulsar_txn.pipeline.java import find_java

SETTLEMENT = "carrier STRING, route STRING, net_cents BIGINT"


def session(scratch: Path) -> SparkSession:
    """Two slots, and four attempts for each task; nothing listens beyond the loopback."""
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master("local[2,4]").appName("flights")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # This Java lives for seconds: what its optimising compiler would take is never earned back (a third of all CPU here).
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    arm(spark)
    return spark


def dimension(name: str, net_cents: Column) -> Column:
    """What a settlement adds to the total of its key in a dimension."""
    return f.struct(f.lit(name).alias("dimension"), f.col(f"settlement.{name}").alias("key"), net_cents.alias("net_cents"))


def total(spark: SparkSession, url: str, topics: Topics, checkpoint: Path, per_batch: int) -> None:
    """Run the query to the end of what is there."""
    settlements = (
        spark.readStream.format("pulsar")
        .option("service.url", url)
        .option("topic", topics.settlements)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", per_batch)
        .load()
        .select(f.from_json(f.col("value").cast("string"), SETTLEMENT).alias("settlement"))
    )
    net_cents = f.col("settlement.net_cents")
    totals = (
        settlements.select(f.explode(f.array(*(dimension(name, net_cents) for name in topics.totals))).alias("part"))
        .groupBy("part.dimension", "part.key")
        .agg(f.count("*").alias("flights"), f.sum("part.net_cents").alias("net_cents"))
    )
    target = f.create_map(*(f.lit(text) for pair in topics.totals.items() for text in pair))
    (
        totals.select(
            target[f.col("dimension")].alias("topic"),
            f.col("key"),
            f.to_json(f.struct("dimension", "key", "flights", "net_cents")).alias("value"),
        )
        .writeStream.format("pulsar")
        .outputMode("complete")
        .option("service.url", url)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--per-batch", type=int, default=5000)
    given = parser.parse_args()
    scratch = given.checkpoint.with_name(given.checkpoint.name + "-scratch")
    spark = session(scratch)
    total(spark, given.url, Topics(given.prefix), given.checkpoint, given.per_batch)
    spark.stop()


if __name__ == "__main__":
    main()
