"""Whole queries into the sink: mistakes of users, large results, tasks that are cut short, one query after another."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import admin
import pytest
from spark_local import ended
from targets import Target

from pulsar_txn.client import AsyncClient

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]


class Place:
    """Topics and folders of one test, on our broker."""

    def __init__(self, spark: Any, url: str, topic: str, folder: Path) -> None:
        self.spark, self.url, self.topic, self.folder = spark, url, topic, folder

    def stream(self, topic: str = "", **options: str) -> Any:
        """Messages of a topic, from its first."""
        reader = self.spark.readStream.format("pulsar").option("service.url", self.url).option("startingOffsets", "earliest")
        return reader.options(**{"topic": topic or self.topic, **options}).load()

    def run(self, frame: Any, checkpoint: str = "checkpoint", **options: str) -> None:
        """A query up to what is there; raises its error."""
        writer = frame.writeStream.format("pulsar").trigger(availableNow=True).option("service.url", self.url)
        given = {"checkpointLocation": str(self.folder / checkpoint), **options}
        ended(writer.options(**given).start)

    def fill(self, count: int, topic: str = "") -> None:
        asyncio.run(self._fill(topic or self.topic, count))

    async def _fill(self, topic: str, count: int) -> None:
        async with AsyncClient(self.url) as client, await client.create_producer(topic, batching_max_messages=10) as producer:
            for number in range(count):
                producer.send_nowait(b"%d" % number)
            await producer.flush()

    def read(self, topic: str) -> list[bytes]:
        return asyncio.run(self._read(topic))

    async def _read(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        async with AsyncClient(self.url) as client, await client.create_reader(topic) as reader:
            while await reader.has_message_available():
                found.append((await reader.read_next(10)).data)
        return found


@pytest.fixture
def place(pulsar: Target, topic: str, spark: Any, tmp_path: Path) -> Place:
    return Place(spark, pulsar.service_url, topic, tmp_path)


def test_the_option_topic_wins_over_the_column_that_the_source_fills(place: Place) -> None:
    place.fill(10)
    place.run(place.stream(), topic=place.topic + "-out")
    assert place.read(place.topic + "-out") == [b"%d" % number for number in range(10)]
    assert len(place.read(place.topic)) == 10, "the query does not feed itself"


def test_a_query_that_writes_to_what_it_reads_is_refused_unless_it_is_asked_for(place: Place) -> None:
    place.fill(10)
    with pytest.raises(Exception, match=r"the query reads .* and writes to it.*allowSelfWrite=true"):
        place.run(place.stream())
    assert len(place.read(place.topic)) == 10
    place.run(place.stream(), allowSelfWrite="true")
    assert len(place.read(place.topic)) == 20


def test_a_new_checkpoint_of_an_old_sink_is_refused_and_continues_where_the_error_says(place: Place) -> None:
    out, sink = place.topic + "-out", {"sinkId": place.topic.rpartition("/")[2], "topic": place.topic + "-out"}
    place.fill(15)
    place.run(place.stream(), "first", **sink)
    place.fill(25)
    with pytest.raises(Exception, match=r"published micro-batch 0 last") as refused:
        place.run(place.stream(), "second", **sink)
    assert len(place.read(out)) == 15
    text = str(refused.value)
    start = text[text.index("startingOffsets=") + len("startingOffsets=") : text.index(", where that query had ended")]
    assert json.loads(start)["v"] == 1
    place.run(place.stream(startingOffsets=start), "third", adoptCheckpoint="true", **sink)
    assert [int(row) for row in place.read(out)] == [*range(15), *range(25)], "none lost, none twice"
    place.fill(5)
    place.run(place.stream(startingOffsets=start), "third", **sink)
    assert len(place.read(out)) == 45, "the sink is the new query's"


@pytest.mark.parametrize("carrier", ["inline", "topic"])
def test_an_attempt_whose_input_was_cut_short_publishes_nothing(place: Place, carrier: str) -> None:
    """The upstream fails in the JVM after some rows; `write` sees a normal end then, in each of its attempts but the last."""
    settings = "java.lang.System"
    place.spark.range(1).selectExpr(f"java_method('{settings}', 'setProperty', 'cut.{carrier}', '0')").collect()
    place.fill(400)
    counted = f"int(java_method('{settings}', 'getProperty', 'cut.{carrier}'))"
    cut = (
        f"if(string(value) = '333' and {counted} < 2, "
        f"if(java_method('{settings}', 'setProperty', 'cut.{carrier}', string({counted} + 1)) is not null, "
        "raise_error('the input fails'), null), string(value)) as value"
    )
    out = place.topic + "-out"
    options = {"inlineMaxBytes": "1"} if carrier == "topic" else {}
    rows = place.stream().selectExpr("cast(value as string) as value").repartition(1).selectExpr(cut)
    place.run(rows, topic=out, batchingMaxMessages="20", **options)
    (tries,) = place.spark.range(1).selectExpr(f"{counted} as n").collect()
    assert tries.n == 2, "two attempts were cut short"
    assert Counter(place.read(out)) == Counter(b"%d" % number for number in range(400))


def test_large_results_go_over_the_staging_topic_and_appear_once(place: Place, pulsar: Target) -> None:
    place.fill(300)
    out, staging = place.topic + "-out", place.topic + "-staging"
    wide = place.stream(maxMessagesPerTrigger="100").selectExpr("concat(string(value), repeat('x', 20000)) as value")
    place.run(wide, topic=out, stagingTopic=staging)
    assert [int(row.rstrip(b"x")) for row in place.read(out)] == list(range(300))
    assert len(place.read(staging)) > 0

    stats = asyncio.run(admin.topic_stats(pulsar, staging))
    assert stats["subscriptions"]["__spark_sink"]["msgBacklog"] == 0, "everything that was staged is released"


def test_a_batch_job_of_any_size_is_one_transaction(place: Place) -> None:
    frame = place.spark.range(400).selectExpr("concat(string(id), repeat('x', 20000)) as value")
    frame.write.format("pulsar").option("service.url", place.url).option("topic", place.topic).mode("append").save()
    assert sorted(int(row.rstrip(b"x")) for row in place.read(place.topic)) == list(range(400))


def test_a_chain_of_queries_loses_nothing_while_its_middle_is_trimmed(place: Place) -> None:
    middle, out = place.topic + "-middle", place.topic + "-out"
    kept = {"subscriptionName": "second"}
    first, second = place.stream(maxMessagesPerTrigger="40"), place.stream(middle, **kept)
    place.fill(1, middle)
    place.run(second, "second", topic=out)  # its subscription exists from now on
    for _ in range(2):
        place.fill(100)
        place.run(first, "first", topic=middle)
        place.run(second, "second", topic=out)
    assert Counter(place.read(out)) == Counter([b"0", *[b"%d" % number for number in range(100)] * 2])


def test_rows_that_cannot_be_sent_end_the_query_with_their_place(place: Place) -> None:
    place.fill(5)
    nulls = place.stream().selectExpr("value", "if(string(value) = '3', null, topic || '-out') as topic")
    with pytest.raises(Exception, match=r"micro-batch 0, task 0, row 3, column 'topic': null"):
        place.run(nulls)
