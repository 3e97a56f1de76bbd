"""The coordinator tells every participant how a transaction ended; one that is gone is no hindrance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from admin import TRANSACTIONS, delete, eventually, get_json, of_topic, topic_path
from coordinators import id_of, what_came_of
from differences import Observed
from insides import coordinators_of
from rows import row
from targets import Target
from transactions import received, stays_silent, visible

from pulsar_txn.client import AsyncClient, AsyncTransaction, TransactionState
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.ids import TxnId

ACTIONS = ("commit", "abort")


async def in_buffer(pulsar: Target, topic: str, txn: AsyncTransaction) -> dict[str, Any]:
    """What a topic's buffer knows of a transaction."""
    most, least = id_of(txn)
    found: dict[str, Any] = await get_json(pulsar, f"{TRANSACTIONS}/transactionInBufferStats/{of_topic(topic)}/{most}/{least}")
    return found


@pytest.mark.seed_rows("D72")
@row(86)
@pytest.mark.parametrize("action", ACTIONS)
async def test_the_end_of_a_transaction_reaches_all_its_topics(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(10)]
    producers = [await client.create_producer(each, batching=False) for each in topics]
    txn = await client.begin_transaction()
    for producer in producers:
        await producer.send(b"x", txn=txn)
    for each in topics:
        assert "startPosition" in await in_buffer(pulsar, each, txn)
    await getattr(txn, action)()
    for each in topics:
        assert await in_buffer(pulsar, each, txn) == {"aborted": action == "abort"}
        assert await visible(client, each) == ([b"x"] if action == "commit" else [])


@pytest.mark.seed_rows("D27", "D46")
@row(86)
@pytest.mark.parametrize("action", ACTIONS)
async def test_the_end_of_a_transaction_reaches_all_its_subscriptions(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    consumers = [await client.subscribe(topic, f"s-{number}") for number in range(10)]
    await producer.send(b"x")
    messages = [(await received(consumer, 1))[0] for consumer in consumers]
    txn = await client.begin_transaction()
    for consumer, message in zip(consumers, messages, strict=True):
        await consumer.acknowledge(message, txn=txn)
    await getattr(txn, action)()
    at = messages[0].message_id
    settled = {"state": "MarkDelete" if action == "commit" else "NotInPendingAck"}
    for number, consumer in enumerate(consumers):
        path = f"{TRANSACTIONS}/positionStatsInPendingAck/{of_topic(topic)}/s-{number}/{at.ledger_id}/{at.entry_id}"
        assert await eventually(partial(get_json, pulsar, path), settled.__eq__) == settled
        if action == "abort":
            assert [each.data for each in await received(consumer, 1)] == [b"x"]
        assert await stays_silent(consumer)


async def told_by_a_client(client: AsyncClient, topic: str, participant: str, txn_id: TxnId) -> str:
    """What a participant answers to a client that sends it what coordinators send."""
    request = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least, "txn_action": 0}
    request["txnid_least_bits_of_low_watermark"] = 0
    whom = {"topic": topic} if participant == "topic" else {"subscription": {"topic": topic, "subscription": "s"}}
    connection = await core_of(client).lookup.connection_for(topic)
    command = "endTxnOnPartition" if participant == "topic" else "endTxnOnSubscription"
    return await what_came_of(connection.request(command, core_of(client).next_request_id(), **request, **whom), "done")


@row(86)
@pytest.mark.parametrize("participant", ["topic", "subscription"])
async def test_a_client_tells_a_participant_that_its_transaction_is_committed(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed, participant: str
) -> None:
    """Stock with authentication takes that from superusers only; without it, from everybody."""
    await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    seen = await told_by_a_client(client, topic, participant, id_of(txn))
    observed(pulsar, 86, f"a client ends a transaction on a {participant} without the coordinator", seen)
    if seen != "done" or participant == "subscription":
        assert await visible(client, topic) == []
    await txn.commit()
    assert await visible(client, topic) == [b"x"]


async def a_topic_that_never_was(_pulsar: Target, client: AsyncClient, topic: str, txn: AsyncTransaction) -> None:
    await coordinators_of(client).add_partitions(id_of(txn), [f"{topic}-never"])


async def a_subscription_that_never_was(_pulsar: Target, client: AsyncClient, topic: str, txn: AsyncTransaction) -> None:
    await coordinators_of(client).add_subscriptions(id_of(txn), [(topic, "never")])


async def a_subscription_of_a_topic_that_never_was(
    _pulsar: Target, client: AsyncClient, topic: str, txn: AsyncTransaction
) -> None:
    await coordinators_of(client).add_subscriptions(id_of(txn), [(f"{topic}-never", "never")])


async def a_topic_that_was_deleted(pulsar: Target, client: AsyncClient, topic: str, txn: AsyncTransaction) -> None:
    async with await client.create_producer(f"{topic}-deleted") as producer:
        await producer.send(b"x", txn=txn)
    await delete(pulsar, topic_path(f"{topic}-deleted"))


async def a_subscription_that_was_deleted(_pulsar: Target, client: AsyncClient, topic: str, txn: AsyncTransaction) -> None:
    name = f"{topic}-unsubscribed"
    consumer = await client.subscribe(name, "s")
    producer = await client.create_producer(name)
    await producer.send(b"x")
    await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    await consumer.unsubscribe()


@row(88)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "missing",
    [
        a_topic_that_never_was,
        a_subscription_that_never_was,
        a_subscription_of_a_topic_that_never_was,
        a_topic_that_was_deleted,
        a_subscription_that_was_deleted,
    ],
)
async def test_a_participant_that_is_missing_counts_as_told(
    pulsar: Target,
    client: AsyncClient,
    topic: str,
    missing: Callable[[Target, AsyncClient, str, AsyncTransaction], Awaitable[None]],
    action: str,
) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    await missing(pulsar, client, topic, txn)
    await getattr(txn, action)()
    assert txn.state is (TransactionState.COMMITTED if action == "commit" else TransactionState.ABORTED)
    assert await visible(client, topic) == ([b"x"] if action == "commit" else [])
