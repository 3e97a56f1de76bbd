"""A broker that closes a consumer answers nothing of it any more: what was open ends at once, and is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import AsyncClient, AsyncConsumer, ConsumerType, Message
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

NO_ANSWER = 60.0
"""Seconds of an operation timeout that no test waits for."""


@pytest.fixture
async def broker() -> FakeBroker:
    broker = FakeBroker()
    broker.partitions[ASSIGN_TOPIC] = 1
    return broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    async with fake_client(broker, operation_timeout=NO_ANSWER, initial_backoff=0.001, max_backoff=0.01) as client:
        yield client


async def received(client: AsyncClient, broker: FakeBroker) -> tuple[AsyncConsumer[Any], Message[Any]]:
    consumer = await client.subscribe("in", "s", consumer_type=ConsumerType.SHARED)
    broker.deliver(1, 0, b"x")
    return consumer, await consumer.receive()


def answer_of(broker: FakeBroker, name: str) -> Callable[[Any, Any], Any]:
    """What the broker would answer."""
    usual: Callable[[Any, Any], Any] = broker.on.get(name) or getattr(broker, f"_{name}")
    return usual


def closes_in_place_of_an_answer(broker: FakeBroker, name: str, times: int = 1) -> None:
    """Answer a request of a consumer by closing that consumer, as stock brokers do with one that comes late."""
    usual = answer_of(broker, name)
    left = [times]

    def answer(pipe: Any, body: Any) -> Any:
        if not left[0]:
            return usual(pipe, body)
        left[0] -= 1
        broker.say("close_consumer", consumer_id=broker.consumer_id, request_id=2**64 - 1)
        return SILENCE

    broker.on[name] = answer


async def test_an_acknowledgement_in_a_transaction_is_sent_again_at_once(client: AsyncClient, broker: FakeBroker) -> None:
    consumer, message = await received(client, broker)
    closes_in_place_of_an_answer(broker, "ack")
    async with asyncio.timeout(5):
        async with client.transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
    assert len(broker.all("ack")) == 2
    assert len(broker.all("subscribe")) == 2


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("ack", lambda consumer, message: consumer.acknowledge(message, receipt=True)),
        ("getLastMessageId", lambda consumer, _: consumer.get_last_message_id()),
        ("getLastMessageId", lambda consumer, _: consumer.committed(require_stable=False)),
    ],
)
async def test_what_asks_nothing_twice_is_asked_again_at_once(
    client: AsyncClient, broker: FakeBroker, name: str, call: Callable[[AsyncConsumer[Any], Message[Any]], Awaitable[Any]]
) -> None:
    broker.on.setdefault("getLastMessageId", last_message_id)
    consumer, message = await received(client, broker)
    closes_in_place_of_an_answer(broker, name, times=2)
    async with asyncio.timeout(5):
        await call(consumer, message)
    assert len(broker.all(name)) == 3


async def test_a_seek_waits_for_its_answer_although_it_closes_the_consumer(client: AsyncClient, broker: FakeBroker) -> None:
    consumer, _ = await received(client, broker)

    def seek(_pipe: Any, body: Any) -> Any:
        broker.say("close_consumer", consumer_id=broker.consumer_id, request_id=2**64 - 1)
        broker.say("success", request_id=body.request_id)
        return SILENCE

    broker.on["seek"] = seek
    async with asyncio.timeout(5):
        await consumer.seek(0)


async def test_the_requests_of_other_consumers_stay(client: AsyncClient, broker: FakeBroker) -> None:
    consumer, message = await received(client, broker)
    first_id = broker.consumer_id
    other = await client.subscribe("other", "s", consumer_type=ConsumerType.SHARED)
    answers: list[Any] = []
    usual = answer_of(broker, "ack")

    def keep(pipe: Any, body: Any) -> Any:
        answers.append((pipe, body))
        return SILENCE

    broker.on["ack"] = keep
    waiting = asyncio.ensure_future(consumer.acknowledge(message, receipt=True))
    await broker.until(lambda: answers)
    broker.say("close_consumer", consumer_id=broker.consumer_id, request_id=2**64 - 1)
    assert broker.consumer_id != first_id
    await asyncio.sleep(0.05)
    assert not waiting.done()
    broker.on["ack"] = usual
    pipe, body = answers.pop()
    pipe.send(usual(pipe, body))
    await asyncio.wait_for(waiting, 5)
    assert other is not consumer
    assert len(broker.all("ack")) == 1


def last_message_id(_pipe: Any, body: Any) -> bytes:
    place = {"ledgerId": 1, "entryId": 0, "partition": -1, "batch_index": -1}
    return command(
        "getLastMessageIdResponse",
        request_id=body.request_id,
        last_message_id=place,
        consumer_mark_delete_position={"ledgerId": 1, "entryId": 0},
    )
