"""Functions that a program gives us and that cannot do what is asked of them: said, with nothing acknowledged or put aside."""

import asyncio

import pytest

from pulsar_txn.client import ConsumerType, InitialPosition, sync
from pulsar_txn.client.errors import InvalidConfiguration

EARLIEST = InitialPosition.EARLIEST


def plain(batch_or_txn):
    """Not `async def`."""


async def asynchronous(batch_or_txn):
    """Not to be called without `await`."""


def of_two(batch, other):
    """Takes too much."""


async def filled(client):
    producer = await client.create_producer("t")
    for number in range(3):
        producer.send_nowait(b"%d" % number)
    await producer.flush()
    return await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED, initial_position=EARLIEST)


@pytest.mark.parametrize("handler", [plain, of_two, None, "handler", lambda: None])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_pipeline_says_that_its_handler_cannot_be_awaited(client, handler, concurrency):
    """All messages went to the dead-letter topic, where nobody had subscribed."""
    consumer = await filled(client)
    async with asyncio.timeout(20):
        with pytest.raises(InvalidConfiguration):
            await client.pipeline(consumer, handler, concurrency=concurrency)
        await consumer.close()
        again = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        assert {message.data for message in await again.receive_many(3, max_wait=10)} == {b"0", b"1", b"2"}


async def test_a_pipeline_takes_a_plain_function_that_returns_something_to_await(client):
    consumer, stop = await filled(client), asyncio.Event()
    done = []

    async def work(batch):
        done.extend(message.data for message in batch)
        if len(done) == 3:
            stop.set()

    result = await client.pipeline(consumer, lambda batch: work(batch), stop=stop)
    assert (result.messages, result.aborted) == (3, 0)


@pytest.mark.parametrize("work", [plain, of_two, None])
async def test_run_transaction_says_that_its_work_cannot_be_awaited(client, work):
    with pytest.raises(InvalidConfiguration):
        await client.run_transaction(work)
    assert client.transactions() == ()


@pytest.mark.parametrize("handler", [asynchronous, of_two, None])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_sync_pipeline_says_that_its_handler_is_asynchronous(url, handler, concurrency):
    """It acknowledged everything and never ran the handler."""
    with sync.Client(url) as client:
        with client.create_producer("t") as producer:
            producer.send(b"x")
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        with pytest.raises(InvalidConfiguration):
            client.pipeline(consumer, handler, concurrency=concurrency)
        consumer.close()
        assert client.subscribe("t", "s").receive(timeout=10).data == b"x"


@pytest.mark.parametrize("work", [asynchronous, of_two, None])
def test_sync_run_transaction_says_that_its_work_is_asynchronous(url, work):
    """It committed nothing and returned the coroutine."""
    with sync.Client(url) as client:
        with pytest.raises(InvalidConfiguration):
            client.run_transaction(work)
        assert client.transactions() == ()
