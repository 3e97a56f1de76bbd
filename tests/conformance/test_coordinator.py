"""What a client asks of a coordinator: begin, register, end; and what a coordinator does by itself when time is over."""

from __future__ import annotations

import asyncio

import pytest
from admin import TRANSACTIONS, get_json
from coordinators import id_of, is_known, metadata, what_came_of
from differences import Observed
from insides import coordinators_of
from rows import row
from targets import Target
from transactions import eventually_visible, visible

from pulsar_txn.client import AsyncClient, PulsarError, TransactionState
from pulsar_txn.client.errors import AlreadyClosed, CoordinatorUnavailable
from pulsar_txn.wire.ids import TxnAction, TxnId

# ---- basics


@row(96)
async def test_a_client_begins_commits_and_aborts(client: AsyncClient) -> None:
    committed, aborted = await client.begin_transaction(), await client.begin_transaction()
    await committed.commit()
    await aborted.abort()
    assert (committed.state, aborted.state) == (TransactionState.COMMITTED, TransactionState.ABORTED)


@row(96)
@pytest.mark.parametrize("again", [True, False])
async def test_what_was_committed_is_asked_to_end_once_more(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed, again: bool
) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    action = TxnAction.COMMIT if again else TxnAction.ABORT
    seen = await what_came_of(coordinators_of(client).end_txn(id_of(txn), action), "COMMITTED" if again else "ABORTED")
    observed(pulsar, 96, "a commit repeated after its end" if again else "an abort of what was committed", seen)
    assert await visible(client, topic) == [b"x"]


@row(96)
@pytest.mark.parametrize("dead_one_first", [True, False])
async def test_a_client_starts_although_one_of_its_addresses_is_dead(pulsar: Target, topic: str, dead_one_first: bool) -> None:
    alive = pulsar.service_url.removeprefix("pulsar://")
    hosts = ["127.0.0.1:1", alive] if dead_one_first else [alive, "127.0.0.1:1"]
    async with AsyncClient("pulsar://" + ",".join(hosts)) as client:
        producer = await client.create_producer(topic)
        async with client.transaction() as txn:
            await producer.send(b"x", txn=txn)
        assert await visible(client, topic) == [b"x"]


@row(96)
async def test_an_error_of_the_coordinator_comes_out_as_itself(client: AsyncClient) -> None:
    begun = await client.begin_transaction()
    unknown = client.attach_transaction(TxnId(id_of(begun).most, 2**40))
    with pytest.raises(PulsarError) as raised:
        await unknown.commit()
    assert raised.value.txn_id == unknown.id
    await begun.abort()


# ---- what the coordinator keeps


@row(110)
async def test_a_transaction_begins_open_and_empty(pulsar: Target, client: AsyncClient) -> None:
    txn = await client.begin_transaction(timeout=30)
    found = await metadata(pulsar, id_of(txn))
    assert (found["status"], found["producedPartitions"], found["ackedPartitions"]) == ("OPEN", {}, {})
    assert found["txnId"] == str(txn.id)
    await txn.abort()


@row(110)
async def test_topics_and_subscriptions_are_added_to_a_transaction_once_each(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for name in topics:
        await client.subscribe(name, "a")
        await client.subscribe(name, "b")
    txn = await client.begin_transaction()
    coordinators = coordinators_of(client)
    for _ in range(2):
        await coordinators.add_partitions(id_of(txn), topics[:2])
        await coordinators.add_partitions(id_of(txn), topics[2:])
        await coordinators.add_subscriptions(id_of(txn), [(topics[0], "a"), (topics[0], "b"), (topics[1], "a")])
    found = await metadata(pulsar, id_of(txn))
    assert sorted(found["producedPartitions"]) == topics
    assert {name: sorted(of_topic) for name, of_topic in found["ackedPartitions"].items()} == {
        topics[0]: ["a", "b"],
        topics[1]: ["a"],
    }
    await txn.abort()


@row(110)
async def test_a_coordinator_that_there_is_not_cannot_be_asked(pulsar: Target, client: AsyncClient) -> None:
    count = len(await get_json(pulsar, f"{TRANSACTIONS}/coordinators"))
    with pytest.raises(CoordinatorUnavailable):
        await coordinators_of(client).end_txn(TxnId(count, 0), TxnAction.COMMIT)
    assert not await is_known(pulsar, TxnId(count, 0))


@row(113)
@pytest.mark.parametrize("first", list(TxnAction))
async def test_behind_its_end_a_transaction_takes_nothing_more(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed, first: TxnAction
) -> None:
    coordinators = coordinators_of(client)
    txn_id = await coordinators.new_txn(60_000)
    await coordinators.add_partitions(txn_id, [topic])
    await coordinators.end_txn(txn_id, first)
    assert not await is_known(pulsar, txn_id)
    name = f"a topic added to what was {'committed' if first is TxnAction.COMMIT else 'aborted'}"
    observed(pulsar, 113, name, await what_came_of(coordinators.add_partitions(txn_id, [topic]), "added"))
    name = f"a subscription added to what was {'committed' if first is TxnAction.COMMIT else 'aborted'}"
    observed(pulsar, 113, name, await what_came_of(coordinators.add_subscriptions(txn_id, [(topic, "s")]), "added"))
    if first is TxnAction.ABORT:
        seen = await what_came_of(coordinators.end_txn(txn_id, TxnAction.COMMIT), "COMMITTED")
        observed(pulsar, 113, "a commit of what was aborted", seen)
        seen = await what_came_of(coordinators.end_txn(txn_id, TxnAction.ABORT), "ABORTED")
        observed(pulsar, 113, "an abort repeated after its end", seen)


# ---- time-outs


@row(111)
async def test_many_transactions_are_aborted_each_at_its_time(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)

    async def abandoned(number: int) -> TxnId:
        txn = await client.begin_transaction(timeout=1 + number % 5 * 0.3)
        await producer.send(b"abandoned", txn=txn)
        return id_of(txn)

    begun = await asyncio.gather(*(abandoned(number) for number in range(50)))
    lasting = await client.begin_transaction(timeout=120)
    await producer.send(b"plain")

    assert await eventually_visible(client, topic, [b"plain"])
    assert [await is_known(pulsar, txn_id) for txn_id in begun] == [False] * 50
    assert (await metadata(pulsar, id_of(lasting)))["status"] == "OPEN"
    await lasting.commit()


# ---- the client's side


@row(121)
async def test_a_client_that_is_closed_aborts_its_transaction_and_asks_no_coordinator_afterwards(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    async with AsyncClient(pulsar.service_url) as first:
        producer = await first.create_producer(topic)
        txn = await first.begin_transaction()
        await producer.send(b"x", txn=txn)
    await first.close()
    with pytest.raises(AlreadyClosed):
        await first.begin_transaction()
    assert txn.state is TransactionState.ABORTED
    assert not await is_known(pulsar, id_of(txn))
    assert await visible(client, topic) == []


@row(121)
async def test_the_sessions_with_the_coordinators_are_ready_before_the_first_transaction_is(client: AsyncClient) -> None:
    assert coordinators_of(client).count == 0
    txn = await client.begin_transaction()
    assert coordinators_of(client).endpoint(id_of(txn).most) is not None
    await txn.abort()


@row(122)
async def test_a_transaction_has_a_minute_unless_it_is_told_otherwise(pulsar: Target, client: AsyncClient) -> None:
    usual, long = await client.begin_transaction(), await client.begin_transaction(timeout=3600)
    assert (await metadata(pulsar, id_of(usual)))["timeoutAt"] == 60_000
    assert (await metadata(pulsar, id_of(long)))["timeoutAt"] == 3_600_000
    for txn in (usual, long):
        assert txn.state is TransactionState.OPEN
        await txn.abort()
