"""The source beside Spark's JSON files, its rate source, and an empty source in Python."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gates import Gate, Place, json_row
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import encode_batch

TOPIC = "persistent://public/default/bench-source"
PARTITIONS = 2
PER_ENTRY = 1000
BATCHES = 7
LARGE = 400
SCHEMA = "id long, carrier string, origin string, cents long, flight long, note string"


def gates(place: Place) -> Iterator[Gate]:
    """Every gate of the source."""
    files = place.folder / "json"
    files.mkdir()
    for partition in range(PARTITIONS):
        with (files / f"{partition}.json").open("wb") as file:
            file.writelines(json_row(number) + b"\n" for number in range(partition, place.rows, PARTITIONS))
    _create_topic(place)
    asyncio.run(_fill(place))
    yield from _throughput(place, str(files))
    yield from _limit(place)
    yield from _overhead(place)
    yield _memory(place)


def _create_topic(place: Place) -> None:
    url = f"{place.admin_url}/admin/v2/{TOPIC.replace('://', '/')}/partitions"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=str(PARTITIONS).encode(), method="PUT", headers=headers)
    urllib.request.urlopen(request).close()


async def _fill(place: Place) -> None:
    async with AsyncClient(place.url) as client:
        for partition in range(PARTITIONS):
            async with client.create_producer(f"{TOPIC}-partition-{partition}", max_pending_messages=100_000) as producer:
                for first in range(partition * PER_ENTRY, place.rows, PER_ENTRY * PARTITIONS):
                    rows = [json_row(number) for number in range(first, min(first + PER_ENTRY, place.rows))]
                    producer_batch = encode_batch(rows)
                    await producer.send_encoded(producer_batch)


def _pulsar(place: Place, reader: Any) -> Any:
    return reader.format("pulsar").option("service.url", place.url).option("topic", TOPIC).option("startingOffsets", "earliest")


def _throughput(place: Place, files: str) -> Iterator[Gate]:
    def theirs() -> None:
        place.spark.read.schema(SCHEMA).json(files).write.format("noop").mode("overwrite").save()

    def ours() -> None:
        _pulsar(place, place.spark.read).load().write.format("noop").mode("overwrite").save()

    assert _pulsar(place, place.spark.read).load().count() == place.rows
    source, json = place.seconds(ours, theirs)
    yield Gate("source -> noop, JSON files -> noop", place.rows / source, place.rows / json, 0.5, "rows/s")


def _limit(place: Place) -> Iterator[Gate]:
    reader = _pulsar(place, place.spark.readStream).option("maxMessagesPerTrigger", str(place.rows // BATCHES))
    progress = _progress(place, reader.load(), availableNow=True)
    whole = sum(each.durationMs["triggerExecution"] for each in progress)
    limit = sum(each.durationMs.get("latestOffset", 0) for each in progress)
    assert sum(each.numInputRows for each in progress) == place.rows
    rate = place.rows / whole * 1000
    yield Gate(
        f"{len(progress)} limited micro-batches: finding the limit", limit, whole, 0.1, "ms", at_least=False,
        note=f"{rate:,.0f} rows/s in all",
    )  # fmt: skip


def _overhead(place: Place) -> Iterator[Gate]:
    place.spark.dataSource.register(Empty)
    rate = place.spark.readStream.format("rate").option("rowsPerSecond", "50").option("numPartitions", "2").load()
    ours = _pulsar(place, place.spark.readStream).option("maxMessagesPerTrigger", str(2 * PER_ENTRY)).load()
    floor = place.spark.readStream.format("bench_empty").load()
    medians = {}
    for name, frame in (("rate", rate), ("ours", ours), ("floor", floor)):
        progress = _progress(place, frame, batches=max(10, min(30, place.rows // 4 // PER_ENTRY)))
        durations = [each.durationMs["triggerExecution"] for each in progress if each.numInputRows][3:]
        medians[name] = statistics.median(durations)
    yield Gate(
        "micro-batch of two entries, a Python source with nothing in it", medians["ours"], medians["floor"], 1.3, "ms",
        at_least=False, note="what Spark takes for any source in Python",
    )  # fmt: skip
    yield Gate("micro-batch of two entries, rate -> noop", medians["ours"], medians["rate"], 1.3, "ms", at_least=False)


def _memory(place: Place) -> Gate:
    """400 messages of 4 MiB through one worker."""
    topic, count = "persistent://public/default/bench-large", LARGE if place.rows > 1_000_000 else LARGE // 10

    async def fill() -> None:
        async with AsyncClient(place.url) as client, await client.create_producer(topic, batching=False) as producer:
            for _ in range(count):
                await producer.send(bytes(4 << 20))

    asyncio.run(fill())
    program = [sys.executable, str(Path(__file__).parent / "task_memory.py"), place.url, topic]
    rows, _, peak = map(int, subprocess.run(program, capture_output=True, text=True, check=True).stdout.split())
    assert rows == count
    return Gate(f"{count} messages of 4 MiB: peak of a worker", peak / 1e6, 300, 1.0, "MB", at_least=False)


def _progress(place: Place, frame: Any, *, batches: int = 0, **trigger: Any) -> list[Any]:
    """The progress of each micro-batch into nothing."""
    checkpoint = place.folder / f"checkpoint-{len(list(place.folder.iterdir()))}"
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
    try:
        if trigger:
            query.awaitTermination()
        while not trigger and len(query.recentProgress) < batches:
            query.awaitTermination(0.2)
        return [each for each in query.recentProgress if each.durationMs.get("addBatch") is not None]
    finally:
        query.stop()


class Part(InputPartition):
    """One of two tasks."""


class EmptyReader(DataSourceStreamReader):
    """Counts; each task gives one row."""

    def __init__(self) -> None:
        self._number = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Zero."""
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802  # the form without limits
        """One more each time."""
        self._number += 1
        return {"n": self._number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Part]:
        """Two tasks, as the topic has."""
        return [Part(0), Part(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """One row."""
        yield (1,)


class Empty(DataSource):
    """A source in Python that does nothing, for what Spark itself takes for one."""

    @classmethod
    def name(cls) -> str:
        """For `format(…)`."""
        return "bench_empty"

    def schema(self) -> str:
        """One column."""
        return "n int"

    def streamReader(self, schema: Any) -> EmptyReader:  # noqa: N802  # Spark's name
        """For `spark.readStream`."""
        return EmptyReader()
