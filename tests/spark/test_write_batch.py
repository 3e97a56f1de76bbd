"""`write_batch` in foreachBatch: a job of its own stages the rows, and one transaction publishes them once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import admin
import pytest
from spark_local import ended
from targets import Target
from visible import read_all

from pulsar_txn.pipeline.spark import CheckpointOlderThanSink, OptionError, SkipRefused, write_batch
from pulsar_txn.pipeline.spark.connecting import background
from pulsar_txn.pipeline.spark.foreach_batch import _last_of
from pulsar_txn.pipeline.spark.options import Query, read_options
from pulsar_txn.pipeline.spark.sink.control import Marker

ROWS = 200


# --- without Spark ------------------------------------------------------------------------------------------------------


def test_options_that_would_have_no_effect_are_refused() -> None:
    for name, value in (("delivery", "grouped"), ("txnAppId", "nightly"), ("startingOffsets", "latest")):
        with pytest.raises(OptionError, match="no effect on write_batch"):
            read_options({"service.url": "pulsar://h", name: value}, Query.FOREACH_BATCH)


async def _listed(pulsar: Target, topic: str) -> list[str]:
    found = await admin.get_json(pulsar, "/admin/v2/persistent/public/default")
    return [each for each in found if topic.rpartition("/")[2] in each]


def test_looking_for_the_former_name_of_a_sink_creates_no_topic(pulsar: Target, topic: str) -> None:
    options = read_options({"service.url": pulsar.service_url, "topic": topic}, Query.FOREACH_BATCH)
    query_id = topic.rpartition("/")[2]
    local = background()

    async def former() -> Marker | None:
        return await _last_of(await local.client(options), options, f"{query_id}/0", query_id)

    assert local.run(former()) is None
    assert asyncio.run(_listed(pulsar, topic)) == []


# --- with Spark ---------------------------------------------------------------------------------------------------------


def spark_test(*marks_of_stock: pytest.MarkDecorator) -> Callable[[Any], Any]:
    """On our broker and on stock Pulsar."""
    stock = pytest.param("stock-4.2.4", marks=[pytest.mark.stock, *marks_of_stock])
    on_both = pytest.mark.parametrize("pulsar", ["ours", stock], indirect=True)
    return lambda test: on_both(pytest.mark.spark(pytest.mark.timeout(240)(test)))


class Publishing:
    """A query whose foreachBatch publishes numbers to two topics."""

    def __init__(self, service_url: str, topic: str, folder: Path) -> None:
        self.service_url = service_url
        self.targets = (f"{topic}-even", f"{topic}-odd")
        self.folder = folder
        self.seen: list[tuple[int, bool]] = []
        self.options = {"serviceUrl": service_url, "controlTopic": f"{topic}-control"}
        (folder / "in").mkdir()
        self.add(0)

    def add(self, batch: int) -> None:
        lines = "\n".join(str(batch * ROWS + number) for number in range(ROWS))
        (self.folder / "in" / f"{batch}.txt").write_text(lines + "\n")

    def run(self, spark: Any, work: Any = None, **options: Any) -> None:
        """Run it over what is there; raises what it ends with."""
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder / "in"))
        if work is not None:
            rows = rows.mapInArrow(work, "value string")
        topics = f"if(cast(value as int) % 2 = 0, '{self.targets[0]}', '{self.targets[1]}') topic"

        def publish(df: Any, batch_id: int) -> None:
            self.seen.append((batch_id, write_batch(df.selectExpr("value", topics), batch_id, **{**self.options, **options})))

        writer = rows.writeStream.foreachBatch(publish).trigger(availableNow=True)
        ended(writer.option("checkpointLocation", str(self.folder / "checkpoint")).start)

    def check(self, batches: int) -> None:
        """Every number once, in its topic."""
        for parity, topic in enumerate(self.targets):
            found = Counter(int(value) for value in asyncio.run(read_all(self.service_url, topic)))
            assert found == Counter(number for number in range(batches * ROWS) if number % 2 == parity)


@pytest.fixture
def publishing(pulsar: Target, topic: str, tmp_path: Path) -> Publishing:
    return Publishing(pulsar.service_url, topic, tmp_path)


@spark_test()
def test_micro_batches_are_published_once_also_when_they_come_again(publishing: Publishing, spark: Any) -> None:
    publishing.add(1)
    publishing.run(spark)
    assert publishing.seen == [(0, True), (1, True)]
    for commit in sorted((publishing.folder / "checkpoint" / "commits").glob("*1*")):
        commit.unlink()  # as if the driver had died before Spark noted it
    publishing.run(spark, inlineMaxBytes=1)
    assert publishing.seen[2:] == [(1, False)]
    publishing.add(2)
    publishing.run(spark, inlineMaxBytes=1)  # over the staging topic, where the replay has left its rows
    assert publishing.seen[3:] == [(2, True)]
    publishing.check(3)


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_frames_for_several_topics_are_all_written_and_a_second_one_with_a_name_is_an_error(
    publishing: Publishing, spark: Any
) -> None:
    """The first frame has the name that earlier versions gave to every sink of a query; the query goes on after an upgrade."""
    answers: list[list[bool]] = []
    names: dict[str, str] = {"sinkName": "0"}

    def publish(df: Any, batch_id: int) -> None:
        given: dict[str, Any] = {"serviceUrl": publishing.service_url, "partitions": 1}
        even, odd = publishing.targets
        answers.append([write_batch(df.where("value % 2 = 0"), batch_id, topic=even, **given, **names)])
        answers[-1].append(write_batch(df.where("value % 2 = 1"), batch_id, topic=odd, **given))
        with pytest.raises(OptionError, match=r"was called before for micro-batch .* another sinkName"):
            write_batch(df, batch_id, topic=f"persistent://public/default/{odd.rpartition('/')[2]}", **given)

    def run() -> None:
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(publishing.folder / "in"))
        writer = rows.writeStream.foreachBatch(publish).trigger(availableNow=True)
        ended(writer.option("checkpointLocation", str(publishing.folder / "checkpoint")).start)

    run()
    assert answers == [[True, True]]
    names.clear()
    for commit in (publishing.folder / "checkpoint" / "commits").glob("*0*"):
        commit.unlink()  # as if the driver had died before Spark noted it
    publishing.add(1)
    run()
    assert answers[1:] == [[False, False], [True, True]]
    publishing.check(2)


@spark_test(pytest.mark.soak)
def test_what_a_job_has_staged_that_fails_is_never_published(publishing: Publishing, spark: Any) -> None:
    """Spark tries a task again on a cluster, and ends the query here; then the next run begins the micro-batch again."""

    def fails(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 2:
                raise RuntimeError("this input is bad")
            yield batch

    with pytest.raises(Exception, match="this input is bad"):
        publishing.run(spark, fails, inlineMaxBytes=1, batchingMaxMessages=10)
    assert [asyncio.run(read_all(publishing.service_url, topic)) for topic in publishing.targets] == [[], []]
    publishing.run(spark, inlineMaxBytes=1)
    publishing.check(1)


@pytest.mark.spark
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_outside_of_a_query_it_needs_a_sink_id_and_refuses_older_batches(pulsar: Target, topic: str, spark: Any) -> None:
    frame = spark.range(10).selectExpr("cast(id as string) value")
    options = {"serviceUrl": pulsar.service_url, "topic": topic}
    with pytest.raises(OptionError, match="give sinkId="):
        write_batch(frame, 0, **options)
    name = topic.rpartition("/")[2]
    assert [write_batch(frame, batch, sinkId=name, partitions=2, **options) for batch in (0, 0, 1)] == [True, False, True]
    with pytest.raises(CheckpointOlderThanSink):
        write_batch(frame, 0, sinkId=name, **options)
    with pytest.raises(SkipRefused, match=f"published micro-batch 1, and that went to .*{name}, while .*{name}-other"):
        write_batch(frame, 1, sinkId=name, **options | {"topic": f"{topic}-other"})
    with pytest.raises(OptionError, match="no column 'id'"):
        write_batch(spark.range(1), 2, sinkId=name, **options)
    assert len(asyncio.run(read_all(pulsar.service_url, topic))) == 20
