"""`receiver_queue_bytes`: large messages wait with the broker, and small ones come as many as before."""

from __future__ import annotations

import asyncio
import time

import pytest

from pulsar_txn.client import AsyncClient, Client, InitialPosition
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.receive.reader import consumer_of
from pulsar_txn.client.txn.transactions import core_of

KIBIBYTE = 1024
SIZE = 64 * KIBIBYTE
ROOM = 4 * SIZE


async def fill(client: AsyncClient, topic: str, count: int, size: int) -> list[bytes]:
    values = [number.to_bytes(2) + bytes(size) for number in range(count)]
    async with await client.create_producer(topic, batching=False) as producer:
        await asyncio.gather(*(producer.send(value) for value in values))
    return values


async def test_no_more_large_messages_wait_here_than_there_is_room_for(client: AsyncClient, topic: str) -> None:
    values = await fill(client, topic, 40, SIZE)
    async with await client.create_reader(topic, receiver_queue_bytes=ROOM) as reader:
        found, most = [], 0
        inbox = reception_of(consumer_of(reader)).inbox
        while len(found) < len(values):
            found.append((await reader.read_next(10)).data)
            await asyncio.sleep(0.005)  # the broker sends what it may meanwhile
            most = max(most, len(inbox.queue))
        assert found == values
        assert 1 <= most <= ROOM // SIZE


async def test_small_messages_are_fetched_ahead_as_without_a_bound(client: AsyncClient, topic: str) -> None:
    values = await fill(client, topic, 600, 10)
    async with await client.create_reader(topic, receiver_queue_bytes=ROOM) as reader:
        assert (await reader.read_next(10)).data == values[0]
        assert await reception_of(consumer_of(reader)).inbox.wait(500, asyncio.get_running_loop().time() + 10)
        assert [message.data for message in await reader.read_many(600)][:5] == values[1:6]


async def test_what_waits_after_a_reconnect_is_bounded_as_well(client: AsyncClient, topic: str) -> None:
    values = await fill(client, topic, 20, SIZE)
    async with await client.create_reader(topic, receiver_queue_bytes=ROOM) as reader:
        first = [(await reader.read_next(10)).data for _ in range(5)]
        for connection in core_of(client).pool.current():
            connection.close()
        assert first + [(await reader.read_next(10)).data for _ in range(15)] == values


async def test_receive_many_waits_for_no_more_than_may_come(client: AsyncClient, topic: str) -> None:
    values = await fill(client, topic, 12, SIZE)
    async with await client.subscribe(
        topic, "s", initial_position=InitialPosition.EARLIEST, receiver_queue_bytes=ROOM
    ) as consumer:
        found = [(await consumer.receive(10)).data]
        before = time.monotonic()
        while len(found) < len(values):
            messages = await consumer.receive_many(min(4, len(values) - len(found)), max_wait=60)
            assert len(messages) <= 4
            found += [message.data for message in messages]
        assert found == values
        assert time.monotonic() - before < 60


def test_threads_of_the_blocking_client_give_the_room_back(url: str, topic: str) -> None:
    with Client(url) as client:
        with client.create_producer(topic, batching=False) as producer:
            for number in range(30):
                producer.send(number.to_bytes(2) + bytes(SIZE))
        with client.create_reader(topic, receiver_queue_bytes=ROOM) as reader:
            assert [int.from_bytes(reader.read_next(10).data[:2]) for _ in range(30)] == list(range(30))


async def test_a_bound_below_nothing_is_refused(client: AsyncClient, topic: str) -> None:
    with pytest.raises(InvalidConfiguration, match="receiver_queue_bytes"):
        await client.create_reader(topic, receiver_queue_bytes=-1)
