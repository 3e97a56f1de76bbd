"""Key_Shared keeps the order of each key across aborts: a client gives a key that a unit holds to no other unit."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

import pytest
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncConsumer, Client, ConsumerType, Message, OperationTimeout

KEYS, EACH = 10, 6

Work: TypeAlias = Callable[[AsyncClient, AsyncConsumer[Any], bool], Awaitable[list[Message[Any]]]]
"""One unit: what it received and committed. Raises Refused when it is told to, and OperationTimeout when nothing came."""


class Refused(Exception):  # noqa: N818 - the program's
    """A unit ends in it, and aborts."""


async def fill(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    await asyncio.gather(*(producer.send(b"%d" % number, key=f"k{key}") for number in range(EACH) for key in range(KEYS)))


async def one_by_one(client: AsyncClient, consumer: AsyncConsumer[Any], refuses: bool) -> list[Message[Any]]:
    async with client.transaction() as txn:
        message = await consumer.receive(timeout=1, txn=txn)
        if refuses:
            raise Refused
    return [message]


async def acknowledged_by_hand(client: AsyncClient, consumer: AsyncConsumer[Any], refuses: bool) -> list[Message[Any]]:
    async with client.transaction() as txn:
        message = await consumer.receive(timeout=1, txn=txn)
        await consumer.acknowledge(message, txn=txn)
        if refuses:
            raise Refused
    return [message]


async def in_batches(_client: AsyncClient, consumer: AsyncConsumer[Any], refuses: bool) -> list[Message[Any]]:
    async with consumer.transactional_batch(max_messages=3, max_wait=0.2) as batch:
        if refuses and batch:
            raise Refused
    return list(batch)


@pytest.mark.parametrize("work", [one_by_one, acknowledged_by_hand, in_batches])
async def test_a_key_keeps_its_order_when_units_abort(pulsar: Target, client: AsyncClient, topic: str, work: Work) -> None:
    """Committed was 1, 2, 0: of 10 keys none kept its order."""
    consumers = [await client.subscribe(topic, "s", consumer_type=ConsumerType.KEY_SHARED) for _ in range(2)]
    await fill(client, topic)
    choose = random.Random(7)
    committed: dict[str | None, list[int]] = defaultdict(list)
    aborts = 0

    async def worker(consumer: AsyncConsumer[Any]) -> None:
        nonlocal aborts
        while sum(map(len, committed.values())) < KEYS * EACH:
            try:
                messages = await work(client, consumer, choose.random() < 0.3)
            except OperationTimeout:
                continue
            except Refused:
                aborts += 1
                continue
            for message in messages:
                committed[message.key].append(int(message.data))

    async with asyncio.timeout(60):
        await asyncio.gather(*(worker(consumer) for consumer in consumers for _ in range(3)))
    assert aborts > 3
    assert {key: numbers for key, numbers in committed.items() if numbers != list(range(EACH))} == {}


async def test_a_hot_key_keeps_its_order_in_a_small_queue(pulsar: Target, client: AsyncClient, topic: str) -> None:
    """What an abort brings back needs a permit, and the queue is full of what waits for it."""
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.KEY_SHARED, receiver_queue_size=2)
    producer = await client.create_producer(topic, batching=False)
    for number in range(20):
        await producer.send(b"%d" % number, key="hot")
    committed: list[int] = []
    tries = 0

    async def worker() -> None:
        nonlocal tries
        while len(committed) < 20:
            tries += 1
            refuses = tries % 3 == 0
            try:
                messages = await one_by_one(client, consumer, refuses)
            except (OperationTimeout, Refused):
                continue
            committed.extend(int(message.data) for message in messages)

    async with asyncio.timeout(40):
        await asyncio.gather(*(worker() for _ in range(3)))
    assert committed == list(range(20))


def test_the_blocking_client_keeps_the_order_of_keys_between_threads(pulsar: Target, topic: str) -> None:
    committed: dict[str | None, list[int]] = defaultdict(list)
    tries = itertools.count(1)
    with Client(pulsar.service_url) as client:
        consumer = client.subscribe(topic, "s", consumer_type=ConsumerType.KEY_SHARED)
        producer = client.create_producer(topic, batching=False)
        for number in range(EACH):
            for key in range(3):
                producer.send(b"%d" % number, key=f"k{key}")

        def work() -> None:
            while sum(map(len, committed.values())) < 3 * EACH:
                with suppress(OperationTimeout, Refused):
                    with client.transaction() as txn:
                        message = consumer.receive(timeout=0.5, txn=txn)
                        if next(tries) % 3 == 0:
                            raise Refused
                    committed[message.key].append(int(message.data))

        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work) for _ in range(3)]:
                done.result(timeout=60)
    assert committed == {f"k{key}": list(range(EACH)) for key in range(3)}
