"""Fencing: of all clients with one transactional id only the newest goes on; by topic it works on every server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from frame_proxy import FrameProxy
from targets import Target
from transactions import visible

from pulsar_txn.client import AccessMode, AsyncClient, AsyncTransaction, TransactionState
from pulsar_txn.client.errors import InvalidConfiguration, ProducerFenced, TransactionalIdUnsupported

ours = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)


@pytest.fixture
async def old(pulsar: Target, topic: str) -> AsyncIterator[AsyncClient]:
    """The instance that was there first; the name of the topic serves as id."""
    async with AsyncClient(pulsar.service_url, transactional_id=topic) as client:
        yield client


@pytest.fixture
async def new(pulsar: Target, topic: str) -> AsyncIterator[AsyncClient]:
    """Its successor."""
    async with AsyncClient(pulsar.service_url, transactional_id=topic) as client:
        yield client


@pytest.mark.seed_rows("B04", "E05", "E12")
@ours
async def test_a_successor_ends_what_a_zombie_left_open(old: AsyncClient, new: AsyncClient, topic: str) -> None:
    before, after = await old.create_producer(topic), await new.create_producer(topic)
    zombie = await old.begin_transaction()
    await before.send(b"of the zombie", txn=zombie)
    async with new.transaction() as txn:
        await after.send(b"of the successor", txn=txn)
    with pytest.raises(ProducerFenced) as raised:
        await zombie.commit()
    assert raised.value.fatal
    assert zombie.state is TransactionState.ABORTED
    assert await visible(new, topic) == [b"of the successor"]


@ours
async def test_a_fenced_worker_stops_at_its_first_operation_and_is_not_run_again(
    old: AsyncClient, new: AsyncClient, topic: str
) -> None:
    producer = await old.create_producer(topic)
    await (await old.begin_transaction()).abort()
    await (await new.begin_transaction()).abort()
    runs = []

    async def work(txn: AsyncTransaction) -> None:
        runs.append(txn)
        await producer.send(b"of the old one", txn=txn)

    with pytest.raises(ProducerFenced, match="newer instance"):
        await old.run_transaction(work)
    assert len(runs) == 1
    assert await visible(new, topic) == []
    with pytest.raises(ProducerFenced, match="newer instance"):
        async with old.transaction(eager=True):
            pytest.fail("the block was entered")


@pytest.mark.seed_rows("B15")
@ours
async def test_a_transaction_that_was_fenced_while_it_sent_is_doomed(old: AsyncClient, new: AsyncClient, topic: str) -> None:
    producer = await old.create_producer(topic)
    zombie = await old.begin_transaction()
    await (await new.begin_transaction()).abort()
    with pytest.raises(ProducerFenced):
        await producer.send(b"late", txn=zombie)
    await zombie.abort()
    assert zombie.state is TransactionState.ABORTED
    assert await visible(new, topic) == []


@pytest.mark.seed_rows("E14")
@ours
async def test_a_commit_that_was_decided_before_the_takeover_stays_one(old: AsyncClient, new: AsyncClient, topic: str) -> None:
    producer = await old.create_producer(topic)
    async with old.transaction() as txn:
        await producer.send(b"in time", txn=txn)
    await (await new.begin_transaction()).abort()
    assert txn.id is not None
    assert await old.attach_transaction(txn.id).resolve() is TransactionState.COMMITTED
    assert await new.attach_transaction(txn.id).resolve() is TransactionState.COMMITTED
    assert await visible(new, topic) == [b"in time"]


@ours
async def test_a_connection_that_breaks_costs_neither_epoch_nor_transaction(pulsar: Target, topic: str) -> None:
    async with FrameProxy(pulsar.service_url) as proxy, AsyncClient(proxy.service_url, transactional_id=topic) as client:
        producer = await client.create_producer(topic)
        async with client.transaction() as txn:
            await producer.send(b"1", txn=txn)
            before = proxy.connections
            proxy.reset_all()
            while proxy.connections == before:  # noqa: ASYNC110 - a proxy has no event; what left before ends the transaction
                await asyncio.sleep(0.01)
            await producer.send(b"2", txn=txn)
        async with client.transaction() as txn:
            await producer.send(b"3", txn=txn)
        assert await visible(client, topic) == [b"1", b"2", b"3"]


@pytest.mark.seed_rows("E10")
@ours
async def test_other_ids_and_clients_without_one_go_on(pulsar: Target, old: AsyncClient, topic: str) -> None:
    async with (
        AsyncClient(pulsar.service_url) as plain,
        AsyncClient(pulsar.service_url, transactional_id=f"{topic}-2") as other,
    ):
        begun = [await client.begin_transaction() for client in (plain, other, old)]
        for txn in begun:
            await txn.commit()


async def test_a_stock_server_is_refused_rather_than_trusted(stock_pulsar: Target, topic: str) -> None:
    async with AsyncClient(stock_pulsar.service_url, transactional_id=topic) as client:
        with pytest.raises(TransactionalIdUnsupported, match="knows no transactional ids"):
            await client.begin_transaction()
        producer = await client.create_producer(topic)
        await producer.send(b"works without a transaction")


async def test_fencing_by_topic_works_everywhere(pulsar: Target, topic: str) -> None:
    async with AsyncClient(pulsar.service_url, fencing="topic") as old, AsyncClient(pulsar.service_url, fencing="topic") as new:
        before = await old.create_producer(topic)
        after = await new.create_producer(topic)
        with pytest.raises(ProducerFenced):
            await before.send(b"late")

        async def work(txn: AsyncTransaction) -> None:
            await after.send(b"alone", txn=txn)

        # A stock server has forgotten this producer, and closes the connection of its first send.
        await new.run_transaction(work)
        assert await visible(new, topic) == [b"alone"]
        shared = await new.create_producer(f"{topic}-shared", access_mode=AccessMode.SHARED)
        assert await shared.send(b"as it was asked for")


@pytest.mark.parametrize("given", [{"transactional_id": " "}, {"fencing": "table"}])
def test_options_of_fencing_that_cannot_work(given: dict[str, str]) -> None:
    with pytest.raises(InvalidConfiguration, match=next(iter(given))):
        AsyncClient("pulsar://localhost", **given)  # type: ignore[arg-type]  # what a program may get wrong
