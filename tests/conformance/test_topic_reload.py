"""A topic that is closed and loaded again goes on where it was; one that is deleted takes everything with it."""

from __future__ import annotations

import asyncio

import pytest
from admin import TRANSACTIONS, AdminError, buffer_stats, delete, get_json, of_topic, put, topic_path
from differences import Observed
from rows import row
from targets import Target
from transactions import data_of, eventually_visible, received, stays_silent, visible

from pulsar_txn.client import AsyncClient, AsyncConsumer, InitialPosition


async def unload(pulsar: Target, topic: str) -> None:
    """The server closes the topic; who uses it next loads it again."""
    await put(pulsar, f"{topic_path(topic)}/unload")


@row(70)
async def test_a_topic_without_transactions_begins_its_first_one_behind_a_reload(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"plain")
    await unload(pulsar, topic)
    async with client.transaction() as txn:
        await producer.send(b"first", txn=txn)
    assert await visible(client, topic) == [b"plain", b"first"]


@row(70)
async def test_open_committed_and_aborted_transactions_are_what_they_were_behind_a_reload(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    committed, aborted = await client.begin_transaction(), await client.begin_transaction()
    kept, dropped = await client.begin_transaction(), await client.begin_transaction()
    await producer.send(b"committed", txn=committed)
    await producer.send(b"aborted", txn=aborted)
    await committed.commit()
    await aborted.abort()
    await producer.send(b"kept", txn=kept)
    await producer.send(b"dropped", txn=dropped)
    await producer.send(b"plain")

    await unload(pulsar, topic)
    assert await eventually_visible(client, topic, [b"committed"])
    await kept.commit()
    assert await eventually_visible(client, topic, [b"committed", b"kept"])

    await unload(pulsar, topic)
    await producer.send(b"dropped too", txn=dropped)
    await dropped.abort()
    assert await eventually_visible(client, topic, [b"committed", b"kept", b"plain"])

    await unload(pulsar, topic)
    async with client.transaction() as txn:
        await producer.send(b"goes on", txn=txn)
    assert await eventually_visible(client, topic, [b"committed", b"kept", b"plain", b"goes on"])


@row(93)
@pytest.mark.parametrize("is_open", [False, True])
async def test_plain_messages_sent_while_a_topic_is_loaded_are_seen_as_far_as_transactions_let_them(
    pulsar: Target, client: AsyncClient, topic: str, is_open: bool
) -> None:
    producer = await client.create_producer(topic, batching=False)
    async with client.transaction() as txn:
        await producer.send(b"committed", txn=txn)
    holding = await client.begin_transaction()
    if is_open:
        await producer.send(b"held", txn=holding)
    await unload(pulsar, topic)
    plain = [b"%d" % number for number in range(20)]
    await asyncio.gather(*(producer.send(each) for each in plain))
    assert await eventually_visible(client, topic, [b"committed", *([] if is_open else plain)])
    await holding.abort()
    assert await eventually_visible(client, topic, [b"committed", *plain])


@row(73)
async def test_a_deleted_topic_leaves_nothing_of_its_transactions_to_its_successor(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    async with await client.create_producer(topic, batching=False) as producer:
        for _ in range(2):
            txn = await client.begin_transaction()
            await producer.send(b"x", txn=txn)
            await txn.abort()
    assert (await buffer_stats(pulsar, topic))["totalAbortedTransactions"] == 2
    await delete(pulsar, topic_path(topic))
    async with await client.create_producer(topic, batching=False) as producer:
        await producer.send(b"new")
        found = await buffer_stats(pulsar, topic)
        assert found["totalAbortedTransactions"] == 0
        assert found["ongoingTxnSize"] == 0
        assert await visible(client, topic) == [b"new"]


async def last_entry(consumer: AsyncConsumer[bytes]) -> tuple[int, int]:
    """The position that a subscription takes for the last message."""
    found = await consumer.get_last_message_id()
    return found.ledger_id, found.entry_id


@row(81)
async def test_the_last_message_is_in_front_of_an_open_transaction(client: AsyncClient, topic: str) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    places = [await producer.send(b"%d" % number) for number in range(5)]
    first, second = await client.begin_transaction(), await client.begin_transaction()
    held = await producer.send(b"first", txn=first)
    await producer.send(b"plain")
    behind = await producer.send(b"second", txn=second)
    assert await last_entry(consumer) == (places[-1].ledger_id, places[-1].entry_id)
    await second.commit()
    assert await last_entry(consumer) == (places[-1].ledger_id, places[-1].entry_id)
    await first.abort()
    assert await last_entry(consumer) == (behind.ledger_id, behind.entry_id)
    assert held < behind


@row(82)
async def test_the_last_message_may_be_in_the_ledger_before(pulsar: Target, client: AsyncClient, topic: str) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"0")
    before = await producer.send(b"1")
    await unload(pulsar, topic)
    txn = await client.begin_transaction()
    await producer.send(b"at the head", txn=txn)
    assert await last_entry(consumer) == (before.ledger_id, before.entry_id)
    assert await data_of(consumer, 2) == [b"0", b"1"]
    assert not await consumer.has_message_available()
    await txn.commit()
    assert await data_of(consumer, 1) == [b"at the head"]


@pytest.mark.seed_rows("D68")
@row(99)
@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_individual_acks_of_an_open_transaction_outlive_a_reload(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    for number in range(6):
        await producer.send(b"%d" % number)
    messages = await received(consumer, 6)
    settled, txn = await client.begin_transaction(), await client.begin_transaction()
    await consumer.acknowledge([messages[0], messages[3]], txn=settled)
    await settled.commit()
    await consumer.acknowledge([messages[1], messages[2]], txn=txn)
    await consumer.close()
    await unload(pulsar, topic)
    successor = await client.subscribe(topic, "s")
    assert await data_of(successor, 2) == [b"4", b"5"]
    assert await stays_silent(successor)
    await getattr(txn, action)()
    if action == "abort":
        assert await data_of(successor, 2) == [b"1", b"2"]  # the others come as well: the program has them, and nobody asked
    assert await stays_silent(successor)


@row(99)
@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_a_cumulative_ack_of_an_open_transaction_outlives_a_reload(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    for number in range(6):
        await producer.send(b"%d" % number)
    messages = await received(consumer, 6)
    txn = await client.begin_transaction()
    await consumer.acknowledge_cumulative(messages[3], txn=txn)
    await consumer.close()
    await unload(pulsar, topic)
    await getattr(txn, action)()
    successor = await client.subscribe(topic, "s")
    left = [b"%d" % number for number in range(0 if action == "abort" else 4, 6)]
    assert await data_of(successor, len(left)) == left
    assert await stays_silent(successor)


@row(99)
async def test_a_committed_cumulative_ack_inside_a_batch_leaves_the_rest_of_it_behind_a_reload(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    """Twice: the second reload finds what the first one has written."""
    producer = await client.create_producer(topic)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(5)))
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, 5)
    async with client.transaction() as txn:
        await consumer.acknowledge_cumulative(messages[1], txn=txn)
    await consumer.close()
    for _ in range(2):
        await unload(pulsar, topic)
        async with await client.subscribe(topic, "s") as consumer:
            rest = [message.data for message in await consumer.receive_many(3, max_wait=3.0)]
            seen = "comes again" if rest == [b"2", b"3", b"4"] else "is lost" if not rest else f"is {rest}"
            observed(pulsar, 99, "the rest of a batch after a committed cumulative ack and a reload", seen)


@row(99)
async def test_a_committed_transactional_batch_leaves_the_rest_of_a_batch_behind_a_reload(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    """What the client acknowledges by itself must not meet that: on stock it lost messages of pipelines."""
    producer = await client.create_producer(topic)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(5)))
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    async with consumer.transactional_batch(max_messages=2, max_wait=10) as batch:
        assert [message.data for message in batch] == [b"0", b"1"]
    await consumer.close()
    await unload(pulsar, topic)
    consumer = await client.subscribe(topic, "s")
    assert await data_of(consumer, 3) == [b"2", b"3", b"4"]


@pytest.mark.seed_rows("D65")
@row(101)
@pytest.mark.parametrize("what", ["subscription", "topic"])
async def test_a_deleted_subscription_leaves_nothing_of_its_acks_to_its_successor(
    pulsar: Target, client: AsyncClient, topic: str, what: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    txn = await client.begin_transaction()
    await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    stats = f"{TRANSACTIONS}/pendingAckStats/{of_topic(topic)}/s"
    log = f"{TRANSACTIONS}/pendingAckInternalStats/{of_topic(topic)}/s"
    assert (await get_json(pulsar, stats))["ongoingTxnSize"] == 1
    assert (await get_json(pulsar, log))["pendingAckLogStats"]["managedLedgerInternalStats"]["numberOfEntries"] == 1
    await consumer.close()
    if what == "subscription":
        await delete(pulsar, f"{topic_path(topic)}/subscription/s")
    else:
        await producer.close()
        await delete(pulsar, topic_path(topic))
    again = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    found = await get_json(pulsar, stats)
    assert (found["state"], found["ongoingTxnSize"]) == ("None", 0)
    with pytest.raises(AdminError):
        await get_json(pulsar, log)
    if what == "subscription":
        assert await data_of(again, 1) == [b"x"]
    await txn.commit()
    assert await stays_silent(again)
