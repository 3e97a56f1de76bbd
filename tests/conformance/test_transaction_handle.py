"""A transaction as a program holds it: its id, its states, what its end waits for and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import weakref
from collections import defaultdict

import pytest
from admin import TRANSACTIONS, get_json
from differences import Observed
from frame_proxy import FrameProxy
from rows import row
from targets import Target
from transactions import data_of, received, stays_silent, visible

from pulsar_txn.client import (
    AsyncClient,
    AsyncTransaction,
    CommitOutcomeUnknown,
    ConnectionLost,
    ConsumerType,
    InitialPosition,
    TransactionAborted,
    TransactionOperationFailed,
    TransactionState,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.client.errors import InvalidTransactionStatus, TransactionNotFound

HOUR = 3600.0


def any_two_follow(numbers: list[int]) -> bool:
    return any(later - earlier == 1 for earlier, later in itertools.pairwise(numbers))


@pytest.mark.seed_rows("C16", "C18", "D24")
@row(32)
async def test_the_ids_of_a_coordinator_go_up_by_one_and_name_it(pulsar: Target, client: AsyncClient) -> None:
    """Others may use the server meanwhile; so it is tried until two come one directly after the other."""
    coordinators = {each["id"] for each in await get_json(pulsar, f"{TRANSACTIONS}/coordinators")}
    ids = defaultdict(list)
    for _ in range(20):
        for _ in range(2 * len(coordinators)):
            txn = await client.begin_transaction()
            assert txn.id is not None
            ids[txn.id.most].append(txn.id.least)
            await txn.abort()
        if all(any_two_follow(each) for each in ids.values()):
            break
    assert set(ids) == coordinators
    for each in ids.values():
        assert each == sorted(set(each))
        assert any_two_follow(each)


async def next_state(txn: AsyncTransaction) -> TransactionState:
    """The state after OPEN; looked at in every turn of the loop, so that none is missed."""
    while txn.state is TransactionState.OPEN:  # noqa: ASYNC110 - polls on purpose
        await asyncio.sleep(0)
    return txn.state


@row(33)
async def test_a_transaction_is_open_then_committing_then_committed(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    assert txn.state is TransactionState.OPEN
    await producer.send(b"x", txn=txn)
    ending = asyncio.ensure_future(txn.commit())
    assert await next_state(txn) is TransactionState.COMMITTING
    await ending
    assert txn.state is TransactionState.COMMITTED
    assert await visible(client, topic) == [b"x"]


@row(33)
async def test_a_transaction_is_open_then_aborting_then_aborted(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    ending = asyncio.ensure_future(txn.abort())
    assert await next_state(txn) is TransactionState.ABORTING
    await ending
    assert txn.state is TransactionState.ABORTED


@row(33)
async def test_a_transaction_that_nobody_ended_in_time_has_timed_out(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction(timeout=0.5)
    assert txn.remaining is not None
    await asyncio.sleep(max(0.0, txn.remaining) + 0.01)
    assert txn.state is TransactionState.TIMED_OUT
    with pytest.raises(TransactionTimedOut):
        await producer.send(b"late", txn=txn)
    with pytest.raises(TransactionTimedOut):
        await txn.commit()


@row(33)
async def test_a_commit_of_what_was_aborted_elsewhere_does_not_succeed(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    """A stock coordinator has forgotten the transaction, so its client does not know its outcome."""
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    async with AsyncClient(pulsar.service_url) as elsewhere:
        await elsewhere.attach_transaction(str(txn.id)).abort()
    with pytest.raises((TransactionAborted, CommitOutcomeUnknown)):
        await txn.commit()
    observed(pulsar, 33, "state of a transaction aborted elsewhere, after commit()", txn.state.value)
    await producer.send(b"after")
    assert await visible(client, topic) == [b"after"]


@row(33)
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_an_end_of_what_was_committed_elsewhere(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed, end: str
) -> None:
    """A stock coordinator has forgotten the transaction: its outcome is unknown, whatever is asked for."""
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    async with AsyncClient(pulsar.service_url) as elsewhere:
        await elsewhere.attach_transaction(str(txn.id)).commit()
    with contextlib.suppress(CommitOutcomeUnknown, InvalidTransactionStatus, TransactionNotFound):
        await getattr(txn, end)()
    observed(pulsar, 33, f"state of a transaction committed elsewhere, after {end}()", txn.state.value)
    assert await visible(client, topic) == [b"x"]


@pytest.mark.seed_rows("C24")
@row(34)
async def test_a_commit_waits_for_everything_that_was_started(client: AsyncClient, topic: str) -> None:
    source = await client.create_producer(f"{topic}-in", batching=False)
    sent = [b"%d" % number for number in range(100)]
    await asyncio.gather(*(source.send_nowait(each) for each in sent))
    options = {"consumer_type": ConsumerType.SHARED, "initial_position": InitialPosition.EARLIEST}
    consumer = await client.subscribe(f"{topic}-in", "s", **options)
    messages = await received(consumer, 100)
    output = await client.create_producer(topic)
    txn = await client.begin_transaction()
    acks = [asyncio.ensure_future(consumer.acknowledge(message, txn=txn)) for message in messages]
    for message in messages:
        output.send_nowait(message.data, txn=txn)
    await asyncio.sleep(0)
    assert (txn.stats().sends_in_flight, txn.stats().acks_in_flight) == (100, 100)
    await txn.commit()
    assert (txn.stats().sends_in_flight, txn.stats().acks_in_flight) == (0, 0)
    assert all(ack.done() for ack in acks)
    assert await visible(client, topic) == [message.data for message in messages]
    await consumer.close()
    assert await stays_silent(await client.subscribe(f"{topic}-in", "s", **options))


@row(35)
@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_an_ended_transaction_leaves_no_timer_behind(client: AsyncClient, end: str) -> None:
    """A timer that still ran would hold the transaction for the hour of its timeout."""
    txn = await client.begin_transaction(timeout=HOUR)
    await getattr(txn, end)()
    left = weakref.ref(txn)
    del txn
    await asyncio.sleep(0)
    gc.collect()
    assert left() is None


@row(36)
@pytest.mark.parametrize(("end", "other"), [("commit", "abort"), ("abort", "commit")])
async def test_an_end_may_be_repeated_while_it_is_under_way_and_not_turned_round(
    client: AsyncClient, topic: str, end: str, other: str
) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"x", txn=txn)
    first = asyncio.ensure_future(getattr(txn, end)())
    await next_state(txn)
    with pytest.raises(TransactionStateError):
        await getattr(txn, other)()
    await getattr(txn, end)()
    await first
    await producer.send(b"after")
    assert await visible(client, topic) == ([b"x", b"after"] if end == "commit" else [b"after"])


@row(53)
async def test_an_ack_without_a_connection_fails_in_time_and_dooms_its_transaction(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"0")
    await producer.send(b"1")
    async with FrameProxy(pulsar.service_url) as proxy, AsyncClient(proxy.service_url, operation_timeout=1.0) as cut_off:
        consumer = await cut_off.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
        first, second = await received(consumer, 2)
        txn = await cut_off.begin_transaction()
        await consumer.acknowledge(first, txn=txn)
        proxy.unreachable = True
        proxy.reset_all()
        with pytest.raises(ConnectionLost):
            await consumer.acknowledge(second, txn=txn)
        assert txn.doomed
        proxy.unreachable = False
        with pytest.raises(TransactionOperationFailed):
            await txn.commit()
        assert await data_of(consumer, 2) == [b"0", b"1"]
