"""What a transaction sent is seen once it is committed, all of it and in order; what was aborted is never seen."""

from __future__ import annotations

import asyncio

import pytest
from admin import delete, topic_path
from rows import row
from subscriptions import subscribed
from targets import Target
from transactions import data_of, eventually_visible, received, stays_silent, visible

from pulsar_txn.client import AsyncClient, ConsumerType, TransactionState

EVERY_KIND = list(ConsumerType)


@pytest.mark.seed_rows("A06")
@row(1)
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_what_is_committed_is_seen_and_not_before(
    client: AsyncClient, topic: str, kind: ConsumerType, batching: bool
) -> None:
    consumer = await subscribed(client, topic, kind)
    producer = await client.create_producer(topic, batching=batching, batching_max_messages=10)
    sent = [b"%d" % number for number in range(30)]
    async with client.transaction() as txn:
        await asyncio.gather(*(producer.send(each, txn=txn) for each in sent))
        assert await stays_silent(consumer)
    assert txn.state is TransactionState.COMMITTED
    assert await data_of(consumer, 30) == sent
    assert await stays_silent(consumer)


@row(2)
@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("kind", EVERY_KIND)
async def test_what_is_aborted_is_never_seen(client: AsyncClient, topic: str, kind: ConsumerType, batching: bool) -> None:
    consumer = await subscribed(client, topic, kind)
    producer = await client.create_producer(topic, batching=batching, batching_max_messages=10)
    txn = await client.begin_transaction()
    await asyncio.gather(*(producer.send(b"aborted", txn=txn) for _ in range(30)))
    await txn.abort()
    await producer.send(b"after")
    assert await data_of(consumer, 1) == [b"after"]
    assert await stays_silent(consumer)
    assert await visible(client, topic) == [b"after"]


@row(3)
@pytest.mark.parametrize("batching", [True, False])
async def test_a_transaction_keeps_the_order_of_its_sends(client: AsyncClient, topic: str, batching: bool) -> None:
    producer = await client.create_producer(topic, batching=batching, batching_max_messages=7)
    sent = [b"%d" % number for number in range(100)]
    async with client.transaction() as txn:
        await asyncio.gather(*(producer.send(each, txn=txn) for each in sent))
    assert await visible(client, topic) == sent


@row(3)
async def test_transactions_between_each_other_keep_the_order_of_the_topic(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    first, second, dropped = [await client.begin_transaction() for _ in range(3)]
    for number in range(12):
        await producer.send(b"%d" % number, txn=(first, second, dropped)[number % 3])
    await second.commit()
    await dropped.abort()
    await first.commit()
    assert await eventually_visible(client, topic, [b"%d" % number for number in range(12) if number % 3 != 2])


@pytest.mark.seed_rows("A26")
@row(21)
async def test_another_client_commits_open_transactions_by_their_ids(pulsar: Target, client: AsyncClient, topic: str) -> None:
    ids = []
    async with AsyncClient(pulsar.service_url) as beginner:  # open until the end: a client that closes aborts what it has begun
        producer = await beginner.create_producer(topic, batching=False)
        for number in range(5):
            txn = await beginner.begin_transaction()
            await producer.send(b"%d" % number, txn=txn)
            ids.append(str(txn.id))
        assert await visible(client, topic) == []
        for txn_id in ids:
            await client.attach_transaction(txn_id).commit()
    assert await eventually_visible(client, topic, [b"%d" % number for number in range(5)])


@row(22)
async def test_a_deleted_topic_does_not_hinder_another_one(pulsar: Target, client: AsyncClient, topic: str) -> None:
    doomed = await client.create_producer(f"{topic}-doomed", batching=False)
    producer = await client.create_producer(topic, batching=False)
    async with client.transaction() as txn:
        await doomed.send(b"gone", txn=txn)
        await producer.send(b"stays", txn=txn)
    aborted = await client.begin_transaction()
    await doomed.send(b"gone", txn=aborted)
    await producer.send(b"aborted", txn=aborted)
    await aborted.abort()
    await doomed.close()
    await delete(pulsar, f"{topic_path(f'{topic}-doomed')}?force=true")
    async with AsyncClient(pulsar.service_url) as elsewhere:
        consumer = await subscribed(elsewhere, topic, ConsumerType.EXCLUSIVE)
        other = await elsewhere.create_producer(topic)
        async with elsewhere.transaction() as txn:
            await other.send(b"goes on", txn=txn)
        messages = await received(consumer, 2)
        assert [message.data for message in messages] == [b"stays", b"goes on"]
