"""Exclusive and Failover consumers that ask for everything again at any moment, on every server."""

from __future__ import annotations

import asyncio
import random

import pytest
from admin import eventually, get_json, put, topic_path
from targets import Target

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition


@pytest.mark.parametrize("seed", range(3))
async def test_after_requests_at_any_moment_each_message_comes_once_and_in_order(pulsar: Target, topic: str, seed: int) -> None:
    async with AsyncClient(pulsar.service_url) as client:
        await storm(client, topic, random.Random(seed), count=600)


@pytest.mark.parametrize("seed", [2, 3])
async def test_a_compacted_topic_brings_each_message_once_and_in_order_too(pulsar: Target, topic: str, seed: int) -> None:
    """A third of the keys comes twice. The older one of each goes, so the messages that are left begin with a hole."""
    path = f"{topic_path(topic)}/compaction"
    async with AsyncClient(pulsar.service_url) as client:
        producer = await client.create_producer(topic, batching=False)
        await asyncio.gather(*(producer.send(b"old", key=str(number)) for number in range(0, 600, 3)))
        await asyncio.gather(*(producer.send(b"%d" % number, key=str(number)) for number in range(600)))
        await put(pulsar, path)
        status = await eventually(lambda: get_json(pulsar, path), lambda found: found["status"] != "RUNNING")
        assert status["status"] == "SUCCESS"
        await demand(client, topic, random.Random(seed), count=600, read_compacted=True)


async def fill(client: AsyncClient, topic: str, rng: random.Random, count: int) -> None:
    """Messages from 0 on; with luck also markers and aborted messages between them, which leave holes."""
    producer = await client.create_producer(topic, batching=False)
    if rng.random() < 0.5:
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))
        return
    for first in range(0, count, 20):
        txn = await client.begin_transaction()
        await asyncio.gather(*(producer.send(b"%d" % number, txn=txn) for number in range(first, first + 20)))
        await txn.commit()
        aborted = await client.begin_transaction()
        await asyncio.gather(*(producer.send(b"-1", txn=aborted) for _ in range(rng.randint(1, 3))))
        await aborted.abort()


async def storm(client: AsyncClient, topic: str, rng: random.Random, *, count: int) -> None:
    await fill(client, topic, rng, count)
    await demand(client, topic, rng, count=count)


async def demand(client: AsyncClient, topic: str, rng: random.Random, *, count: int, read_compacted: bool = False) -> None:
    """Ask for everything again at some moments; afterwards each message comes once, in order."""
    kind = rng.choice([ConsumerType.FAILOVER, ConsumerType.EXCLUSIVE])
    consumer = await client.subscribe(
        topic,
        "s",
        consumer_type=kind,
        initial_position=InitialPosition.EARLIEST,
        receiver_queue_size=rng.choice([50, 1000]),
        read_compacted=read_compacted,
    )
    for _ in range(3):
        await consumer.receive_many(rng.randint(1, 300), max_wait=2)
        for _ in range(rng.randint(1, 3)):
            consumer.redeliver_unacknowledged()
            await asyncio.sleep(rng.choice([0, 0.001, 0.005]))
    found = [int((await consumer.receive(20)).data) for _ in range(count)]
    assert found == [*range(count)]
    assert await consumer.receive_many(1, max_wait=0.2) == []
