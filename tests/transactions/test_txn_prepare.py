"""Prepared transactions end to end, with the real client, on our broker and beside a stock cluster."""

from __future__ import annotations

import asyncio

import pytest
from asking_servers import AskingServer
from transactions import eventually_visible, visible

from pulsar_txn.client.errors import InvalidTransactionStatus, TransactionAborted

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
async def test_what_a_killed_process_prepared_is_ended_by_whoever_has_its_token_also_after_a_kill_of_the_server(
    asking: AskingServer, topic: str, commits: bool
) -> None:
    token = await asking.of_the_dead(topic, "prepare")
    await asking.kill_and_start()
    async with asking.client() as client:
        await asyncio.sleep(3)  # longer than its timeout, and than a lease
        assert await visible(client, topic) == []
        txn = await client.attach_prepared(token)
        await (txn.commit() if commits else txn.abort())
        producer = await client.create_producer(topic)
        await producer.send(b"plain")
        assert await eventually_visible(client, topic, [b"half", b"plain"] if commits else [b"plain"])
        again = await client.attach_prepared(token)
        with pytest.raises(InvalidTransactionStatus if commits else TransactionAborted):
            await (again.abort() if commits else again.commit())


async def test_a_successor_finds_what_its_predecessor_prepared(asking: AskingServer, topic: str) -> None:
    async with asking.client(transactional_id=topic) as old, asking.client(transactional_id=topic) as new:
        producer = await old.create_producer(topic)
        txn = await old.begin_transaction(timeout=60)
        await producer.send(b"prepared", txn=txn)
        token = await txn.prepare()
        await (await new.begin_transaction()).abort()
        assert await visible(new, topic) == []
        await (await new.attach_prepared(token)).commit()
        assert await eventually_visible(new, topic, [b"prepared"])


@pytest.mark.seed_rows("C26")
async def test_a_commit_that_does_not_wait_for_readers_reaches_them(asking: AskingServer, topic: str) -> None:
    async with asking.client() as client:
        producer = await client.create_producer(topic)
        async with client.transaction(visible=False) as txn:
            await producer.send(b"soon", txn=txn)
        assert await eventually_visible(client, topic, [b"soon"])
