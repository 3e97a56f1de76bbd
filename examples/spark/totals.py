"""A query for `spark-submit`: counts the messages of a topic by key, and publishes the totals of each micro-batch at once.

    spark-submit --master spark://host:7077 totals.py pulsar://host:6650 orders totals /shared/checkpoints/totals

The arguments are the service URL, the topic to read, the topic to write, and the checkpoint folder, which all runs of the query
share. It ends when it has read everything; run it again, and it goes on. What a cluster needs is in
`docs/how-to/spark-clusters.md`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name


def main(service_url: str, source: str, target: str, checkpoint: str) -> None:
    """Run the query until everything is read."""
    spark = SparkSession.builder.appName("totals").getOrCreate()
    messages = (
        spark.readStream.format("pulsar")
        .option("service.url", service_url)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    totals = messages.groupBy(F.col("key").cast("string").alias("key")).count()
    rows = totals.select("key", F.to_json(F.struct("key", "count")).alias("value"))
    query = (
        rows.writeStream.format("pulsar")
        .option("service.url", service_url)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .option("delivery", "auto")
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:5])
