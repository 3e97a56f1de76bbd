"""The sink's protocol on real servers, without Spark: a run that is stopped at any request, and the run after it."""

from __future__ import annotations

import asyncio
import itertools
import urllib.request
from collections.abc import AsyncIterator

import admin
import pyarrow as pa
import pytest
from our_broker import OurBroker
from stopping_store import Stopped, StoppingStore
from targets import Target

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.encoded import encode_batch, row
from pulsar_txn.client.errors import OperationTimeout
from pulsar_txn.client.options import HashingScheme
from pulsar_txn.client.send.routing import key_partition
from pulsar_txn.pipeline.spark.errors import OptionError, RowsMissing, SinkFenced
from pulsar_txn.pipeline.spark.options import Options, read_options
from pulsar_txn.pipeline.spark.sink.committer import PublishResult, SinkCommitter, Work
from pulsar_txn.pipeline.spark.sink.control import EndTxn, Marker, Publish, WriteRecord, decode_record
from pulsar_txn.pipeline.spark.sink.staged import SUBSCRIPTION as STAGING_SUBSCRIPTION
from pulsar_txn.pipeline.spark.sink.staged import Carrier, Parked, Payload, Stager, TaskStaging, rows_by_topic
from pulsar_txn.pipeline.spark.sink.store import SUBSCRIPTION, PulsarSinkStore


class Sink:
    """A sink with two target topics; `run` is one run of a query."""

    def __init__(self, service_url: str, topic: str) -> None:
        self.options: Options = read_options({"service.url": service_url, "transactionTimeoutMs": "60000"})
        self.targets = (f"{topic}-a", f"{topic}-b")
        self.control = f"{topic}-control"
        self.staging = f"{topic}-staging"
        self.parks = False
        self.clients: list[AsyncClient] = []

    def client(self) -> AsyncClient:
        client = AsyncClient(self.options.service_url)
        self.clients.append(client)
        return client

    def store(self, client: AsyncClient, stop_at: int = -1) -> StoppingStore:
        store = StoppingStore(client, self.control, self.staging, self.options)
        store.stop_at = stop_at
        return store

    def payloads(self, batch: int) -> list[Payload]:
        rows = [row(f"{batch}/{number}".encode(), properties={"__batch_id": str(batch)}) for number in range(3)]
        return [Payload(target, -1, encode_batch(rows)) for target in self.targets]

    async def commit(self, store: PulsarSinkStore, committer: SinkCommitter, batch: int) -> PublishResult:
        payloads, parked = self.payloads(batch), []
        if self.parks:
            parked, payloads = await asyncio.to_thread(self.park, payloads), []
        work = Work(batch, rows_by_topic(payloads, parked), [each.place for each in parked])
        outcome: PublishResult = await store.carry_out(committer.commit(work), batch, payloads, parked)
        return outcome

    def park(self, payloads: list[Payload]) -> list[Parked]:
        """As a task does it, between the entries of attempts that Spark drops."""
        dropped, delivered = (Carrier(0, lambda: TaskStaging(self.options, self.staging)) for _ in range(2))
        for payload in payloads:
            dropped.put(payload)
            delivered.put(payload)
        dropped.parked()
        return delivered.parked()

    async def read(self, client: AsyncClient, topic: str) -> list[bytes]:
        found: list[bytes] = []
        async with await client.create_reader(topic) as reader:
            while await reader.has_message_available():
                found.append((await reader.read_next(10)).data)
        return found

    async def check(self, batches: int) -> None:
        client = self.client()
        expected = [f"{batch}/{number}".encode() for batch in range(batches) for number in range(3)]
        for target in self.targets:
            assert await self.read(client, target) == expected
        records = [decode_record(data) for data in await self.read(client, self.control)]
        assert [record.batch_id for record in records if isinstance(record, Marker)] == list(range(batches))


@pytest.fixture
async def sink(pulsar: Target, topic: str) -> AsyncIterator[Sink]:
    sink = Sink(pulsar.service_url, topic)
    yield sink
    for client in sink.clients:
        await client.close()


async def test_batches_are_published_one_after_the_other(sink: Sink) -> None:
    store, committer = sink.store(sink.client()), SinkCommitter("s")
    assert [await sink.commit(store, committer, batch) for batch in range(3)] == [PublishResult.PUBLISHED] * 3
    assert await sink.commit(sink.store(sink.client()), SinkCommitter("s"), 2) is PublishResult.SKIPPED
    await sink.check(3)


@pytest.mark.parametrize("carrier", ["inline", "topic"])
async def test_a_run_that_ends_at_any_request_is_completed_once_by_the_next(sink: Sink, carrier: str) -> None:
    done = 0
    sink.parks = carrier == "topic"
    for stop_at in itertools.count():
        first = sink.client()
        try:
            await sink.commit(sink.store(first, stop_at), SinkCommitter("s"), done)
        except Stopped:
            await first.close()  # its connections break, as with a process that ends
            second = sink.client()
            assert await sink.commit(sink.store(second), SinkCommitter("s"), done) in PublishResult
            await second.close()
        else:
            break
        done += 1
    assert done >= 16
    await sink.check(done + 1)


@pytest.mark.parametrize("where", [Publish, WriteRecord, EndTxn])
async def test_a_run_that_was_paused_while_another_took_over_changes_nothing(sink: Sink, where: type) -> None:
    zombie = sink.store(sink.client())
    zombie.woken, zombie.sleeps = asyncio.Event(), asyncio.Event()
    order = [None, None, None, None, WriteRecord, Publish, WriteRecord, EndTxn]  # Fence, barrier, read, NewTxn, intent, …
    number = order.index(where) if where is not WriteRecord else len(order) - 2
    zombie.stop_at = 2 * number
    paused = asyncio.create_task(sink.commit(zombie, SinkCommitter("s"), 0))
    await asyncio.wait_for(zombie.sleeps.wait(), 30)
    assert await sink.commit(sink.store(sink.client()), SinkCommitter("s"), 0) is PublishResult.PUBLISHED
    zombie.woken.set()
    with pytest.raises(SinkFenced, match="newer run"):
        await asyncio.wait_for(paused, 60)
    await sink.check(1)


async def test_what_stands_before_the_last_marker_is_acknowledged_now_and_then(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_txn.pipeline.spark.sink.store._COMMITS_PER_TRIM", 2)
    store, committer = sink.store(sink.client()), SinkCommitter("s")
    for batch in range(3):
        await sink.commit(store, committer, batch)
    client = sink.client()
    async with await client.subscribe(sink.control, SUBSCRIPTION) as consumer:
        records = [decode_record((await consumer.receive(10)).data)]
    assert [(type(record), getattr(record, "batch_id", None)) for record in records] == [(Marker, 2)]
    assert await sink.commit(sink.store(sink.client()), SinkCommitter("s"), 2) is PublishResult.SKIPPED


async def test_a_broker_that_is_away_during_a_commit_only_delays_it(topic: str) -> None:
    with OurBroker() as broker:
        sink = Sink(broker.service_url, topic)
        store, committer = sink.store(sink.client()), SinkCommitter("s")
        assert await sink.commit(store, committer, 0) is PublishResult.PUBLISHED
        broker.kill()
        commit = asyncio.create_task(sink.commit(store, committer, 1))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(broker.start)
        assert await asyncio.wait_for(commit, 60) is PublishResult.PUBLISHED
        assert await sink.commit(store, committer, 2) is PublishResult.PUBLISHED
        await sink.check(3)
        for client in sink.clients:
            await client.close()


@pytest.mark.stock
@pytest.mark.parametrize("pulsar", ["stock-4.2.4"], indirect=True)
async def test_rows_go_to_the_partitions_of_their_keys(sink: Sink, pulsar: Target) -> None:
    name = sink.targets[0].removeprefix("persistent://")
    url = f"{pulsar.admin_url}/admin/v2/persistent/{name}/partitions"
    request = urllib.request.Request(url, b"4", {"Content-Type": "application/json"}, method="PUT")
    await asyncio.to_thread(urllib.request.urlopen, request)
    keys = [str(number) for number in range(40)]
    table = pa.RecordBatch.from_pydict({"value": keys, "key": keys, "topic": [sink.targets[0]] * 40})
    stager = Stager(sink.options, lambda topic: 4, properties={}, spread=0)
    payloads = [*stager.add(table), *stager.finish()]
    store, committer = sink.store(sink.client()), SinkCommitter("s")
    await store.carry_out(committer.commit(Work(0, rows_by_topic(payloads))), 0, payloads)
    client = sink.client()
    found = {index: await sink.read(client, f"{sink.targets[0]}-partition-{index}") for index in range(4)}
    wanted = {
        index: [key.encode() for key in keys if key_partition(HashingScheme.JAVA_STRING, key, 4) == index] for index in range(4)
    }
    assert found == wanted


async def test_a_control_topic_that_nobody_can_own_is_refused(sink: Sink) -> None:
    sink.control = sink.control.removeprefix("persistent://public/default/")
    with pytest.raises(OptionError, match="full name of a topic without partitions"):
        await sink.commit(sink.store(sink.client()), SinkCommitter("s"), 0)


async def test_what_is_staged_stays_until_its_batch_is_published_and_no_longer(sink: Sink) -> None:
    sink.parks = True
    store, committer = sink.store(sink.client()), SinkCommitter("s")
    for batch in range(3):
        assert await sink.commit(store, committer, batch) is PublishResult.PUBLISHED
    await sink.check(3)
    await store.close()
    await asyncio.to_thread(sink.park, sink.payloads(3))
    client = sink.client()
    async with await client.subscribe(sink.staging, STAGING_SUBSCRIPTION) as consumer:
        left = [await consumer.receive(10) for _ in range(4)]
        with pytest.raises(OperationTimeout):
            await consumer.receive(0.3)
    assert len(left) == 4, "of the batches that are published nothing is left, of the next one everything"


async def test_staged_entries_that_are_gone_fail_the_batch_and_publish_nothing(sink: Sink) -> None:
    store = sink.store(sink.client())
    parked = await asyncio.to_thread(sink.park, sink.payloads(0))
    gone = parked[-1]._replace(place=(parked[-1].place[0], parked[-1].place[1] + 100))
    work = Work(0, rows_by_topic((), parked), [parked[0].place, gone.place])
    with pytest.raises(RowsMissing, match="1 of 2 staged entries are gone"):
        await store.carry_out(SinkCommitter("s").commit(work), 0, [], [parked[0], gone])
    client = sink.client()
    assert [await sink.read(client, target) for target in sink.targets] == [[], []]


async def test_rows_go_to_partitions_that_a_topic_got_since_the_last_batch(sink: Sink, pulsar: Target) -> None:
    path = f"{admin.topic_path(sink.targets[0])}/partitions"
    await admin.put(pulsar, path, 2)
    store, committer = sink.store(sink.client()), SinkCommitter("s")
    for batch, partition in enumerate([1, 3]):
        if partition == 3:
            await admin.post(pulsar, path, 4)
        payloads = [Payload(sink.targets[0], partition, encode_batch([b"row"]))]
        await store.carry_out(committer.commit(Work(batch, rows_by_topic(payloads))), batch, payloads)
        assert await sink.read(sink.client(), f"{sink.targets[0]}-partition-{partition}") == [b"row"]


async def test_the_subscription_that_keeps_staged_entries_is_there_before_the_first(sink: Sink, pulsar: Target) -> None:
    parked = await asyncio.to_thread(sink.park, sink.payloads(0))
    stats = await admin.topic_stats(pulsar, sink.staging)
    assert stats["subscriptions"][STAGING_SUBSCRIPTION]["msgBacklog"] == 2 * len(parked), "two attempts, each with all rows"


async def test_a_staging_topic_with_partitions_is_refused(sink: Sink, pulsar: Target) -> None:
    await admin.put(pulsar, f"{admin.topic_path(sink.staging)}/partitions", 2)
    with pytest.raises(OptionError, match="full name of a topic without partitions"):
        await asyncio.to_thread(sink.park, sink.payloads(0))
