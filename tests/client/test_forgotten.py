"""Forgotten `await` and forgotten `txn=`: a commit without what was called in it fails, and a call beside the unit is told."""

import asyncio
import collections.abc
import contextlib
import functools
import gc
import inspect
import logging
import sqlite3
import tempfile
import threading
import warnings
from unittest import mock

import pytest

from pulsar_txn.client import (
    AsyncClient,
    AsyncProducer,
    Client,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    TransactionOperationFailed,
    TransactionStateError,
)
from pulsar_txn.client.outbox import AsyncOutbox, Outbox
from pulsar_txn.client.send.batching import encode_batch
from pulsar_txn.client.txn.forgotten import LOOK_AT
from pulsar_txn.client.txn.transaction import unit_of

EARLIEST = InitialPosition.EARLIEST
CALLS = {
    "AsyncProducer.send()": lambda w: w.producer.send(b"x", txn=w.txn),
    "AsyncProducer.send_encoded()": lambda w: w.producer.send_encoded(encode_batch([b"x"]), txn=w.txn),
    "AsyncConsumer.acknowledge()": lambda w: w.consumer.acknowledge(w.message, txn=w.txn),
    "AsyncConsumer.acknowledge_cumulative()": lambda w: w.consumer.acknowledge_cumulative(w.message, txn=w.txn),
    "AsyncConsumer.reconsume_later()": lambda w: w.putting_off.reconsume_later(w.other, txn=w.txn),
    "txn.send": lambda w: w.txn.send(w.producer, b"x"),
    "txn.acknowledge": lambda w: w.txn.acknowledge(w.consumer, w.message),
}


class World:
    """A producer, and consumers with a message each."""

    def __init__(self, client):
        self.client = client
        self.txn = None

    async def __aenter__(self):
        client = self.client
        self.producer = await client.create_producer("out")
        self.reader = await client.subscribe("out", "r")
        await (await client.create_producer("in")).send(b"m")
        self.consumer = await client.subscribe("in", "s", initial_position=EARLIEST)
        policy = DeadLetterPolicy(max_redeliver_count=1, retry=True)
        shared = {"consumer_type": ConsumerType.SHARED, "initial_position": EARLIEST, "dead_letter_policy": policy}
        self.putting_off = await client.subscribe("in", "later", **shared)
        self.message, self.other = await self.consumer.receive(5), await self.putting_off.receive(5)
        return self

    async def __aexit__(self, *exc):
        return False

    async def seen(self):
        return [each.data for each in await self.reader.receive_many(10, max_wait=0.2)]


@pytest.fixture
async def world(client):
    async with World(client) as made:
        yield made


@pytest.fixture
def told(caplog):
    """The warnings about what was left out."""
    caplog.set_level(logging.WARNING, "pulsar_txn.client.txn")
    return lambda: [each.getMessage() for each in caplog.records if "without txn=" in each.getMessage()]


# --- await ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_in_a_transaction_that_was_never_awaited_makes_the_commit_fail_and_is_named(world, name):
    """The commit was answered, and what was called was in no transaction and nowhere else."""
    await world.producer.send(b"before")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TransactionOperationFailed, match="was called in the transaction and never awaited") as raised:
            async with world.client.transaction() as world.txn:
                await world.producer.send(b"with it", txn=world.txn)
                CALLS[name](world)
        gc.collect()
    named = {"txn.send": "AsyncProducer.send()", "txn.acknowledge": "AsyncConsumer.acknowledge()"}.get(name, name)
    assert f"{named} of <" in str(raised.value)
    assert ("public/default/out" if "Producer" in named else "public/default/in") in str(raised.value)
    assert isinstance(raised.value.failures[0], TransactionStateError)
    assert await world.seen() == [b"before"]


async def test_all_calls_that_were_forgotten_are_counted(world):
    with pytest.raises(TransactionOperationFailed, match="never awaited, and 2 more calls"):
        async with world.client.transaction() as txn:
            for _ in range(3):
                world.producer.send(b"x", txn=txn)


async def test_in_an_ambient_block_a_forgotten_await_fails_without_txn(world):
    with pytest.raises(TransactionOperationFailed, match="never awaited"):
        async with world.client.transaction(ambient=True):
            world.producer.send(b"x")


@pytest.mark.parametrize("end", ["commit", "prepare", "leave_to_check"])
async def test_each_way_to_a_commit_looks_for_calls_that_were_forgotten(client, world, end):
    async with await client.join_check_group("g", lambda _question: None):
        txn = await client.begin_transaction(check_group="g")
        world.producer.send(b"x", txn=txn)
        with pytest.raises(TransactionOperationFailed, match="never awaited"):
            await getattr(txn, end)()


async def test_work_with_a_forgotten_await_is_not_run_again(world):
    runs = []

    async def work(txn):
        runs.append(txn)
        world.producer.send(b"x", txn=txn)

    with pytest.raises(TransactionOperationFailed, match="never awaited"):
        await world.client.run_transaction(work)
    assert len(runs) == 1


async def test_a_handler_with_a_forgotten_await_stops_its_pipeline_and_loses_nothing(client, world):
    consumer = await client.subscribe("in", "p", initial_position=EARLIEST)

    async def handler(batch):
        for message in batch:
            world.producer.send(message.data, txn=batch.txn)

    with pytest.raises(TransactionOperationFailed, match="never awaited"):
        await client.pipeline(consumer, handler)
    assert (await consumer.receive(5)).data == b"m"
    assert await world.seen() == []


async def test_what_is_returned_is_a_coroutine_for_everybody_who_takes_one(world):
    for call in (world.producer.send, lambda value, **more: world.consumer.acknowledge(world.message, **more)):
        for more in ({}, {"txn": await world.client.begin_transaction()}):
            made = call(b"x", **more)
            assert isinstance(made, collections.abc.Coroutine)
            assert inspect.iscoroutine(made)
            made.close()
    if hasattr(inspect, "markcoroutinefunction"):
        assert inspect.iscoroutinefunction(world.producer.send)
        assert isinstance(mock.create_autospec(AsyncProducer).send, mock.AsyncMock)


async def test_tasks_groups_and_gather_take_it_and_what_was_begun_is_not_forgotten(world):
    send = world.producer.send
    async with world.client.transaction() as txn:
        await asyncio.gather(*(send(b"%d" % number, txn=txn) for number in range(3)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send(b"3", txn=txn))
        await asyncio.wait_for(send(b"4", txn=txn), 5)
        await asyncio.shield(send(b"5", txn=txn))
        later = send(b"6", txn=txn)
        await later
        await txn.send(world.producer, b"7")
        send(b"given up", txn=txn).close()
        asyncio.create_task(send(b"8", txn=txn))  # noqa: RUF006 - it starts before the commit, which waits for it
    assert await world.seen() == [b"%d" % number for number in range(9)]


async def test_what_is_begun_is_not_kept_and_no_task_is_made_for_it(client, world):
    tasks = []
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, call, **more: (tasks.append(call), asyncio.Task(call, loop=loop, **more))[1])
    try:
        txn = await client.begin_transaction()
        await world.producer.send(b"first", txn=txn)
        before = len(tasks)
        for _ in range(10 * LOOK_AT):
            await world.producer.send(b"x", txn=txn)
        assert len(tasks) - before <= 1  # what the client does beside it is not for a message
        assert len(unit_of(txn)._calls._calls) < LOOK_AT
        many = [world.producer.send(b"y", txn=txn) for _ in range(1000)]
        assert len(unit_of(txn)._calls._calls) >= 1000
        await asyncio.gather(*many)
        await world.producer.send(b"z", txn=txn)
    finally:
        loop.set_task_factory(None)
    await txn.commit()
    assert unit_of(txn)._calls._calls == []


async def test_a_call_that_was_forgotten_in_what_aborts_changes_nothing(world):
    with pytest.warns(RuntimeWarning, match=r"AsyncProducer\.send' was never awaited"):
        txn = await world.client.begin_transaction()
        world.producer.send(b"x", txn=txn)
        await txn.abort()
        del txn
        gc.collect()


async def test_what_is_no_transaction_is_refused_when_it_is_awaited(world):
    for wrong in (5, world.client.transaction()):
        for call in (world.producer.send(b"x", txn=wrong), world.consumer.acknowledge(world.message, txn=wrong)):
            with pytest.raises(Exception, match="transaction"):
                await call


async def test_the_official_names_tell_of_a_forgotten_await_too(url):
    from pulsar_txn.compat import asyncio as official
    from pulsar_txn.compat.exceptions import PulsarException

    client = official.Client(url)
    producer = await client.create_producer("t")
    for forgets in (lambda txn: producer.send(b"x", txn=txn), lambda txn: txn.send(producer, b"x")):
        with pytest.raises(PulsarException, match=r"send\(\) of .* was called in the transaction and never awaited"):
            async with client.transaction() as txn:
                forgets(txn)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
        await txn.send(producer, b"y")
    await client.close()


# --- txn= -------------------------------------------------------------------------------------------------------------


async def block(client, work, **options):
    async with client.transaction(**options):
        await work()


async def unit(client, work, **options):
    await client.run_transaction(lambda _txn: work(), **options)


async def batch(client, work, **options):
    consumer = await client.subscribe("in", "b", initial_position=EARLIEST)
    async with consumer.transactional_batch(max_messages=1, max_wait=5, **options):
        await work()


async def pipeline(client, work, **options):
    consumer = await client.subscribe("in", "l", initial_position=EARLIEST)
    stop = asyncio.Event()

    async def handler(_batch):
        await work()
        stop.set()

    await client.pipeline(consumer, handler, stop=stop, **options)


async def outbox(client, work, **options):
    with tempfile.TemporaryDirectory() as folder:
        connect = functools.partial(sqlite3.connect, f"{folder}/db", check_same_thread=False)
        async with AsyncOutbox(client, "orders", connect) as made:
            await made.create_table()
            with contextlib.closing(connect()) as database:
                async with made.transaction(database, **options):
                    await work()


UNITS = [block, unit, batch, pipeline, outbox]


@pytest.mark.parametrize("kind", UNITS)
async def test_a_send_without_txn_inside_an_open_unit_is_told_once_with_what_to_do(client, world, kind, told):
    before = []

    async def work():
        await world.producer.send(b"meant", txn=None)
        before.append(len(told()))
        await world.producer.send(b"forgotten")
        world.producer.send_nowait(b"forgotten again")

    await kind(client, work)
    if kind in (block, unit):
        await kind(client, work)
    (warning,) = told()
    assert before[0] == 0
    assert warning.startswith("a send to persistent://public/default/out without txn= at ")
    assert f"{__file__}:" in warning
    assert "give txn=" in warning
    assert "ambient=True" in warning


@pytest.mark.parametrize("kind", UNITS)
async def test_each_kind_of_unit_takes_ambient_and_then_nothing_is_forgotten(client, world, kind, told):
    async def work():
        await world.producer.send(b"joins")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await kind(client, work, ambient=True, **({"on_poison": "raise", "max_aborts": 1} if kind is pipeline else {}))
    assert told() == []
    assert await world.seen() == []


async def test_an_acknowledgement_without_txn_inside_an_open_unit_is_told(client, world, told):
    async with client.transaction():
        await world.consumer.acknowledge(world.message, txn=None)
        await world.consumer.acknowledge(world.message)
    (warning,) = told()
    assert warning.startswith("an acknowledgement on persistent://public/default/in without txn=")


async def test_nothing_is_told_where_no_unit_is_open_around_or_it_is_another_clients(client, url, world, told):
    async with AsyncClient(url) as other:
        foreign = await other.create_producer("out")
        async with client.transaction() as txn:
            await foreign.send(b"another client")
            await txn.abort()
            await world.producer.send(b"it has ended")
        await world.producer.send(b"after it")
        begun = await client.begin_transaction()
        await world.producer.send(b"beside it: who begins it has no block")
        await begun.abort()
        async with client.transaction(ambient=True) as outer:
            await world.producer.send(b"in it", txn=outer)
    assert told() == []


async def test_work_of_the_client_itself_in_a_unit_is_not_told(client, world, told):
    """Dead letters, and the log of a function, are beside the unit on purpose."""
    policy = DeadLetterPolicy(max_redeliver_count=1)
    shared = {"consumer_type": ConsumerType.SHARED, "initial_position": EARLIEST, "negative_ack_delay": 0.01}
    async with client.transaction():
        consumer = await client.subscribe("in", "d", dead_letter_policy=policy, **shared)
        for _ in range(2):
            consumer.negative_acknowledge(await consumer.receive(5))
        letters = await client.subscribe("in-d-DLQ", "dead-letters", initial_position=EARLIEST)
        assert (await letters.receive(5)).data == b"m"
    assert told() == []


# --- the blocking client ----------------------------------------------------------------------------------------------


def sync_block(client, work, **options):
    with client.transaction(**options):
        work()


def sync_unit(client, work, **options):
    client.run_transaction(lambda _txn: work(), **options)


def sync_batch(client, work, **options):
    consumer = client.subscribe("in", "b", initial_position=EARLIEST)
    with consumer.transactional_batch(max_messages=1, max_wait=5, **options):
        work()


def sync_pipeline(client, work, **options):
    consumer = client.subscribe("in", "l", initial_position=EARLIEST)
    stop = threading.Event()

    def handler(_batch):
        work()
        stop.set()

    client.pipeline(consumer, handler, stop=stop, **options)


def sync_outbox(client, work, **options):
    with tempfile.TemporaryDirectory() as folder:
        connect = functools.partial(sqlite3.connect, f"{folder}/db", check_same_thread=False)
        with Outbox(client, "orders", connect) as made:
            made.create_table()
            with contextlib.closing(connect()) as database, made.transaction(database, **options):
                work()


SYNC_UNITS = [sync_block, sync_unit, sync_batch, sync_pipeline, sync_outbox]
WAYS = {
    "send": lambda producer, **more: producer.send(b"x", **more),
    "send with a key": lambda producer, **more: producer.send(b"x", key="k", **more),
    "send_nowait": lambda producer, **more: producer.send_nowait(b"x", **more),
    "send_encoded": lambda producer, **more: producer.send_encoded(encode_batch([b"x"]), **more),
}


@pytest.mark.parametrize("kind", SYNC_UNITS)
@pytest.mark.parametrize("way", WAYS)
def test_the_blocking_client_tells_a_send_without_txn_inside_an_open_unit(url, kind, way, told):
    with Client(url) as client:
        client.create_producer("in").send(b"m")
        producer = client.create_producer("out")

        def work():
            WAYS[way](producer, txn=None)
            assert told() == []
            WAYS[way](producer)
            WAYS[way](producer)

        kind(client, work)
        producer.flush()
        (warning,) = told()
        assert warning.startswith("a send to persistent://public/default/out without txn= at ")
        assert f"{__file__}:" in warning


@pytest.mark.parametrize("kind", SYNC_UNITS)
def test_each_kind_of_unit_of_the_blocking_client_takes_ambient(url, kind, told):
    with Client(url) as client:
        client.create_producer("in").send(b"m")
        producer, reader = client.create_producer("out"), client.subscribe("out", "r")

        def work():
            for way in WAYS.values():
                way(producer)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            kind(client, work, ambient=True, **({"on_poison": "raise", "max_aborts": 1} if kind is sync_pipeline else {}))
        assert told() == []
        assert reader.receive_many(10, max_wait=0.2) == []


def test_an_acknowledgement_of_the_blocking_client_without_txn_is_told(url, told):
    with Client(url) as client:
        client.create_producer("in").send(b"m")
        consumer = client.subscribe("in", "s", initial_position=EARLIEST)
        message = consumer.receive(5)
        with client.transaction():
            consumer.acknowledge(message, txn=None)
            assert told() == []
            consumer.acknowledge(message)
        assert len(told()) == 1
