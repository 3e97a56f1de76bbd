"""Messages that are received in a transaction, on every server: the block of the README is safe as it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from targets import Target
from transactions import PATIENCE, stays_silent

from pulsar_txn.client import AsyncClient, AsyncConsumer, ConsumerType, InitialPosition
from pulsar_txn.client.errors import TransactionAborted


class RefusedError(Exception):
    """What the program's own code raises."""


async def filled(client: AsyncClient, topic: str, kind: ConsumerType, count: int, *, batched: bool) -> AsyncConsumer[bytes]:
    options: dict[str, Any] = {"consumer_type": kind, "initial_position": InitialPosition.EARLIEST}
    consumer = await client.subscribe(topic, "s", **options)
    producer = await client.create_producer(topic, batching=batched, batching_max_messages=count, batching_max_delay=60)
    tickets = [producer.send_nowait(b"%d" % number) for number in range(count)]
    await producer.flush()
    await asyncio.gather(*tickets)
    return consumer


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_what_a_unit_received_comes_again_when_it_fails_and_is_gone_when_it_commits(
    pulsar: Target, topic: str, kind: ConsumerType, batched: bool
) -> None:
    async with AsyncClient(pulsar.service_url) as client:
        consumer = await filled(client, topic, kind, 6, batched=batched)
        producer = await client.create_producer(f"{topic}-out")
        with pytest.raises(RefusedError):
            async with client.transaction() as txn:
                for _ in range(2):
                    message = await consumer.receive(PATIENCE, txn=txn)
                    await producer.send(message.data, txn=txn)
                raise RefusedError
        seen: Counter[bytes] = Counter()
        while seen.total() < 6:
            async with client.transaction() as txn:
                seen.update(message.data for message in await consumer.receive_many(2, max_wait=PATIENCE, txn=txn))
        assert seen == Counter(b"%d" % number for number in range(6))
        assert await stays_silent(consumer)
        await consumer.close()
        assert await stays_silent(await client.subscribe(topic, "s", consumer_type=kind))


async def test_an_acknowledgement_by_hand_and_an_abort_bring_everything_of_the_unit_back(pulsar: Target, topic: str) -> None:
    """One message is pending in the transaction, and the other was never acknowledged: both come again, and once."""
    async with AsyncClient(pulsar.service_url) as client:
        consumer = await filled(client, topic, ConsumerType.SHARED, 4, batched=True)
        with pytest.raises(RefusedError):
            async with client.transaction() as txn:
                first, _ = await consumer.receive_many(2, max_wait=PATIENCE, txn=txn)
                await consumer.acknowledge(first, txn=txn)
                raise RefusedError
        seen: Counter[bytes] = Counter()
        while seen.total() < 4:
            try:
                async with client.transaction() as txn:
                    messages = await consumer.receive_many(4, max_wait=PATIENCE / 10, txn=txn)
            except TransactionAborted:  # a stock broker may still have the former transaction's acknowledgement
                continue
            seen.update(message.data for message in messages)
        assert seen == Counter(b"%d" % number for number in range(4))
        assert await stays_silent(consumer)
