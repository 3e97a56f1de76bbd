"""The source's reader as Spark's driver and tasks call it, on real servers, without a Spark session."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import admin
import attrs
import pytest
from our_broker import OurBroker
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncTransaction, ConnectionLost, InitialPosition
from pulsar_txn.client.encoded import UnreadableEntryError
from pulsar_txn.pipeline.spark import DataLossError, OptionError, PulsarDataSource, UnreadableEntry
from pulsar_txn.pipeline.spark.connecting import Background, background
from pulsar_txn.pipeline.spark.options import read_options
from pulsar_txn.pipeline.spark.source import reader as reader_module
from pulsar_txn.pipeline.spark.source import tasks
from pulsar_txn.pipeline.spark.source.layout import SCHEMA
from pulsar_txn.pipeline.spark.source.limits import Heads
from pulsar_txn.pipeline.spark.source.offsets import NOTHING, Place, from_offset
from pulsar_txn.pipeline.spark.source.ranges import Range, RangeReader
from pulsar_txn.pipeline.spark.source.reader import PulsarStreamReader
from pulsar_txn.pipeline.spark.source.tasks import Work

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
            assert batch.schema == to_arrow_schema(SCHEMA, timezone="UTC")
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

    async def third() -> None:  # reading creates no topics
        async with await world.client.create_producer(world.topic + "-3"):
            pass

    background().run(second())
    background().run(third())
    world.send(2)
    reader = world.stream(topic=f"{world.topic},{world.topic}-2,{world.topic}-3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert start["p"][world.topic + "-3"] == list(NOTHING) == end["p"][world.topic + "-3"]
    assert [each.topic for work in reader.partitions(start, end) for each in work.ranges] == [world.topic, world.topic + "-2"]
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
    beyond = Work([Range(world.topic, NOTHING, (place[0], place[1] + 5))])
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
        list(reader.read(Work([Range(world.topic, NOTHING, (ledger_id, entry_id + 1))])))


def unload(pulsar: Target, topic: str) -> None:
    address = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/unload"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", data=b"")).close()


def trim(pulsar: Target, topic: str) -> None:
    """Have everything deleted that no subscription needs; ours looks by itself once a second."""
    unload(pulsar, topic)
    if not pulsar.is_ours:
        address = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/trim"
        urllib.request.urlopen(urllib.request.Request(address, method="POST", data=b"")).close()
    time.sleep(0.2)


@pytest.fixture
def trimming(pulsar: Target) -> Iterator[Target]:
    """A server that trims soon: ours looks every two minutes by default."""
    if not pulsar.is_ours:
        yield pulsar
        return
    with OurBroker(conf={"retentionCheckIntervalInSeconds": "1"}) as broker:
        yield Target("ours", "", broker.service_url, broker.admin_url)


async def take(world: World, count: int) -> None:
    """Another subscription acknowledges messages, so that only retention keeps them."""
    async with await world.client.subscribe(world.topic, "other", initial_position=InitialPosition.EARLIEST) as consumer:
        for _ in range(count):
            message = await consumer.receive(10)
        await consumer.acknowledge_cumulative(message, receipt=True)


async def first_there(world: World) -> Place:
    async with await world.client.create_reader(world.topic) as reader:
        return (await reader.read_next(10)).message_id.position


async def stream_end(world: World) -> Place:
    async with await world.client.create_reader(world.topic) as reader:
        return (await reader.get_last_message_id()).position


def test_a_trimmed_start_is_data_loss_or_a_warning(trimming: Target, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """80 of 100 messages were acknowledged by another subscription and trimmed before this query could read them."""
    world = World(trimming.service_url, topic)
    world.send(20)
    reader = world.stream()
    read = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    world.send(60)
    background().run(take(world, 80))
    unload(trimming, world.topic)  # a new ledger begins; the old one goes a little later
    world.send(5)
    until = time.monotonic() + 60
    while list(background().run(first_there(world))) <= read["p"][world.topic]:
        assert time.monotonic() < until, "nothing was trimmed"
        background().run(take(world, 1))
        world.send(1)
    expected = world.sent
    world.send(1)
    restarted = world.stream()
    end = restarted.latestOffset(read, ALL)
    with pytest.raises(DataLossError, match="which was read last, is gone"):
        rows(restarted, read, end)
    lenient = world.stream(failOnDataLoss="false")
    found = rows(lenient, read, end)
    assert found[-1] == expected
    assert found[0] > 20
    assert any("may be missing" in record.getMessage() for record in caplog.records)
    world.close()


def test_a_trim_while_a_task_reads_slowly_is_data_loss_or_a_warning(
    trimming: Target, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker went on with the first entry that it still had, and nobody noticed."""

    async def lag(reader: RangeReader) -> Place:
        """Take what is there; the broker sends no more than the queue holds."""
        return (await reader.next())[-1].position

    async def rest(reader: RangeReader) -> list[Place]:
        found: list[Place] = []
        while entries := await reader.next():
            found += [entry.position for entry in entries]
        return found

    world = World(trimming.service_url, topic)
    world.send(400)
    slow = {"receiverQueueBytes": "1000", "service.url": world.url}
    client = background().run(background().client(read_options(slow)))
    strict, lenient = (
        RangeReader(client, read_options({**slow, "failOnDataLoss": flag}), Range(world.topic, NOTHING, (2**62, 0)))
        for flag in ("true", "false")
    )
    reached = max(background().run(lag(each)) for each in (strict, lenient))
    background().run(take(world, world.sent))
    unload(trimming, world.topic)  # a new ledger begins; the old one goes a little later
    world.send(5)
    until = time.monotonic() + 60
    while background().run(first_there(world)) <= reached:
        assert time.monotonic() < until, "nothing was trimmed"
        background().run(take(world, 1))
        world.send(1)
    last = background().run(stream_end(world))
    for each in (strict, lenient):
        each._wanted = attrs.evolve(each._wanted, end=last)
    with pytest.raises(DataLossError, match="lost its first entries while they were read"):
        background().run(rest(strict))
    assert background().run(rest(lenient))[-1] == last
    assert any("lost its first entries" in record.getMessage() for record in caplog.records)
    for each in (strict, lenient):
        background().run(each.close())
    world.close()


def test_transactions_in_a_range_that_is_read_slowly_are_no_loss(world: World) -> None:
    for number in range(40):
        txn = world.begin()
        world.send(2, txn)
        background().run(txn.abort() if number % 3 == 0 else txn.commit())
    reader = world.stream(receiverQueueBytes="500")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    expected = [value for number in range(40) if number % 3 for value in (2 * number, 2 * number + 1)]
    assert rows(reader, start, end) == expected


def test_a_topic_that_was_emptied_meanwhile_is_data_loss_or_a_warning(trimming: Target, topic: str) -> None:
    """All that a query had not read was trimmed, so no first entry can tell. The next run ended as if nothing were new."""
    world = World(trimming.service_url, topic)
    world.send(20)
    running = world.stream()
    read = running.latestOffset(running.initialOffset(), ALL)
    world.send(30)

    async def take_all() -> None:
        async with await world.client.subscribe(world.topic, "other", initial_position=InitialPosition.EARLIEST) as consumer:
            for _ in range(world.sent):
                message = await consumer.receive(10)
            await consumer.acknowledge_cumulative(message, receipt=True)

    background().run(take_all())
    background().run(world.producer.close())
    newest = world.stream(startingOffsets="latest")
    until = time.monotonic() + 60
    while newest.initialOffset()["p"][world.topic] != list(NOTHING):
        assert time.monotonic() < until, "nothing was trimmed"
        trim(trimming, world.topic)
    with pytest.raises(DataLossError, match="is empty"):
        running.latestOffset(read, ALL)
    restarted = world.stream()
    restarted.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match="is empty"):
        restarted.latestOffset(read, ALL)
    lenient = world.stream(failOnDataLoss="false")
    assert rows(lenient, read, lenient.latestOffset(read, ALL)) == []
    world.close()


def test_a_topic_that_was_emptied_after_all_of_it_was_read_is_no_loss(trimming: Target, topic: str) -> None:
    world = World(trimming.service_url, topic)
    world.send(5)
    running = world.stream()
    read = running.latestOffset(running.initialOffset(), ALL)
    assert running.latestOffset(read, ALL) == read  # it has nothing to do, so its reader sits down at the end
    background().run(world.producer.close())
    until = time.monotonic() + 60
    probe = world.stream(startingOffsets="latest")
    while probe.initialOffset()["p"][world.topic] != list(NOTHING):
        assert time.monotonic() < until, "nothing was trimmed"
        trim(trimming, world.topic)
        assert running.latestOffset(read, ALL) == read
    for _ in range(20):
        assert running.latestOffset(read, ALL) == read
    world.close()


def test_a_deleted_topic_under_a_checkpoint_is_an_error_and_stays_deleted(world: World, pulsar: Target) -> None:
    world.send(3)
    reader = world.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    background().run(world.producer.close())
    address = f"{pulsar.admin_url}/admin/v2/{world.topic.replace('://', '/')}"
    urllib.request.urlopen(urllib.request.Request(f"{address}?force=true", method="DELETE")).close()
    for late in (reader, world.stream()):
        with pytest.raises(DataLossError, match=r"was deleted; (all of it was read|it was read up to .* is not known)"):
            for _ in range(20):  # a reader that is attached hears of it a moment later
                late.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match="is gone"):
        rows(world.stream(), start, end)
    assert rows(world.stream(failOnDataLoss="false"), start, end) == []
    listed = urllib.request.urlopen(address.rpartition("/")[0]).read().decode()
    assert world.topic not in listed


@pytest.mark.parametrize("make", ["stream", "batch"])
def test_reading_a_topic_that_does_not_exist_is_an_error_and_creates_nothing(world: World, pulsar: Target, make: str) -> None:
    missing = world.topic + "-missing"
    source = world.source(topic=missing)
    with pytest.raises(OptionError, match="does not exist, and reading creates no topics"):
        if make == "stream":
            source.streamReader(SCHEMA).initialOffset()
        else:
            source.reader(SCHEMA).partitions()
    folder = f"{pulsar.admin_url}/admin/v2/{world.topic.replace('://', '/')}".rpartition("/")[0]
    assert missing not in urllib.request.urlopen(folder).read().decode()


def test_a_topic_that_is_waited_for_is_read_from_its_beginning(world: World) -> None:
    world.send(1)
    late = world.topic + "-late"
    reader = world.stream(topic=f"{world.topic},{late}", waitForTopic="true")
    start = reader.initialOffset()
    assert list(start["p"]) == [world.topic]
    end = reader.latestOffset(start, ALL)

    async def send() -> None:
        async with await world.client.create_producer(late) as producer:
            await producer.send(b"77")

    background().run(send())
    later = end
    while later == end:
        later = reader.latestOffset(end, ALL)
    assert rows(reader, end, later) == [77]


def test_a_new_partition_is_read_from_its_beginning(world: World, pulsar: Target) -> None:
    topic = world.topic + "-parts"
    address = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", data=b"1", headers=headers)).close()
    reader = world.stream(topic=topic)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    urllib.request.urlopen(urllib.request.Request(address, method="POST", data=b"2", headers=headers)).close()

    async def send() -> None:
        async with await world.client.create_producer(topic + "-partition-1") as producer:
            await producer.send(b"5")

    background().run(send())
    end = start
    while not rows(reader, start, end):
        end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == [5]


def test_an_idle_query_asks_the_broker_seldom_and_hears_of_news_at_once(world: World) -> None:
    world.send(2)
    reader = world.stream()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    asked = 0
    ask = Heads.ends

    async def counted(self: Heads, wanted: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(self, wanted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Heads, "ends", counted)
        for _ in range(12):
            assert reader.latestOffset(end, ALL) == end
        assert asked <= 3, "Spark asks a hundred times a second"
        world.send(1)
        before = asked
        while (later := reader.latestOffset(end, ALL)) == end:
            assert asked <= before + 1, "it was told, and needs no second look"
    assert rows(reader, end, later) == [2]


def test_a_limited_micro_batch_asks_for_ends_when_the_known_ones_are_reached(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send(60)
    asked = 0
    ask = Heads.ends

    async def counted(self: Heads, wanted: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(self, wanted)

    monkeypatch.setattr(Heads, "ends", counted)
    monkeypatch.setattr(reader_module, "_ASK_SECONDS", 3600.0)
    reader = world.stream(maxMessagesPerTrigger="10")
    limit = reader.getDefaultReadLimit()
    place, found, micro_batches = reader.initialOffset(), [], 0
    while len(found) < 60:
        end = reader.latestOffset(place, limit)
        found += rows(reader, place, end)
        place = end
        micro_batches += 1
    assert found == list(range(60))
    assert micro_batches >= 4
    assert asked == 1, "the first one has told of all"
    world.send(1)
    while (later := reader.latestOffset(place, limit)) == place:
        pass
    assert rows(reader, place, later) == [60]


def test_a_task_waits_for_its_client_once_for_a_small_range(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is two switches between threads, and Spark waits for the task."""
    world.send(5)
    reader = world.stream()
    start = reader.initialOffset()
    work = reader.partitions(start, reader.latestOffset(start, ALL))
    waited: list[Any] = []
    run = Background.run

    def counted(self: Background, coroutine: Any) -> Any:
        waited.append(coroutine.__qualname__)
        return run(self, coroutine)

    monkeypatch.setattr(Background, "run", counted)
    assert [batch.num_rows for each in work for batch in reader.read(each)] == [5]
    assert waited == ["RangeReader.next"]


def test_bytes_limit_a_micro_batch(world: World) -> None:
    world.send(40)
    reader = world.stream(maxBytesPerTrigger="200")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(200)
    place, found, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(place, limit)) != place:
        found += rows(reader, place, end)
        place = end
        batches += 1
    assert found == list(range(40))
    assert batches > 2
    both = world.stream(maxMessagesPerTrigger="5", maxBytesPerTrigger="1000000")
    assert both.getDefaultReadLimit() == ReadMaxRows(5)
    assert len(rows(both, both.initialOffset(), both.latestOffset(both.initialOffset(), ReadMaxRows(5)))) == 5


def test_a_long_range_is_cut_and_small_ones_share_a_task(world: World) -> None:
    world.send(50)
    txn = world.begin()
    world.send(10, txn)
    background().run(txn.abort())
    world.send(40)
    wanted = [*range(50), *range(60, 100)]
    cut = world.stream(minPartitions="4")
    start = cut.initialOffset()
    end = cut.latestOffset(start, ALL)
    work = cut.partitions(start, end)
    assert 2 <= len(work) <= 5
    assert rows(cut, start, end) == wanted
    together = world.stream(minPartitions="6", maxPartitions="2")
    work = together.partitions(start, end)
    assert len(work) == 2
    assert sum(len(each.ranges) for each in work) > 2
    assert sorted(rows(together, start, end)) == wanted
    batch = world.source(minPartitions="3").reader(SCHEMA)
    assert [len(each.ranges) for each in batch.partitions()] == [1, 1, 1]


def test_a_message_in_chunks_is_read_where_it_ends_also_over_a_limit(world: World) -> None:
    async def send() -> list[bytes]:
        values = [bytes([number]) * 300_000 for number in range(3)]
        async with await world.client.create_producer(
            world.topic, batching=False, chunking=True, chunk_max_bytes=60_000
        ) as producer:
            for value in values:
                await producer.send(value)
        return values

    values = background().run(send())
    reader = world.stream(maxBytesPerTrigger="100000")
    place, found, micro_batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(place, reader.getDefaultReadLimit())) != place:
        for work in reader.partitions(place, end):
            found += [value for batch in reader.read(work) for value in batch.column(1).to_pylist()]
        place = end
        micro_batches += 1
    assert found == values
    assert micro_batches > 3, "so that messages began in an earlier one"


def test_record_batches_are_bounded_by_bytes(world: World) -> None:
    async def send() -> None:
        async with await world.client.create_producer(world.topic, batching=False) as producer:
            await asyncio.gather(*(producer.send(bytes(1024 * 1024)) for _ in range(12)))

    background().run(send())
    reader = world.source().reader(SCHEMA)
    sizes = [batch.num_rows for work in reader.partitions() for batch in reader.read(work)]
    assert sum(sizes) == 12
    assert max(sizes) <= 4


def test_a_topic_of_a_pattern_that_is_deleted_after_it_was_read_ends_no_query(world: World, pulsar: Target) -> None:
    async def send(topic: str, *values: bytes) -> None:
        async with await world.client.create_producer(topic) as producer:
            for value in values:
                await producer.send(value)

    world.send(3)
    short = world.topic.rpartition("/")[2]
    other = world.topic + "-other"
    background().run(send(other, b"3", b"4"))
    options = {"topic": "", "topicsPattern": f"public/default/{short}.*"}
    reader = world.stream(**options)
    start = reader.initialOffset()
    read = reader.latestOffset(start, ALL)
    assert sorted(rows(reader, start, read)) == list(range(5))
    deadline = time.monotonic() + 20
    while not reader._topics.heads.has_waited(other, from_offset(read)[other]) and time.monotonic() < deadline:  # type: ignore[union-attr]
        assert reader.latestOffset(read, ALL) == read
    asyncio.run(admin.delete(pulsar, f"{admin.topic_path(other)}?force=true"))
    end = read
    while other in from_offset(end) and time.monotonic() < deadline + 20:
        end = reader.latestOffset(read, ALL)
    assert list(from_offset(end)) == [world.topic]
    world.sent = 5
    world.send(2)
    later = reader.latestOffset(end, ALL)
    assert rows(reader, end, later) == [5, 6]
    with pytest.raises(DataLossError, match=r"other was deleted; it was read up to .*, and what came after that is not known"):
        world.stream(**options).latestOffset(read, ALL)  # after a restart nobody knows
    reader.stop()


def test_an_entry_that_cannot_be_read_is_data_loss_or_a_warning(world: World) -> None:
    world.send(2)
    reader = world.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    damaged = tasks.open_entry

    def once(data: bytes) -> Any:
        raise UnreadableEntryError("it is encrypted with the key 'k'")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "open_entry", once)
        with pytest.raises(UnreadableEntry, match=r"cannot be read: it is encrypted .*The entry is still in the topic") as told:
            rows(reader, start, end)
        assert "retention" not in str(told.value)
        assert rows(world.stream(failOnDataLoss="false"), start, end) == []
    assert tasks.open_entry is damaged


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_only_partitions_that_moved_are_acknowledged_beside_the_query_and_a_monitor_ends_nothing(
    world: World, pulsar: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic + "-parts"
    asyncio.run(admin.put(pulsar, f"{admin.topic_path(topic)}/partitions", 40))
    asked: list[str] = []
    subscribe = AsyncClient.subscribe

    async def counting(self: Any, topic: Any, name: str, **options: Any) -> Any:
        asked.append(topic)
        return await subscribe(self, topic, name, **options)

    monkeypatch.setattr(AsyncClient, "subscribe", counting)
    reader = world.stream(topic=topic, subscriptionName="spark")
    start = reader.initialOffset()
    assert len(asked) == 40

    async def send(partition: int) -> None:
        async with await world.client.create_producer(f"{topic}-partition-{partition}") as producer:
            await producer.send(b"1")

    for partition in (7, 9):
        background().run(send(partition))
        end = reader.latestOffset(start, ALL)
        asked.clear()
        name = f"{topic}-partition-{partition}"
        monitor = background().run(subscribe(world.client, name, "spark"))
        began = time.monotonic()
        reader.commit(end)
        reader.commit(end)
        assert time.monotonic() - began < 1, "nobody waits for it"
        time.sleep(1)
        assert set(asked) == {name}
        background().run(monitor.close())
        background().run(reader._topics.acknowledged())  # type: ignore[union-attr]
        start = end

    async def backlog() -> bool:
        async with await subscribe(world.client, f"{topic}-partition-9", "spark") as consumer:
            return await consumer.has_message_available()

    assert not background().run(backlog())
    reader.stop()


def test_a_restart_of_the_broker_ends_no_query(topic: str) -> None:
    with OurBroker() as broker:
        world = World(broker.service_url, topic)
        world.send(20)
        reader = world.stream()
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        broker.kill()
        assert reader.latestOffset(end, ALL) == end, "nothing new is known, and the query goes on"
        assert reader.reportLatestOffset() == end | {"unreachable_for_seconds": 0}
        restarting = threading.Thread(target=broker.start)
        restarting.start()
        assert rows(world.stream(), start, end) == list(range(20)), "a task waits for the broker"
        restarting.join()
        world.send(1)
        later = end
        while later == end:
            later = reader.latestOffset(end, ALL)
        assert rows(reader, end, later) == [20]
        assert reader.reportLatestOffset() == later
        broker.kill()
        impatient = world.stream(failAfterMs="300")
        with pytest.raises((ConnectionLost, TimeoutError)) as caught:
            impatient.initialOffset()
        assert "failAfterMs" in str(caught.value.__notes__)
        background().run(world.client.close())


def test_heads_that_cannot_sit_down_at_a_dead_broker_hold_no_micro_batch_up(topic: str) -> None:
    """They try for the client's operation timeout, half a minute; Spark asks for the next offset meanwhile."""
    with OurBroker() as broker:
        world = World(broker.service_url, topic)
        world.send(20)
        reader = world.stream()
        end = reader.latestOffset(reader.initialOffset(), ALL)
        broker.kill()
        heads = reader._open().heads
        moving = heads._moving
        assert moving is not None
        assert not background().run(heads.is_quiet(from_offset(end), 0.2))
        assert not moving.done()
        assert reader.latestOffset(end, ALL) == end
        background().run(world.client.close())


def test_a_query_starts_and_ends_at_a_time(world: World) -> None:
    world.send(10)
    time.sleep(0.02)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.02)
    world.send(10)
    txn = world.begin()
    world.send(5, txn)
    background().run(txn.abort())
    after = time.time_ns() // 1_000_000 + 1000

    def batch(**options: str) -> list[int]:
        reader = world.source(**options).reader(SCHEMA)
        return [int(v) for work in reader.partitions() for each in reader.read(work) for v in each.column(1).to_pylist()]

    assert batch(startingTimestamp=str(middle)) == list(range(10, 20))
    assert batch(endingTimestamp=str(middle)) == list(range(10))
    assert batch(startingTimestamp="0", endingTimestamp=str(after)) == list(range(20))
    assert batch(startingTimestamp=str(after)) == []
    assert batch(startingTimestamp=json.dumps({world.topic: middle}), minPartitions="2") == list(range(10, 20))
    with pytest.raises(OptionError, match="a time is given for other"):
        batch(startingTimestamp='{"other": 5}')
    stream = world.stream(startingTimestamp=str(middle))
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start, "a start by time is made durable first"
    assert rows(stream, start, stream.latestOffset(start, ALL)) == list(range(10, 20))


def test_topics_of_a_pattern_are_read_and_new_ones_from_their_beginning(world: World) -> None:
    name = world.topic.rpartition("/")[2]
    world.send(2)

    async def second(topic: str, value: bytes) -> None:
        async with await world.client.create_producer(topic) as producer:
            await producer.send(value)

    background().run(second(world.topic + "-b", b"7"))
    background().run(second(f"persistent://public/default/x-{name}", b"9"))
    given = {"service.url": world.url, "topicsPattern": f"public/default/{name}.*", "startingOffsets": "earliest"}
    reader = PulsarDataSource(given).streamReader(SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert sorted(rows(reader, start, end)) == [0, 1, 7]
    background().run(second(world.topic + "-c", b"8"))
    later = end
    while later == end:
        later = reader.latestOffset(end, ALL)
    assert rows(reader, end, later) == [8]
    with pytest.raises(OptionError, match="which topic"):
        PulsarDataSource({**given, "topic": "t"}).streamReader(SCHEMA).initialOffset()
