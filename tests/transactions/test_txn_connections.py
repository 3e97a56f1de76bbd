"""Connections break at the worst moment: transactions go on, or say honestly that their outcome is unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from targets import Target
from transactions import CuttingRuntime, data_of, eventually_visible, stays_silent, visible

from pulsar_txn.client import Client, CommitOutcomeUnknown, InitialPosition, TransactionState
from pulsar_txn.wire import pulsar_pb2 as pb

COMMAND = pb.BaseCommand


@pytest.fixture
def runtime() -> CuttingRuntime:
    return CuttingRuntime()


@pytest.fixture
async def cuttable(pulsar: Target, runtime: CuttingRuntime) -> AsyncIterator[Client]:
    async with Client(pulsar.service_url, runtime=runtime) as client:
        yield client


async def test_an_open_transaction_outlives_its_connections(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    source = await client.create_producer(f"{topic}-in")
    await source.send(b"x")
    consumer = await cuttable.subscribe(f"{topic}-in", "s", initial_position=InitialPosition.EARLIEST)
    producer = await cuttable.create_producer(topic)
    message = await consumer.receive(timeout=20)
    async with cuttable.transaction() as txn:
        await producer.send(b"before", txn=txn)
        await consumer.acknowledge(message, txn=txn)
        runtime.cut_all()
        await producer.send(b"after", txn=txn)
    assert await visible(client, topic) == [b"before", b"after"]
    assert await stays_silent(consumer)


async def test_a_send_whose_receipt_is_lost_is_neither_lost_nor_doubled(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic, batching=False)
    async with cuttable.transaction() as txn:
        await producer.send(b"0", txn=txn)
        runtime.cut_before = COMMAND.SEND_RECEIPT
        await producer.send(b"1", txn=txn)
        await producer.send(b"2", txn=txn)
    assert runtime.cuts == 1
    found = await visible(client, topic)
    # Without deduplication on the topic a message whose receipt was lost may be stored twice, and never less than once.
    assert found in ([b"0", b"1", b"2"], [b"0", b"1", b"1", b"2"])


async def test_a_begin_whose_answer_is_lost_is_begun_again(cuttable: Client, runtime: CuttingRuntime, topic: str) -> None:
    first = await cuttable.begin_transaction()
    runtime.cut_before = COMMAND.NEW_TXN_RESPONSE
    second = await cuttable.begin_transaction()
    assert runtime.cuts == 1
    assert second.id != first.id
    await first.abort()
    await second.abort()


async def test_a_registration_whose_answer_is_lost_is_repeated(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic)
    async with cuttable.transaction() as txn:
        runtime.cut_before = COMMAND.ADD_PARTITION_TO_TXN_RESPONSE
        await producer.send(b"x", txn=txn)
    assert runtime.cuts == 1
    assert await visible(client, topic) == [b"x"]


async def test_an_ack_whose_answer_is_lost_settles_with_its_transaction_or_comes_again(
    pulsar: Target, cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    consumer = await cuttable.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    txn = await cuttable.begin_transaction()
    message = await consumer.receive(timeout=20)
    runtime.cut_before = COMMAND.ACK_RESPONSE
    try:
        await consumer.acknowledge(message, txn=txn)
        await txn.commit()
    except Exception:  # noqa: BLE001  # the loss may doom the transaction, which is all that may happen
        await txn.abort()
    assert runtime.cuts == 1
    if txn.state is TransactionState.COMMITTED:
        assert await stays_silent(consumer)
        return
    if not pulsar.is_ours:
        # A stock dispatcher that attaches the consumer in the very moment of the abort passes over the message.
        consumer.redeliver_unacknowledged()
    assert await data_of(consumer, 1) == [b"x"]


async def test_a_commit_whose_answer_is_lost_is_known_on_our_broker_and_honest_on_stock(
    pulsar: Target, cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic)
    txn = await cuttable.begin_transaction()
    await producer.send(b"x", txn=txn)
    runtime.cut_before = COMMAND.END_TXN_RESPONSE
    unknown: CommitOutcomeUnknown | None = None
    try:
        await txn.commit()
    except CommitOutcomeUnknown as error:
        unknown = error
    if pulsar.is_ours:  # it remembers outcomes
        assert unknown is None
    if unknown is None:
        assert txn.state is TransactionState.COMMITTED
    else:
        assert txn.state is TransactionState.UNKNOWN
        assert await unknown.resolve() in (TransactionState.UNKNOWN, TransactionState.COMMITTED)
    assert runtime.cuts == 1
    assert await eventually_visible(client, topic, [b"x"])


async def test_an_abort_whose_answer_is_lost_has_aborted(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic)
    txn = await cuttable.begin_transaction()
    await producer.send(b"x", txn=txn)
    runtime.cut_before = COMMAND.END_TXN_RESPONSE
    await txn.abort()
    assert runtime.cuts == 1
    assert txn.state is TransactionState.ABORTED
    await producer.send(b"after")
    assert await eventually_visible(client, topic, [b"after"])


async def test_a_commit_without_an_answer_in_time_is_unknown_and_can_be_resolved(
    pulsar: Target, cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic)
    txn = await cuttable.begin_transaction()
    await producer.send(b"x", txn=txn)
    runtime.swallow = COMMAND.END_TXN_RESPONSE
    with pytest.raises(CommitOutcomeUnknown) as unknown:
        await txn.commit(timeout=1)
    assert txn.state is TransactionState.UNKNOWN
    outcome = await unknown.value.resolve()
    assert outcome is TransactionState.COMMITTED or not pulsar.is_ours
    assert await eventually_visible(client, topic, [b"x"])


async def test_a_commit_that_never_left_is_sent_again(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic)
    async with cuttable.transaction() as txn:
        await producer.send(b"x", txn=txn)
        runtime.cut_instead_of = COMMAND.END_TXN
    assert runtime.cuts == 1
    assert await visible(client, topic) == [b"x"]


async def test_a_commit_cut_off_right_behind_the_request_is_done_or_honestly_unknown(
    pulsar: Target, cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic)
    txn = await cuttable.begin_transaction()
    await producer.send(b"x", txn=txn)
    runtime.cut_behind = COMMAND.END_TXN
    unknown: CommitOutcomeUnknown | None = None
    try:
        await txn.commit()
    except CommitOutcomeUnknown as error:
        unknown = error
    assert unknown is None or not pulsar.is_ours  # ours remembers outcomes
    if unknown is not None:
        assert await unknown.resolve() in (TransactionState.UNKNOWN, TransactionState.COMMITTED)
    assert runtime.cuts == 1
    assert await eventually_visible(client, topic, [b"x"])


async def test_a_send_that_never_left_is_sent_again_in_its_transaction(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    producer = await cuttable.create_producer(topic, batching=False)
    async with cuttable.transaction() as txn:
        await producer.send(b"0", txn=txn)
        runtime.cut_instead_of = COMMAND.SEND
        await producer.send(b"1", txn=txn)
    assert runtime.cuts == 1
    assert await visible(client, topic) == [b"0", b"1"]


async def test_a_consumer_that_lost_its_connection_gets_what_its_transaction_did_not_acknowledge(
    cuttable: Client, client: Client, runtime: CuttingRuntime, topic: str
) -> None:
    source = await client.create_producer(topic, batching=False)
    for number in range(3):
        await source.send(b"%d" % number)
    consumer = await cuttable.subscribe(topic, "s", initial_position=InitialPosition.EARLIEST)
    txn = await cuttable.begin_transaction()
    await consumer.acknowledge(await consumer.receive(timeout=20), txn=txn)
    runtime.cut_all()
    assert await data_of(consumer, 2) == [b"1", b"2"]
    await txn.abort()
    assert await data_of(consumer, 3) == [b"0", b"1", b"2"]
