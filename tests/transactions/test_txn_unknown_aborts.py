"""`abort()` says ABORTED about what it knows, and raises TransactionNotFound about what may be committed: on every server."""

from __future__ import annotations

import asyncio

import pytest
from credentials import TOKENS, token
from targets import Target
from transactions import visible

from pulsar_txn.broker import BrokerConfig, Standalone
from pulsar_txn.client import AsyncClient, Client, TokenAuthentication, TransactionState, TxnId
from pulsar_txn.client.errors import InvalidTransactionStatus, TransactionNotFound
from pulsar_txn.wire.ids import TxnAction

NEVER = TxnId(0, 10**6)


async def test_an_abort_of_a_transaction_that_never_was_is_not_found(client: AsyncClient) -> None:
    txn = client.attach_transaction(NEVER)
    with pytest.raises(TransactionNotFound) as raised:
        await txn.abort()
    assert txn.state is TransactionState.UNKNOWN
    assert "may be committed" in str(raised.value)
    assert await txn.resolve() is TransactionState.UNKNOWN


def test_the_blocking_twin_says_the_same(pulsar: Target) -> None:
    with Client(pulsar.service_url) as client:
        txn = client.attach_transaction(NEVER)
        with pytest.raises(TransactionNotFound):
            txn.abort()
        assert txn.state is TransactionState.UNKNOWN


async def test_an_abort_of_a_committed_transaction_does_not_return(pulsar: Target, client: AsyncClient, topic: str) -> None:
    """A stock coordinator has forgotten it; ours says what became of it."""
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction()
    await producer.send(b"committed", txn=txn)
    assert txn.id is not None
    await txn.commit()
    attached = client.attach_transaction(txn.id)
    with pytest.raises(InvalidTransactionStatus if pulsar.is_ours else TransactionNotFound):
        await attached.abort()
    assert attached.state is (TransactionState.COMMITTED if pulsar.is_ours else TransactionState.UNKNOWN)
    assert await visible(client, topic) == [b"committed"]


async def test_a_transaction_that_was_timed_out_is_aborted_for_who_kept_its_id(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    txn = await client.begin_transaction(timeout=1)
    await producer.send(b"late", txn=txn)
    await asyncio.sleep(2.5)
    await txn.abort()
    assert txn.state is TransactionState.ABORTED


async def test_the_transaction_of_another_role_is_not_found_and_commits() -> None:
    async with (
        Standalone(config=BrokerConfig(broker_service_port=0, **TOKENS)) as broker,
        AsyncClient(broker.service_url, authentication=TokenAuthentication(token("ann"))) as ann,
        AsyncClient(broker.service_url, authentication=TokenAuthentication(token("bob"))) as bob,
    ):
        producer = await ann.create_producer("t")
        txn = await ann.begin_transaction()
        await producer.send(b"x", txn=txn)
        assert txn.id is not None
        theirs = bob.attach_transaction(txn.id)
        with pytest.raises(TransactionNotFound):
            await theirs.abort()
        assert theirs.state is TransactionState.UNKNOWN
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED


FORGETS = BrokerConfig(broker_service_port=0, number_of_transaction_coordinators=1, transaction_outcome_retention_count=1)
"""A broker that keeps the outcome of one transaction."""


async def others(broker: Standalone) -> None:
    """Two pages of ids more, so that what ended before is forgotten. Inside of the process: nobody looks at their answers."""
    coordinators = broker.broker.coordinators
    assert coordinators is not None
    opened: list[TxnId] = []

    def answer(value: TxnId | None, _error: object, _message: str) -> None:
        assert value is not None
        opened.append(value)

    for _ in range(2 * 4096 + 1):
        coordinators.new_txn(0, 60_000, None, None, answer)
        if len(opened) % 200 == 0:
            await asyncio.sleep(0)
    while len(opened) < 2 * 4096 + 1:  # noqa: ASYNC110 - the store confirms in turns of the loop
        await asyncio.sleep(0)
    for each in opened:
        coordinators.end(each, TxnAction.ABORT, None, None, lambda *_: None)
    await asyncio.sleep(0.1)


async def test_a_committed_transaction_whose_outcome_was_forgotten_is_not_found() -> None:
    async with Standalone(config=FORGETS) as broker, AsyncClient(broker.service_url) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        await producer.send(b"x", txn=txn)
        assert txn.id is not None
        await txn.commit()
        await others(broker)
        attached = client.attach_transaction(txn.id)
        with pytest.raises(TransactionNotFound):
            await attached.abort()
        assert attached.state is TransactionState.UNKNOWN


async def test_a_prepared_transaction_that_was_committed_and_forgotten_is_not_found() -> None:
    async with Standalone(config=FORGETS) as broker, AsyncClient(broker.service_url) as client:
        txn = await client.begin_transaction(eager=True)
        shown = await txn.prepare()
        other = await client.attach_prepared(shown)
        await txn.commit()
        await others(broker)
        with pytest.raises(TransactionNotFound):
            await other.abort()
        assert other.state is TransactionState.UNKNOWN
