"""A unit of work inside an ambient block is a unit of its own: nothing that is done in it joins the outer transaction."""

import asyncio
import threading

import pytest

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, Client, ConsumerType, DeadLetterPolicy, InitialPosition
from pulsar_txn.client.txn.transaction import AMBIENT, unit_of
from pulsar_txn.client.txn.transactions import core_of

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
async def broker():
    async with Standalone(None) as running:
        yield running


@pytest.fixture
async def client(broker):
    async with AsyncClient(broker.service_url, initial_backoff=0.01) as connected:
        yield connected


def counts(txn):
    """Messages sent and acknowledged in a transaction."""
    stats = txn.stats()
    return sum(each.sent for each in stats.partitions), sum(each.acked for each in stats.subscriptions)


async def block(client, work):
    async with client.transaction() as txn:
        await work()
        return txn


async def unit(client, work):
    async def wants_it(txn):
        await work()
        return txn

    return await client.run_transaction(wants_it)


async def batch(client, work):
    consumer = await client.subscribe("source", "s", initial_position=EARLIEST)
    async with consumer.transactional_batch(max_messages=1, max_wait=5) as taken:
        await work()
        return taken.txn


async def pipeline(client, work):
    consumer = await client.subscribe("source", "s", initial_position=EARLIEST)
    stop, seen = asyncio.Event(), []

    async def handle(taken):
        await work()
        seen.append(taken.txn)
        stop.set()

    await client.pipeline(consumer, handle, stop=stop)
    return seen[0]


async def lanes(client, work):
    consumer = await client.subscribe("source", "s", initial_position=EARLIEST)
    stop, seen = asyncio.Event(), []

    async def handle(taken):
        await work()
        seen.append(taken.txn)
        stop.set()

    await client.pipeline(consumer, handle, stop=stop, concurrency=3)
    return seen[0]


UNITS = [block, unit, batch, pipeline, lanes]


@pytest.mark.parametrize("kind", UNITS)
async def test_operations_of_an_inner_unit_never_join_the_outer_transaction(client, kind):
    await (await client.create_producer("source")).send(b"input")
    producer, consumer = await client.create_producer("t"), await client.subscribe("other", "s", initial_position=EARLIEST)
    await (await client.create_producer("other")).send(b"beside")

    async def work():
        await producer.send(b"plain")
        await consumer.acknowledge(await consumer.receive(5))

    async with client.transaction(ambient=True) as outer:
        await producer.send(b"of the outer one")
        inner = await kind(client, work)
        assert inner != outer
        assert counts(outer) == (1, 0)
        assert counts(inner)[0] == 0
        await producer.send(b"of the outer one again")
        assert counts(outer) == (2, 0)


@pytest.mark.parametrize("kind", UNITS)
async def test_an_inner_unit_that_fails_gives_the_outer_transaction_back(client, kind):
    await (await client.create_producer("source")).send(b"input")
    producer = await client.create_producer("t")

    async def fails():
        raise asyncio.CancelledError

    async with client.transaction(ambient=True) as outer:
        with pytest.raises(asyncio.CancelledError):
            await kind(client, fails)
        assert AMBIENT.get() is unit_of(outer)
        await producer.send(b"of the outer one")
        assert counts(outer) == (1, 0)


async def test_an_ambient_block_inside_another_takes_its_own_operations(client):
    producer = await client.create_producer("t")
    async with client.transaction(ambient=True) as outer:
        async with client.transaction(ambient=True) as inner:
            await producer.send(b"inner")
        await producer.send(b"outer")
    assert (counts(outer), counts(inner)) == ((1, 0), (1, 0))


async def test_tasks_of_a_block_join_its_transaction_and_tasks_of_the_client_do_not(client):
    """A task copies the context that it is started in; the client's own lived in the transaction of whoever subscribed."""
    producer = await client.create_producer("t")
    async with client.transaction(ambient=True) as txn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(producer.send(b"of a task"))
        found = await core_of(client).spawn(_ambient())
        assert counts(txn) == (1, 0)
    assert found is None


async def _ambient():
    return AMBIENT.get()


async def test_a_dead_letter_is_no_part_of_the_block_in_which_the_consumer_was_made(client):
    await (await client.create_producer("source")).send(b"poison")
    dead = await client.subscribe("source-s-DLQ", "look", initial_position=EARLIEST)
    async with client.transaction(ambient=True) as txn:
        consumer = await client.subscribe(
            "source",
            "s",
            consumer_type=ConsumerType.SHARED,
            initial_position=EARLIEST,
            negative_ack_delay=0.01,
            dead_letter_policy=DeadLetterPolicy(max_redeliver_count=1),
        )
        for _ in range(2):
            consumer.negative_acknowledge(await consumer.receive(10))
        assert (await dead.receive(10)).data == b"poison"
        assert counts(txn) == (0, 0)


# --- the blocking client ----------------------------------------------------------------------------------------------


def sync_block(client, work):
    with client.transaction() as txn:
        work()
    return txn


def sync_unit(client, work):
    seen = []

    def wants_it(txn):
        seen.append(txn)
        work()

    client.run_transaction(wants_it)
    return seen[0]


def sync_batch(client, work):
    consumer = client.subscribe("source", "s", initial_position=EARLIEST)
    with consumer.transactional_batch(max_messages=1, max_wait=5) as taken:
        work()
    return taken.txn


def sync_pipeline(client, work, concurrency=1):
    consumer = client.subscribe("source", "s", initial_position=EARLIEST)
    stop, seen = threading.Event(), []

    def handle(taken):
        work()
        seen.append(taken.txn)
        stop.set()

    client.pipeline(consumer, handle, stop=stop, concurrency=concurrency)
    return seen[0]


def sync_lanes(client, work):
    return sync_pipeline(client, work, 3)


@pytest.mark.parametrize("kind", [sync_block, sync_unit, sync_batch, sync_pipeline, sync_lanes])
async def test_operations_of_an_inner_unit_of_the_blocking_client_never_join_the_outer_transaction(broker, kind):
    def program():
        with Client(broker.service_url, initial_backoff=0.01) as client:
            client.create_producer("source").send(b"input")
            producer = client.create_producer("t")
            with client.transaction(ambient=True) as outer:
                producer.send(b"of the outer one")
                inner = kind(client, lambda: (producer.send(b"plain"), producer.send_nowait(b"plain").result(10)))
                assert inner != outer
                assert counts(outer) == (1, 0)
                assert counts(inner)[0] == 0
                producer.send(b"of the outer one again")
                assert counts(outer) == (2, 0)

    await asyncio.to_thread(program)


async def test_a_thread_has_no_part_in_the_block_of_another(broker):
    def program():
        with Client(broker.service_url) as client:
            producer = client.create_producer("t")
            with client.transaction(ambient=True) as outer:
                beside = threading.Thread(target=lambda: producer.send(b"plain"))
                beside.start()
                beside.join(20)
                assert counts(outer) == (0, 0)
                producer.send(b"of the outer one")
                assert counts(outer) == (1, 0)

    await asyncio.to_thread(program)
