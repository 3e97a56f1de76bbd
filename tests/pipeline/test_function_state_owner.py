"""Who owns a state: taking over, being fenced, and what an open transaction of a dead owner holds up."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_txn.broker import Standalone
from pulsar_txn.client import AsyncClient, TransactionState
from pulsar_txn.client.errors import TransactionAborted
from pulsar_txn.pipeline.functions.config import FunctionConfig
from pulsar_txn.pipeline.functions.errors import StateTaken
from pulsar_txn.pipeline.functions.state.log import StateLog
from pulsar_txn.pipeline.functions.state.owned import States

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
