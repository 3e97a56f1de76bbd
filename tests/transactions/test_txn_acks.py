"""Acknowledgements of a transaction settle with it: individual ones, parts of batches and cumulative ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from transactions import data_of, received, stays_silent, visible

from pulsar_txn.client import (
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    Message,
    TransactionState,
)

SINGLE = (ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER)
SHARED = (ConsumerType.SHARED, ConsumerType.KEY_SHARED)


async def filled(client: Client, topic: str, count: int, *, batched: bool) -> list[bytes]:
    """`count` messages in the topic, all of one batch, or each an entry of its own."""
    payloads = [b"%d" % number for number in range(count)]
    producer = await client.create_producer(topic, batching=batched, batching_max_messages=count, batching_max_delay=5)
    tickets = [producer.send_nowait(payload, key="k") for payload in payloads]
    await producer.flush()
    assert len({(await ticket).entry_id for ticket in tickets}) == (1 if batched else count)
    await producer.close()
    return payloads


async def subscribed(client: Client, topic: str, kind: ConsumerType) -> Consumer[bytes]:
    return await client.subscribe(topic, "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)


async def left_over(client: Client, topic: str, consumer: Consumer[Any], kind: ConsumerType, count: int) -> list[bytes]:
    """What a new consumer of the subscription gets."""
    await consumer.close()
    successor = await subscribed(client, topic, kind)
    data = await data_of(successor, count)
    assert await stays_silent(successor)
    return data


def chosen(messages: Sequence[Message[bytes]], *indexes: int) -> list[Message[bytes]]:
    return [messages[index] for index in indexes]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_committed_individual_acks_are_settled_and_the_rest_comes_again(
    client: Client, topic: str, kind: ConsumerType, batched: bool
) -> None:
    await filled(client, topic, 6, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 6)
    async with client.transaction() as txn:
        await consumer.acknowledge(chosen(messages, 0, 2, 5), txn=txn)
    assert sorted(await left_over(client, topic, consumer, kind, 3)) == [b"1", b"3", b"4"]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_aborted_individual_acks_come_again(client: Client, topic: str, kind: ConsumerType, batched: bool) -> None:
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge(chosen(messages, 1, 2), txn=txn)
    await txn.abort()
    assert sorted(await left_over(client, topic, consumer, kind, 4)) == payloads


@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_after_an_abort_the_same_consumer_gets_the_messages_again(client: Client, topic: str, kind: ConsumerType) -> None:
    await filled(client, topic, 2, batched=False)
    consumer = await subscribed(client, topic, kind)
    first = await received(consumer, 2)
    txn = await client.begin_transaction()
    await consumer.acknowledge(first, txn=txn)
    await txn.abort()
    again = await received(consumer, 2)
    assert sorted(message.data for message in again) == [b"0", b"1"]
    async with client.transaction() as txn:
        await consumer.acknowledge(again, txn=txn)
    assert await left_over(client, topic, consumer, kind, 0) == []


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", SINGLE)
async def test_a_committed_cumulative_ack_settles_everything_up_to_it(
    client: Client, topic: str, kind: ConsumerType, batched: bool
) -> None:
    await filled(client, topic, 6, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 6)
    async with client.transaction() as txn:
        await consumer.acknowledge_cumulative(messages[3], txn=txn)
    assert await left_over(client, topic, consumer, kind, 2) == [b"4", b"5"]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", SINGLE)
async def test_an_aborted_cumulative_ack_settles_nothing_and_all_comes_again(
    client: Client, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge_cumulative(messages[2], txn=txn)
    await txn.abort()
    assert await data_of(consumer, 4) == payloads
    assert await left_over(client, topic, consumer, kind, 4) == payloads


@pytest.mark.parametrize("kind", SHARED)
async def test_what_is_pending_goes_to_nobody_else(client: Client, topic: str, kind: ConsumerType) -> None:
    await filled(client, topic, 4, batched=False)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge(chosen(messages, 0, 1), txn=txn)
    await consumer.close()
    other = await subscribed(client, topic, kind)
    assert sorted(await data_of(other, 2)) == [b"2", b"3"]
    assert await stays_silent(other)
    await txn.abort()
    assert sorted(await data_of(other, 2)) == [b"0", b"1"]


async def test_acks_on_several_subscriptions_share_one_outcome(client: Client, topic: str) -> None:
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
        assert await left_over(client, each, consumer, ConsumerType.EXCLUSIVE, 0) == []


@pytest.mark.parametrize("kind", SINGLE)
async def test_a_loop_that_sometimes_aborts_neither_loses_nor_doubles_and_keeps_order(
    client: Client, topic: str, kind: ConsumerType
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
    assert await left_over(client, topic, consumer, kind, 0) == []


async def test_a_plain_ack_settles_at_once_beside_an_open_transaction(client: Client, topic: str) -> None:
    await filled(client, topic, 3, batched=False)
    consumer = await subscribed(client, topic, ConsumerType.SHARED)
    messages = await received(consumer, 3)
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages[0], txn=txn)
    await consumer.acknowledge(messages[1], receipt=True)
    await txn.abort()
    assert sorted(await left_over(client, topic, consumer, ConsumerType.SHARED, 2)) == [b"0", b"2"]
