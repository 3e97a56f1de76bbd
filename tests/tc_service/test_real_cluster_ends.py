"""Commit and abort of all that a transaction can hold, on a cluster of two brokers with TLS, tokens and authorization."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pulsar as official
import pytest
from our_coordinator import OurCoordinator
from real_clusters import RealClusters, new_topic

from pulsar_txn.client import AsyncConsumer, AsyncCoordinator, ConsumerType, Message

pytestmark = [pytest.mark.stock, pytest.mark.timeout(300)]

PARTITIONS: Final = 8
_OFFICIAL: Final = {
    ConsumerType.EXCLUSIVE: official.ConsumerType.Exclusive,
    ConsumerType.FAILOVER: official.ConsumerType.Failover,
    ConsumerType.SHARED: official.ConsumerType.Shared,
    ConsumerType.KEY_SHARED: official.ConsumerType.KeyShared,
}


@pytest.fixture(scope="module")
def beside(real_clusters: RealClusters) -> Iterator[OurCoordinator]:
    with real_clusters.coordinator() as running:
        yield running


async def take(consumer: AsyncConsumer[bytes], count: int) -> list[Message[bytes]]:
    """So many messages."""
    found: list[Message[bytes]] = []
    while len(found) < count:
        found += await consumer.receive_many(count - len(found), max_wait=30)
    return found


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
async def test_partitions_at_both_brokers_show_a_commit_and_hide_an_abort(
    clusters: RealClusters, beside: OurCoordinator, batched: bool
) -> None:
    topics = [new_topic(), new_topic()]
    partitions = {topic: clusters.spread(topic, PARTITIONS) for topic in topics}
    async with clusters.east.client(beside.service_url) as client:
        producers = [await client.create_producer(topic, batching=batched) for topic in topics]
        for outcome in (b"committed", b"aborted", b"committed"):
            async with client.transaction() as txn:
                sends = [each.send(outcome + b" %d" % number, txn=txn) for each in producers for number in range(40)]
                await asyncio.gather(*sends)
                if outcome == b"aborted":
                    txn.rollback()
    for topic in topics:
        names = partitions[topic]
        assert {clusters.east_cluster.owner(each) for each in names} == {"br1", "br2"}
        found = await asyncio.to_thread(clusters.east.read, *names)
        assert sorted(found) == sorted(2 * [b"committed %d" % number for number in range(40)])


@pytest.mark.parametrize("batched", [True, False], ids=["of_a_batch", "alone"])
@pytest.mark.parametrize("kind", _OFFICIAL, ids=lambda kind: kind.name.lower())
async def test_messages_acknowledged_in_a_commit_are_gone_and_those_of_an_abort_come_again(
    clusters: RealClusters, beside: OurCoordinator, kind: ConsumerType, batched: bool
) -> None:
    topic, numbers = new_topic(), [b"%d" % number for number in range(12)]
    async with clusters.east.client(beside.service_url) as client:
        async with await client.subscribe(topic, "s", consumer_type=kind) as consumer:
            await filled(client, topic, numbers, batched=batched)
            await acknowledged(client, consumer, await take(consumer, 12), rollback=True)
        assert await left(clusters, topic, kind) == numbers
        async with await client.subscribe(topic, "s", consumer_type=kind) as consumer:
            messages = [each for each in await take(consumer, 12) if int(each.data) % 2]
            await acknowledged(client, consumer, messages, rollback=False)
        assert await left(clusters, topic, kind) == numbers[::2]


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER], ids=["exclusive", "failover"])
async def test_a_cumulative_acknowledgement_counts_from_the_commit_on(
    clusters: RealClusters, beside: OurCoordinator, kind: ConsumerType
) -> None:
    topic, numbers = new_topic(), [b"%d" % number for number in range(12)]
    async with clusters.east.client(beside.service_url) as client:
        for rollback, rest in ((True, numbers), (False, numbers[7:])):
            async with await client.subscribe(topic, "s", consumer_type=kind) as consumer:
                if rollback:
                    await filled(client, topic, numbers, batched=True)
                messages = await take(consumer, 12)
                async with client.transaction() as txn:
                    await consumer.acknowledge_cumulative(messages[6], txn=txn)
                    if rollback:
                        txn.rollback()
            assert await left(clusters, topic, kind) == rest


async def test_one_transaction_takes_from_one_cluster_and_writes_into_both(
    clusters: RealClusters, beside: OurCoordinator
) -> None:
    source, target = new_topic(), new_topic()
    names = clusters.spread(target, PARTITIONS)
    async with (
        AsyncCoordinator(beside.service_url) as coordinator,
        clusters.east.client(coordinator) as east,
        clusters.west.client(coordinator) as west,
    ):
        consumer = await west.subscribe(source, "s", consumer_type=ConsumerType.SHARED)
        await filled(west, source, [b"%d" % number for number in range(20)], batched=True)
        here, there = await east.create_producer(target), await west.create_producer(target)
        for round_ in range(8):
            async with coordinator.transaction() as txn:
                (message,) = await consumer.receive_many(1, max_wait=30, txn=txn)
                await here.send(message.data, txn=txn)
                await there.send(message.data, txn=txn)
                if round_ % 4 == 1:
                    txn.rollback()
        await consumer.close()
    written = await asyncio.to_thread(clusters.west.read, target)
    assert len(written) == len(set(written)) == 6
    assert sorted(await asyncio.to_thread(clusters.east.read, *names)) == sorted(written)
    rest = await asyncio.to_thread(clusters.west.left, source, "s", official.ConsumerType.Shared)
    assert sorted([*rest, *written], key=int) == [b"%d" % number for number in range(20)]


async def filled(client: Any, topic: str, numbers: Sequence[bytes], *, batched: bool) -> None:
    """All messages in one batch, or each alone."""
    async with await client.create_producer(topic, batching=batched, batching_max_delay=0.2) as producer:
        await asyncio.gather(*(producer.send(each, key="k") for each in numbers))


async def acknowledged(client: Any, consumer: Any, messages: Sequence[Message[bytes]], *, rollback: bool) -> None:
    """One transaction that acknowledges these."""
    async with client.transaction() as txn:
        await consumer.acknowledge(messages, txn=txn)
        if rollback:
            txn.rollback()


async def left(clusters: RealClusters, topic: str, kind: ConsumerType) -> list[bytes]:
    """What is left on the subscription, in its order."""
    return sorted(await asyncio.to_thread(clusters.east.left, topic, "s", _OFFICIAL[kind]), key=int)
