"""How far a topic may be read, as its statistics, its last message's id and its counters say."""

from __future__ import annotations

from typing import Any

import pytest
from admin import buffer_stats, eventually, get_json, topic_path, topic_stats
from differences import Observed
from rows import row
from targets import Target
from transactions import data_of

from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.wire.ids import MessageId


def text_of(message_id: MessageId) -> str:
    return f"{message_id.ledger_id}:{message_id.entry_id}"


async def max_read_position(pulsar: Target, topic: str) -> str:
    """`ledger:entry` of the last entry that may be read."""
    return str((await buffer_stats(pulsar, topic))["maxReadPosition"])


async def last_entry(pulsar: Target, topic: str) -> str:
    """`ledger:entry` of the last entry, be it a marker."""
    return str((await get_json(pulsar, f"{topic_path(topic)}/internalStats"))["lastConfirmedEntry"])


@row(40)
async def test_every_plain_message_may_be_read_where_no_transaction_ever_was(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    for payload in (b"0", b"1"):
        sent = text_of(await producer.send(payload))
        # A stock topic answers from its first moment on, and looks for its snapshot meanwhile.
        assert await eventually(lambda: max_read_position(pulsar, topic), sent.__eq__) == sent


@row(40)
async def test_plain_messages_may_be_read_until_a_transaction_is_open(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    before = await producer.send(b"before")
    txn = await client.begin_transaction()
    await producer.send(b"in", txn=txn)
    assert await max_read_position(pulsar, topic) == text_of(before)
    await producer.send(b"behind")
    assert await max_read_position(pulsar, topic) == text_of(before)
    await txn.commit()
    assert await max_read_position(pulsar, topic) == await last_entry(pulsar, topic)
    after = await producer.send(b"after")
    assert await max_read_position(pulsar, topic) == text_of(after)


@pytest.mark.seed_rows("D37", "D45")
@row(40)
async def test_the_oldest_open_transaction_is_the_limit(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    before = await producer.send(b"before")
    older, younger = await client.begin_transaction(), await client.begin_transaction()
    await producer.send(b"older", txn=older)
    between = await producer.send(b"between")
    await producer.send(b"younger", txn=younger)
    await producer.send(b"behind")
    assert await max_read_position(pulsar, topic) == text_of(before)
    await older.abort()
    assert await max_read_position(pulsar, topic) == text_of(between)
    await younger.commit()
    assert await max_read_position(pulsar, topic) == await last_entry(pulsar, topic)


@row(40)
async def test_the_end_of_a_younger_transaction_moves_nothing(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    before = await producer.send(b"before")
    older, younger = await client.begin_transaction(), await client.begin_transaction()
    await producer.send(b"older", txn=older)
    await producer.send(b"younger", txn=younger)
    await younger.commit()
    assert await max_read_position(pulsar, topic) == text_of(before)
    await older.commit()
    assert await max_read_position(pulsar, topic) == await last_entry(pulsar, topic)


@row(57)
async def test_the_last_message_id_passes_over_what_is_open_aborted_or_a_marker(client: AsyncClient, topic: str) -> None:
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    producer = await client.create_producer(topic, batching=False)
    last = consumer.get_last_message_id
    txn = await client.begin_transaction()
    await producer.send(b"held", txn=txn)
    assert (await last()).entry_id == -1
    assert not await consumer.has_message_available()
    behind = await producer.send(b"behind")
    assert (await last()).entry_id == -1
    await txn.commit()
    assert await last() == behind
    assert await consumer.has_message_available()
    aborted = await client.begin_transaction()
    await producer.send(b"gone", txn=aborted)
    await aborted.abort()
    assert await last() == behind
    assert await data_of(consumer, 2) == [b"held", b"behind"]
    assert not await consumer.has_message_available()
    async with client.transaction() as txn:
        committed = await producer.send(b"committed", txn=txn)
    assert await last() == committed


@row(57)
async def test_the_last_message_id_over_http(pulsar: Target, client: AsyncClient, topic: str, observed: Observed) -> None:
    producer = await client.create_producer(topic, batching=False)
    plain = await producer.send(b"plain")
    txn = await client.begin_transaction()
    held = await producer.send(b"held", txn=txn)
    answer = await get_json(pulsar, f"{topic_path(topic)}/lastMessageId")
    names = {plain.position: "the last that may be read", held.position: "the last of the log"}
    observed(
        pulsar, 57, "last message's id over HTTP, beside an open transaction", names[answer["ledgerId"], answer["entryId"]]
    )
    await txn.abort()


def counts(stats: dict[str, Any]) -> tuple[int, int, int]:
    """Of transactions in a topic: ongoing, aborted, committed."""
    return stats["ongoingTxnCount"], stats["abortedTxnCount"], stats["committedTxnCount"]


@row(59)
async def test_a_topic_counts_its_transactions(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"plain")
    assert counts(await topic_stats(pulsar, topic)) == (0, 0, 0)
    transactions = [await client.begin_transaction() for _ in range(6)]
    for txn in transactions:
        await producer.send(b"x", txn=txn)
        await producer.send(b"y", txn=txn)
    assert counts(await topic_stats(pulsar, topic)) == (6, 0, 0)
    for txn in transactions[:3]:
        await txn.commit()
    await transactions[3].abort()
    assert counts(await topic_stats(pulsar, topic)) == (2, 1, 3)
    await transactions[4].abort()
    await transactions[5].commit()
    assert counts(await topic_stats(pulsar, topic)) == (0, 2, 4)


@row(59)
async def test_a_transaction_that_times_out_counts_as_aborted(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction(timeout=1)
    await producer.send(b"x", txn=txn)
    stats = await eventually(lambda: topic_stats(pulsar, topic), lambda found: counts(found) == (0, 1, 0))
    assert counts(stats) == (0, 1, 0)
