"""Two transactions cannot acknowledge the same message; the second is told and can only be aborted."""

from __future__ import annotations

import asyncio

import pytest
from targets import Target
from transactions import received, stays_silent, visible

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    ConsumerType,
    InitialPosition,
    Message,
    TransactionConflict,
    TransactionOperationFailed,
    TransactionState,
)


async def two_consumers(
    client: AsyncClient, elsewhere: AsyncClient, topic: str
) -> tuple[AsyncConsumer[bytes], AsyncConsumer[bytes], Message[bytes]]:
    """Consumers of two clients on one Shared subscription, and a message that the first one received."""
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"x")
    first = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=InitialPosition.EARLIEST)
    (message,) = await received(first, 1)
    second = await elsewhere.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
    return first, second, message


async def test_a_message_pending_in_one_transaction_conflicts_in_another_one(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    async with AsyncClient(pulsar.service_url) as elsewhere:
        first, second, message = await two_consumers(client, elsewhere, topic)
        holder, intruder = await client.begin_transaction(), await elsewhere.begin_transaction()
        await first.acknowledge(message, txn=holder)
        with pytest.raises(TransactionConflict):
            await second.acknowledge(message.message_id, txn=intruder)
        assert intruder.doomed
        with pytest.raises(TransactionOperationFailed) as failed:
            await intruder.commit()
        assert isinstance(failed.value.__cause__, TransactionConflict)
        assert intruder.state is TransactionState.ABORTED
        await holder.commit()
        assert await stays_silent(second)


async def test_a_conflict_leaves_nothing_of_the_transaction_that_had_it(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    async with AsyncClient(pulsar.service_url) as elsewhere:
        first, second, message = await two_consumers(client, elsewhere, topic)
        output = await elsewhere.create_producer(f"{topic}-out")
        holder = await client.begin_transaction()
        await first.acknowledge(message, txn=holder)
        with pytest.raises(TransactionOperationFailed):
            async with elsewhere.transaction() as intruder:
                await output.send(b"never", txn=intruder)
                with pytest.raises(TransactionConflict):
                    await second.acknowledge(message.message_id, txn=intruder)
        await holder.commit()
        await output.send(b"after")
        assert await visible(client, f"{topic}-out") == [b"after"]


@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED, ConsumerType.FAILOVER])
async def test_a_conflict_about_one_message_does_not_lose_the_others(
    client: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    """A stock dispatcher of Shared and Key_Shared forgot them, and delivered them to nobody any more."""
    producer = await client.create_producer(topic, batching=False)
    for number in range(3):
        await producer.send(b"%d" % number)
    consumer = await client.subscribe(topic, "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, 3)
    await consumer.acknowledge(messages[0], receipt=True)
    txn = await client.begin_transaction()
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(messages, txn=txn)
    await txn.abort()
    consumer.redeliver_unacknowledged()
    assert {message.data for message in await received(consumer, 2)} == {b"1", b"2"}


async def test_a_message_of_an_aborted_transaction_can_be_acknowledged_by_the_next(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    for ends_well in (False, True):
        txn = await client.begin_transaction()
        await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
        await (txn.commit() if ends_well else txn.abort())
    assert await stays_silent(consumer)


async def test_the_same_message_twice_in_one_transaction_conflicts(client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    await producer.send(b"x")
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    message = await consumer.receive(timeout=20)
    txn = await client.begin_transaction()
    await consumer.acknowledge(message, txn=txn)
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(message, txn=txn)
    await txn.abort()


async def test_all_of_a_batch_pending_in_one_transaction_conflicts_in_another_through_the_same_consumer(
    client: AsyncClient, topic: str
) -> None:
    """A stock broker accepts the second one; the client refuses it before it leaves."""
    producer = await client.create_producer(topic, batching_max_messages=3, batching_max_delay=5)
    tickets = [producer.send_nowait(b"%d" % number) for number in range(3)]
    await producer.flush()
    assert len({(await ticket).entry_id for ticket in tickets}) == 1
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, 3)
    holder, intruder = await client.begin_transaction(), await client.begin_transaction()
    await consumer.acknowledge(messages, txn=holder)
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(messages[1], txn=intruder)
    await intruder.abort()
    await holder.commit()


@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED])
@pytest.mark.parametrize("size", [2, 64, 65, 128])
async def test_all_of_a_batch_conflicts_when_somebody_else_has_acknowledged_a_part_of_it(
    client: AsyncClient, topic: str, size: int, kind: ConsumerType, in_transaction: bool
) -> None:
    """Through another consumer, which cannot know of it. A stock broker takes "the whole batch", and both would count."""
    producer = await client.create_producer(topic, batching_max_messages=size, batching_max_delay=5)
    tickets = [producer.send_nowait(b"%d" % number, key="k") for number in range(size)]
    await producer.flush()
    assert len({(await ticket).entry_id for ticket in tickets}) == 1
    consumer = await client.subscribe(topic, "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, size)
    other = await client.subscribe(topic, "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)
    if in_transaction:
        async with client.transaction() as txn:
            await consumer.acknowledge(messages[0], txn=txn)
    else:
        await consumer.acknowledge(messages[0], receipt=True)
    late = await client.begin_transaction()
    with pytest.raises(TransactionConflict):
        await other.acknowledge(messages, txn=late)
    await late.abort()
    async with client.transaction() as txn:
        await other.acknowledge(messages[1:], txn=txn)
    await consumer.close()
    assert await stays_silent(other)


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("batching", [True, False])
async def test_a_message_that_was_acknowledged_plainly_conflicts_at_once(
    client: AsyncClient, topic: str, batching: bool, cumulative: bool
) -> None:
    """Plain acknowledgements are grouped for a moment: one in a transaction does not overtake them."""
    producer = await client.create_producer(topic, batching=batching)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)))
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, 3)
    await (consumer.acknowledge_cumulative(messages[1]) if cumulative else consumer.acknowledge(messages[0]))
    txn = await client.begin_transaction()
    with pytest.raises(TransactionConflict):
        await consumer.acknowledge(messages[0], txn=txn)
    with pytest.raises(TransactionOperationFailed):
        await txn.commit()


async def test_what_a_transaction_acknowledged_cumulatively_goes_to_the_next_consumer_and_conflicts_there(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    producer = await client.create_producer(topic, batching=False)
    for number in range(3):
        await producer.send(b"%d" % number)
    options = {"consumer_type": ConsumerType.FAILOVER, "initial_position": InitialPosition.EARLIEST}
    async with AsyncClient(pulsar.service_url) as elsewhere:
        first = await client.subscribe(topic, "s", **options)  # type: ignore[arg-type]
        holder = await client.begin_transaction()
        await first.acknowledge_cumulative((await received(first, 3))[1], txn=holder)
        await first.close()
        second = await elsewhere.subscribe(topic, "s", **options)  # type: ignore[arg-type]
        copies = await received(second, 3)
        assert [copy.data for copy in copies] == [b"0", b"1", b"2"], "also what is pending"
        acknowledge = [second.acknowledge_cumulative(copies[2], txn=(further := await elsewhere.begin_transaction()))]
        if pulsar.is_ours:  # stock compares with other cumulative acknowledgements only
            acknowledge.append(second.acknowledge(copies[0], txn=further))
        for again in acknowledge:
            with pytest.raises(TransactionConflict):
                await again
        await further.abort()
        await second.close()
        await holder.commit()
        third = await elsewhere.subscribe(topic, "s", **options)  # type: ignore[arg-type]
        assert [copy.data for copy in await received(third, 1)] == [b"2"]


@pytest.mark.parametrize("batched", [True, False])
async def test_a_message_that_two_consumers_were_given_conflicts_also_in_one_transaction(
    client: AsyncClient, topic: str, batched: bool
) -> None:
    """The program worked on both copies."""
    options = {"batching_max_messages": 2, "batching_max_delay": 5} if batched else {"batching": False}
    producer = await client.create_producer(topic, **options)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(2)))
    first = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=InitialPosition.EARLIEST)
    messages = await received(first, 2)
    second = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
    txn = await client.begin_transaction()
    await first.acknowledge(messages[0], txn=txn)
    with pytest.raises(TransactionConflict):
        await second.acknowledge(messages[0], txn=txn)
    await txn.abort()
    again = await client.begin_transaction()
    await second.acknowledge(messages[0], txn=again)
    await again.commit()
