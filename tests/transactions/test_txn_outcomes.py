"""Whatever happens in a transaction, all of it becomes visible or none of it: on our broker and on stock Pulsar."""

from __future__ import annotations

import asyncio

import pytest
from transactions import visible

from pulsar_txn.client import AsyncClient, TransactionState


@pytest.mark.seed_rows("A05")
async def test_an_exception_in_the_block_aborts_and_comes_out_as_it_is(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    with pytest.raises(LookupError, match="no seat"):
        async with client.transaction() as txn:
            await producer.send(b"aborted", txn=txn)
            raise LookupError("no seat")
    assert txn.state is TransactionState.ABORTED
    await producer.send(b"after")
    assert await visible(client, topic) == [b"after"]


async def test_a_rollback_leaves_the_block_quietly(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"aborted", txn=txn)
        txn.rollback()
    await producer.send(b"after")
    assert await visible(client, topic) == [b"after"]


@pytest.mark.seed_rows("D13")
@pytest.mark.parametrize("commits", [True, False])
async def test_several_topics_share_one_outcome(client: AsyncClient, topic: str, commits: bool) -> None:
    topics = [f"{topic}-{number}" for number in range(4)]
    producers = [await client.create_producer(each) for each in topics]
    txn = await client.begin_transaction()
    for producer in producers:
        await producer.send(b"x", txn=txn)
    await (txn.commit() if commits else txn.abort())
    for producer in producers:
        await producer.send(b"after")
    for each in topics:
        assert await visible(client, each) == ([b"x", b"after"] if commits else [b"after"])


async def test_a_transaction_without_operations_commits(client: AsyncClient) -> None:
    async with client.transaction() as txn:
        pass
    assert txn.state is TransactionState.COMMITTED


async def test_many_transactions_at_once_keep_to_themselves(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)

    async def one(number: int) -> None:
        txn = await client.begin_transaction()
        await producer.send(b"%d" % number, txn=txn)
        await (txn.abort() if number % 3 == 0 else txn.commit())

    await asyncio.gather(*(one(number) for number in range(60)))
    assert sorted(await visible(client, topic), key=int) == [b"%d" % number for number in range(60) if number % 3]


@pytest.mark.seed_rows("B37")
async def test_messages_of_a_transaction_name_it(client: AsyncClient, topic: str) -> None:
    consumer = await client.subscribe(topic, "s")
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    await producer.send(b"y")
    inside, outside = [await consumer.receive(timeout=20) for _ in range(2)]
    assert inside.txn_id == txn.id
    assert outside.txn_id is None
