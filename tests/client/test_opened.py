"""`await` and `async with`: both work before everything that the client makes and a program closes."""

import asyncio
import collections.abc
import contextlib
import gc
import inspect
from unittest import mock

import pytest

from pulsar_txn.client import AsyncClient, AsyncProducer, ConsumerType, InitialPosition
from pulsar_txn.client.errors import AlreadyClosed, InvalidConfiguration, ProducerFenced
from pulsar_txn.client.half_messages import LocalOutcome
from pulsar_txn.client.txn.transactions import core_of

EARLIEST = InitialPosition.EARLIEST
MAKES = {
    "create_producer": lambda client: client.create_producer("t"),
    "subscribe": lambda client: client.subscribe("t", "s"),
    "create_reader": lambda client: client.create_reader("t"),
    "create_table_view": lambda client: client.create_table_view("t"),
    "consistent_reader": lambda client: client.consistent_reader("t"),
    "transactional_producer": lambda client: client.transactional_producer(
        "t", group="g", check=lambda _: LocalOutcome.UNKNOWN
    ),
    "join_check_group": lambda client: client.join_check_group("g", lambda _: LocalOutcome.UNKNOWN),
}


@pytest.mark.parametrize("name", MAKES)
async def test_async_with_opens_and_closes_and_await_still_works(client, name):
    """`async with client.create_producer(…)` ended in TypeError: 'coroutine' object does not support it."""
    make = MAKES[name]
    async with make(client) as made:
        resources = len(core_of(client).resources())
        assert resources > 0
    assert len(core_of(client).resources()) < resources
    async with await make(client) as again:
        assert type(again) is type(made)
    kept = await make(client)
    await kept.close()
    with pytest.raises(ZeroDivisionError):
        async with make(client):
            raise ZeroDivisionError
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(make(client))


async def test_what_is_returned_is_a_coroutine_for_everybody_who_takes_one(client):
    made = client.create_producer("t")
    assert isinstance(made, collections.abc.Coroutine)
    assert asyncio.iscoroutine(made)
    first, second = await asyncio.gather(made, client.create_producer("t"))
    async with asyncio.TaskGroup() as tasks:
        third = tasks.create_task(client.create_producer("t"))
    fourth = await asyncio.wait_for(client.create_producer("t"), 5)
    assert all(isinstance(each, AsyncProducer) for each in (first, second, third.result(), fourth))
    if hasattr(inspect, "markcoroutinefunction"):
        assert inspect.iscoroutinefunction(client.create_producer)
        assert isinstance(mock.create_autospec(AsyncClient).create_producer, mock.AsyncMock)


async def test_what_cannot_be_made_is_raised_on_entering_and_a_forgotten_await_is_told_by_python(client):
    with pytest.raises(InvalidConfiguration):
        async with client.create_producer("t", max_pending_messages=0):
            pass
    async with client.create_producer("t", access_mode=1):
        with pytest.raises(ProducerFenced):
            async with client.create_producer("t", access_mode=1):
                pass
    with pytest.warns(RuntimeWarning, match=r"AsyncClient\.create_producer' was never awaited"):
        client.create_producer("t")
        gc.collect()


async def test_a_cancelled_entering_leaves_nothing(client):
    async def enters():
        async with client.create_producer("t"):
            await asyncio.sleep(60)

    task = asyncio.create_task(enters())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(core_of(client).resources()) == 0


async def test_what_asks_for_redelivery_may_be_awaited_or_not(client):
    """`await consumer.negative_acknowledge(message)` ended in TypeError after it had done its work."""
    async with (
        client.create_producer("t") as producer,
        client.subscribe(
            "t", "s", consumer_type=ConsumerType.SHARED, initial_position=EARLIEST, negative_ack_delay=0.01
        ) as consumer,
    ):
        await producer.send(b"x")
        for asks in (
            consumer.negative_acknowledge,
            lambda message: consumer.give_back([message]),
            lambda _message: consumer.redeliver_unacknowledged(),
        ):
            assert await asks(await consumer.receive(5)) is None
            asks(await consumer.receive(5))
        message = await consumer.receive(5)
        assert await consumer.leave_out(message) is None
        await consumer.acknowledge(message)
        await producer.send(b"y")
        async with consumer.transactional_batch(max_messages=1, max_wait=5) as batch:
            await batch.txn.abort()
        assert await batch.redeliver() is None
        assert (await consumer.receive(5)).data == b"y"
    with pytest.raises(AlreadyClosed):
        await consumer.negative_acknowledge(message)
