"""All connections of a client break while it has a transaction open."""

from __future__ import annotations

import pytest
from frame_proxy import FrameProxy
from targets import Target
from transactions import PATIENCE, data_of, stays_silent, visible

from pulsar_txn.client import AsyncClient, InitialPosition


@pytest.mark.seed_rows("C43")
async def test_an_open_transaction_outlives_its_connections(deduplicating: Target, topic: str) -> None:
    async with AsyncClient(deduplicating.service_url) as calm, FrameProxy(deduplicating.service_url) as proxy:
        source = await calm.create_producer(f"{topic}-in")
        await source.send(b"x")
        async with AsyncClient(proxy.service_url) as client:
            consumer = await client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
            producer = await client.create_producer(topic)
            message = await consumer.receive(timeout=PATIENCE)
            async with client.transaction() as txn:
                await producer.send(b"before", txn=txn)
                await consumer.acknowledge(message, txn=txn)
                proxy.reset_all()
                await producer.send(b"after", txn=txn)
            assert await visible(calm, topic) == [b"before", b"after"]
            assert await stays_silent(consumer)


@pytest.mark.seed_rows("C20")
async def test_each_topic_at_a_broker_of_its_own_and_one_of_them_breaks(deduplicating: Target, topic: str) -> None:
    async with AsyncClient(deduplicating.service_url) as calm, FrameProxy(deduplicating.service_url, apart=True) as proxy:
        async with AsyncClient(proxy.service_url) as client:
            producers = [await client.create_producer(f"{topic}-{number}") for number in range(3)]
            async with client.transaction() as txn:
                for producer in producers:
                    await producer.send(b"before", txn=txn)
                proxy.reset(f"{topic}-1")
                for producer in producers:
                    await producer.send(b"after", txn=txn)
            assert proxy.connections > 4
        for number in range(3):
            assert await visible(calm, f"{topic}-{number}") == [b"before", b"after"]


async def test_a_consumer_that_lost_its_connection_gets_what_its_transaction_did_not_acknowledge(
    deduplicating: Target, topic: str
) -> None:
    async with AsyncClient(deduplicating.service_url) as calm, FrameProxy(deduplicating.service_url) as proxy:
        source = await calm.create_producer(topic, batching=False)
        for number in range(3):
            await source.send(b"%d" % number)
        async with AsyncClient(proxy.service_url) as client:
            consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
            txn = await client.begin_transaction()
            await consumer.acknowledge(await consumer.receive(timeout=PATIENCE), txn=txn)
            proxy.reset_all()
            assert await data_of(consumer, 2) == [b"1", b"2"]
            await txn.abort()
            assert await data_of(consumer, 3) == [b"0", b"1", b"2"]
