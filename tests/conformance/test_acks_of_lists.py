"""Many messages acknowledged at once in a transaction: lists, received batches, typed messages, parts of one entry."""

from __future__ import annotations

import random

import attrs
import pytest
from admin import eventually, topic_stats
from rows import row
from subscriptions import chosen, filled, left_over, subscribed
from targets import Target
from transactions import received, stays_silent

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AvroSchema,
    ConsumerType,
    InitialPosition,
    JsonSchema,
    Schema,
    StringSchema,
)


@attrs.frozen
class Order:
    symbol: str
    amount: int


@row(38)
@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (StringSchema(), ["ä", "b"]),
        (JsonSchema(Order), [Order("A", 1), Order("B", 2)]),
        (AvroSchema(Order), [Order("A", 1), Order("B", 2)]),
    ],
    ids=["string", "json", "avro"],
)
async def test_typed_messages_are_received_processed_and_sent_in_one_transaction(
    client: AsyncClient, topic: str, schema: Schema[object], values: list[object]
) -> None:
    source = await client.create_producer(f"{topic}-in", schema=schema)
    output = await client.create_producer(topic, schema=schema)
    for value in values:
        await source.send(value)
    start = InitialPosition.EARLIEST
    consumer = await client.subscribe(f"{topic}-in", "s", schema=schema, initial_position=start)
    results = await client.subscribe(topic, "s", schema=schema, initial_position=start)
    async with client.transaction() as txn:
        for _ in values:
            message = await consumer.receive(timeout=20)
            await output.send(message.value, txn=txn)
            await consumer.acknowledge(message, txn=txn)
        assert await stays_silent(results)
    assert [(await results.receive(timeout=20)).value for _ in values] == values
    await consumer.close()
    assert await stays_silent(await client.subscribe(f"{topic}-in", "s", schema=schema))


async def all_acknowledged(pulsar: Target, consumer: AsyncConsumer[bytes]) -> bool:
    """Whether the subscription has no backlog, within a while: stock moves the cursor after the commit's answer."""
    stats = await eventually(
        lambda: topic_stats(pulsar, consumer.topic), lambda found: found["subscriptions"]["s"]["msgBacklog"] == 0
    )
    return bool(stats["subscriptions"]["s"]["msgBacklog"] == 0)


@row(48)
@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.EXCLUSIVE])
async def test_transactions_share_the_entry_of_a_batch_and_commit_one_by_one(
    pulsar: Target, client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    payloads = await filled(client, topic, 10, batched=True)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 10)
    order = random.Random(48).sample(range(10), 10)
    transactions = [await client.begin_transaction() for _ in range(5)]
    for number, txn in enumerate(transactions):
        await consumer.acknowledge(chosen(messages, *order[number * 2 : number * 2 + 2]), txn=txn)
    await transactions[3].commit()
    await transactions[1].commit()
    consumer.redeliver_unacknowledged()
    assert await stays_silent(consumer)
    await transactions[0].abort()
    again = await received(consumer, 2)
    assert sorted(message.data for message in again) == sorted(payloads[index] for index in order[:2])
    async with client.transaction() as txn:
        await consumer.acknowledge(again, txn=txn)
    await transactions[4].commit()
    await transactions[2].commit()
    assert await all_acknowledged(pulsar, consumer)
    assert await left_over(client, topic, consumer, 0) == []


@row(51)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_a_list_of_messages_is_acknowledged_in_one_transaction(
    pulsar: Target, client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 12, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 12)
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages[:5], txn=txn)
    await txn.abort()
    again = await received(consumer, 12 if kind.is_single else 5)
    assert sorted(message.data for message in again[:5]) == payloads[:5]
    async with client.transaction() as txn:
        await consumer.acknowledge([message.message_id for message in again[:5]], txn=txn)
        await consumer.acknowledge(messages[5:11], txn=txn)
    assert await left_over(client, topic, consumer, 1) == [payloads[11]]


@row(52)
@pytest.mark.parametrize("batched", [False, True])
async def test_a_received_batch_is_acknowledged_in_one_transaction(
    pulsar: Target, client: AsyncClient, topic: str, batched: bool
) -> None:
    payloads = await filled(client, topic, 10, batched=batched)
    consumer = await subscribed(client, topic, ConsumerType.SHARED)
    messages = await consumer.receive_many(10, max_wait=20)
    assert sorted(message.data for message in messages) == payloads
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages, txn=txn)
    await txn.abort()
    again = await consumer.receive_many(10, max_wait=20)
    assert sorted(message.data for message in again) == payloads
    async with client.transaction() as txn:
        await consumer.acknowledge(again, txn=txn)
    assert await all_acknowledged(pulsar, consumer)
    assert await left_over(client, topic, consumer, 0) == []


@row(51, 52)
async def test_a_list_from_several_topics_is_acknowledged_in_one_transaction(client: AsyncClient, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for each in topics:
        await filled(client, each, 4, batched=each.endswith("1"))
    consumer = await client.subscribe(topics, "s", initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, 12)
    async with client.transaction() as txn:
        await consumer.acknowledge(messages, txn=txn)
        assert len(txn.stats().subscriptions) == 3
    await consumer.close()
    successor = await client.subscribe(topics, "s")
    assert await stays_silent(successor)
