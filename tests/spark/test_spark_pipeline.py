"""Whole queries: a micro-batch appears in all its topics at once and once, whatever fails on the way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import attrs
import pytest
import spark_totals
from spark_local import ended
from spark_totals import KEYS, Totals
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncReader, InitialPosition
from pulsar_txn.pipeline.spark.sink.control import Marker, decode_record, encode_record

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

on_both = pytest.mark.parametrize("pulsar", ["ours", pytest.param("stock-4.2.4", marks=pytest.mark.stock)], indirect=True)
on_stock = pytest.mark.parametrize("pulsar", [pytest.param("stock-4.2.4", marks=pytest.mark.stock)], indirect=True)
on_ours = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)

ROWS = 200
PER_TRIGGER = 50
BATCHES = ROWS // PER_TRIGGER


async def fill(url: str, topic: str, count: int = ROWS) -> None:
    async with AsyncClient(url) as client, await client.create_producer(topic, batching_max_messages=10) as producer:
        # Without a subscription a broker may trim what nobody reads just now.
        await (await client.subscribe(topic, "keeps", initial_position=InitialPosition.EARLIEST)).close()
        for number in range(count):
            producer.send_nowait(spark_totals.message(number))
        await producer.flush()


async def drain(reader: AsyncReader[bytes]) -> list[tuple[int, dict[str, int]]]:
    """(batch id, total) of all that is visible now."""
    found = []
    while await reader.has_message_available():
        message = await reader.read_next(10)
        found.append((int(message.properties["__batch_id"]), json.loads(message.data)))
    return found


async def read(url: str, topic: str) -> list[tuple[int, dict[str, int]]]:
    async with AsyncClient(url) as client, await client.create_reader(topic) as reader:
        return await drain(reader)


def truth(rows: int) -> list[dict[str, int]]:
    numbers = [[number for number in range(rows) if number % KEYS == key] for key in range(KEYS)]
    return [{"k": key, "n": len(mine), "sum": sum(mine)} for key, mine in enumerate(numbers)]


def check(query: Totals) -> None:
    """Batches 0 to n in order, each once and complete in both topics, the totals of each as they were then."""
    topics = [asyncio.run(read(query.service_url, topic)) for topic in query.targets]
    for found, keys in zip(topics, [range(3), range(3, KEYS)], strict=True):
        batches = [batch for batch, _ in found]
        assert batches == sorted(batches)
        assert Counter(batches) == dict.fromkeys(range(BATCHES), len(keys))
    by_batch = defaultdict(list)
    for batch, total in topics[0] + topics[1]:
        by_batch[batch].append(total)
    rows = 0
    for batch in range(BATCHES):
        totals = sorted(by_batch[batch], key=lambda total: total["k"])
        assert sum(total["n"] for total in totals) > rows
        rows = sum(total["n"] for total in totals)
        assert totals == truth(rows)
    assert rows == ROWS


class Observer(threading.Thread):
    """Reads both topics side by side while the query runs; notes whatever nobody may ever see."""

    def __init__(self, query: Totals) -> None:
        super().__init__(daemon=True)
        self.query = query
        self.stop = threading.Event()
        self.wrong: list[str] = []
        self.looks = 0

    def run(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        async with AsyncClient(self.query.service_url) as client:
            readers = [await client.create_reader(topic) for topic in self.query.targets]
            while not self.stop.is_set():
                newest = await self._look(readers)
                until = asyncio.get_running_loop().time() + 10
                while newest[0] != newest[1]:  # committed for all topics, and told to one after the other
                    if asyncio.get_running_loop().time() > until:
                        self.wrong.append(f"the topics stay at batches {newest}")
                        return
                    newest = [max(pair) for pair in zip(newest, await self._look(readers), strict=True)]
                self.looks += 1
                await asyncio.sleep(0.05)

    async def _look(self, readers: list[AsyncReader[bytes]]) -> list[int]:
        newest = []
        for number, (reader, rows) in enumerate(zip(readers, [3, KEYS - 3], strict=True)):
            seen = Counter(batch for batch, _ in await drain(reader))
            self.wrong += [f"topic {number} showed {count} of batch {batch}" for batch, count in seen.items() if count != rows]
            self.newest[number] = max([*seen, self.newest[number]])
            newest.append(self.newest[number])
        return newest

    @property
    def newest(self) -> list[int]:
        return self.__dict__.setdefault("_newest", [-1, -1])  # type: ignore[no-any-return]  # a dict of Any


@pytest.fixture
def query(pulsar: Target, topic: str, tmp_path: Path) -> Totals:
    asyncio.run(fill(pulsar.service_url, topic))
    return Totals(pulsar.service_url, topic, str(tmp_path / "checkpoint"), PER_TRIGGER)


@on_both
def test_a_micro_batch_appears_in_both_its_topics_at_once_and_once(query: Totals, spark: Any) -> None:
    observer = Observer(query)
    observer.start()
    running = query.start(spark)
    running.awaitTermination()
    observer.stop.set()
    observer.join(20)
    assert observer.wrong == []
    assert observer.newest == [BATCHES - 1] * 2
    assert observer.looks > 0
    check(query)


def run_until_killed(query: Totals, point: str, batch: int, log: Path) -> dict[str, Any]:
    """A driver of its own that dies at a crash point; what was in flight."""
    environment = os.environ | {
        "PULSAR_TXN_CRASH_POINT": point,
        "PULSAR_TXN_CRASH_BATCH": str(batch),
        "PULSAR_TXN_CRASH_LOG": str(log),
    }
    program = [sys.executable, str(Path(spark_totals.__file__)), json.dumps(attrs.asdict(query))]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode != 0, done.stderr[-3000:]
    assert log.exists(), done.stderr[-3000:]
    in_flight: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    assert (in_flight["point"], in_flight["batch_id"]) == (point, batch), done.stderr[-3000:]
    assert not in_flight.get("answered"), "killed too late: nothing was in flight any more"
    committed = Path(query.checkpoint, "commits")
    assert str(batch) not in [path.name for path in committed.iterdir()], "Spark does not know that the batch is done"
    return in_flight


async def markers(url: str, topic: str) -> dict[int, str]:
    """Which transaction published which batch."""
    async with AsyncClient(url) as client, await client.create_reader(topic) as reader:
        records = []
        while await reader.has_message_available():
            records.append(decode_record((await reader.read_next(10)).data))
    return {record.batch_id: record.txn_id for record in records if isinstance(record, Marker)}


@on_stock  # on our broker `make demo` does it
def test_a_driver_killed_after_it_sent_end_txn_has_published_its_batch_once(query: Totals, spark: Any, tmp_path: Path) -> None:
    in_flight = run_until_killed(query, "sink.commit.after_end_txn_sent", 1, tmp_path / "crash.log")
    ended(lambda: query.start(spark))
    check(query)
    published = asyncio.run(markers(query.service_url, query.control_topic))
    assert sorted(published) == list(range(BATCHES))
    assert published[1] == in_flight["txn_id"], "the transaction in flight was committed, and the replay skipped the batch"


@on_ours
def test_an_input_that_fails_half_way_and_is_tried_again_counts_once(
    pulsar: Target, topic: str, spark: Any, tmp_path: Path
) -> None:
    asyncio.run(fill(pulsar.service_url, topic))
    once = str(tmp_path / "failed-once")

    def fails_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 1:
                with open(once, "x" if not os.path.exists(once) else "r") as file:  # noqa: PTH110, PTH123  # runs in a worker
                    if file.writable():
                        raise RuntimeError("this input fails once")
            yield batch

    source = (
        spark.readStream.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic)
        .option("startingOffsets", "earliest").load().select("value").mapInArrow(fails_once, "value binary")
    )  # fmt: skip
    running = (
        source.writeStream.format("pulsar").trigger(availableNow=True)
        .option("service.url", pulsar.service_url).option("topic", topic + "-out").option("sinkId", topic.rpartition("/")[2])
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    running.awaitTermination()
    assert Path(once).exists()
    out = asyncio.run(read(pulsar.service_url, topic + "-out"))
    assert [row["v"] for _, row in out] == list(range(ROWS))


@on_ours
def test_a_commit_that_raises_ends_the_query_with_its_reason_and_publishes_nothing(query: Totals, spark: Any) -> None:
    async def publish_later_marker() -> None:
        async with AsyncClient(query.service_url) as client, await client.create_producer(query.control_topic) as producer:
            await producer.send(encode_record(Marker("mine", 5, 0, "(0,0)")))

    asyncio.run(publish_later_marker())
    running = query.start(spark, sinkId="mine")
    with pytest.raises(Exception, match="has published micro-batch 5, and the checkpoint goes on with 0"):
        running.awaitTermination()
    assert [asyncio.run(read(query.service_url, topic)) for topic in query.targets] == [[], []]
    ended(lambda: query.start(spark, sinkId="mine", adoptCheckpoint="true"))
    check(query)


@on_ours
def test_a_batch_job_writes_at_once_and_reads_back(pulsar: Target, topic: str, spark: Any) -> None:
    frame = spark.range(100).selectExpr(
        "cast(id as string) key", "concat('v', id) value", "map('id', cast(id as string)) properties", "now() event_time"
    )
    frame.write.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic).mode("append").save()
    back = spark.read.format("pulsar").option("service.url", pulsar.service_url).option("topic", topic).load()
    rows = back.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "properties['id'] id", "event_time"
    ).collect()
    assert sorted(int(row.key) for row in rows) == list(range(100))
    assert all(row.value == f"v{row.key}" and row.id == row.key and row.event_time is not None for row in rows)


@on_ours
def test_a_stream_from_latest_loses_nothing_that_comes_after_its_first_empty_batch(
    pulsar: Target, topic: str, spark: Any, tmp_path: Path
) -> None:
    url, control = pulsar.service_url, topic + "-control"
    asyncio.run(fill(url, topic, 10))

    def run() -> None:
        source = spark.readStream.format("pulsar").option("service.url", url).option("topic", topic).load()
        sink = source.select("value").writeStream.format("pulsar").option("service.url", url).option("topic", topic + "-out")
        sink = sink.option("controlTopic", control).option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()

    run()
    asyncio.run(fill(url, topic, 5))
    run()
    assert [row["v"] for _, row in asyncio.run(read(url, topic + "-out"))] == list(range(5))
    assert sorted(asyncio.run(markers(url, control))) == [0, 1], "the empty micro-batch has its marker, too"
