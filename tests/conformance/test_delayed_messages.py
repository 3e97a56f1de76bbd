"""Delayed messages of transactions: after the commit, and not before their time."""

from __future__ import annotations

import pytest
from rows import row
from subscriptions import subscribed
from transactions import PATIENCE, data_of, stays_silent

from pulsar_txn.client import AsyncClient, ConsumerType


@row(29)
@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.FAILOVER])
async def test_a_delayed_message_comes_late_on_shared_subscriptions_only(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    consumer = await subscribed(client, topic, kind)
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"delayed", txn=txn, deliver_after=2.5)
    await producer.send(b"plain")
    in_turn = [b"delayed", b"plain"] if kind is ConsumerType.FAILOVER else [b"plain", b"delayed"]
    assert await data_of(consumer, 2) == in_turn


@row(29)
async def test_a_delayed_message_whose_time_is_over_waits_for_its_commit(client: AsyncClient, topic: str) -> None:
    clock_topic = f"{topic}-clock"
    consumer, clock = [await subscribed(client, each, ConsumerType.SHARED) for each in (topic, clock_topic)]
    producer, starter = await client.create_producer(topic), await client.create_producer(clock_topic)
    txn = await client.begin_transaction()
    await producer.send(b"delayed", txn=txn, deliver_after=0.5)
    await starter.send(b"over", deliver_after=0.5)
    assert (await clock.receive(timeout=PATIENCE)).data == b"over"
    assert await stays_silent(consumer)
    await txn.commit()
    assert await data_of(consumer, 1) == [b"delayed"]
