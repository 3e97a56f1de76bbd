"""What one Spark worker holds while it reads a topic: `task_memory.py URL TOPIC` prints rows, bytes and its peak memory."""

from __future__ import annotations

import resource
import sys

from pulsar_txn.pipeline.spark import PulsarDataSource
from pulsar_txn.pipeline.spark.source.layout import SCHEMA


def main() -> None:
    """Read as a task does: a record batch at a time."""
    url, topic = sys.argv[1:]
    reader = PulsarDataSource({"service.url": url, "topic": topic}).reader(SCHEMA)
    rows = size = 0
    for work in reader.partitions():
        for batch in reader.read(work):
            rows += batch.num_rows
            size += batch.nbytes
    print(rows, size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()
