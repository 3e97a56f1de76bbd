"""A transaction that has ended takes nothing more: no send, no acknowledgement, no other end."""

from __future__ import annotations

import pytest
from rows import row
from subscriptions import filled, left_over, subscribed
from transactions import visible

from pulsar_txn.client import AsyncClient, ConsumerType, TransactionStateError

ENDS = pytest.mark.parametrize("end", ["commit", "abort"])


@row(4)
@ENDS
async def test_a_send_is_refused(client: AsyncClient, topic: str, end: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    await getattr(txn, end)()
    with pytest.raises(TransactionStateError):
        await producer.send(b"late", txn=txn)
    await producer.send(b"after")
    assert await visible(client, topic) == ([b"x", b"after"] if end == "commit" else [b"after"])


@row(4)
@ENDS
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("how", ["acknowledge", "acknowledge_cumulative"])
async def test_an_acknowledgement_is_refused(client: AsyncClient, topic: str, how: str, batched: bool, end: str) -> None:
    payloads = await filled(client, topic, 2, batched=batched)
    consumer = await subscribed(client, topic, ConsumerType.FAILOVER)
    message = await consumer.receive(timeout=20)
    txn = await client.begin_transaction()
    await getattr(txn, end)()
    with pytest.raises(TransactionStateError):
        await getattr(consumer, how)(message, txn=txn)
    assert await left_over(client, topic, consumer, 2) == payloads


@row(4)
@pytest.mark.parametrize(("end", "other"), [("commit", "abort"), ("abort", "commit")])
async def test_the_other_end_is_refused(client: AsyncClient, topic: str, end: str, other: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    await getattr(txn, end)()
    with pytest.raises(TransactionStateError):
        await getattr(txn, other)()
    await producer.send(b"after")
    assert await visible(client, topic) == ([b"x", b"after"] if end == "commit" else [b"after"])
