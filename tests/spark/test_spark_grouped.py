"""Whole queries with delivery=grouped: tasks send straight to the topics, and whatever fails, every row is there once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
import spark_totals
from spark_local import ended
from spark_totals import KEYS, Totals
from targets import Target
from visible import is_blocked, read_all

from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.pipeline.spark import PulsarDataSource

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]

ROWS = 240
PARTITIONS = 2


def fails_once(once: str, what: Callable[[], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for mapInArrow: in one task, once, `what` happens after its first rows were handed on."""

    def batches_of(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 1 and not os.path.exists(once):  # noqa: PTH110  # runs in a worker
                with open(once, "x"):  # noqa: PTH123
                    what()
            yield batch

    return batches_of


class Query:
    """Numbers from a file, through `work`, to a topic."""

    def __init__(self, service_url: str, topic: str, folder: Path) -> None:
        self.service_url = service_url
        self.topic = topic + "-out"
        self.folder = folder
        self.once = str(folder / "once")
        self.name = topic.rpartition("/")[2]
        for part in range(PARTITIONS):
            lines = [f"{number}" for number in range(ROWS) if number % PARTITIONS == part]
            (folder / "in").mkdir(exist_ok=True)
            (folder / "in" / f"part-{part}.txt").write_text("\n".join(lines) + "\n")

    def start(self, spark: Any, work: Any = None, source: str = "pulsar", **options: str) -> Any:
        """Start it; it ends when everything is read."""
        rows = spark.readStream.text(str(self.folder / "in")).repartition(PARTITIONS)
        if work is not None:
            rows = rows.mapInArrow(work, "value string")
        given = {
            "service.url": self.service_url,
            "topic": self.topic,
            "checkpointLocation": str(self.folder / "checkpoint"),
            "delivery": "grouped",
            **options,
        }
        return rows.writeStream.format(source).trigger(availableNow=True).options(**given).start()

    def write(self, spark: Any, work: Any = None, **options: str) -> None:
        """The same as a batch job."""
        rows = spark.read.text(str(self.folder / "in")).repartition(PARTITIONS)
        if work is not None:
            rows = rows.mapInArrow(work, "value string")
        given = {"service.url": self.service_url, "topic": self.topic, "delivery": "grouped", **options}
        rows.write.format("pulsar").mode("append").options(**given).save()

    def check(self) -> None:
        """Every number once, and nobody is kept waiting."""
        found = asyncio.run(read_all(self.service_url, self.topic))
        assert Counter(found) == Counter(b"%d" % number for number in range(ROWS))
        assert not asyncio.run(is_blocked(self.service_url, self.topic))


@pytest.fixture
def query(pulsar: Target, topic: str, tmp_path: Path) -> Query:
    return Query(pulsar.service_url, topic, tmp_path)


def watched(name: str, watch: Callable[..., None]) -> type[PulsarDataSource]:
    """A `format(name)` that tells `watch` of its steps; a local class travels to the workers by value."""

    class Watched(PulsarDataSource):
        on_step = staticmethod(watch)

        @classmethod
        def name(cls) -> str:
            return name

    return Watched


def test_tasks_send_and_one_record_ends_them(query: Query, spark: Any) -> None:
    noted = query.folder / "group"

    def note(step: str, /, **in_flight: Any) -> None:
        if step == "sink.commit.before_end_group":
            noted.write_text(json.dumps(in_flight))

    spark.dataSource.register(watched("pulsar_noting", note))
    ended(lambda: query.start(spark, source="pulsar_noting"))
    group = json.loads(noted.read_text())["group"]
    assert len(group) == len(set(group)) == PARTITIONS
    query.check()


def test_an_input_that_fails_while_its_rows_are_sent_counts_once(query: Query, spark: Any) -> None:
    def boom() -> None:
        raise RuntimeError("this input fails once")

    ended(lambda: query.start(spark, fails_once(query.once, boom)))
    assert Path(query.once).exists()
    query.check()


def test_a_worker_that_dies_after_it_has_sent_counts_once(query: Query, spark: Any) -> None:
    once = query.once

    def die(step: str, /, **_in_flight: Any) -> None:
        if step == "sink.write.end" and not os.path.exists(once):  # noqa: PTH110  # runs in a worker
            with open(once, "x"):  # noqa: PTH123
                os._exit(1)

    spark.dataSource.register(watched("pulsar_dying", die))
    ended(lambda: query.start(spark, source="pulsar_dying"))
    assert Path(query.once).exists()
    query.check()


def test_a_retry_that_computes_other_rows_is_not_mixed_with_what_it_replaces(query: Query, spark: Any) -> None:
    once = query.once

    def renamed(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa  # in a worker

        label = "first" if not os.path.exists(once) else "second"  # noqa: PTH110
        for number, batch in enumerate(batches):
            if number == 1 and label == "first":
                with open(once, "w"):  # noqa: PTH123
                    raise RuntimeError("fails once")
            values = [f"{label} {value}" for value in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(values)], ["value"])

    ended(lambda: query.start(spark, renamed))
    found = asyncio.run(read_all(query.service_url, query.topic))
    assert sorted(int(value.split()[1]) for value in found) == list(range(ROWS))


def test_tasks_slower_than_the_timeout_end_the_query_and_the_replay_publishes(query: Query, spark: Any) -> None:
    sent = query.folder / "sent"

    def note(step: str, /, **_in_flight: Any) -> None:
        if step == "sink.write.end":
            sent.touch()

    def wait() -> None:
        while not sent.exists():  # the other task has a transaction, and waits for this one
            time.sleep(0.05)
        time.sleep(2)

    spark.dataSource.register(watched("pulsar_slow", note))
    slow = fails_once(query.once, wait)
    running = query.start(spark, slow, source="pulsar_slow", transactionTimeoutMs="1000")
    with pytest.raises(Exception, match=r"nothing was published|StoreFailed|transaction"):
        running.awaitTermination()
    assert asyncio.run(read_all(query.service_url, query.topic)) == []
    ended(lambda: query.start(spark, slow))
    query.check()


def test_a_query_that_fails_for_good_leaves_no_reader_waiting(query: Query, spark: Any) -> None:
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 1:  # rows of the batch before have been sent
                raise RuntimeError("this input is bad")
            yield batch

    with pytest.raises(Exception, match="this input is bad"):
        ended(lambda: query.start(spark, fails, batchingMaxMessages="10"))
    ended(lambda: query.start(spark))
    query.check()


# --- batch jobs --------------------------------------------------------------------------------------------------------


def test_a_batch_job_of_which_a_task_fails_sends_every_row_once(query: Query, spark: Any) -> None:
    def boom() -> None:
        raise RuntimeError("this input fails once")

    query.write(spark, fails_once(query.once, boom))
    assert Path(query.once).exists()
    query.check()


def test_a_batch_job_that_fails_for_good_publishes_nothing_and_leaves_no_reader_waiting(query: Query, spark: Any) -> None:
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 1:  # rows of the batch before have been sent
                raise RuntimeError("this input is bad")
            yield batch

    with pytest.raises(Exception, match="this input is bad"):
        query.write(spark, fails, batchingMaxMessages="10")
    assert asyncio.run(read_all(query.service_url, query.topic)) == []
    assert not asyncio.run(is_blocked(query.service_url, query.topic))


def test_two_batch_jobs_at_the_same_time_do_not_end_each_other(query: Query, spark: Any) -> None:
    def write() -> None:
        spark.createDataFrame(
            [], "value string"
        )  # else the thread has no active session, where Spark looks for sources in Python
        query.write(spark)

    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(write) for _ in range(2)]:
            done.result()
    found = asyncio.run(read_all(query.service_url, query.topic))
    assert Counter(found) == Counter({b"%d" % number: 2 for number in range(ROWS)})


def test_a_batch_job_with_a_version_says_that_it_goes_through_the_driver(query: Query, spark: Any) -> None:
    version = {"txnAppId": "nightly", "txnVersion": "1"}
    with pytest.raises(Exception, match="a job with txnAppId and txnVersion goes through the driver; use delivery=staged"):
        query.write(spark, **version)
    query.write(spark, **version, delivery="auto")
    query.check()


# --- a driver that is killed -------------------------------------------------------------------------------------------


def run_until_killed(totals: Totals, point: str, batch: int, log: Path) -> None:
    """A driver of its own that dies at a step."""
    environment = os.environ | {
        "PULSAR_TXN_CRASH_POINT": point,
        "PULSAR_TXN_CRASH_BATCH": str(batch),
        "PULSAR_TXN_CRASH_LOG": str(log),
    }
    program = [sys.executable, str(Path(spark_totals.__file__)), json.dumps(attrs.asdict(totals))]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode != 0, done.stderr[-3000:]
    assert log.exists(), done.stderr[-3000:]


POINTS = [
    "sink.write.end",
    "sink.commit.begin",
    "sink.commit.after_new_txn",
    "sink.commit.after_marker",
    "sink.commit.before_end_group",
    "sink.commit.after_end_txn",
    "sink.commit.end",
]


@pytest.mark.soak  # in CI the demo and test_spark_pipeline kill drivers, and test_sink_grouped stops at each of these steps
@pytest.mark.parametrize(
    ("point", "timeout_ms"),
    [(point, timeout_ms) for point in POINTS for timeout_ms in (60_000, 15_000)],
)
def test_a_driver_killed_at_a_step_publishes_its_batch_once(
    pulsar: Target, topic: str, spark: Any, tmp_path: Path, point: str, timeout_ms: int
) -> None:
    options = {"delivery": "grouped", "transactionTimeoutMs": str(timeout_ms)}
    totals = Totals(pulsar.service_url, topic, str(tmp_path / "checkpoint"), 50, options)
    asyncio.run(fill(pulsar.service_url, topic, 100))
    run_until_killed(totals, point, 1, tmp_path / "crash.log")
    if timeout_ms < 60_000:
        time.sleep(timeout_ms / 1000 + 1)  # away for longer than the timeout: that is what happens here
    ended(lambda: totals.start(spark))
    for target, keys in zip(totals.targets, [3, KEYS - 3], strict=True):
        assert len(asyncio.run(read_all(pulsar.service_url, target))) == 2 * keys
        assert not asyncio.run(is_blocked(pulsar.service_url, target))


async def fill(url: str, topic: str, count: int) -> None:
    async with AsyncClient(url) as client, await client.create_producer(topic, batching_max_messages=10) as producer:
        async with client.subscribe(topic, "keeps", initial_position=InitialPosition.EARLIEST):
            pass  # without a subscription a broker may trim what nobody reads just now
        for number in range(count):
            producer.send_nowait(spark_totals.message(number))
        await producer.flush()
