"""Acknowledgements that wait for the end of their transaction: what is seen of them, and what they exclude."""

from __future__ import annotations

import re
from typing import Any

import pytest
from admin import TRANSACTIONS, eventually, get_json, of_topic
from rows import row
from targets import Target
from transactions import data_of, received, stays_silent

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncTransaction,
    ConsumerType,
    InitialPosition,
    Message,
    TransactionConflict,
)
from pulsar_txn.client.txn.transactions import core_of


async def pending(pulsar: Target, topic: str) -> dict[str, Any]:
    """The stats of the pending acknowledgements of subscription "s"."""
    found: dict[str, Any] = await get_json(pulsar, f"{TRANSACTIONS}/pendingAckStats/{of_topic(topic)}/s")
    return found


async def state_of(pulsar: Target, topic: str, message: Message[bytes]) -> str:
    """What the subscription says of one position."""
    at = message.message_id
    path = f"{TRANSACTIONS}/positionStatsInPendingAck/{of_topic(topic)}/s/{at.ledger_id}/{at.entry_id}"
    found = await get_json(pulsar, path)
    return str(found["state"])


async def two_acknowledged(
    client: AsyncClient, topic: str
) -> tuple[AsyncConsumer[bytes], list[Message[bytes]], AsyncTransaction]:
    """Two messages that an open transaction acknowledged, and a third that it did not."""
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    for number in range(3):
        await producer.send(b"%d" % number)
    messages = await received(consumer, 3)
    txn = await client.begin_transaction()
    for message in messages[:2]:
        await consumer.acknowledge(message, txn=txn)
    return consumer, messages, txn


@row(63)
@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_the_count_of_pending_acks_goes_up_and_comes_down(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    consumer, messages, txn = await two_acknowledged(client, topic)
    assert (await pending(pulsar, topic))["ongoingTxnSize"] == 1
    assert [await state_of(pulsar, topic, each) for each in messages] == ["PendingAck", "PendingAck", "NotInPendingAck"]
    await getattr(txn, action)()
    assert (await pending(pulsar, topic))["ongoingTxnSize"] == 0
    settled = "MarkDelete" if action == "commit" else "NotInPendingAck"
    assert await eventually(lambda: state_of(pulsar, topic, messages[1]), lambda state: state == settled) == settled
    if action == "abort":
        assert await data_of(consumer, 3) == [b"0", b"1", b"2"]
    assert await stays_silent(consumer)


async def batch_of_ten(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> tuple[AsyncConsumer[bytes], list[Message[bytes]]]:
    """Ten messages of one entry, received."""
    consumer = await client.subscribe(topic, "s", consumer_type=kind)
    producer = await client.create_producer(topic, batching_max_messages=10, batching_max_delay=5)
    tickets = [producer.send_nowait(b"%d" % number) for number in range(10)]
    await producer.flush()
    assert len({(await ticket).entry_id for ticket in tickets}) == 1
    return consumer, await received(consumer, 10)


async def left_of(client: AsyncClient, topic: str, kind: ConsumerType, count: int) -> list[bytes]:
    """What a new consumer of the subscription gets, when all others are closed."""
    async with await client.subscribe(topic, "s", consumer_type=kind) as successor:
        data = await data_of(successor, count)
        assert await stays_silent(successor)
    return data


@row(104)
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_an_index_that_was_acknowledged_cannot_be_acknowledged_again(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    consumer, messages = await batch_of_ten(client, topic, kind)
    async with client.transaction() as txn:
        await consumer.acknowledge(messages[:3], txn=txn)
    late = await client.begin_transaction()
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(messages[2], txn=late)
    await late.abort()
    await consumer.close()
    assert await left_of(client, topic, kind, 7) == [b"%d" % number for number in range(3, 10)]


@row(104)
async def test_an_index_that_is_pending_conflicts_and_its_neighbours_do_not(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    """The rival is a consumer of another client: ours refuses what it knows to be pending before it leaves."""
    consumer, messages = await batch_of_ten(client, topic, ConsumerType.SHARED)
    async with AsyncClient(pulsar.service_url) as elsewhere:
        rival = await elsewhere.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        holder, intruder = await client.begin_transaction(), await elsewhere.begin_transaction()
        await consumer.acknowledge(messages[:5], txn=holder)
        await rival.acknowledge([each.message_id for each in messages[5:8]], txn=intruder)
        with pytest.raises(TransactionConflict):
            await rival.acknowledge(messages[4].message_id, txn=intruder)
        await intruder.abort()
        await holder.commit()
    await consumer.close()
    assert await left_of(client, topic, ConsumerType.SHARED, 5) == [b"5", b"6", b"7", b"8", b"9"]


@row(105)
async def test_a_pattern_of_topics_does_not_find_those_of_the_transactions(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    consumer, _, txn = await two_acknowledged(client, topic)
    follower = await client.subscribe(re.compile(rf"{re.escape(topic)}.*"), "all", initial_position=InitialPosition.EARLIEST)
    assert follower.topics == [topic]
    listed = [each for each in await core_of(client).lookup.topics("public/default", 0) if topic in each]
    assert listed == [topic]
    assert sorted(await data_of(follower, 3)) == [b"0", b"1", b"2"]
    await txn.commit()
    assert await stays_silent(follower)
    assert await stays_silent(consumer)
