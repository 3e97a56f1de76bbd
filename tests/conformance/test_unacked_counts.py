"""What a server counts as unacknowledged, and where the cursor stands, while transactions acknowledge."""

from __future__ import annotations

from typing import Any

import pytest
from admin import eventually, get_json, topic_path, topic_stats
from rows import row
from subscriptions import filled, subscribed
from targets import Target
from transactions import received, stays_silent

from pulsar_txn.client import AsyncClient, AsyncConsumer, ConsumerType

KINDS = pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED])
BATCHED = pytest.mark.parametrize("batched", [False, True])


async def unacked(pulsar: Target, topic: str, expected: int) -> int:
    """What the stats say of the subscription `s`, when it gets to be `expected`; otherwise what they say in the end."""

    async def now() -> int:
        return int((await topic_stats(pulsar, topic))["subscriptions"]["s"]["unackedMessages"])

    return int(await eventually(now, lambda count: count == expected))


async def unacked_by_consumer(pulsar: Target, topic: str) -> dict[str, int]:
    consumers = (await topic_stats(pulsar, topic))["subscriptions"]["s"]["consumers"]
    return {each["consumerName"]: each["unackedMessages"] for each in consumers}


async def held(
    client: AsyncClient, topic: str, kind: ConsumerType, *, batched: bool, **options: Any
) -> tuple[AsyncConsumer[bytes], Any]:
    """A consumer that holds the six messages of the topic."""
    await filled(client, topic, 6, batched=batched)
    consumer = await subscribed(client, topic, kind, **options)
    return consumer, await received(consumer, 6)


@row(11)
@BATCHED
async def test_the_cursor_passes_the_marker_once_committed_messages_were_acknowledged_in_two_rounds(
    pulsar: Target, client: AsyncClient, topic: str, batched: bool
) -> None:
    consumer = await subscribed(client, topic, ConsumerType.SHARED, negative_ack_delay=0.05)
    producer = await client.create_producer(topic, batching=batched, batching_max_messages=5)
    async with client.transaction() as txn:
        tickets = [producer.send_nowait(b"%d" % number, txn=txn) for number in range(10)]
        await producer.flush()
    entries = {(await ticket).entry_id for ticket in tickets}
    assert len(entries) == (2 if batched else 10)
    first = await received(consumer, 10)
    await consumer.acknowledge(first[::2], receipt=True)
    for message in first[1::2]:
        consumer.negative_acknowledge(message)
    again = await received(consumer, 5)
    assert sorted(message.data for message in again) == [b"1", b"3", b"5", b"7", b"9"]
    await consumer.acknowledge(again, receipt=True)
    assert await stays_silent(consumer)

    async def positions() -> tuple[str, str]:
        stats = await get_json(pulsar, f"{topic_path(topic)}/internalStats")
        return stats["cursors"]["s"]["markDeletePosition"], stats["lastConfirmedEntry"]

    mark_delete, last = await eventually(positions, lambda found: found[0] == found[1])
    assert mark_delete == last
    assert int(last.partition(":")[2]) == max(entries) + 1  # the marker


@row(12)
@KINDS
@BATCHED
async def test_nothing_is_unacknowledged_once_all_was_acknowledged(
    pulsar: Target, client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    consumer, messages = await held(client, topic, kind, batched=batched)
    assert await unacked(pulsar, topic, 6) == 6
    async with client.transaction() as txn:
        await consumer.acknowledge(messages, txn=txn)
    assert await unacked(pulsar, topic, 0) == 0


@row(13)
@KINDS
@BATCHED
async def test_a_message_leaves_the_count_before_its_transaction_ends(
    pulsar: Target, client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    consumer, messages = await held(client, topic, kind, batched=batched)
    assert await unacked(pulsar, topic, 6) == 6
    txn = await client.begin_transaction()
    await consumer.acknowledge(messages[:4], txn=txn)
    assert await unacked(pulsar, topic, 2) == 2
    await consumer.acknowledge(messages[4:], txn=txn)
    assert await unacked(pulsar, topic, 0) == 0
    await txn.commit()
    assert await unacked(pulsar, topic, 0) == 0


@row(14)
@BATCHED
async def test_the_count_is_right_when_another_consumer_acknowledges(
    pulsar: Target, client: AsyncClient, topic: str, batched: bool
) -> None:
    _, messages = await held(client, topic, ConsumerType.SHARED, batched=batched, consumer_name="holder")
    async with AsyncClient(pulsar.service_url) as elsewhere:
        other = await subscribed(elsewhere, topic, ConsumerType.SHARED, consumer_name="other")
        async with elsewhere.transaction() as txn:
            await other.acknowledge([message.message_id for message in messages], txn=txn)
        assert await unacked(pulsar, topic, 0) == 0
        assert await unacked_by_consumer(pulsar, topic) == {"holder": 0, "other": 0}
