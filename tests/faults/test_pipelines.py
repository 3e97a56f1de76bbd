"""A pipeline under which connections break: whatever happens, each input is in the output once, and the pipeline goes on."""

from __future__ import annotations

import asyncio
import random
import urllib.request
from collections.abc import Callable

import pytest
from frame_proxy import Fault, FrameProxy, Trap, brisk_client
from our_broker import OurBroker
from targets import Target
from transactions import stays_silent, visible

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    BatchingType,
    ConsumerType,
    InitialPosition,
    TransactionState,
)
from pulsar_txn.client.events import PipelineEvent
from pulsar_txn.client.pipelines import AsyncTransactionalBatch

RATE = 0.03
"""How many of the client's frames meet a fault."""
MAX_MESSAGES = 7
RANDOM_SEED = random.SystemRandom().randrange(2**32)
"""Another one in each run."""


class Copier:
    """Copies numbers until all are through."""

    def __init__(self, client: AsyncClient, topic: str, count: int) -> None:
        self.client = client
        self.topic = topic
        self.left = count
        self.stop = asyncio.Event()
        self.calls = 0
        self.target: AsyncProducer[bytes]

    async def handle(self, batch: AsyncTransactionalBatch[bytes]) -> None:
        self.calls += 1
        for message in batch:
            self.target.send_nowait(message.data, txn=batch.txn)

    def observe(self, event: PipelineEvent) -> None:
        self.left -= len(event.messages) * (event.kind != "aborted")
        if self.left <= 0:
            self.stop.set()

    async def run(self, kind: ConsumerType, lanes: int) -> None:
        await self.copy(await self.open(kind), lanes)

    async def open(self, kind: ConsumerType) -> AsyncConsumer[bytes]:
        self.target = await self.client.create_producer(f"{self.topic}-out")
        return await self.client.subscribe(self.topic, "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)

    async def copy(self, consumer: AsyncConsumer[bytes], lanes: int) -> None:
        async with asyncio.timeout(60):
            await self.client.pipeline(
                consumer,
                self.handle,
                stop=self.stop,
                observer=self.observe,
                concurrency=lanes,
                max_messages=MAX_MESSAGES,
                max_wait=0.1,
                timeout=20,
                max_aborts=1000,
            )
        await consumer.close()


async def produce(client: AsyncClient, topic: str, count: int) -> None:
    """Numbers with keys: a part in batches, the rest alone."""
    source = await client.create_producer(topic, batching_type=BatchingType.KEY_BASED)
    await client.create_producer(f"{topic}-out")
    half = count // 2
    await asyncio.gather(*(source.send(b"%d" % number, key=f"k{number % 5}") for number in range(half)))
    for number in range(half, count):
        await source.send(b"%d" % number, key=f"k{number % 5}")


async def check(client: AsyncClient, topic: str, kind: ConsumerType, count: int) -> None:
    """Each number once in the output, in the order of its key where the subscription keeps that; nothing left to do."""
    found = [int(data) for data in await visible(client, f"{topic}-out")]
    assert sorted(found) == list(range(count))
    if kind is not ConsumerType.SHARED:
        for key in range(5):
            assert [number for number in found if number % 5 == key] == list(range(key, count, 5))
    successor = await client.subscribe(topic, "s", consumer_type=kind)
    assert await stays_silent(successor)


class Unlucky(Copier):
    """All connections break while the handler is at work: the same messages come again without its knowledge."""

    def __init__(self, client: AsyncClient, topic: str, count: int, proxy: FrameProxy) -> None:
        super().__init__(client, topic, count)
        self.proxy = proxy

    async def handle(self, batch: AsyncTransactionalBatch[bytes]) -> None:
        await super().handle(batch)
        if self.calls % 4 == 1 and self.calls < 20:
            # Stock forgets ended transactions: a commit of another lane that is cut could stay unknown.
            while any(txn.state is TransactionState.COMMITTING for txn in self.client.transactions()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
            self.proxy.reset_all()
            await asyncio.sleep(0.15)


@pytest.mark.parametrize(
    ("kind", "lanes"),
    [
        (ConsumerType.FAILOVER, 1),
        (ConsumerType.SHARED, 3),
        (ConsumerType.KEY_SHARED, 3),
    ],
    ids=lambda value: str(getattr(value, "name", value)).lower(),
)
async def test_connections_that_break_under_a_pipeline_lose_and_double_nothing(
    deduplicating: Target, topic: str, kind: ConsumerType, lanes: int
) -> None:
    async with AsyncClient(deduplicating.service_url) as calm, FrameProxy(deduplicating.service_url) as proxy:
        await produce(calm, topic, 60)
        async with AsyncClient(proxy.service_url, initial_backoff=0.02, max_backoff=0.5) as client:
            await Unlucky(client, topic, 60, proxy).run(kind, lanes)
        await check(calm, topic, kind, 60)


class Cut(Copier):
    """The acknowledgement of the first transaction whose messages are entries of their own fails, and so does its abort."""

    def __init__(self, client: AsyncClient, topic: str, count: int, proxy: FrameProxy, end: Fault) -> None:
        super().__init__(client, topic, count)
        self.proxy = proxy
        self.end = end
        self.traps: list[Trap] = []

    async def handle(self, batch: AsyncTransactionalBatch[bytes]) -> None:
        await super().handle(batch)
        if not self.traps and int(batch[0].data) >= 50:
            self.traps = [self.proxy.arm("ack", Fault.LOST_ANSWER), self.proxy.arm("endTxn", self.end)]


@pytest.mark.parametrize("end", [Fault.LOST_ANSWER, Fault.HALF_OPEN], ids=lambda fault: fault.value)
async def test_what_follows_an_aborted_group_of_a_key_shared_lane_does_not_overtake_it(
    deduplicating: Target, topic: str, end: Fault
) -> None:
    """The group's messages come again once its transaction has ended, which may take a while, and in an order of their own."""
    async with AsyncClient(deduplicating.service_url) as calm, FrameProxy(deduplicating.service_url) as proxy:
        await produce(calm, topic, 100)
        async with brisk_client(proxy.service_url, 1.0) as client:
            copier = Cut(client, topic, 100, proxy, end)
            await copier.run(ConsumerType.KEY_SHARED, 1)  # with more, a commit of another could stay unknown on stock
            assert all(trap.sprung for trap in copier.traps)
        await check(calm, topic, ConsumerType.KEY_SHARED, 100)


class Disturbed(Copier):
    """Something happens to the server while the handler is at work, in some of its calls."""

    def __init__(self, client: AsyncClient, topic: str, count: int, disturb: Callable[[], object], calls: set[int]) -> None:
        super().__init__(client, topic, count)
        self.disturb = disturb
        self.disturbed_calls = calls

    async def handle(self, batch: AsyncTransactionalBatch[bytes]) -> None:
        await super().handle(batch)
        if self.calls in self.disturbed_calls:
            await asyncio.to_thread(self.disturb)


async def test_topics_that_move_under_a_pipeline_lose_and_double_nothing(deduplicating: Target, topic: str) -> None:
    def unload() -> None:
        for name in (topic, f"{topic}-out"):
            path = name.replace("://", "/")
            request = urllib.request.Request(f"{deduplicating.admin_url}/admin/v2/{path}/unload", method="PUT")
            urllib.request.urlopen(request, timeout=30).close()

    async with AsyncClient(deduplicating.service_url) as client:
        await produce(client, topic, 60)
        await Disturbed(client, topic, 60, unload, {2, 4, 6}).run(ConsumerType.FAILOVER, 1)
        await check(client, topic, ConsumerType.FAILOVER, 60)


@pytest.mark.seed_rows("B06")
async def test_a_broker_that_is_killed_under_a_pipeline_loses_and_doubles_nothing() -> None:
    topic = "persistent://public/default/killed"
    with OurBroker(conf={"brokerDeduplicationEnabled": "true"}) as broker:
        async with AsyncClient(broker.service_url, initial_backoff=0.02, max_backoff=0.5) as client:
            await produce(client, topic, 60)
            await Disturbed(client, topic, 60, lambda: broker.restart(hard=True), {3}).run(ConsumerType.FAILOVER, 1)
            await check(client, topic, ConsumerType.FAILOVER, 60)


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "lanes"),
    [(ConsumerType.EXCLUSIVE, 1), (ConsumerType.KEY_SHARED, 3)],
    ids=lambda value: str(getattr(value, "name", value)).lower(),
)
@pytest.mark.parametrize("seed", [1, RANDOM_SEED], ids=["one", "another"])
async def test_random_faults_lose_and_double_nothing(
    deduplicating: Target, topic: str, kind: ConsumerType, lanes: int, seed: int
) -> None:
    """On our broker, which can tell every outcome; on stock a lost answer to a commit may stay unknown."""
    rng = random.Random(seed)
    try:
        async with AsyncClient(deduplicating.service_url) as calm, FrameProxy(deduplicating.service_url) as proxy:
            await produce(calm, topic, 100)
            async with brisk_client(proxy.service_url, 1.0) as client:
                copier = Copier(client, topic, 100)
                consumer = await copier.open(kind)  # a second is too short for them to be sure to get through
                proxy.judge = lambda _command: rng.choice(list(Fault)) if rng.random() < RATE else None
                await copier.copy(consumer, lanes)
                proxy.judge = None
            await check(calm, topic, kind, 100)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
