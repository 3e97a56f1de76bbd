"""Committed positions on every server: where nothing is open, stock Pulsar tells the same position as our broker."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_txn.client import AsyncClient, Client, InitialPosition
from pulsar_txn.client.errors import NotAllowedError, PositionUnstable


@pytest.mark.seed_rows("C03", "C29")
async def test_the_position_follows_commits_and_not_aborts(pulsar: Any, topic: str) -> None:
    async with AsyncClient(pulsar.service_url) as client:
        producer = await client.create_producer(topic, batching=False)
        consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
        for number in range(3):
            await producer.send(f"{number}".encode())
        messages = [await consumer.receive() for _ in range(3)]

        async def position() -> Any:
            return next(iter((await consumer.committed(require_stable=False)).values()))

        start = await position()
        assert start.message_id.position < messages[0].message_id.position
        async with client.transaction() as txn:
            await consumer.acknowledge(messages[0], txn=txn)
            inside = await position()
            assert inside.message_id == start.message_id
            if pulsar.is_ours:
                assert inside.open_transaction == txn.id
                with pytest.raises(PositionUnstable):
                    await consumer.committed()
        committed = await position()
        assert committed.message_id.position == messages[0].message_id.position
        other = await client.begin_transaction()
        await consumer.acknowledge(messages[1], txn=other)
        await other.abort()
        assert (await position()).message_id.position == messages[0].message_id.position
        if pulsar.is_ours:
            assert (committed.last_transaction, committed.open_transaction) == (txn.id, None)
            assert next(iter((await consumer.committed()).values())) == committed
        else:
            with pytest.raises(NotAllowedError, match="require_stable=False"):
                await consumer.committed()


def test_a_blocking_consumer_asks_as_well(pulsar: Any, topic: str) -> None:
    with Client(pulsar.service_url) as client, client.subscribe(topic, "s") as consumer:
        (found,) = consumer.committed(require_stable=False).values()
        assert (found.last_transaction, found.open_transaction) == (None, None)
