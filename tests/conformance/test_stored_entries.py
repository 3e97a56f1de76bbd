"""What transactions leave in a topic: their messages, one marker for each end, and nothing that a reader meets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from admin import TRANSACTIONS, AdminError, eventually, get_json, topic_path
from rows import row
from targets import Target
from transactions import create_partitioned_topic, data_of, received, stays_silent

from pulsar_txn.client import (
    AsyncClient,
    ConsumerType,
    InitialPosition,
    TransactionOperationFailed,
    TransactionState,
)
from pulsar_txn.client.errors import MessageTooLarge

TOO_LARGE = bytes(10 * 1024 * 1024)


async def entries(pulsar: Target, topic: str) -> int:
    """How many entries a topic's log holds."""
    stats = await get_json(pulsar, f"{topic_path(topic)}/internalStats")
    return int(stats["numberOfEntries"])


async def sent_to_partitions(pulsar: Target, client: AsyncClient, topic: str, action: str) -> None:
    """Nine messages over three partitions in one transaction, that then ends."""
    await create_partitioned_topic(pulsar, topic, 3)
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    for number in range(9):
        await producer.send(b"%d" % number, txn=txn)
    await getattr(txn, action)()


@pytest.mark.seed_rows("A20", "C28", "D28")
@row(61)
async def test_each_partition_holds_its_messages_and_one_commit_marker(pulsar: Target, client: AsyncClient, topic: str) -> None:
    await sent_to_partitions(pulsar, client, topic, "commit")
    for number in range(3):
        assert await entries(pulsar, f"{topic}-partition-{number}") == 3 + 1
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    assert sorted(await data_of(consumer, 9)) == [b"%d" % number for number in range(9)]
    assert await stays_silent(consumer)


@pytest.mark.seed_rows("A17", "C36", "D58")
@row(62)
async def test_each_partition_holds_one_abort_marker_and_delivers_nothing(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    await sent_to_partitions(pulsar, client, topic, "abort")
    for number in range(3):
        assert await entries(pulsar, f"{topic}-partition-{number}") == 3 + 1
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    assert await stays_silent(consumer)


@pytest.mark.seed_rows("B32", "C32")
@row(64)
async def test_a_send_that_is_too_large_fails_its_transaction(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    with pytest.raises(MessageTooLarge):
        await producer.send(TOO_LARGE, txn=txn)
    with pytest.raises(TransactionOperationFailed):
        await txn.commit()
    assert txn.state is TransactionState.ABORTED
    assert txn.id is not None
    with pytest.raises(AdminError) as unknown:
        await get_json(pulsar, f"{TRANSACTIONS}/transactionMetadata/{txn.id.most}/{txn.id.least}")
    assert unknown.value.status == 404


@row(84)
async def test_sends_of_a_first_transaction_keep_their_order(client: AsyncClient, topic: str) -> None:
    """All of them are on their way while the topic prepares for its first transaction."""
    producer = await client.create_producer(topic, batching=False)
    consumer = await client.subscribe(topic, "s")
    txn = await client.begin_transaction()
    sent = [b"%d" % number for number in range(100)]
    await asyncio.gather(*(producer.send_nowait(each, txn=txn) for each in sent))
    await txn.commit()
    assert await data_of(consumer, 100) == sent


async def interleaved(client: AsyncClient, topic: str) -> list[bytes]:
    """Plain, committed and aborted messages in turns; what is to be seen of them."""
    producer = await client.create_producer(topic, batching=False)
    committed, aborted = await client.begin_transaction(), await client.begin_transaction()
    for number in range(5):
        await producer.send(b"plain %d" % number)
        await producer.send(b"committed %d" % number, txn=committed)
        await producer.send(b"aborted %d" % number, txn=aborted)
    await committed.commit()
    await aborted.abort()
    return [b"%s %d" % (kind, number) for number in range(5) for kind in (b"plain", b"committed")]


@pytest.mark.seed_rows("A11", "D29")
@row(66)
async def test_every_kind_of_consumer_sees_plain_and_committed_messages_only(client: AsyncClient, topic: str) -> None:
    exclusive = await client.subscribe(topic, "exclusive")
    shared = [await client.subscribe(topic, "shared", consumer_type=ConsumerType.SHARED) for _ in range(2)]
    seen = await interleaved(client, topic)
    assert await data_of(exclusive, 10) == seen
    dealt: list[bytes] = []
    while len(dealt) < 10:
        dealt += [message.data for each in shared for message in await each.receive_many(10, max_wait=0.1)]
    assert sorted(dealt) == sorted(seen)
    assert await stays_silent(exclusive)
    assert await stays_silent(shared[0])
    assert await stays_silent(shared[1])


@row(67)
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_what_is_delivered_again_holds_no_aborted_message(client: AsyncClient, topic: str, kind: ConsumerType) -> None:
    consumer = await client.subscribe(topic, "s", consumer_type=kind)
    seen = await interleaved(client, topic)
    assert sorted(await data_of(consumer, 10)) == sorted(seen)
    consumer.redeliver_unacknowledged()
    assert sorted(await data_of(consumer, 10)) == sorted(seen)
    assert await stays_silent(consumer)


async def cursor_of(pulsar: Target, topic: str) -> dict[str, Any]:
    """The cursor of subscription "s", with the last entry of the topic's log."""
    stats = await get_json(pulsar, f"{topic_path(topic)}/internalStats")
    return {"lastConfirmedEntry": stats["lastConfirmedEntry"], **stats["cursors"]["s"]}


@row(68)
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_acknowledging_a_message_of_chunks_settles_all_its_chunks(
    pulsar: Target, client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    consumer = await client.subscribe(topic, "s", consumer_type=kind)
    producer = await client.create_producer(topic, chunking=True, chunk_max_bytes=1000)
    sent = bytes(range(256)) * 20
    await producer.send(sent)
    assert await entries(pulsar, topic) > 5
    txn = await client.begin_transaction()
    await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    await txn.abort()
    (again,) = await received(consumer, 1)
    assert again.data == sent
    async with client.transaction() as txn:
        await consumer.acknowledge(again, txn=txn)
    cursor = await eventually(
        lambda: cursor_of(pulsar, topic), lambda found: found["markDeletePosition"] == found["lastConfirmedEntry"]
    )
    assert cursor["markDeletePosition"] == cursor["lastConfirmedEntry"]


@row(125)
@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_a_cursor_passes_the_markers_behind_what_was_acknowledged(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic, batching=False)
    for _ in range(3):
        txn = await client.begin_transaction()
        await producer.send(b"x", txn=txn)
        await getattr(txn, action)()
    await producer.send(b"last")
    txn = await client.begin_transaction()
    await producer.send(b"aborted", txn=txn)
    await txn.abort()
    for message in await received(consumer, 4 if action == "commit" else 1):
        await consumer.acknowledge(message, receipt=True)
    cursor = await eventually(
        lambda: cursor_of(pulsar, topic), lambda found: found["markDeletePosition"] == found["lastConfirmedEntry"]
    )
    assert cursor["markDeletePosition"] == cursor["lastConfirmedEntry"]
    assert cursor["individuallyDeletedMessages"] == "[]"
