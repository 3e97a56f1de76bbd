"""What a batch acknowledges is what it worked on: neither what others have settled, nor what was not delivered to it."""

from __future__ import annotations

import pytest
from targets import Target
from transactions import PATIENCE, received

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition, TransactionAborted

FAILOVER = {"consumer_type": ConsumerType.FAILOVER, "initial_position": InitialPosition.EARLIEST}
EXCLUSIVE = {"initial_position": InitialPosition.EARLIEST}


# Which of two Failover consumers stock makes the active one depends on the topic's name.
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
async def test_a_batch_of_messages_that_a_former_consumer_has_settled_in_part_conflicts(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    """The chain found it on Failover: both committed, and the output of two messages was doubled."""
    producer = await client.create_producer(topic, batching=False)
    for number in range(4):
        await producer.send(b"%d" % number)
    former = await client.subscribe(topic, "s", consumer_name="b", **FAILOVER)  # type: ignore[arg-type]
    mine = (await received(former, 4))[:2]
    async with AsyncClient(pulsar.service_url) as elsewhere:
        successor = await elsewhere.subscribe(topic, "s", consumer_name="a", **FAILOVER)  # type: ignore[arg-type]
        with pytest.raises(TransactionAborted):
            async with successor.transactional_batch(max_messages=4, max_wait=PATIENCE) as batch:
                assert [message.data for message in batch] == [b"0", b"1", b"2", b"3"]
                async with client.transaction() as txn:
                    await former.acknowledge(mine, txn=txn)


async def test_a_batch_leaves_what_was_pending_when_it_was_delivered_and_came_back_since(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    """The chain found it on Exclusive, after the kill of a worker: its message was lost."""
    producer = await client.create_producer(topic, batching=False)
    for number in range(4):
        await producer.send(b"%d" % number)
    async with AsyncClient(pulsar.service_url) as killed:
        former = await killed.subscribe(topic, "s", **EXCLUSIVE)  # type: ignore[arg-type]
        left = await killed.begin_transaction()
        await former.acknowledge((await received(former, 4))[1], txn=left)
        await former.close()
        successor = await client.subscribe(topic, "s", **EXCLUSIVE)  # type: ignore[arg-type]
        async with successor.transactional_batch(max_messages=3, max_wait=PATIENCE) as batch:
            assert [message.data for message in batch] == [b"0", b"2", b"3"]
            await left.abort()
        await successor.close()
        again = await client.subscribe(topic, "s", **EXCLUSIVE)  # type: ignore[arg-type]
        assert (await again.receive(timeout=PATIENCE)).data == b"1"
