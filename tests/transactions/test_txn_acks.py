"""Acknowledgements of a transaction as programs make them: in loops, beside plain ones, on several topics."""

from __future__ import annotations

import pytest
from subscriptions import filled, left_over, subscribed
from transactions import received, visible

from pulsar_txn.client import AsyncClient, ConsumerType, TransactionState


@pytest.mark.seed_rows("D10")
async def test_acks_on_several_topics_share_one_outcome(client: AsyncClient, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for each in topics:
        await filled(client, each, 1, batched=False)
    consumers = [await subscribed(client, each, ConsumerType.EXCLUSIVE) for each in topics]
    messages = [await consumer.receive(timeout=20) for consumer in consumers]
    txn = await client.begin_transaction()
    for consumer, message in zip(consumers, messages, strict=True):
        await consumer.acknowledge(message, txn=txn)
    await txn.abort()
    async with client.transaction() as txn:
        for consumer in consumers:
            await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    for each, consumer in zip(topics, consumers, strict=True):
        assert await left_over(client, each, consumer, 0) == []


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER])
async def test_a_loop_that_sometimes_aborts_neither_loses_nor_doubles_and_keeps_order(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    payloads = await filled(client, topic, 20, batched=False)
    consumer = await subscribed(client, topic, kind)
    producer = await client.create_producer(f"{topic}-out")
    left, turn = set(payloads), 0
    while left:
        turn += 1
        async with client.transaction() as txn:
            message = await consumer.receive(timeout=20)
            await producer.send(message.data, txn=txn)
            await consumer.acknowledge(message, txn=txn)
            if turn % 4 == 0:
                txn.rollback()
        if txn.state is TransactionState.COMMITTED:
            left.remove(message.data)
    assert await visible(client, f"{topic}-out") == payloads
    assert await left_over(client, topic, consumer, 0) == []


@pytest.mark.seed_rows("D63")
async def test_a_plain_ack_settles_at_once_beside_an_open_transaction(client: AsyncClient, topic: str) -> None:
    await filled(client, topic, 3, batched=False)
    consumer = await subscribed(client, topic, ConsumerType.SHARED)
    messages = await received(consumer, 3)
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages[0], txn=txn)
    await consumer.acknowledge(messages[1], receipt=True)
    await txn.abort()
    assert await left_over(client, topic, consumer, 2) == [b"0", b"2"]


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_a_plain_ack_after_an_abort_of_the_same_message_is_kept(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    """Stock brokers lost it: apache/pulsar#26616."""
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    first, *_ = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge(first, txn=txn)
    await txn.abort()
    await consumer.acknowledge(first.message_id, receipt=True)
    assert await left_over(client, topic, consumer, 3) == payloads[1:]
