"""A transaction that nobody ends is aborted when its time is over, and what was not done in time fails its commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from admin import TRANSACTIONS, AdminError, get_json
from frame_proxy import Fault, FrameProxy
from rows import row
from subscriptions import filled, subscribed
from targets import Target
from transactions import data_of, eventually_visible, received, visible

from pulsar_txn.client import (
    AsyncClient,
    ConsumerType,
    OperationTimeout,
    TransactionAborted,
    TransactionOperationFailed,
    TransactionState,
    TransactionStateError,
    TransactionTimedOut,
)


@pytest.mark.seed_rows("C39")
@row(23)
async def test_an_abandoned_transaction_stops_holding_readers_back(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction(timeout=1.5)
    assert txn.id is not None
    await producer.send(b"abandoned", txn=txn)
    await producer.send(b"behind")
    assert await visible(client, topic) == []
    assert await eventually_visible(client, topic, [b"behind"])
    with pytest.raises(AdminError) as unknown:
        await get_json(pulsar, f"{TRANSACTIONS}/transactionMetadata/{txn.id.most}/{txn.id.least}")
    assert unknown.value.status == 404


@pytest.mark.seed_rows("C33")
@row(24)
@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.EXCLUSIVE])
@pytest.mark.parametrize("batched", [False, True])
async def test_acknowledged_messages_come_again_and_the_commit_fails(
    client: AsyncClient, topic: str, kind: ConsumerType, batched: bool
) -> None:
    payloads = await filled(client, topic, 3, batched=batched)
    consumer = await subscribed(client, topic, kind)
    txn = await client.begin_transaction(timeout=1.5)
    await consumer.acknowledge(await received(consumer, 3), txn=txn)
    assert sorted(await data_of(consumer, 3)) == payloads
    with pytest.raises(TransactionAborted):
        await txn.commit()
    assert txn.state is TransactionState.ABORTED


@row(25)
async def test_the_client_knows_that_the_time_is_over_and_refuses_further_operations(client: AsyncClient, topic: str) -> None:
    await filled(client, topic, 1, batched=False)
    consumer = await subscribed(client, topic, ConsumerType.EXCLUSIVE)
    message = await consumer.receive(timeout=20)
    producer = await client.create_producer(f"{topic}-out")
    txn = await client.begin_transaction(timeout=2)
    await producer.send(b"in time", txn=txn)
    await asyncio.sleep(max(0.0, txn.remaining or 0.0) + 0.1)
    assert txn.state is TransactionState.TIMED_OUT
    with pytest.raises((TransactionTimedOut, TransactionStateError)):
        await producer.send(b"late", txn=txn)
    with pytest.raises((TransactionTimedOut, TransactionStateError)):
        await consumer.acknowledge(message, txn=txn)
    with pytest.raises(TransactionAborted):
        await txn.commit()
    await producer.send(b"after")
    assert await eventually_visible(client, f"{topic}-out", [b"after"])


@row(25)
async def test_a_block_that_takes_too_long_raises(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    with pytest.raises(TransactionAborted):
        async with client.transaction(timeout=1) as txn:
            await producer.send(b"slow", txn=txn)
            await asyncio.sleep(max(0.0, txn.remaining or 0.0) + 0.1)
    await producer.send(b"after")
    assert await eventually_visible(client, topic, [b"after"])


@pytest.fixture
async def proxy(pulsar: Target) -> AsyncIterator[FrameProxy]:
    async with FrameProxy(pulsar.service_url) as proxy:
        yield proxy


@pytest.fixture
async def deaf_client(proxy: FrameProxy) -> AsyncIterator[AsyncClient]:
    """A client that can be made not to hear an answer."""
    async with AsyncClient(proxy.service_url) as client:
        yield client


@row(26)
@pytest.mark.parametrize("waits", [True, False])
async def test_a_send_that_times_out_makes_the_commit_fail(
    client: AsyncClient, deaf_client: AsyncClient, proxy: FrameProxy, topic: str, waits: bool
) -> None:
    """Whether the program looks at the send's own error or not."""
    producer = await deaf_client.create_producer(topic, batching=False, send_timeout=0.5)
    txn = await deaf_client.begin_transaction()
    await producer.send(b"0", txn=txn)
    proxy.arm("send", Fault.LOST_ANSWER)
    ticket = producer.send_nowait(b"1", txn=txn)
    if waits:
        with pytest.raises(OperationTimeout):
            await ticket
    with pytest.raises(TransactionOperationFailed) as failed:
        await txn.commit()
    assert [type(each) for each in failed.value.failures] == [OperationTimeout]
    assert txn.state is TransactionState.ABORTED
    other = await client.create_producer(topic)
    await other.send(b"after")
    assert await visible(client, topic) == [b"after"]
