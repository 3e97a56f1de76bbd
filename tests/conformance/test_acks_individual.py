"""Individual acknowledgements settle with their transaction, whole entries and parts of batches alike."""

from __future__ import annotations

import pytest
from rows import row
from subscriptions import chosen, filled, left_over, subscribed
from targets import Target
from transactions import data_of, received, stays_silent

from pulsar_txn.client import AsyncClient, ConsumerType

SHARED = (ConsumerType.SHARED, ConsumerType.KEY_SHARED)
SUBSCRIPTIONS = [
    pytest.param(ConsumerType.SHARED, False, marks=row(5)),
    pytest.param(ConsumerType.KEY_SHARED, False, marks=row(5)),
    pytest.param(ConsumerType.SHARED, True, marks=row(6)),
    pytest.param(ConsumerType.KEY_SHARED, True, marks=row(6)),
    pytest.param(ConsumerType.FAILOVER, False, marks=row(7)),
    pytest.param(ConsumerType.EXCLUSIVE, False, marks=row(7)),
    pytest.param(ConsumerType.FAILOVER, True, marks=row(8)),
    pytest.param(ConsumerType.EXCLUSIVE, True, marks=row(8)),
]


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_committed_acks_are_settled_and_the_rest_comes_again(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    await filled(client, topic, 6, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 6)
    async with client.transaction() as txn:
        await consumer.acknowledge(chosen(messages, 0, 2, 5), txn=txn)
    assert await left_over(client, topic, consumer, 3) == [b"1", b"3", b"4"]


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_aborted_acks_come_again_to_the_same_consumer_and_can_then_be_committed(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages, txn=txn)
    assert await stays_silent(consumer)
    await txn.abort()
    again = await received(consumer, 4)
    assert sorted(message.data for message in again) == payloads
    async with client.transaction() as txn:
        await consumer.acknowledge(again, txn=txn)
    assert await left_over(client, topic, consumer, 0) == []


@pytest.mark.parametrize(("kind", "batched"), SUBSCRIPTIONS)
async def test_aborted_acks_of_a_part_leave_everything_to_a_successor(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 4, batched=batched)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge(chosen(messages, 1, 2), txn=txn)
    await txn.abort()
    assert await left_over(client, topic, consumer, 4) == payloads


@row(15)
@pytest.mark.parametrize("kind", SHARED)
async def test_an_abort_brings_back_of_a_batch_only_what_no_other_transaction_holds(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    await filled(client, topic, 6, batched=True)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 6)
    keeper, dropped = await client.begin_transaction(), await client.begin_transaction()
    await consumer.acknowledge(chosen(messages, 0, 1), txn=keeper)
    await consumer.acknowledge(chosen(messages, 2, 3, 4), txn=dropped)
    await dropped.abort()
    assert await left_over(client, topic, consumer, 4) == [b"2", b"3", b"4", b"5"]
    await keeper.commit()
    late = await subscribed(client, topic, kind)
    assert sorted(await data_of(late, 4)) == [b"2", b"3", b"4", b"5"]
    assert await stays_silent(late)


@row(16)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_what_is_pending_goes_to_nobody_else(client: AsyncClient, topic: str, kind: ConsumerType, batched: bool) -> None:
    await filled(client, topic, 4, batched=batched, one_key=batched)  # of one key the others wait here, on Key_Shared
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 4)
    txn = await client.begin_transaction()
    await consumer.acknowledge(chosen(messages, 0, 1), txn=txn)
    await consumer.close()
    other = await subscribed(client, topic, kind)
    rest = await received(other, 2)
    assert sorted(message.data for message in rest) == [b"2", b"3"]
    assert await stays_silent(other)
    await other.acknowledge(rest, receipt=True)
    await txn.abort()
    assert sorted(await data_of(other, 2)) == [b"0", b"1"]


@row(17)
@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.FAILOVER])
async def test_dispatch_goes_on_behind_many_pending_messages(client: AsyncClient, topic: str, kind: ConsumerType) -> None:
    """More than a server reads at once, 100 messages on stock."""
    await filled(client, topic, 250, batched=False)
    consumer = await subscribed(client, topic, kind)
    messages = await received(consumer, 250)
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages[:220], txn=txn)
    await consumer.close()
    other = await subscribed(client, topic, kind)
    assert sorted(await data_of(other, 30)) == sorted(message.data for message in messages[220:])
    await txn.commit()
    assert await left_over(client, topic, other, 30) == sorted(message.data for message in messages[220:])


@row(19)
@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.FAILOVER])
async def test_an_abort_without_a_consumer_succeeds(client: AsyncClient, topic: str, kind: ConsumerType) -> None:
    payloads = await filled(client, topic, 3, batched=False)
    consumer = await subscribed(client, topic, kind)
    txn = await client.begin_transaction()
    await consumer.acknowledge(await received(consumer, 3), txn=txn)
    await consumer.close()
    await txn.abort()
    other = await subscribed(client, topic, kind)
    assert sorted(await data_of(other, 3)) == payloads


@row(20)
@pytest.mark.parametrize("commits", [True, False])
async def test_one_transaction_acknowledges_a_topic_on_several_subscriptions(
    pulsar: Target, client: AsyncClient, topic: str, commits: bool
) -> None:
    payloads = await filled(client, topic, 2, batched=False)
    kinds = {"a": ConsumerType.EXCLUSIVE, "b": ConsumerType.SHARED, "c": ConsumerType.FAILOVER}
    consumers = {name: await subscribed(client, topic, kind, name=name) for name, kind in kinds.items()}
    txn = await client.begin_transaction()
    for consumer in consumers.values():
        await consumer.acknowledge(await received(consumer, 2), txn=txn)
    await (txn.commit() if commits else txn.abort())
    async with AsyncClient(pulsar.service_url) as elsewhere:
        for name, consumer in consumers.items():
            await consumer.close()
            successor = await subscribed(elsewhere, topic, kinds[name], name=name)
            assert sorted(await data_of(successor, 0 if commits else 2)) == ([] if commits else payloads)
            assert await stays_silent(successor)
