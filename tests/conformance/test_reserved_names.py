"""Topics of the transaction machinery are nobody's to make, and positions that never were are nobody's to acknowledge."""

from __future__ import annotations

import re

import pytest
from admin import AdminError, get_json, of_topic, put, topic_path
from differences import Observed
from rows import row
from targets import Target

from pulsar_txn.client import AsyncClient, InitialPosition, PulsarError, TransactionConflict
from pulsar_txn.client.errors import NotAllowedError
from pulsar_txn.wire.ids import MessageId

RESERVED = [
    "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
    "persistent://pulsar/system/__transaction_log_0",
    "persistent://public/default/any-s__transaction_pending_ack",
]


@row(30)
@pytest.mark.parametrize("name", RESERVED)
async def test_reserved_names_cannot_be_produced_to_or_subscribed_to(client: AsyncClient, name: str) -> None:
    with pytest.raises(NotAllowedError):
        await client.create_producer(name)
    with pytest.raises(NotAllowedError):
        await client.subscribe(name, "s")


@row(30)
@pytest.mark.parametrize("name", RESERVED)
async def test_reserved_names_cannot_be_created_over_the_admin_interface(pulsar: Target, name: str) -> None:
    with pytest.raises(AdminError) as refused:
        await put(pulsar, topic_path(name))
    assert refused.value.status in (400, 409)


@row(30)
async def test_a_subscription_with_acks_of_transactions_adds_no_topic_to_the_lists(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    await (await client.create_producer(topic)).send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    async with client.transaction() as txn:
        await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    namespace = of_topic(topic).rpartition("/")[0]
    listed = await get_json(pulsar, f"/admin/v2/persistent/{namespace}")
    assert [each for each in listed if each.startswith(topic)] == [topic]
    followed = await client.subscribe(re.compile(re.escape(of_topic(topic)) + ".*"), "pattern")
    assert followed.topics == [topic]
    assert await get_json(pulsar, "/admin/v2/persistent/pulsar/system") == []


@row(30)
async def test_a_position_behind_the_last_message(pulsar: Target, client: AsyncClient, topic: str, observed: Observed) -> None:
    await (await client.create_producer(topic)).send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    first = (await consumer.receive(timeout=20)).message_id
    txn = await client.begin_transaction()
    seen = "accepted"
    try:
        await consumer.acknowledge(MessageId(first.ledger_id, first.entry_id + 70), txn=txn)
    except PulsarError as error:
        seen = type(error).__name__
    observed(pulsar, 30, "acknowledgement of a position after the last message", seen)
    await txn.abort()


@row(30)
async def test_a_position_before_the_topic_cannot_be_acknowledged(client: AsyncClient, topic: str) -> None:
    await (await client.create_producer(topic)).send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    first = (await consumer.receive(timeout=20)).message_id
    txn = await client.begin_transaction()
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(MessageId(first.ledger_id - 1, 10), txn=txn)
    await txn.abort()
