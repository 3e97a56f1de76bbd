"""How programs write transactions: run again after an abort, ambient, by hand from another place, without asyncio."""

from __future__ import annotations

import asyncio

import pytest
from targets import Target
from transactions import data_of, stays_silent, visible

import pulsar_txn.client.sync as blocking
from pulsar_txn.client import (
    AsyncClient,
    AsyncTransaction,
    ConsumerType,
    InitialPosition,
    TransactionConflict,
    TransactionState,
)


@pytest.mark.seed_rows("C38")
async def test_work_is_run_again_after_a_conflict_until_it_commits(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    output = await client.create_producer(f"{topic}-out")
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=InitialPosition.EARLIEST)
    message = await consumer.receive(timeout=20)
    async with AsyncClient(pulsar.service_url) as rival_client:
        rival_consumer = await rival_client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        rival = await rival_client.begin_transaction()
        await rival_consumer.acknowledge(message.message_id, txn=rival)
        attempts = 0

        async def work(txn: AsyncTransaction) -> int:
            nonlocal attempts
            attempts += 1
            if attempts == 2:
                await rival.abort()
            await output.send(b"%d" % attempts, txn=txn)
            await consumer.acknowledge(message, txn=txn)
            return attempts

        assert await client.run_transaction(work) == 2
    assert await visible(client, f"{topic}-out") == [b"2"]


async def test_an_error_of_the_program_is_not_run_again(client: AsyncClient, topic: str) -> None:
    output = await client.create_producer(topic)
    attempts = []

    async def work(txn: AsyncTransaction) -> None:
        attempts.append(txn.id)
        await output.send(b"never", txn=txn)
        raise LookupError("no seat")

    with pytest.raises(LookupError):
        await client.run_transaction(work)
    await output.send(b"after")
    assert len(attempts) == 1
    assert await visible(client, topic) == [b"after"]


async def test_an_ambient_transaction_takes_in_what_names_none(client: AsyncClient, topic: str) -> None:
    source = await client.create_producer(f"{topic}-in")
    await source.send(b"x")
    consumer = await client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
    producer = await client.create_producer(topic)
    async with client.transaction(ambient=True) as txn:
        message = await consumer.receive(timeout=20)
        await producer.send(message.data)
        await consumer.acknowledge(message)
        assert await visible(client, topic) == []
        txn.rollback()
    assert await data_of(consumer, 1) == [b"x"]
    await producer.send(b"outside")
    assert await visible(client, topic) == [b"outside"]


@pytest.mark.seed_rows("A26")
@pytest.mark.parametrize("action", ["commit", "abort"])
async def test_a_transaction_goes_on_in_another_process_by_its_id(
    pulsar: Target, client: AsyncClient, topic: str, action: str
) -> None:
    producer = await client.create_producer(topic)
    begun = await client.begin_transaction()
    await producer.send(b"here", txn=begun)
    async with AsyncClient(pulsar.service_url) as elsewhere:
        attached = elsewhere.attach_transaction(str(begun.id))
        their_producer = await elsewhere.create_producer(topic)
        await their_producer.send(b"there", txn=attached)
        await getattr(attached, action)()
    await producer.send(b"after")
    assert await visible(client, topic) == ([b"here", b"there", b"after"] if action == "commit" else [b"after"])


async def test_two_hundred_transactions_in_flight_on_one_consumer_keep_to_themselves(client: AsyncClient, topic: str) -> None:
    source = await client.create_producer(topic, batching=False)
    await asyncio.gather(*(source.send(b"%d" % number) for number in range(200)))
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=InitialPosition.EARLIEST)
    output = await client.create_producer(f"{topic}-out")
    messages = [await consumer.receive(timeout=20) for _ in range(200)]
    open_at_once = [await client.begin_transaction() for _ in messages]

    async def one(txn: AsyncTransaction, number: int) -> None:
        await output.send(messages[number].data, txn=txn)
        await consumer.acknowledge(messages[number], txn=txn)
        await (txn.abort() if number % 5 == 0 else txn.commit())

    await asyncio.gather(*(one(txn, number) for number, txn in enumerate(open_at_once)))
    aborted = {messages[number].data for number in range(0, 200, 5)}
    assert set(await data_of(consumer, len(aborted))) == aborted
    assert await stays_silent(consumer)
    kept = sorted((message.data for message in messages if message.data not in aborted), key=int)
    assert sorted(await visible(client, f"{topic}-out"), key=int) == kept


async def test_a_reader_without_a_durable_subscription_takes_part_in_transactions(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    for number in range(3):
        await producer.send(b"%d" % number)
    consumer = await client.subscribe(topic, "fleeting", durable=False, initial_position=InitialPosition.EARLIEST)
    first = await consumer.receive(timeout=20)
    txn = await client.begin_transaction()
    await consumer.acknowledge(first, txn=txn)
    await txn.abort()
    again = await consumer.receive(timeout=20)
    assert again.data == first.data == b"0"
    async with client.transaction() as txn:
        await consumer.acknowledge(again, txn=txn)
    consumer.redeliver_unacknowledged()
    assert await data_of(consumer, 2) == [b"1", b"2"]


async def test_the_successor_of_a_failed_over_consumer_gets_what_the_transaction_left(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    for number in range(4):
        await producer.send(b"%d" % number)
    options = {"consumer_type": ConsumerType.FAILOVER, "initial_position": InitialPosition.EARLIEST}
    first = await client.subscribe(topic, "s", consumer_name="a", **options)
    messages = [await first.receive(timeout=20) for _ in range(4)]
    committed, is_open = await client.begin_transaction(), await client.begin_transaction()
    await first.acknowledge(messages[1], txn=committed)
    await first.acknowledge(messages[2], txn=is_open)
    await committed.commit()
    await first.close()
    second = await client.subscribe(topic, "s", consumer_name="b", **options)
    assert await data_of(second, 2) == [b"0", b"3"]
    assert await stays_silent(second)
    await is_open.commit()
    assert await stays_silent(second)


async def test_an_operation_that_attaches_to_an_ended_transaction_is_refused_by_the_server(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    assert txn.id is not None
    attached = client.attach_transaction(txn.id)
    with pytest.raises(Exception, match=r"\(\d+,\d+\)"):
        await producer.send(b"late", txn=attached)
    assert await visible(client, topic) == [b"x"]


def test_a_program_without_asyncio_consumes_processes_and_produces(pulsar: Target, topic: str) -> None:
    with blocking.Client(pulsar.service_url) as client:
        producer = client.create_producer(f"{topic}-in", batching=False)
        for number in range(4):
            producer.send(b"%d" % number)
        consumer = client.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
        output = client.create_producer(topic)
        turns = 0
        done = []
        while len(done) < 4:
            turns += 1
            with client.transaction() as txn:
                message = consumer.receive(timeout=20)
                output.send(message.data, txn=txn)
                consumer.acknowledge(message, txn=txn)
                if turns == 2:
                    txn.rollback()
            if txn.state is TransactionState.COMMITTED:
                done.append(message.data)
        assert done == [b"0", b"1", b"2", b"3"]
        reader = client.create_reader(topic)
        assert [reader.read_next(timeout=20).data for _ in range(4)] == done
        assert not reader.has_message_available()
        rival, holder = client.begin_transaction(), client.begin_transaction()
        producer.send(b"y")
        message = consumer.receive(timeout=20)
        consumer.acknowledge(message, txn=holder)
        with pytest.raises(TransactionConflict):
            consumer.acknowledge(message, txn=rival)
        rival.abort()
        holder.commit()
