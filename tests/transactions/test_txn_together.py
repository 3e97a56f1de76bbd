"""Transactions of several clients that one record commits, and a transactional id that several processes share."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator

import pytest
from frame_proxy import Fault, FrameProxy
from targets import Target
from transactions import visible

from pulsar_txn.client import AsyncClient, AsyncTransaction, CommitOutcomeUnknown, TransactionState
from pulsar_txn.client.errors import (
    InvalidConfiguration,
    ProducerFenced,
    TransactionAborted,
    TransactionalIdUnsupported,
    TransactionFenced,
)
from pulsar_txn.client.inside import Epoch, abort_all, act_as, commit_together, ends_groups, is_open, open_for_others, take_over

ours = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)


@pytest.fixture
async def driver(pulsar: Target, topic: str) -> AsyncIterator[AsyncClient]:
    """The process that decides; the name of the topic serves as id."""
    async with AsyncClient(pulsar.service_url, transactional_id=topic) as client:
        yield client


@pytest.fixture
async def worker(pulsar: Target, topic: str) -> AsyncIterator[AsyncClient]:
    """Another process of the same instance."""
    async with AsyncClient(pulsar.service_url, transactional_id=topic) as client:
        yield client


async def sent(client: AsyncClient, topic: str, value: bytes) -> AsyncTransaction:
    """A transaction of this client with one message."""
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(value, txn=txn)
    return txn


@ours
async def test_what_several_processes_sent_is_committed_by_one(driver: AsyncClient, worker: AsyncClient, topic: str) -> None:
    epoch: Epoch = pickle.loads(pickle.dumps(await take_over(driver)))
    assert epoch.ends_groups
    await act_as(worker, epoch)
    delivered, left = await sent(worker, topic, b"delivered"), await sent(worker, topic, b"of a lost attempt")
    own = await sent(driver, topic, b"own")
    await commit_together(driver, own, [str(delivered.id)])
    await left.abort()
    assert sorted(await visible(driver, topic)) == [b"delivered", b"own"]
    await commit_together(driver, driver.attach_transaction(own.id or ""), [delivered.id or ""])


@ours
async def test_the_next_epoch_aborts_what_no_group_took(driver: AsyncClient, worker: AsyncClient, topic: str) -> None:
    await act_as(worker, await take_over(driver))
    zombie = await sent(worker, topic, b"of a zombie")
    first = await take_over(driver)
    await (await driver.begin_transaction()).abort()
    with pytest.raises(ProducerFenced):
        await worker.begin_transaction()
    with pytest.raises(TransactionAborted):
        await commit_together(driver, await driver.begin_transaction(), [str(zombie.id)])
    await act_as(worker, first)
    await commit_together(driver, await driver.begin_transaction(), [str((await sent(worker, topic, b"good")).id)])
    assert await visible(driver, topic) == [b"good"]


@ours
async def test_the_rest_is_aborted_with_the_commit_or_by_itself(driver: AsyncClient, worker: AsyncClient, topic: str) -> None:
    await act_as(worker, await take_over(driver))
    delivered, left = await sent(worker, topic, b"delivered"), await sent(worker, topic, b"left")
    await commit_together(driver, await driver.begin_transaction(), [str(delivered.id)], abort_rest=True)
    assert await visible(driver, topic) == [b"delivered"]
    with pytest.raises(TransactionAborted):
        await left.commit()
    again = await sent(worker, topic, b"again")
    await abort_all(driver)
    with pytest.raises(TransactionAborted):
        await again.commit()


@ours
async def test_a_refused_group_leaves_nothing_open_of_ours(driver: AsyncClient, topic: str) -> None:
    over = await driver.begin_transaction()
    await over.abort()
    own = await sent(driver, topic, b"own")
    with pytest.raises(TransactionAborted):
        await commit_together(driver, own, [str(over.id)])
    assert own.state is TransactionState.ABORTED
    await (await driver.create_producer(topic)).send(b"plain")
    assert await visible(driver, topic) == [b"plain"]


@ours
async def test_a_lost_answer_is_resolved_for_the_whole_group(pulsar: Target, topic: str) -> None:
    async with (
        FrameProxy(pulsar.service_url) as proxy,
        AsyncClient(proxy.service_url, transactional_id=topic, operation_timeout=3) as client,
    ):
        other = await sent(client, topic, b"other")
        own = await client.begin_transaction(commit_timeout=0.5)
        trap = proxy.arm("endTxn", Fault.LOST_ANSWER)
        with pytest.raises(CommitOutcomeUnknown) as unknown:
            await commit_together(client, own, [str(other.id)])
        assert trap.sprung
        assert await unknown.value.resolver() is TransactionState.COMMITTED
        assert await visible(client, topic) == [b"other"]


@ours
async def test_members_of_another_coordinator_are_refused_before_anything_is_sent(driver: AsyncClient, topic: str) -> None:
    own = await sent(driver, topic, b"own")
    assert own.id is not None
    with pytest.raises(InvalidConfiguration, match="another coordinator"):
        await commit_together(driver, own, [f"({own.id.most + 1},0)"])
    await own.commit()


@ours
async def test_an_epoch_belongs_to_its_id(pulsar: Target, driver: AsyncClient, topic: str) -> None:
    async with AsyncClient(pulsar.service_url) as plain, AsyncClient(pulsar.service_url, transactional_id="other") as other:
        epoch = await take_over(driver)
        with pytest.raises(InvalidConfiguration, match="no transactional id"):
            await take_over(plain)
        with pytest.raises(InvalidConfiguration, match="the epoch is one of"):
            await act_as(other, epoch)
        await act_as(other, Epoch("other", epoch.number + 10_000, epoch.coordinator_id, True))
        with pytest.raises(TransactionFenced):
            await other.begin_transaction()


async def test_a_stock_broker_offers_no_epochs_and_no_groups(stock_pulsar: Target, topic: str) -> None:
    url = stock_pulsar.service_url
    async with AsyncClient(url, transactional_id=topic) as client, AsyncClient(url) as plain:
        with pytest.raises(TransactionalIdUnsupported):
            await take_over(client)
        one, other = await plain.begin_transaction(), await plain.begin_transaction()
        while other.id is None or one.id is None or other.id.most != one.id.most:
            await other.abort()
            other = await plain.begin_transaction()
        with pytest.raises(InvalidConfiguration, match="by one record"):
            await commit_together(plain, one, [other.id])
        await other.abort()


@ours
async def test_whether_a_transaction_is_open_can_be_asked_without_changing_it(driver: AsyncClient, topic: str) -> None:
    await take_over(driver)
    assert await ends_groups(driver)
    gate = await open_for_others(driver, 60_000)
    assert await is_open(driver, gate)
    late = await sent(driver, topic, b"late")
    await commit_together(driver, await driver.begin_transaction(), [], abort_rest=True)
    assert not await is_open(driver, str(gate))
    assert not await is_open(driver, late.id or "")
    assert not await is_open(driver, "(0,987654321)")
    assert await visible(driver, topic) == []


async def test_stock_pulsar_says_that_it_ends_no_groups(stock_pulsar: Target) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client:
        assert not await ends_groups(client)
