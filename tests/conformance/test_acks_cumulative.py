"""A cumulative acknowledgement settles everything up to it with its transaction, and only one at a time may be open."""

from __future__ import annotations

import pytest
from rows import row
from subscriptions import filled, left_over, subscribed
from targets import Target
from transactions import data_of, received, stays_silent

from pulsar_txn.client import AsyncClient, ConsumerType, TransactionConflict

SUBSCRIPTIONS = [
    pytest.param(ConsumerType.EXCLUSIVE, True, marks=row(9)),
    pytest.param(ConsumerType.FAILOVER, True, marks=row(9)),
    pytest.param(ConsumerType.EXCLUSIVE, False, marks=row(10)),
    pytest.param(ConsumerType.FAILOVER, False, marks=row(10)),
]


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_a_committed_one_settles_everything_up_to_it(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    await filled(client, topic, 6, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 6)
    async with client.transaction() as txn:
        await consumer.acknowledge_cumulative(messages[1], txn=txn)
        await consumer.acknowledge_cumulative(messages[3], txn=txn)
    assert await left_over(client, topic, consumer, 2) == [b"4", b"5"]


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_an_aborted_one_settles_nothing_and_the_next_transaction_can_take_its_place(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge_cumulative(messages[2], txn=txn)
    await txn.abort()
    consumer.redeliver_unacknowledged()
    again = await received(consumer, 4)
    assert [message.data for message in again] == payloads
    async with client.transaction() as txn:
        await consumer.acknowledge_cumulative(again[-1], txn=txn)
    assert await left_over(client, topic, consumer, 0) == []


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_two_transactions_cannot_hold_one_at_the_same_time(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    await filled(client, topic, 6, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 6)
    holder, intruder = await client.begin_transaction(), await client.begin_transaction()
    await consumer.acknowledge_cumulative(messages[2], txn=holder)
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge_cumulative(messages[4], txn=intruder)
    await intruder.abort()
    await holder.commit()
    assert await left_over(client, topic, consumer, 3) == [b"3", b"4", b"5"]


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_one_behind_what_was_committed_conflicts(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    async with client.transaction() as txn:
        await consumer.acknowledge_cumulative(messages[3], txn=txn)
    late = await client.begin_transaction()
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge_cumulative(messages[1], txn=late)
    await late.abort()
    assert await left_over(client, topic, consumer, 0) == []


@row(18)
@pytest.mark.parametrize("batched", [False, True])
async def test_an_abort_brings_messages_back_when_the_client_asks_and_not_by_itself(
    pulsar: Target, client: AsyncClient, topic: str, batched: bool
) -> None:
    """Aborted from another client, so that ours, which asks by itself after its own aborts, does not know of it."""
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, ConsumerType.FAILOVER)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    assert txn.id is not None
    await consumer.acknowledge_cumulative(messages[-1], txn=txn)
    async with AsyncClient(pulsar.service_url) as elsewhere:
        await elsewhere.attach_transaction(txn.id).abort()
    assert await stays_silent(consumer)
    consumer.redeliver_unacknowledged()
    assert await data_of(consumer, 4) == payloads
