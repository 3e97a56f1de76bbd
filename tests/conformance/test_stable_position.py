"""An open transaction holds readers back at its first message; what it holds back comes in the order of the log."""

from __future__ import annotations

import asyncio

import pytest
from rows import row
from transactions import data_of, eventually_visible, stays_silent, visible

from pulsar_txn.client import AsyncClient, ConsumerType


@pytest.mark.seed_rows("D36")
@row(93)
@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_what_comes_behind_an_open_transaction_waits_for_its_end_and_keeps_its_place(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    consumer = await client.subscribe(topic, "s", consumer_type=kind)
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    await producer.send(b"before")
    await producer.send(b"in", txn=txn)
    await producer.send(b"behind")
    assert await data_of(consumer, 1) == [b"before"]
    assert await stays_silent(consumer)
    await txn.commit()
    assert await data_of(consumer, 2) == [b"in", b"behind"]


@row(93)
async def test_readers_go_up_to_the_oldest_open_transaction(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    older, younger = await client.begin_transaction(), await client.begin_transaction()
    await producer.send(b"0")
    await producer.send(b"older", txn=older)
    await producer.send(b"1")
    await producer.send(b"younger", txn=younger)
    await producer.send(b"2")
    assert await visible(client, topic) == [b"0"]
    await younger.commit()
    assert await visible(client, topic) == [b"0"]
    await older.commit()
    assert await eventually_visible(client, topic, [b"0", b"older", b"1", b"younger", b"2"])


@row(93)
async def test_an_older_end_releases_up_to_the_younger_one(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    older, younger = await client.begin_transaction(), await client.begin_transaction()
    await producer.send(b"older", txn=older)
    await producer.send(b"1")
    await producer.send(b"younger", txn=younger)
    await producer.send(b"2")
    await older.abort()
    assert await eventually_visible(client, topic, [b"1"])
    await younger.abort()
    assert await eventually_visible(client, topic, [b"1", b"2"])


@pytest.mark.seed_rows("D30")
@row(93)
async def test_a_reader_that_waits_is_woken_by_the_commit(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    async with await client.create_reader(topic) as reader:
        txn = await client.begin_transaction()
        await producer.send(b"x", txn=txn)
        waiting = asyncio.ensure_future(reader.read_next(timeout=20))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await txn.commit()
        assert (await waiting).data == b"x"


@row(93)
async def test_no_message_is_available_while_the_only_ones_are_open_or_aborted(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    async with await client.create_reader(topic) as reader:
        txn = await client.begin_transaction()
        await producer.send(b"x", txn=txn)
        assert not await reader.has_message_available()
        await txn.abort()
        assert not await reader.has_message_available()
