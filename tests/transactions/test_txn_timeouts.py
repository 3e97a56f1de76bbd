"""A transaction that nobody ends is aborted when its time is over."""

from __future__ import annotations

import asyncio

import pytest
from transactions import data_of, eventually_visible

from pulsar_txn.client import Client, InitialPosition, TransactionAborted, TransactionStateError, TransactionTimedOut


async def test_an_abandoned_transaction_stops_holding_readers_back(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction(timeout=1.5)
    await producer.send(b"abandoned", txn=txn)
    await producer.send(b"behind")
    assert await eventually_visible(client, topic, [b"behind"])


async def test_messages_acknowledged_in_an_abandoned_transaction_come_again(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    txn = await client.begin_transaction(timeout=1.5)
    await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    assert await data_of(consumer, 1) == [b"x"]
    with pytest.raises((TransactionTimedOut, TransactionStateError)):
        await txn.commit()


async def test_a_commit_behind_the_timeout_is_an_error_and_nothing_was_done(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction(timeout=1)
    await producer.send(b"late", txn=txn)
    await asyncio.sleep(1.6)
    with pytest.raises(TransactionAborted):
        await txn.commit()
    await producer.send(b"after")
    assert await eventually_visible(client, topic, [b"after"])


async def test_an_operation_behind_the_timeout_is_refused(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction(timeout=1)
    await asyncio.sleep(1.2)
    with pytest.raises((TransactionTimedOut, TransactionStateError)):
        await producer.send(b"late", txn=txn)


async def test_a_block_that_takes_too_long_raises(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    with pytest.raises(TransactionAborted):
        async with client.transaction(timeout=1) as txn:
            await producer.send(b"slow", txn=txn)
            await asyncio.sleep(1.5)
