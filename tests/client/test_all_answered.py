"""With its commit a client tells a coordinator beside clusters that nothing of the transaction can come late, or does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime, fake_client

from pulsar_txn.client import AsyncClient, AsyncTransaction, ConsumerType
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

SIZE = 5 * 1024 * 1024


@attrs.frozen
class Setting:
    """A client, the broker of its cluster, and the coordinator beside it."""

    client: AsyncClient
    broker: FakeBroker
    coordinator: FakeBroker

    @property
    def told(self) -> list[bool]:
        """What each END_TXN said."""
        return [body.all_answered for body in self.coordinator.all("endTxn")]


@pytest.fixture
async def beside() -> AsyncIterator[Setting]:
    broker, coordinator = FakeBroker("b1:6650"), FakeBroker("tc:6653")
    flags = {"supports_clusters": True, "keeps_transaction_outcomes": True}
    coordinator.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Fake", protocol_version=21, max_message_size=SIZE, feature_flags=flags
    )
    coordinator.partitions[ASSIGN_TOPIC] = 1
    runtime = FakeRuntime({"b1:6650": broker, "tc:6653": coordinator})
    waits: dict[str, Any] = {"operation_timeout": 2.0, "connection_timeout": 0.5, "initial_backoff": 0.001, "max_backoff": 0.01}
    async with AsyncClient("pulsar://b1:6650", coordinator="pulsar://tc:6653", runtime=runtime, **waits) as client:
        yield Setting(client, broker, coordinator)


async def one(beside: Setting) -> None:
    """A transaction with one send."""
    producer = await beside.client.create_producer("t")
    async with beside.client.transaction() as txn:
        await producer.send(b"x", txn=txn)


async def test_a_commit_after_answers_to_everything_says_so(beside: Setting) -> None:
    consumer = await beside.client.subscribe("in", "s", consumer_type=ConsumerType.SHARED)
    producer = await beside.client.create_producer("t")
    beside.broker.deliver(1, 0, b"x")
    message = await consumer.receive()
    async with beside.client.transaction() as txn:
        await producer.send(b"x", txn=txn)
        await consumer.acknowledge(message, txn=txn)
    assert beside.told == [True]


async def test_an_abort_does_not(beside: Setting) -> None:
    producer = await beside.client.create_producer("t")
    with pytest.raises(LookupError):
        async with beside.client.transaction() as txn:
            await producer.send(b"x", txn=txn)
            raise LookupError
    assert beside.told == [False]


async def test_a_send_that_left_twice_may_come_late(beside: Setting) -> None:
    broker = beside.broker
    broker.on["send"] = lambda _pipe, _body: SILENCE
    broker.on["producer"] = lambda _pipe, body: command(
        "producer_success", request_id=body.request_id, producer_name="p", last_sequence_id=0
    )
    producer = await beside.client.create_producer("t")
    async with beside.client.transaction() as txn:
        ticket = producer.send_nowait(b"x", txn=txn)
        await broker.until(lambda: broker.all("send"))
        del broker.on["send"]
        broker.pipe.cut()
    assert ticket.exception() is None
    assert len(broker.all("send")) == 2
    assert beside.told == [False]
    await one(beside)
    assert beside.told == [False, True], "the next transaction is another one"


async def test_an_acknowledgement_that_left_twice_may_come_late(beside: Setting) -> None:
    broker = beside.broker
    consumer = await beside.client.subscribe("in", "s", consumer_type=ConsumerType.SHARED)
    broker.deliver(1, 0, b"x")
    message = await consumer.receive()
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with beside.client.transaction() as txn:
        acknowledging = asyncio.create_task(consumer.acknowledge(message, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        del broker.on["ack"]
        broker.pipe.cut()
        await acknowledging
    assert len(broker.all("ack")) == 2
    assert beside.told == [False]


@pytest.mark.parametrize("look", [lambda txn: txn.id, lambda txn: txn.stats()])
async def test_whoever_was_shown_the_id_may_send_in_it(beside: Setting, look: Any) -> None:
    producer = await beside.client.create_producer("t")
    async with beside.client.transaction() as txn:
        look(txn)
        await producer.send(b"x", txn=txn)
    assert beside.told == [False]


async def test_a_transaction_that_was_begun_elsewhere_may_have_others_in_it(beside: Setting) -> None:
    producer = await beside.client.create_producer("t")
    begun: AsyncTransaction = await beside.client.begin_transaction()
    attached = beside.client.attach_transaction(str(begun.id))
    await producer.send(b"x", txn=attached)
    await attached.commit()
    assert beside.told == [False]
    await begun.abort()


async def test_a_broker_is_not_told() -> None:
    broker = FakeBroker()
    broker.partitions[ASSIGN_TOPIC] = 1
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        async with client.transaction() as txn:
            await producer.send(b"x", txn=txn)
    (end,) = broker.all("endTxn")
    assert not end.HasField("all_answered")
