"""Which unit has which key of a Key_Shared consumer: an abort brings a message back before those that follow it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import (
    AlreadyClosed,
    AsyncClient,
    AsyncConsumer,
    CommitOutcomeUnknown,
    ConsumerType,
    DeadLetterPolicy,
    OperationTimeout,
)
from pulsar_txn.client.receive import key_order
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.wire.topics import ASSIGN_TOPIC


@pytest.fixture
async def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.partitions[ASSIGN_TOPIC] = 1
    return broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    async with fake_client(broker, operation_timeout=2.0) as client:
        yield client


@pytest.fixture
async def consumer(client: AsyncClient, broker: FakeBroker) -> AsyncConsumer[Any]:
    return await subscribed(client)


async def subscribed(client: AsyncClient, **options: Any) -> AsyncConsumer[Any]:
    return await client.subscribe("in", "s", consumer_type=ConsumerType.KEY_SHARED, **options)


def deliver(broker: FakeBroker, number: int, key: str | None = "k") -> None:
    broker.deliver(1, number, b"%d" % number, **({} if key is None else {"partition_key": key}))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_another_unit_waits_for_the_key_and_gets_other_keys(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker
) -> None:
    for number, key in enumerate(["k", "k", "l"]):
        deliver(broker, number, key)
    async with client.transaction() as first:
        assert (await consumer.receive(txn=first)).data == b"0"
        async with client.transaction() as second:
            assert (await consumer.receive(timeout=1, txn=second)).data == b"2"
            with pytest.raises(OperationTimeout):
                await consumer.receive(timeout=0.05, txn=second)
            assert consumer.receive_nowait(txn=second) == []
            assert await consumer.receive_many(5, max_wait=0.05, txn=second) == []
        third = await client.begin_transaction()
        waiting = asyncio.ensure_future(consumer.receive(timeout=5, txn=third))
        await settle()
        assert not waiting.done()
    assert (await waiting).data == b"1"
    await third.abort()


async def test_the_same_unit_goes_on_with_its_key(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker
) -> None:
    for number in range(3):
        deliver(broker, number)
    async with client.transaction() as txn:
        assert [(await consumer.receive(timeout=1, txn=txn)).data for _ in range(3)] == [b"0", b"1", b"2"]


async def test_what_an_abort_brings_back_comes_before_what_was_queued_behind_it(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker
) -> None:
    for number in range(4):
        deliver(broker, number)
    with pytest.raises(LookupError):
        async with client.transaction() as txn:
            await consumer.receive_many(2, txn=txn)
            raise LookupError
    async with client.transaction() as txn:
        with pytest.raises(OperationTimeout):
            await consumer.receive(timeout=0.05, txn=txn)
        deliver(broker, 1)
        with pytest.raises(OperationTimeout):
            await consumer.receive(timeout=0.05, txn=txn)
        deliver(broker, 0)
        assert [(await consumer.receive(timeout=1, txn=txn)).data for _ in range(4)] == [b"0", b"1", b"2", b"3"]


async def test_what_does_not_come_again_is_asked_for_and_then_not_waited_for(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_order, "TIMES", 2)
    monkeypatch.setattr(key_order, "FIRST_PAUSE", 0.02)
    for number in range(2):
        deliver(broker, number)
    async with client.transaction() as txn:
        await consumer.receive(txn=txn)
        txn.rollback()
    async with client.transaction() as txn:
        assert (await consumer.receive(timeout=2, txn=txn)).data == b"1"
    asked = [[each.entryId for each in body.message_ids] for body in broker.all("redeliverUnacknowledgedMessages")]
    assert asked == [[0]] * 3


async def test_an_abort_lends_the_broker_a_permit_for_what_must_come_again(client: AsyncClient, broker: FakeBroker) -> None:
    """The queue was full of what waits for it: a hot key stood still for as long as it was waited for."""
    consumer = await subscribed(client, receiver_queue_size=2)
    for number in range(3):
        deliver(broker, number)
    txn = await client.begin_transaction()
    await consumer.receive(txn=txn)
    deliver(broker, 2)  # for the permit that came back
    part = next(iter(reception_of(consumer).partitions))
    await settle()
    before = broker.permits[broker.consumer_id] + part.machine._permits_back
    await txn.abort()
    await asyncio.sleep(0.01)
    assert broker.permits[broker.consumer_id] + part.machine._permits_back == before + 1
    deliver(broker, 0)
    await settle()
    assert broker.permits[broker.consumer_id] + part.machine._permits_back == before
    async with client.transaction() as txn:
        assert (await consumer.receive(timeout=1, txn=txn)).data == b"0"


@pytest.mark.parametrize("give_up", ["leave_out", "negative_acknowledge", "give_back"])
async def test_a_message_that_leaves_its_unit_frees_its_key(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker, give_up: str
) -> None:
    for number in range(2):
        deliver(broker, number)
    async with client.transaction() as first:
        message = await consumer.receive(txn=first)
        left = getattr(consumer, give_up)([message] if give_up == "give_back" else message)
        if left is not None:
            await left
        async with client.transaction() as second:
            assert (await consumer.receive(timeout=1, txn=second)).data == b"1"


async def test_an_unknown_outcome_frees_the_key(client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker) -> None:
    for number in range(2):
        deliver(broker, number)
    broker.on["endTxn"] = lambda _pipe, _body: SILENCE
    with pytest.raises(CommitOutcomeUnknown):
        async with client.transaction() as txn:
            await consumer.receive(txn=txn)
    del broker.on["endTxn"]
    async with client.transaction() as txn:
        assert (await consumer.receive(timeout=1, txn=txn)).data == b"1"


async def test_a_unit_that_was_dropped_frees_its_key(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker
) -> None:
    for number in range(2):
        deliver(broker, number)
    txn: Any = await client.begin_transaction()
    await consumer.receive(txn=txn)
    txn = None
    for _ in range(3):
        gc.collect()
        await settle()
    async with client.transaction() as txn:
        assert (await consumer.receive(timeout=1, txn=txn)).data == b"1"


async def test_messages_without_a_key_wait_for_nobody(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker
) -> None:
    for number in range(2):
        deliver(broker, number, None)
    async with client.transaction() as first:
        await consumer.receive(txn=first)
        async with client.transaction() as second:
            assert (await consumer.receive(timeout=1, txn=second)).data == b"1"


async def test_a_dead_letter_is_not_waited_for(client: AsyncClient, broker: FakeBroker) -> None:
    consumer = await subscribed(client, dead_letter_policy=DeadLetterPolicy(max_redeliver_count=1, dead_letter_topic="dead"))
    for number in range(2):
        deliver(broker, number)
    async with client.transaction() as txn:
        await consumer.receive(txn=txn)
        txn.rollback()
    part = next(iter(reception_of(consumer).partitions))
    part._is_buried = lambda entry, messages, bury=part._is_buried: bury(entry.once_more().once_more(), messages)  # type: ignore[method-assign,misc] # as if it had come often
    deliver(broker, 0)
    async with client.transaction() as txn:
        assert (await consumer.receive(timeout=1, txn=txn)).data == b"1"


async def test_closing_the_consumer_ends_the_wait_for_a_key(
    client: AsyncClient, consumer: AsyncConsumer[Any], broker: FakeBroker
) -> None:
    for number in range(2):
        deliver(broker, number)
    first, second = await client.begin_transaction(), await client.begin_transaction()
    await consumer.receive(txn=first)
    waiting = asyncio.ensure_future(consumer.receive(txn=second))
    await settle()
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await asyncio.wait_for(waiting, 1)
