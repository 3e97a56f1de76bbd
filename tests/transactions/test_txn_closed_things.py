"""A topic that is unloaded or deleted under the client, at any moment of each call: the call returns before its timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import admin
import pytest
from targets import Target

from pulsar_txn.broker import Standalone
from pulsar_txn.client import AsyncClient, AsyncConsumer, AsyncProducer, ConsumerType, Message, OperationTimeout, PulsarError
from pulsar_txn.wire.topics import TopicName

PATIENCE: Final = 12.0
"""Seconds that a call may take; the operation timeout is 30."""

LATER: Final = (0.0, 0.01)
"""Seconds after the request to close the topic at which the call is made."""

_Call = Callable[[AsyncClient, AsyncConsumer[bytes], AsyncProducer[bytes], Message[bytes]], Awaitable[Any]]


async def _acknowledge_in_transaction(client: AsyncClient, consumer: Any, _producer: Any, message: Any) -> None:
    async with client.transaction() as txn:
        await consumer.acknowledge(message, txn=txn)


async def _send_in_transaction(client: AsyncClient, _consumer: Any, producer: Any, _message: Any) -> None:
    async with client.transaction() as txn:
        await producer.send(b"in", txn=txn)


async def _subscribe(client: AsyncClient, consumer: Any, _producer: Any, _message: Any) -> None:
    await (await client.subscribe(consumer.topic, "other", consumer_type=ConsumerType.SHARED)).close()


CALLS: Final[dict[str, _Call]] = {
    "acknowledge in a transaction": _acknowledge_in_transaction,
    "send in a transaction": _send_in_transaction,
    "acknowledge": lambda _, consumer, __, message: consumer.acknowledge(message, receipt=True),
    "get_last_message_id": lambda _, consumer, *__: consumer.get_last_message_id(),
    "committed": lambda _, consumer, *__: consumer.committed(require_stable=False),
    "seek": lambda _, consumer, *__: consumer.seek(0),
    "unsubscribe": lambda _, consumer, *__: consumer.unsubscribe(),
    "close a consumer": lambda _, consumer, *__: consumer.close(),
    "close a producer": lambda _, __, producer, ___: producer.close(),
    "send": lambda _, __, producer, ___: producer.send(b"x"),
    "flush": lambda _, __, producer, ___: producer.flush(),
    "subscribe": _subscribe,
    "create a producer": lambda client, consumer, *_: client.create_producer(consumer.topic),
}


async def _close(pulsar: Target, topic: str, how: str) -> None:
    path = admin.topic_path(topic)
    await (admin.put(pulsar, f"{path}/unload") if how == "unload" else admin.delete(pulsar, f"{path}?force=true"))


@pytest.mark.parametrize("how", ["unload", "delete"])
async def test_no_call_hangs_when_its_topic_is_closed(pulsar: Target, topic: str, how: str) -> None:
    async def meet(name: str, later: float) -> tuple[str, float, float]:
        where = f"{topic}-{list(CALLS).index(name)}-{later}"
        consumer = await client.subscribe(where, "s", consumer_type=ConsumerType.SHARED)
        producer = await client.create_producer(where)
        await producer.send(b"x")
        message = await consumer.receive(timeout=20)
        closing = asyncio.ensure_future(_close(pulsar, where, how))
        await asyncio.sleep(later)
        begun = time.monotonic()
        with suppress(PulsarError, TimeoutError):  # how it ends is told elsewhere
            async with asyncio.timeout(29):
                await CALLS[name](client, consumer, producer, message)
        took = time.monotonic() - begun
        with suppress(admin.AdminError):
            await closing
        return name, later, took

    found: list[tuple[str, float, float]] = []
    async with AsyncClient(pulsar.service_url) as client:
        for later in LATER:
            found += await asyncio.gather(*(meet(name, later) for name in CALLS))
    assert [each for each in found if each[2] > PATIENCE] == []


async def test_workers_do_not_stall_when_their_topic_is_unloaded(topic: str) -> None:
    """An acknowledgement met a consumer that the broker had just closed: 8 workers, 25 unloads, 16 stalls of 30 s.

    On our broker: under this load stock brokers have stalls of their own (docs/stock-pulsar.md), and answer no END_TXN then.
    """
    workers, unloads = 8, 25
    slowest = 0.0
    ended = asyncio.Semaphore(0)
    over = False
    async with Standalone() as broker, AsyncClient(broker.service_url) as client:

        async def work() -> None:
            nonlocal slowest
            consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
            while not over:
                try:
                    message = await consumer.receive(timeout=0.5)
                except OperationTimeout:
                    continue
                begun = time.monotonic()
                with suppress(PulsarError):
                    async with client.transaction() as txn:
                        await consumer.acknowledge(message, txn=txn)
                ended.release()
                slowest = max(slowest, time.monotonic() - begun)

        async def feed() -> None:
            while not over:
                await asyncio.gather(*(producer.send(b"x") for _ in range(50)))
                await asyncio.sleep(0.01)

        producer = await client.create_producer(topic)
        working = [asyncio.create_task(each) for each in (feed(), *(work() for _ in range(workers)))]
        for _ in range(unloads):
            for _ in range(2):
                await asyncio.wait_for(ended.acquire(), PATIENCE)
            await broker.broker.unload_topic(TopicName.parse(topic))
        over = True
        await asyncio.gather(*working)
    assert slowest < PATIENCE
