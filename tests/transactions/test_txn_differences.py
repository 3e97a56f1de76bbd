"""What our broker does otherwise than stock Pulsar, shown side by side; the table is `stock_differences.DIFFERENCES`."""

from __future__ import annotations

from collections.abc import Awaitable

from fake_broker import FakeTransaction
from stock_differences import expected
from targets import Target
from transactions import PATIENCE, received

from pulsar_txn.client import Client, InitialPosition, PulsarError, TransactionState
from pulsar_txn.wire.ids import TxnId


async def what_came_of(operation: Awaitable[object], success: str) -> str:
    """`success`, or the name of the error."""
    try:
        await operation
    except PulsarError as error:
        return type(error).__name__
    return success


async def test_a_commit_repeated_after_its_end(pulsar: Target, client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    assert txn.id is not None
    async with Client(pulsar.service_url) as elsewhere:
        again = elsewhere._coordinators.end_txn(txn.id, 0)  # type: ignore[arg-type]  # COMMIT
        assert await what_came_of(again, "COMMITTED") == expected(pulsar, "a commit repeated after its end")
        attached = elsewhere.attach_transaction(txn.id)
        state = await attached.resolve()
        assert state is (TransactionState.COMMITTED if pulsar.is_ours else TransactionState.UNKNOWN)


async def test_an_abort_of_what_was_committed(pulsar: Target, client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    assert txn.id is not None
    late = client._coordinators.end_txn(txn.id, 1)  # type: ignore[arg-type]  # ABORT
    assert await what_came_of(late, "ABORTED") == expected(pulsar, "an abort of what was committed")


async def test_an_index_of_a_batch_that_another_transaction_holds_as_a_whole(
    pulsar: Target, client: Client, topic: str
) -> None:
    producer = await client.create_producer(topic, batching_max_messages=3, batching_max_delay=5)
    tickets = [producer.send_nowait(b"%d" % number) for number in range(3)]
    await producer.flush()
    assert len({(await ticket).entry_id for ticket in tickets}) == 1
    consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    messages = await received(consumer, 3)
    holder, intruder = await client.begin_transaction(), await client.begin_transaction()
    for message in messages:
        await consumer.acknowledge(message, txn=holder)
    consumer._parts[0].open_acks._claims.clear()  # our client refuses it before it leaves
    second = consumer.acknowledge(messages[1], txn=intruder)
    name = "an index of a batch that another transaction holds as a whole"
    assert await what_came_of(second, "accepted") == expected(pulsar, name)
    await intruder.abort()
    await holder.abort()


async def test_a_transactional_send_to_a_topic_that_keeps_nothing(pulsar: Target, client: Client, topic: str) -> None:
    """Behind the back of our client, which refuses it itself."""
    txn = await client.begin_transaction()
    assert isinstance(txn.id, TxnId)
    async with Client(pulsar.service_url) as victim:
        fleeting = await victim.create_producer(topic.replace("persistent:", "non-persistent:"), send_timeout=1.0)
        ticket = fleeting._partitions[0].add((b"x",), FakeTransaction(txn.id))  # type: ignore[arg-type]  # enough of one
        name = "a transactional send to a topic that keeps nothing"
        assert await what_came_of(ticket, "sent") == expected(pulsar, name)
        durable = await victim.create_producer(topic)
        reader = await victim.create_reader(topic)
        await durable.send(b"goes on")
        assert (await reader.read_next(timeout=PATIENCE)).data == b"goes on"
    await txn.abort()
