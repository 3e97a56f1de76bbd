"""Batches and pipelines against real servers: what a worker promises when its handler fails and messages come again."""

import asyncio

import pytest

from pulsar_txn.client import AsyncClient, BatchingType, ConsumerType, InitialPosition, TransactionAborted

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
async def client(pulsar):
    async with AsyncClient(pulsar.service_url, initial_backoff=0.02, max_backoff=0.5) as connected:
        yield connected


async def produce(client, topic, count, **options):
    """Numbers, in batches and alone, committed and plain, as inputs are."""
    source = await client.create_producer(topic, **options)
    third = count // 3
    await asyncio.gather(*(source.send(b"%d" % number, key=f"k{number % 5}") for number in range(third)))
    async with client.transaction() as txn:
        for number in range(third, 2 * third):
            source.send_nowait(b"%d" % number, key=f"k{number % 5}", txn=txn)
    for number in range(2 * third, count):
        await source.send(b"%d" % number, key=f"k{number % 5}")


async def output(client, topic):
    reader = await client.create_reader(topic)
    found = []
    while await reader.has_message_available():
        found.append(int((await reader.read_next(5)).data))
    return found


class Worker:
    """Copies numbers; fails at every third call and at poison."""

    def __init__(self, client, topic, poison=()):
        self.client = client
        self.topic = topic
        self.poison = set(poison)
        self.calls = 0

    async def __call__(self, batch):
        self.calls += 1
        for message in batch:
            self.target.send_nowait(message.data, txn=batch.txn)
        numbers = {int(message.data) for message in batch}
        if self.poison & numbers:
            raise LookupError(f"cannot do {sorted(self.poison & numbers)}")
        if self.calls % 3 == 0:
            raise ConnectionResetError("now and then")

    async def run(self, count, kind, **options):
        self.consumer = await self.client.subscribe(self.topic, "s", consumer_type=kind, initial_position=EARLIEST)
        self.target = await self.client.create_producer(f"{self.topic}-out")
        stop, done = asyncio.Event(), 0

        def observer(event):
            nonlocal done
            done += len(event.messages) * (event.kind != "aborted")
            if done >= count:
                stop.set()

        options = {"max_messages": 7, "max_wait": 0.1, "timeout": 20, "max_aborts": 3} | options
        async with asyncio.timeout(60):
            return await self.client.pipeline(self.consumer, self, stop=stop, observer=observer, **options)


@pytest.mark.parametrize("kind", [ConsumerType.FAILOVER, ConsumerType.EXCLUSIVE])
async def test_a_pipeline_with_a_poison_message_keeps_order_and_loses_and_doubles_nothing(client, topic, kind):
    await produce(client, topic, 45)
    worker = Worker(client, topic, poison=[17])
    result = await worker.run(45, kind)
    assert await output(client, f"{topic}-out") == [number for number in range(45) if number != 17]
    assert await output(client, f"{topic}-s-DLQ") == [17]
    assert (result.messages, result.dead_lettered) == (44, 1)
    await worker.consumer.close()
    again = await client.subscribe(topic, "s", consumer_type=kind)
    assert await again.receive_many(1, max_wait=0.5) == []


async def test_the_letters_of_a_pipeline_wait_in_a_subscription_that_nobody_had_to_make(client, topic):
    await produce(client, topic, 12)
    worker = Worker(client, topic, poison=[7, 8])
    await worker.run(12, ConsumerType.SHARED, max_aborts=2)
    letters = await client.subscribe(f"{topic}-s-DLQ", "dead-letters")  # at the end, if it were made only now
    assert sorted([int((await letters.receive(10)).data) for _ in range(2)]) == [7, 8]


async def test_lanes_of_a_key_shared_pipeline_keep_the_order_of_keys(client, topic):
    source = await client.create_producer(topic, batching_type=BatchingType.KEY_BASED)
    await asyncio.gather(*(source.send(b"%d" % number, key=f"k{number % 5}") for number in range(60)))
    worker = Worker(client, topic)
    await worker.run(60, ConsumerType.KEY_SHARED, concurrency=3, max_aborts=1000)
    found = await output(client, f"{topic}-out")
    for key in range(5):
        assert [number for number in found if number % 5 == key] == list(range(key, 60, 5))


async def test_batches_that_abort_after_their_acknowledgement_come_again_once(client, topic):
    """The transaction is ended without the batch's knowledge, so that its acknowledgements are taken back by the server."""
    await produce(client, topic, 30)
    target = await client.create_producer(f"{topic}-out")
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    seen, aborted = [], 0
    async with asyncio.timeout(60):
        while len(seen) < 30:
            try:
                async with consumer.transactional_batch(max_messages=8, max_wait=0.3) as batch:
                    for message in batch:
                        target.send_nowait(message.data, txn=batch.txn)
                    if batch and aborted < 3:
                        aborted += 1
                        await consumer.acknowledge_cumulative(batch[-1], txn=batch.txn)
                        batch.txn.rollback()
            except TransactionAborted:
                continue
            else:
                if batch.txn.state.value == "COMMITTED":
                    seen += [int(message.data) for message in batch]
    assert seen == list(range(30))
    assert await output(client, f"{topic}-out") == list(range(30))
