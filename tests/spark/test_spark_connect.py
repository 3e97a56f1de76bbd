"""Spark Connect: source, both protocols of the sink, and `write_batch`, through a server that Spark starts for the session."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import spark_local
import spark_python
import spark_totals
from targets import Target, lacking
from visible import read_all

from pulsar_txn.client import AsyncClient

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]

ROWS = 100
WAYS = ("staged", "grouped", "write_batch")
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

url, topic, folder, support, ways = json.loads(sys.argv[1])
sys.path.append(support)
from spark_local import ended

spark = SparkSession.builder.remote("local[2]").getOrCreate()
source = spark.readStream.format("pulsar").option("service.url", url).option("topic", topic)
rows = source.option("startingOffsets", "earliest").load().select("key", "value")
for delivery in {"staged", "grouped"}.intersection(ways):
    writer = rows.writeStream.format("pulsar").option("service.url", url).option("topic", f"{topic}-{delivery}")
    writer = writer.option("delivery", delivery).option("checkpointLocation", f"{folder}/{delivery}")
    ended(writer.trigger(availableNow=True).start)

def publish(df, batch_id):
    from pulsar_txn.pipeline.spark import write_batch
    write_batch(df, batch_id, serviceUrl=url, topic=f"{topic}-write_batch", sinkId=topic.rpartition("/")[2])

writer = rows.writeStream.foreachBatch(publish).option("checkpointLocation", f"{folder}/write_batch")
ended(writer.trigger(availableNow=True).start)
spark.stop()
"""


async def fill(url: str, topic: str) -> None:
    async with AsyncClient(url) as client, await client.create_producer(topic) as producer:
        # Without a subscription the broker soon deletes what is written, and a busy machine takes minutes.
        for each in (topic, *(f"{topic}-{way}" for way in WAYS)):
            await (await client.subscribe(each, "keeps")).close()
        for number in range(ROWS):
            producer.send_nowait(spark_totals.message(number), key=str(number % 5))
        await producer.flush()


@pytest.mark.parametrize("ways", [WAYS[1:], pytest.param(WAYS, marks=pytest.mark.soak)], ids=" ".join)
def test_every_way_to_write_works_through_a_connect_server(
    pulsar: Target, topic: str, tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """In CI those whose code differs: tasks that send, and a query that calls the sink for each micro-batch, which stages."""
    for needed in ("grpc_status", "zstandard"):
        if importlib.util.find_spec(needed) is None:
            lacking("spark", f"Spark Connect needs {needed}: pip install 'pyspark[connect]'")
    spark_local.prepare_environment()
    asyncio.run(fill(pulsar.service_url, topic))
    arguments = json.dumps([pulsar.service_url, topic, str(tmp_path), str(Path(spark_local.__file__).parent), ways])
    environment = os.environ | {
        spark_python.WITH_PANDAS: "1",
        "SPARK_CONF_DIR": str(spark_local.defaults_in(tmp_path / "conf")),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = Counter(spark_totals.message(number) for number in range(ROWS))
    for way in ways:
        assert Counter(asyncio.run(read_all(pulsar.service_url, f"{topic}-{way}"))) == expected, way
