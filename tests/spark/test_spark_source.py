"""The source's reader as Spark's driver and tasks call it, on real servers, without a Spark session."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncTransaction
from pulsar_txn.pipeline.spark import DataLossError, OptionError, PulsarDataSource
from pulsar_txn.pipeline.spark.background import background
from pulsar_txn.pipeline.spark.source.columns import ARROW_SCHEMA, SCHEMA
from pulsar_txn.pipeline.spark.source.offsets import NOTHING
from pulsar_txn.pipeline.spark.source.reader import PulsarStreamReader, TopicRange

ALL = ReadAllAvailable()


class World:
    """A client in its own right, and readers as Spark makes them; everything on one topic."""

    def __init__(self, service_url: str, topic: str) -> None:
        self.url = service_url
        self.topic = topic
        self.client: AsyncClient = background().run(self._client())
        self.producer: AsyncProducer[bytes] = background().run(self.client.create_producer(topic, batching_max_messages=5))
        self.sent = 0

    async def _client(self) -> AsyncClient:
        return AsyncClient(self.url)

    def send(self, count: int, txn: AsyncTransaction | None = None) -> None:
        async def work() -> None:
            for _ in range(count):
                self.producer.send_nowait(str(self.sent).encode(), txn=txn)
                self.sent += 1
            await self.producer.flush()

        background().run(work())

    def begin(self) -> AsyncTransaction:
        return background().run(self.client.begin_transaction())

    def source(self, **options: str) -> PulsarDataSource:
        given = {"service.url": self.url, "topic": self.topic, "startingoffsets": "earliest", **options}
        return PulsarDataSource(given)

    def stream(self, **options: str) -> PulsarStreamReader:
        return self.source(**options).streamReader(SCHEMA)

    def close(self) -> None:
        background().run(self.client.close())


@pytest.fixture
def world(pulsar: Target, topic: str) -> Iterator[World]:
    world = World(pulsar.service_url, topic)
    yield world
    world.close()


def rows(reader: PulsarStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """What the tasks read between two offsets: each on a pickled copy, as with Spark."""
    found: list[int] = []
    for partition in reader.partitions(start, end):
        task = pickle.loads(pickle.dumps(reader))  # our own bytes
        for batch in task.read(partition):
            assert batch.schema == ARROW_SCHEMA
            found += [int(value) for value in batch.column(1).to_pylist()]
    return found


def test_a_stream_reads_what_is_there_and_then_what_comes(world: World) -> None:
    world.send(12)
    reader = world.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == list(range(12))
    assert reader.latestOffset(end, ALL) == end
    world.send(3)
    later = reader.latestOffset(end, ALL)
    assert rows(reader, end, later) == [12, 13, 14]
    assert reader.reportLatestOffset() == later
    reader.stop()


def test_offsets_are_the_same_text_for_the_same_place(world: World) -> None:
    world.send(1)
    first, second = world.stream(), world.stream()
    texts = {json.dumps(reader.latestOffset(reader.initialOffset(), ALL)) for reader in (first, second)}
    assert len(texts) == 1


def test_an_open_transaction_hides_what_is_behind_it_and_an_aborted_one_is_not_read(world: World) -> None:
    world.send(2)
    reader = world.stream()
    start = reader.initialOffset()
    txn = world.begin()
    world.send(2, txn)
    world.send(2)
    before = reader.latestOffset(start, ALL)
    assert rows(reader, start, before) == [0, 1]
    background().run(txn.commit())
    after = reader.latestOffset(before, ALL)
    assert rows(reader, before, after) == [2, 3, 4, 5]
    aborted = world.begin()
    world.send(2, aborted)
    background().run(aborted.abort())
    world.send(1)
    last = reader.latestOffset(after, ALL)
    assert rows(reader, after, last) == [8]
    assert rows(reader, start, last) == [0, 1, 2, 3, 4, 5, 8]


def test_a_range_that_ends_with_an_abort_is_read_to_its_end(world: World) -> None:
    world.send(2)
    txn = world.begin()
    world.send(2, txn)
    background().run(txn.abort())
    reader = world.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == [0, 1]
    assert reader.latestOffset(end, ALL) == end


def test_a_limit_cuts_between_entries_and_everything_comes_in_the_end(world: World) -> None:
    world.send(23)
    reader = world.stream(maxMessagesPerTrigger="7")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    place, found = reader.initialOffset(), []
    sizes = []
    while (end := reader.latestOffset(place, limit)) != place:
        got = rows(reader, place, end)
        sizes.append(len(got))
        found += got
        place = end
    assert found == list(range(23))
    assert max(sizes) < 7 + 5  # an entry has up to five messages, and is not cut
    assert len(sizes) >= 3


def test_a_run_with_available_now_ends_where_it_began_to_look(world: World) -> None:
    world.send(4)
    reader = world.stream()
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    world.send(4)
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == [0, 1, 2, 3]
    assert reader.latestOffset(end, ALL) == end


def test_a_stream_that_starts_at_latest_makes_its_start_durable_first(world: World) -> None:
    world.send(3)
    reader = world.stream(startingoffsets="latest")
    start = reader.initialOffset()
    world.send(2)
    assert reader.latestOffset(start, ALL) == start, "else a restart would start at a later end, and lose these two"
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == [3, 4]
    restarted = world.stream(startingoffsets="latest")
    assert restarted.partitions(restarted.initialOffset(), start) == []
    assert rows(restarted, start, restarted.latestOffset(start, ALL)) == [3, 4]


def test_a_start_given_as_json_is_the_last_entry_left_out(world: World) -> None:
    world.send(5)
    first = world.stream()
    middle = first.latestOffset(first.initialOffset(), ALL)
    world.send(2)
    for text in (json.dumps(middle), json.dumps(middle["p"])):
        reader = world.stream(startingoffsets=text)
        start = reader.initialOffset()
        assert rows(reader, start, reader.latestOffset(start, ALL)) == [5, 6]


def test_a_subscription_keeps_what_is_not_processed_and_moves_with_commit(world: World) -> None:
    world.send(5)
    reader = world.stream(subscriptionName="spark")
    start = reader.initialOffset()
    world.send(2)
    end = reader.latestOffset(start, ALL)
    reader.commit(end)
    reader.commit(start)
    reader.stop()
    world.send(1)

    async def left() -> list[bytes]:
        async with await world.client.subscribe(world.topic, "spark") as consumer:
            return [(await consumer.receive(10)).data]

    assert background().run(left()) == [b"7"]


def test_partitions_are_read_side_by_side_and_an_empty_one_has_no_task(world: World) -> None:
    async def second() -> None:
        async with await world.client.create_producer(world.topic + "-2") as producer:
            await producer.send(b"7")

    background().run(second())
    world.send(2)
    reader = world.stream(topic=f"{world.topic},{world.topic}-2,{world.topic}-3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert start["p"][world.topic + "-3"] == list(NOTHING) == end["p"][world.topic + "-3"]
    assert [partition.topic for partition in reader.partitions(start, end)] == [world.topic, world.topic + "-2"]
    assert rows(reader, start, end) == [0, 1, 7]
    limited = reader.latestOffset(start, ReadMaxRows(2))
    assert sorted(rows(reader, start, limited)) in ([0, 1, 7], [0, 7])


def test_a_batch_read_is_a_snapshot(world: World) -> None:
    world.send(6)
    reader = world.source().reader(SCHEMA)
    partitions = reader.partitions()
    world.send(2)
    assert [value for part in partitions for batch in reader.read(part) for value in batch.column(1).to_pylist()] == [
        str(number).encode() for number in range(6)
    ]


def test_ending_offsets_behind_an_open_transaction_are_refused(world: World) -> None:
    world.send(1)
    txn = world.begin()
    world.send(1, txn)
    reader = world.source(endingoffsets=json.dumps({world.topic: [10**9, 0]})).reader(SCHEMA)
    with pytest.raises(OptionError, match="transaction still open"):
        reader.partitions()
    background().run(txn.abort())


def test_an_end_that_is_gone_is_data_loss_or_a_warning(world: World) -> None:
    world.send(4)
    reader = world.stream()
    start = reader.initialOffset()
    place = reader.latestOffset(start, ALL)["p"][world.topic]
    beyond = TopicRange(world.topic, NOTHING, (place[0], place[1] + 5))
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        list(reader.read(beyond))
    lenient = world.stream(failOnDataLoss="false")
    assert sum(batch.num_rows for batch in lenient.read(beyond)) == 4


@pytest.mark.parametrize("change", [lambda places: {"other": [1, 1], **places}, lambda places: {k: [2**60, 0] for k in places}])
def test_a_vanished_or_new_topic_is_data_loss_or_a_warning(world: World, change: Callable[[Any], Any]) -> None:
    world.send(2)
    reader = world.stream()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    stored = copy.deepcopy(end)
    stored["p"] = change(stored["p"])
    with pytest.raises(DataLossError):
        reader.latestOffset(stored, ALL)
    assert world.stream(failOnDataLoss="false").latestOffset(stored, ALL) == end


def test_all_that_a_message_says_of_itself_is_in_its_row(world: World) -> None:
    background().run(
        world.producer.send(b"v", key="k", properties={"p": "q"}, event_time_ms=1_700_000_000_123, ordering_key=b"o")
    )
    background().run(world.producer.send(None, key="gone"))
    reader = world.source().reader(SCHEMA)
    first, second = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"k", b"v", world.topic, -1)
    assert first["properties"] == [("p", "q")]
    assert first["ordering_key"] == b"o"
    assert first["event_time"].timestamp() == pytest.approx(1_700_000_000.123)
    assert first["publish_time"] is not None
    assert first["producer_name"] == world.producer.producer_name
    assert second["value"] is None
    assert second["sequence_id"] == first["sequence_id"] + 1
    assert second["event_time"] is None


def test_an_empty_topic_is_read_as_nothing(world: World) -> None:
    reader = world.source().reader(SCHEMA)
    (partition,) = reader.partitions()
    world.send(1)
    assert list(reader.read(partition)) == []


def test_a_gap_at_the_end_of_a_range_is_data_loss_even_when_later_messages_are_there(world: World) -> None:
    world.send(2)
    txn = world.begin()
    world.send(1, txn)
    reader = world.stream()
    start = reader.initialOffset()
    (ledger_id, entry_id) = reader.latestOffset(start, ALL)["p"][world.topic]
    background().run(txn.abort())
    world.send(1)
    with pytest.raises(DataLossError):
        list(reader.read(TopicRange(world.topic, NOTHING, (ledger_id, entry_id + 1))))
