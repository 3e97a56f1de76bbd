"""The block of the README is safe as it stands: whatever ends it, its input is acknowledged with its output or comes again."""

import asyncio
import contextlib
import random
import socket

import pytest

from pulsar_txn import compat
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import (
    AsyncClient,
    Client,
    ConsumerType,
    InitialPosition,
    OperationTimeout,
    PulsarError,
    TransactionState,
)
from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.compat import asyncio as compat_asyncio

EARLIEST = InitialPosition.EARLIEST
KINDS = [ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER, ConsumerType.SHARED, ConsumerType.KEY_SHARED]
PATIENCE = 20


@pytest.fixture
async def broker():
    async with Standalone(None) as running:
        yield running


@pytest.fixture
async def client(broker):
    async with AsyncClient(broker.service_url, initial_backoff=0.01, max_backoff=0.05) as connected:
        yield connected


async def fill(client, count, *, batching):
    """Numbered messages on "in", in entries of ten when they are batched."""
    async with await client.create_producer("in", batching=batching, batching_max_messages=10) as source:
        for number in range(count):
            source.send_nowait(b"%d" % number, key=f"k{number % 7}")
        await source.flush()


async def output(client):
    reader = await client.create_reader("out")
    found = []
    while await reader.has_message_available():
        found.append(int((await reader.read_next(PATIENCE)).data))
    await reader.close()
    return found


async def left(client, kind):
    """What a new consumer of the subscription gets."""
    again = await client.subscribe("in", "s", consumer_type=kind)
    found = [int(message.data) for message in await again.receive_many(1000, max_wait=0.3)]
    await again.close()
    return found


class Trouble(Exception):  # noqa: N818 - it is what a user's code raises
    pass


async def worker(client, consumer, producer, chance, count):
    """Blocks as the README has them, which fail at every place that there is, until all input has gone through."""
    done = 0
    while done < count:
        txn, taken = None, []
        with contextlib.suppress(Trouble, PulsarError, TimeoutError):
            limit = 0.02 if chance.random() < 0.1 else None
            async with asyncio.timeout(limit), client.transaction(timeout=0.3 if chance.random() < 0.05 else 30) as txn:
                if chance.random() < 0.5:
                    taken = [await consumer.receive(txn=txn)]
                else:
                    taken = await consumer.receive_many(chance.randint(1, 25), max_wait=0.02, txn=txn)
                if chance.random() < 0.1:
                    raise Trouble  # before anything was done
                for message in taken:
                    producer.send_nowait(message.data, key=message.key, txn=txn)
                fate = chance.random()
                if fate < 0.1:
                    raise Trouble  # before the acknowledgement
                if fate < 0.15:
                    txn.rollback()
                if fate < 0.4 and taken:
                    await consumer.acknowledge(taken[0], txn=txn)  # by hand, and the others by the commit
                if fate < 0.45:
                    raise Trouble  # after it
                if fate < 0.5:
                    await asyncio.sleep(0.4)  # longer than the shorter timeout
        if txn is not None and txn.state is TransactionState.COMMITTED:  # also when it was cancelled in its commit
            done += len(taken)
    return done


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", [1, 2])
async def test_blocks_that_fail_everywhere_neither_lose_nor_double_input(client, kind, batching, seed):
    await fill(client, 120, batching=batching)
    consumer = await client.subscribe("in", "s", consumer_type=kind, initial_position=EARLIEST)
    producer = await client.create_producer("out")
    async with asyncio.timeout(60):
        await worker(client, consumer, producer, random.Random(seed), 120)
    found = await output(client)
    assert sorted(found) == list(range(120))
    if kind.is_single:
        assert found == list(range(120))
    await consumer.close()
    assert await left(client, kind) == []
    assert client.transactions() == ()


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
async def test_several_workers_on_one_shared_consumer_neither_lose_nor_double_input(client, batching):
    await fill(client, 200, batching=batching)
    consumer = await client.subscribe("in", "s", consumer_type=ConsumerType.SHARED, initial_position=EARLIEST)
    producer = await client.create_producer("out")
    done = asyncio.Event()

    async def part(seed):
        while not done.is_set():
            await worker(client, consumer, producer, random.Random(seed), 1)

    async with asyncio.timeout(90):
        workers = [asyncio.create_task(part(seed)) for seed in range(4)]
        reader = await client.create_reader("out")
        for _ in range(200):
            await reader.read_next()
        done.set()
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(await output(client)) == list(range(200))
    await consumer.close()
    assert await left(client, ConsumerType.SHARED) == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_a_block_that_waits_longer_than_its_timeout_for_its_first_message_commits(client, kind):
    consumer = await client.subscribe("in", "s", consumer_type=kind)
    producer = await client.create_producer("out")
    async with client.transaction(timeout=2) as txn:
        asyncio.get_running_loop().call_later(2.2, lambda: tasks.append(asyncio.ensure_future(fill(client, 1, batching=False))))
        tasks = []
        message = await consumer.receive(PATIENCE, txn=txn)
        await producer.send(message.data, txn=txn)
    assert await output(client) == [0]
    await consumer.close()
    assert await left(client, kind) == []


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_input_comes_again_at_once_when_the_time_of_its_transaction_is_over(client, kind, batching):
    await fill(client, 20, batching=batching)
    consumer = await client.subscribe("in", "s", consumer_type=kind, initial_position=EARLIEST)
    producer = await client.create_producer("out")
    with pytest.raises(PulsarError):
        async with client.transaction(timeout=0.2) as txn:
            taken = await consumer.receive_many(5, txn=txn)
            await producer.send(b"7", txn=txn)  # it opens
            await asyncio.sleep(0.5)
            await producer.send(b"8", txn=txn)
    assert txn.state is TransactionState.ABORTED
    async with client.transaction() as txn:
        again = []
        while len(again) < 20:
            again.append(await consumer.receive(PATIENCE, txn=txn))
    assert sorted(int(message.data) for message in again) == list(range(20))
    assert {message.message_id for message in taken} <= {message.message_id for message in again}
    assert await output(client) == []


async def test_an_empty_receive_in_a_block_is_no_empty_commit(client, caplog):
    consumer = await client.subscribe("in", "s")
    async with client.transaction() as txn:
        assert await consumer.receive_many(10, max_wait=0.01, txn=txn) == []
    with pytest.raises(OperationTimeout):
        async with client.transaction() as txn:
            await consumer.receive(0.01, txn=txn)
    assert txn.id is None
    assert not [record for record in caplog.records if "nothing in it" in record.getMessage()]


async def test_an_ended_transaction_receives_nothing_and_takes_nothing_from_the_queue(client):
    await fill(client, 3, batching=False)
    consumer = await client.subscribe("in", "s", initial_position=EARLIEST)
    txn = await client.begin_transaction()
    await txn.commit()
    for receive in (consumer.receive(txn=txn), consumer.receive_many(2, txn=txn)):
        with pytest.raises(TransactionStateError):
            await receive
    assert [int((await consumer.receive(PATIENCE)).data) for _ in range(3)] == [0, 1, 2]


async def test_input_of_an_ambient_block_joins_it_without_txn(client):
    await fill(client, 2, batching=True)
    consumer = await client.subscribe("in", "s", initial_position=EARLIEST)
    with pytest.raises(Trouble):
        async with client.transaction(ambient=True):
            await consumer.receive(PATIENCE)
            raise Trouble
    async with client.transaction(ambient=True):
        async for message in consumer:
            if int(message.data) == 1:
                break
    await consumer.close()
    assert await left(client, ConsumerType.EXCLUSIVE) == []


async def test_closing_the_client_in_a_block_gives_its_input_to_others(broker, client):
    await fill(client, 4, batching=False)
    elsewhere = AsyncClient(broker.service_url)
    consumer = await elsewhere.subscribe("in", "s", consumer_type=ConsumerType.SHARED, initial_position=EARLIEST)
    producer = await elsewhere.create_producer("out")
    txn = await elsewhere.begin_transaction(timeout=600)
    taken = await consumer.receive_many(4, max_wait=PATIENCE, txn=txn)
    await consumer.acknowledge(taken[0], txn=txn)  # pending
    await producer.send(b"1", txn=txn)
    await elsewhere.close()
    again = await client.subscribe("in", "s", consumer_type=ConsumerType.SHARED)
    found = [await again.receive(PATIENCE) for _ in range(4)]
    assert sorted(int(message.data) for message in found) == [0, 1, 2, 3]
    assert await output(client) == []


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED], ids=lambda kind: kind.name)
async def test_a_broker_that_restarts_in_the_block_neither_loses_nor_doubles_input(tmp_path, kind, crash):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = await Standalone(tmp_path, port=port).__aenter__()
    async with AsyncClient(f"pulsar://127.0.0.1:{port}", initial_backoff=0.01, max_backoff=0.1) as client:
        await fill(client, 30, batching=True)
        consumer = await client.subscribe("in", "s", consumer_type=kind, initial_position=EARLIEST)
        producer = await client.create_producer("out")
        done, restarts, tried = 0, 0, 0
        async with asyncio.timeout(90):
            while done < 30:
                tried += 1
                with contextlib.suppress(PulsarError):
                    async with client.transaction(timeout=20) as txn:
                        taken = await consumer.receive_many(10, max_wait=0.5, txn=txn)
                        for message in taken:
                            producer.send_nowait(message.data, txn=txn)
                        if restarts < 3:
                            restarts += 1
                            await (server.kill() if crash and hasattr(server, "kill") else server.__aexit__(None, None, None))
                            server = await Standalone(tmp_path, port=port).__aenter__()
                if txn.state is TransactionState.COMMITTED:
                    done += len(taken)
        assert sorted(await output(client)) == list(range(30))
        await consumer.close()
        assert await left(client, kind) == []
    await server.__aexit__(None, None, None)


# --- the other clients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_the_block_of_the_blocking_client_is_safe(broker, client, kind):
    await fill(client, 40, batching=True)

    def program():
        chance, done = random.Random(3), 0
        with Client(broker.service_url) as blocking:
            consumer = blocking.subscribe("in", "s", consumer_type=kind, initial_position=EARLIEST)
            producer = blocking.create_producer("out")
            while done < 40:
                with contextlib.suppress(Trouble), blocking.transaction() as txn:
                    taken = consumer.receive_many(7, max_wait=0.05, txn=txn)
                    if chance.random() < 0.3:
                        raise Trouble
                    for message in taken:
                        producer.send_nowait(message.data, txn=txn)
                    if chance.random() < 0.3:
                        raise Trouble
                    done += len(taken)

    async with asyncio.timeout(60):
        await asyncio.to_thread(program)
    found = await output(client)
    assert sorted(found) == list(range(40))
    assert await left(client, kind) == []


async def test_the_block_of_compat_is_safe(broker, client):
    await fill(client, 2, batching=False)

    def program():
        with contextlib.closing(compat.Client(broker.service_url)) as official:
            consumer = official.subscribe("in", "s", initial_position=compat.InitialPosition.Earliest)
            producer = official.create_producer("out")
            with pytest.raises(Trouble), official.transaction() as txn:
                consumer.receive(txn=txn)
                raise Trouble
            for _ in range(2):
                with official.transaction() as txn:
                    producer.send(consumer.receive(PATIENCE * 1000, txn=txn).data(), txn=txn)

    async with asyncio.timeout(60):
        await asyncio.to_thread(program)
    assert await output(client) == [0, 1]
    assert await left(client, ConsumerType.EXCLUSIVE) == []


async def test_the_block_of_compats_asyncio_client_is_safe(broker, client):
    await fill(client, 2, batching=False)
    official = compat_asyncio.Client(broker.service_url)
    consumer = await official.subscribe("in", "s", initial_position=compat.InitialPosition.Earliest)
    producer = await official.create_producer("out")
    with pytest.raises(Trouble):
        async with official.transaction() as txn:
            await consumer.receive(txn=txn)
            raise Trouble
    for _ in range(2):
        async with official.transaction() as txn:
            await producer.send((await consumer.receive(txn=txn)).data(), txn=txn)
    await official.close()
    assert await output(client) == [0, 1]
    assert await left(client, ConsumerType.EXCLUSIVE) == []
