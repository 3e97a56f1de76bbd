"""Who owns a state: taking over, being fenced, and what an open transaction of a dead owner holds up."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_txn.broker import Standalone
from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition, TransactionState
from pulsar_txn.client.errors import TransactionAborted
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.errors import StateMoved, StateTaken
from pulsar_txn.pipeline.functions.state.owned import States
from pulsar_txn.pipeline.functions.state.table import StateLog

TOPIC = "persistent://public/default/f-state"


@pytest.fixture
async def client():
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as connected:
        yield connected


@pytest.fixture
def config():
    return FunctionConfig.from_mapping(
        {"name": "f", "inputs": ["in"], "state": {}, "transaction": {"transactionMode": "MANAGED"}}
    )


async def written(client, *records):
    """A topic with these committed records, of an owner that is gone."""
    log = StateLog(client, TOPIC)
    await log.open()
    for ticket in await log.write(records, None):
        await ticket
    await log.close()


@pytest.fixture
def message(client):
    async def received():
        producer = await client.create_producer("in")
        consumer = await client.subscribe("in", "s")
        await producer.send(b"x")
        return await consumer.receive(10)

    return received


async def test_a_new_owner_has_what_was_committed(client):
    await written(client, ("a", 1), ("b", b"x"), ("a", 2), ("b", None))
    table = await StateLog(client, TOPIC).open()
    assert dict(table.committed()) == {"a": 2}


async def test_a_transaction_that_only_read_the_state_cannot_commit_after_another_owner_took_over(client, config, message):
    await written(client, ("a", 1))
    states, found = States(client, config, on_loop=True, consumers=1), await message()
    txn = await client.begin_transaction(timeout=30)
    await states.begin(txn, [found])
    assert states.get(found, "a") == 1
    await StateLog(client, TOPIC).open()
    with pytest.raises(StateTaken):
        await states.write(txn)
    await txn.abort()
    await states.close()


@pytest.fixture
def by_partition():
    state = {"stateTopic": TOPIC, "stateScope": "PARTITION"}
    return FunctionConfig.from_mapping({"name": "f", "inputs": ["in"], "state": state, "retainOrdering": True})


@pytest.mark.parametrize(("scope", "error"), [("config", StateTaken), ("by_partition", StateMoved)])
async def test_an_owner_that_is_fenced_while_it_opens_the_state_is_told_who_has_it(
    client, message, scope, error, request, monkeypatch
):
    """It raised ProducerFenced, which ended the function although only the partition of the message had moved."""
    create, found = client.create_producer, await message()
    states = States(client, request.getfixturevalue(scope), on_loop=True, consumers=1)

    async def overtaken(topic, **options):
        mine = await create(topic, **options)
        await create(topic, **options)
        return mine

    monkeypatch.setattr(client, "create_producer", overtaken)
    with pytest.raises(error, match="another instance took over"):
        await states.begin(None, [found])
    await states.close()


async def test_the_state_of_a_partition_is_not_taken_from_the_instance_that_receives_the_partition_now(client, by_partition):
    producer = await client.create_producer("in")
    await producer.send(b"x")

    async def subscribed(name):
        return await client.subscribe(
            "in", "s", consumer_type=ConsumerType.FAILOVER, consumer_name=name, initial_position=InitialPosition.EARLIEST
        )

    older = await subscribed("b")
    first = await older.receive(10)
    newer = await subscribed("a")  # the first by name is the active one
    second = await newer.receive(10)
    async with asyncio.timeout(10):
        while older.is_active:  # noqa: ASYNC110 - the broker tells it
            await asyncio.sleep(0.01)
    states = [States(client, by_partition, on_loop=True, consumers=1) for _ in range(2)]
    await states[1].begin(None, [second], newer)
    with pytest.raises(StateMoved, match="another instance receives"):
        await states[0].begin(None, [first], older)
    states[1].add(second, "a", 1)
    for ticket in await states[1].write(None):
        await ticket
    for each in states:
        await each.close()


async def test_a_state_that_moved_is_read_again_when_its_partition_is_back(client, by_partition, message):
    """Without transactions nobody waits for the records before the function has returned."""
    states, found = States(client, by_partition, on_loop=True, consumers=1), await message()

    async def add():
        await states.begin(None, [found])
        states.add(found, "a", 1)
        (ticket,) = await states.write(None)
        states.settle(committed=True)
        await ticket

    await add()
    other = StateLog(client, f"{TOPIC}-0")
    assert dict((await other.open()).committed()) == {"a": 1}
    for ticket in await other.write([("a", 7)], None):
        await ticket
    with pytest.raises(StateMoved):
        await add()
    await add()
    assert states.get(found, "a") == 8
    await states.close()


async def test_a_transaction_that_wrote_before_the_take_over_is_ended_and_then_read(client):
    """Its timeout is longer than the test may take."""
    await written(client, ("a", 1))
    old = StateLog(client, TOPIC)
    await old.open()
    txn = await client.begin_transaction(timeout=3000)
    await old.write([("a", 10)], txn)
    async with asyncio.timeout(20):
        table = await StateLog(client, TOPIC).open()
    assert dict(table.committed()) == {"a": 1}
    with pytest.raises(TransactionAborted):
        await txn.commit()


async def test_a_transaction_that_ended_before_the_take_over_is_read_as_it_ended(client):
    old = StateLog(client, TOPIC)
    await old.open()
    for value, commits in ((1, True), (2, False), (3, True)):
        txn = await client.begin_transaction(timeout=30)
        await old.write([("a", value), (f"only{value}", value)], txn)
        await (txn.commit() if commits else txn.abort())
    table = await StateLog(client, TOPIC).open()
    assert dict(table.committed()) == {"only1": 1, "a": 3, "only3": 3}


async def test_changes_of_an_aborted_transaction_are_gone_at_the_next_one(client, config, message):
    states, found = States(client, config, on_loop=True, consumers=1), await message()
    for commits, expected in ((True, None), (False, 1), (True, 1)):
        txn = await client.begin_transaction(timeout=30)
        await states.begin(txn, [found])
        assert states.get(found, "a") == expected
        states.add(found, "a", 1)
        await states.write(txn)
        await (txn.commit() if commits else txn.abort())
        assert txn.state is (TransactionState.COMMITTED if commits else TransactionState.ABORTED)
    await states.close()
