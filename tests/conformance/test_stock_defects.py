"""Where stock servers are known to go wrong: what they do, what our broker does, side by side."""

from __future__ import annotations

import pytest
from coordinators import what_came_of
from differences import Observed
from fake_broker import FakeTransaction
from insides import partitions_of
from rows import row
from subscriptions import chosen, filled, subscribed
from targets import Target
from transactions import PATIENCE, forget_acknowledgements, received, visible

from pulsar_txn.client import AsyncClient, AsyncTransaction, ConsumerType
from pulsar_txn.client.send import batching
from pulsar_txn.client.send.partition_producer import Sealer
from pulsar_txn.client.txn import encoding
from pulsar_txn.client.txn.transactions import transactions_of
from pulsar_txn.wire.ids import TxnAction, TxnId
from pulsar_txn.wire.pulsar_pb2 import MessageMetadata


@row(104)
async def test_an_index_of_a_batch_that_another_transaction_holds_as_a_whole(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    """Without our client's knowledge, which refuses it itself."""
    await filled(client, topic, 3, batched=True)
    consumer = await subscribed(client, topic, ConsumerType.EXCLUSIVE)
    messages = await received(consumer, 3)
    holder, intruder = await client.begin_transaction(), await client.begin_transaction()
    for message in messages:
        await consumer.acknowledge(message, txn=holder)
    forget_acknowledgements(consumer, messages)
    second = await what_came_of(consumer.acknowledge(chosen(messages, 1), txn=intruder), "accepted")
    await intruder.abort()
    await holder.abort()
    observed(pulsar, 104, "an index of a batch that another transaction holds as a whole", second)


@row(0)
async def test_a_transactional_send_to_a_topic_that_keeps_nothing(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    """Without our client's knowledge, which refuses it itself. What stock breaks is the connection, again at every retry."""
    txn = await client.begin_transaction()
    assert isinstance(txn.id, TxnId)
    async with AsyncClient(pulsar.service_url) as victim:
        fleeting = await victim.create_producer(topic.replace("persistent:", "non-persistent:"), send_timeout=1.0)
        ticket = partitions_of(fleeting)[0].add((b"x",), FakeTransaction(txn.id))  # type: ignore[arg-type]  # enough of one
        seen = await what_came_of(ticket, "sent")
        durable = await victim.create_producer(topic)
        reader = await victim.create_reader(topic)
        await durable.send(b"goes on")
        assert (await reader.read_next(timeout=PATIENCE)).data == b"goes on"
    await txn.abort()
    observed(pulsar, 0, "a transactional send to a topic that keeps nothing", seen)


@row(0)
async def test_a_send_whose_transaction_stands_in_its_command_only(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the official Go client sends. Held back while the transaction is open, on every server."""
    encode = batching.EntryFactory._metadata

    def without_transaction(self: batching.EntryFactory, *args: object) -> MessageMetadata:
        metadata = encode(self, *args)  # type: ignore[arg-type]  # handed on as they came
        metadata.ClearField("txnid_most_bits")
        metadata.ClearField("txnid_least_bits")
        return metadata

    monkeypatch.setattr(batching.EntryFactory, "_metadata", without_transaction)
    monkeypatch.setattr(Sealer, "lone", lambda *_: None)  # which writes its metadata itself
    producer = await client.create_producer(topic, batching=False)
    txn = await client.begin_transaction()
    await producer.send(b"aborted", txn=txn)
    assert await visible(client, topic) == []
    await txn.abort()
    await producer.send(b"after")
    seen = await visible(client, topic)
    assert seen[-1:] == [b"after"]
    observed(pulsar, 0, "an aborted message whose transaction is in its command only", "delivered" if seen[1:] else "hidden")


@row(0)
async def test_what_can_be_found_out_of_a_transaction_that_ended(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed
) -> None:
    producer = await client.create_producer(topic)
    async with client.transaction() as txn:
        await producer.send(b"x", txn=txn)
    assert txn.id is not None
    async with AsyncClient(pulsar.service_url) as elsewhere:
        state = await elsewhere.attach_transaction(txn.id).resolve()
    observed(pulsar, 0, "resolve() of a transaction that was committed elsewhere", state.value)


@row(0)
async def test_an_end_of_a_group_of_transactions(
    pulsar: Target, client: AsyncClient, topic: str, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without our client's knowledge, which sends no group to a server that would pass it over and end the first alone."""
    monkeypatch.setattr(encoding, "_check_groups", lambda _: None)
    producer = await client.create_producer(topic)
    first = await client.begin_transaction()
    further = await client.begin_transaction()
    while txn_id(further).most != txn_id(first).most:  # a group is of one coordinator
        await further.abort()
        further = await client.begin_transaction()
    await producer.send(b"first", txn=first)
    await producer.send(b"further", txn=further)
    await transactions_of(client).coordinators.end_txn(txn_id(first), TxnAction.COMMIT, group=[txn_id(further)])
    seen = await visible(client, topic)
    await what_came_of(further.abort(), "aborted")
    observed(pulsar, 0, "an end of a group of transactions", "all of them" if b"further" in seen else "the first alone")


def txn_id(txn: AsyncTransaction) -> TxnId:
    """Of a transaction that is open."""
    assert isinstance(txn.id, TxnId)
    return txn.id
