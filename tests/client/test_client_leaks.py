"""Nothing grows with what went through: after 3,000 transactions a client holds what it held after 1,000."""

import asyncio
import gc
import weakref
from collections import Counter

from insides import budget_of, coordinators_of, observers_of, partitions_of

from pulsar_txn.client import ConsumerType
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.txn.transaction import unit_of
from pulsar_txn.client.txn.transactions import core_of

GROUP = 50


def kinds() -> Counter[str]:
    """How many objects of the client's own classes there are."""
    gc.collect()
    found = [type(each) for each in gc.get_objects()]
    # Of some classes of other packages `__module__` is a descriptor, and no text.
    return Counter(kind.__qualname__ for kind in found if str(kind.__module__).startswith("pulsar_txn.client"))


def sizes(*objects) -> dict[str, int]:
    """The lengths of all collections that are attributes of these."""
    gc.collect()
    found = {}
    for each in objects:
        names = [
            *getattr(each, "__dict__", ()),
            *(name for cls in type(each).__mro__ for name in getattr(cls, "__slots__", ())),
        ]
        for name in names:
            value = getattr(each, name, None)
            if hasattr(value, "__len__") and not isinstance(value, str | bytes):
                found[f"{type(each).__name__}.{name}"] = len(value)
    return found


async def transactions(client, source, consumer, producer, count):
    """Of one send and one acknowledgement; every tenth aborts, every seventh sends in a batch with others."""
    for _ in range(count):
        source.send_nowait(b"x")
    await source.flush()
    for number in range(count):
        message = await consumer.receive(timeout=10)
        async with client.transaction(timeout=30) as txn:
            for _ in range(3 if number % 7 == 0 else 1):
                producer.send_nowait(b"x", txn=txn)
            if number % 10:
                await consumer.acknowledge(message, txn=txn)
            else:
                txn.rollback()
        if not number % 10:
            await consumer.acknowledge(message, receipt=True)


async def test_three_thousand_transactions_leave_what_one_thousand_leave(client):
    consumer = await client.subscribe("in", "s", consumer_type=ConsumerType.SHARED)
    source, producer = await client.create_producer("in", batching=False), await client.create_producer("out")
    part, sender = reception_of(consumer).partitions.all[0], partitions_of(producer)[0]
    looked_at = [
        client,
        core_of(client),
        observers_of(client),
        consumer,
        part,
        part.machine.group,
        part.owners,
        producer,
        sender,
        budget_of(producer),
    ]
    looked_at += coordinators_of(client)._sessions
    await transactions(client, source, consumer, producer, 1000)
    before, held = kinds(), sizes(*looked_at)
    await transactions(client, source, consumer, producer, 2000)
    assert sizes(*looked_at) == held
    await gone(before)
    assert kinds() - before == Counter()


async def gone(before, seconds=5.0):
    """Wait while there is more than before: a timer that began in a block keeps what was around it until its time has come."""
    until = asyncio.get_running_loop().time() + seconds
    while kinds() - before and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - what is collected has no event
        await asyncio.sleep(0.1)


async def test_messages_that_went_through_leave_nothing(client):
    consumer, producer = await client.subscribe("in", "s"), await client.create_producer("in")

    async def through(count):
        for _ in range(count // GROUP):
            tickets = [producer.send_nowait(b"x") for _ in range(GROUP)]
            await tickets[-1]
            received = 0
            while received < GROUP:
                messages = await consumer.receive_many(GROUP, max_wait=5)
                received += len(messages)
                await consumer.acknowledge(messages, receipt=received == GROUP)

    part, sender = reception_of(consumer).partitions.all[0], partitions_of(producer)[0]
    looked_at = [
        core_of(client),
        consumer,
        part,
        part.machine.group,
        producer,
        sender,
        budget_of(producer),
        part.channel.connection,
    ]
    await through(1000)
    before, held = kinds(), sizes(*looked_at)
    await through(3000)
    assert sizes(*looked_at) == held
    assert kinds() - before == Counter()


async def test_what_was_started_in_a_block_does_not_keep_its_transaction(client):
    producer = await client.create_producer("out")
    running = asyncio.Event()

    async def work(txn):
        await producer.send(b"x", txn=txn)
        started.append(asyncio.create_task(running.wait()))
        started.append(asyncio.get_running_loop().call_later(60, running.set))
        units.append(weakref.ref(unit_of(txn)))

    started, units = [], []
    async with client.transaction() as txn:
        await work(txn)
    del txn
    await client.run_transaction(work)
    gc.collect()
    assert [unit() for unit in units] == [None, None]
    running.set()
    for each in started:
        each.cancel()
