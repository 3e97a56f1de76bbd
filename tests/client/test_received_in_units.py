"""Messages that are received in a transaction: the commit acknowledges them, and an abort brings exactly them back."""

import asyncio
import contextlib
import functools
import gc
import operator

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client import ConsumerType, TransactionConflict, TransactionState
from pulsar_txn.client.errors import (
    AlreadyClosed,
    OperationTimeout,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction
from pulsar_txn.wire.topics import ASSIGN_TOPIC

SHARED = ConsumerType.SHARED
KINDS = list(ConsumerType)
SINGLE = [ConsumerType.EXCLUSIVE, ConsumerType.FAILOVER]


@pytest.fixture
def broker():
    found = FakeBroker()
    found.partitions[ASSIGN_TOPIC] = 1
    return found


def deliver(broker, *entries, epoch=None):
    for entry in entries:
        broker.deliver(1, entry, b"%d" % entry, epoch=epoch)


def acks(broker):
    """Entry and ack set of what was acknowledged in transactions, request by request."""
    return [[(each[1], each[2]) for each in body[2]] for body in broker.all("ack") if body[3] is not None]


def plain_acks(broker):
    return [each[1] for body in broker.all("ack") if body[3] is None for each in body[2]]


def ends(broker):
    return [TxnAction(body.txn_action).name for body in broker.all("endTxn")]


def asked(broker):
    """Entries that were asked for again, request by request; on Exclusive and Failover that is everything."""
    return [[each.entryId for each in body.message_ids] for body in broker.all("redeliverUnacknowledgedMessages")]


def datas(messages):
    return [message.data for message in messages]


def failing():
    return pytest.raises(ZeroDivisionError)


# --- the block --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_acknowledges_what_was_received_in_the_transaction(broker, kind):
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s", consumer_type=kind), await client.create_producer("out")
        deliver(broker, 0, 1)
        async with client.transaction() as txn:
            message = await consumer.receive(1, txn=txn)
            await producer.send(message.data, txn=txn)
            assert acks(broker) == []
        assert acks(broker) == [[(0, None)]]
        assert (ends(broker), asked(broker)) == (["COMMIT"], [])
        assert (await consumer.receive(1)).data == b"1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sends", [False, True])
async def test_an_exception_before_the_acknowledgement_brings_the_message_back(broker, kind, sends):
    """The block of README and tutorial: the message stayed away until the consumer was closed."""
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s", consumer_type=kind), await client.create_producer("out")
        deliver(broker, 0, 1)
        with failing():
            async with client.transaction() as txn:
                message = await consumer.receive(1, txn=txn)
                if sends:
                    await producer.send(message.data, txn=txn)
                raise ZeroDivisionError
        await broker.until(lambda: asked(broker))
        assert asked(broker) == [[] if kind.is_single else [0]]
        assert ends(broker) == (["ABORT"] if sends else [])
        deliver(broker, *((0, 1) if kind.is_single else (0,)), epoch=1 if kind.is_single else None)
        async with client.transaction() as txn:
            assert sorted(datas(await consumer.receive_many(2, max_wait=1, txn=txn))) == [b"0", b"1"]
    assert acks(broker) == [[(0, None), (1, None)]]


@pytest.mark.parametrize("how", ["rollback", "abort", "cancel", "timeout", "drop"])
async def test_on_every_way_out_the_message_comes_again(broker, how):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        deliver(broker, 0)
        if how == "drop":
            txn = await client.begin_transaction()
            await consumer.receive(1, txn=txn)
            with pytest.warns(ResourceWarning):
                del txn
                gc.collect()
                await asyncio.sleep(0)
        else:

            async def work():
                async with client.transaction(timeout=0.1, eager=how == "timeout") as txn:
                    await consumer.receive(1, txn=txn)
                    if how == "rollback":
                        txn.rollback()
                    if how == "abort":
                        await txn.abort()
                    if how == "cancel":
                        task.cancel()
                        await asyncio.sleep(1)
                    if how == "timeout":
                        await broker.until(lambda: txn.state is TransactionState.TIMED_OUT)

            task = asyncio.create_task(work())
            errors = {"cancel": asyncio.CancelledError, "timeout": TransactionTimedOut}
            with pytest.raises(errors[how]) if how in errors else contextlib.nullcontext():
                await task
        await broker.until(lambda: asked(broker))
        assert asked(broker) == [[0]]
        assert acks(broker) == []
        deliver(broker, 0)
        assert (await consumer.receive(1)).data == b"0"


async def test_waiting_for_a_message_opens_nothing_and_starts_no_clock(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        async with client.transaction(timeout=0.05) as txn:
            receiving = asyncio.create_task(consumer.receive(txn=txn))
            await asyncio.sleep(0.1)
            assert not broker.all("newTxn")
            deliver(broker, 0)
            assert (await receiving).data == b"0"
            await asyncio.sleep(0.1)
            assert not broker.all("newTxn")
    assert (acks(broker), ends(broker)) == ([[(0, None)]], ["COMMIT"])


async def test_a_cancelled_wait_loses_no_message_and_no_time_is_over(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        async with client.transaction() as txn:
            with pytest.raises(OperationTimeout):
                await consumer.receive(0.01, txn=txn)
            receiving = asyncio.create_task(consumer.receive(txn=txn))
            await asyncio.sleep(0)
            deliver(broker, 0)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            assert (await consumer.receive(1, txn=txn)).data == b"0"
    assert acks(broker) == [[(0, None)]]


async def test_an_ended_transaction_is_refused_before_and_after_the_wait_and_the_message_stays(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        txn = await client.begin_transaction()
        receiving = asyncio.create_task(consumer.receive(txn=txn))
        await asyncio.sleep(0)
        await txn.abort()
        deliver(broker, 0)
        with pytest.raises(TransactionStateError):
            await receiving
        for receive in (consumer.receive, consumer.receive_many):
            with pytest.raises(TransactionStateError):
                await receive(txn=txn)
        with pytest.raises(TransactionStateError):
            consumer.receive_nowait(txn=txn)
        assert consumer.queued == 1


async def test_all_ways_to_receive_join(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1, 2, 3, 4)
        await broker.until(lambda: consumer.queued == 5)
        async with client.transaction() as txn:
            await consumer.receive_many(1, txn=txn)
            assert len(consumer.receive_nowait(1, txn=txn)) == 1
            async for message in consumer.messages(txn=txn):
                if message.data == b"3":
                    break
    assert acks(broker) == [[(number, None) for number in range(4)]]


async def test_messages_end_with_their_consumer(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)
        found = []
        async for message in consumer.messages():
            found.append(message.data)
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, consumer.close())
    assert found == [b"0"]


async def test_in_an_ambient_block_receiving_takes_part(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)
        async with client.transaction(ambient=True):
            await consumer.receive(1)
    assert acks(broker) == [[(0, None)]]


async def test_a_consumer_of_several_topics_acknowledges_each_partition(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe(["a", "b"], "s", consumer_type=SHARED)
        entry = encode_entry(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x")
        for body in broker.all("subscribe"):
            broker.pipe.send(b"".join(hot.encode_message(body.consumer_id, 1, body.consumer_id, entry)))
        async with client.transaction() as txn:
            messages = await consumer.receive_many(2, max_wait=1, txn=txn)
        assert {message.topic[-1] for message in messages} == {"a", "b"}
    assert len(acks(broker)) == 2


# --- what the program does itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
async def test_an_acknowledgement_in_the_same_transaction_is_fine_and_does_nothing_twice(broker, times):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1)
        async with client.transaction() as txn:
            first, _ = await consumer.receive_many(2, max_wait=1, txn=txn)
            for _ in range(times):
                await consumer.acknowledge(first, txn=txn)
    assert acks(broker) == [[(0, None)], [(1, None)]]


async def test_a_cumulative_acknowledgement_covers_what_joined(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1, 2)
        async with client.transaction() as txn:
            messages = await consumer.receive_many(3, max_wait=1, txn=txn)
            await consumer.acknowledge_cumulative(messages[1], txn=txn)
    assert acks(broker) == [[(1, None)], [(2, None)]]


async def test_an_acknowledgement_outside_of_the_transaction_is_refused(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1)
        async with client.transaction() as txn, client.transaction() as other:
            first, second = await consumer.receive_many(2, max_wait=1, txn=txn)
            for receipt in (None, True):
                with pytest.raises(TransactionStateError, match="leave_out"):
                    await consumer.acknowledge(first, receipt=receipt)
                with pytest.raises(TransactionStateError, match="leave_out"):
                    await consumer.acknowledge_cumulative(second, receipt=receipt)
            with pytest.raises(TransactionConflict, match="another transaction"):
                await consumer.acknowledge(first, txn=other)
            assert other.doomed
            await other.abort()
    assert plain_acks(broker) == []
    assert acks(broker) == [[(0, None), (1, None)]]


async def test_a_cumulative_acknowledgement_of_another_transaction_takes_nothing_along(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1)
        async with client.transaction() as txn, client.transaction() as other:
            await consumer.receive(1, txn=txn)
            second = await consumer.receive(1)
            with pytest.raises(TransactionConflict, match="another transaction"):
                await consumer.acknowledge_cumulative(second, txn=other)
            await other.abort()


async def test_a_message_that_is_refused_leaves_the_transaction_and_comes_again(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        deliver(broker, 0, 1, 2)
        async with client.transaction() as txn:
            messages = await consumer.receive_many(3, max_wait=1, txn=txn)
            consumer.negative_acknowledge(messages[1], delay=0)
            await broker.until(lambda: asked(broker))
            deliver(broker, 1)
            assert (await consumer.receive(1)).data == b"1"
            assert consumer.queued == 0
    assert acks(broker) == [[(0, None), (2, None)]]
    assert asked(broker) == [[1]]


async def test_a_message_of_a_batch_that_is_refused_leaves_the_transaction_and_comes_again_here(broker):
    """A broker that is asked for the entry may give another consumer what the transaction still has of it."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a", b"b", b"c")
        async with client.transaction() as txn:
            messages = await consumer.receive_many(3, max_wait=1, txn=txn)
            consumer.negative_acknowledge(messages[1], delay=0)
            assert (await consumer.receive(1)).data == b"b"
            broker.deliver(1, 0, b"a", b"b", b"c")
            deliver(broker, 1)
            assert (await consumer.receive(1)).data == b"1"
    assert acks(broker) == [[(0, 0b010)]]
    assert asked(broker) == []


async def test_a_message_that_is_left_out_is_the_programs_own(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, ack_group_delay=0)
        deliver(broker, 0, 1)
        with failing():
            async with client.transaction() as txn:
                first, _ = await consumer.receive_many(2, max_wait=1, txn=txn)
                consumer.leave_out(first)
                await consumer.acknowledge(first)
                raise ZeroDivisionError
        await broker.until(lambda: asked(broker))
    assert (plain_acks(broker), asked(broker), acks(broker)) == ([0], [[1]], [])


async def test_a_seek_takes_messages_out_of_their_transaction(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)
        async with client.transaction() as txn:
            message = await consumer.receive(1, txn=txn)
            broker.on["seek"] = lambda _pipe, body: command("success", request_id=body.request_id)
            await consumer.seek(message.message_id, inclusive=True)
            deliver(broker, 0)
            assert (await consumer.receive(1)).data == b"0"
    assert (acks(broker), asked(broker)) == ([], [])


# --- what others do ---------------------------------------------------------------------------------------------------


async def test_a_consumer_that_is_closed_lets_the_commit_fail(broker):
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s"), await client.create_producer("out")
        deliver(broker, 0)
        with pytest.raises(TransactionOperationFailed) as raised:
            async with client.transaction() as txn:
                await producer.send((await consumer.receive(1, txn=txn)).data, txn=txn)
                await consumer.close()
        assert isinstance(raised.value.__cause__, AlreadyClosed)
    assert ends(broker) == ["ABORT"]


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, SHARED])
async def test_a_conflict_at_the_commit_aborts_and_brings_back_what_joined(broker, kind):
    broker.on["ack"] = lambda _pipe, body: hot.encode_ack_response(body[0], body[4], txn=body[3], error=23, message="taken")
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind)
        deliver(broker, 0)
        with pytest.raises(TransactionOperationFailed) as raised:
            async with client.transaction() as txn:
                await consumer.receive(1, txn=txn)
        assert isinstance(raised.value.__cause__, TransactionConflict)
        await broker.until(lambda: asked(broker))
        del broker.on["ack"]
        deliver(broker, 0)
        async with client.transaction() as txn:
            assert (await consumer.receive(1, txn=txn)).data == b"0"
    assert ends(broker) == ["ABORT", "COMMIT"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_connection_does_not_hand_out_what_a_transaction_has(broker, kind):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind)
        deliver(broker, 0, 1)
        async with client.transaction() as txn:
            await consumer.receive(1, txn=txn)
            broker.pipe.cut()
            await broker.until(lambda: len(broker.all("flow")) == 2)
            deliver(broker, 0, 1)
            assert (await consumer.receive(1, txn=txn)).data == b"1"
            assert consumer.queued == 0
    assert acks(broker) == [[(0, None), (1, None)]]


async def test_what_was_dropped_as_a_copy_is_asked_for_when_the_transaction_aborts(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        deliver(broker, 0)
        with failing():
            async with client.transaction() as txn:
                await consumer.receive(1, txn=txn)
                broker.pipe.cut()
                await broker.until(lambda: len(broker.all("flow")) == 2)
                deliver(broker, 0, 1)
                await broker.until(lambda: consumer.queued == 1)
                raise ZeroDivisionError
        await broker.until(lambda: asked(broker))
        deliver(broker, 0)
        assert datas(await consumer.receive_many(2, max_wait=1)) == [b"1", b"0"]


async def test_an_abort_brings_back_its_own_messages_of_a_batch_and_nobody_elses(broker):
    """Four units share one batch of Shared; two of them abort. It comes again here, once."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, *(b"%d" % number for number in range(10)))
        units = [await client.begin_transaction() for _ in range(4)]
        for txn in units:
            assert len(await consumer.receive_many(2, max_wait=1, txn=txn)) == 2
        await units[0].abort()
        await units[2].abort()
        for _ in range(2):
            broker.deliver(1, 0, *(b"%d" % number for number in range(10)))
        deliver(broker, 1)
        await broker.until(lambda: consumer.queued >= 7)
        assert asked(broker) == []
        assert datas(consumer.receive_nowait()) == [b"8", b"9", b"0", b"1", b"4", b"5", b"1"]
        await units[1].commit()
        await units[3].commit()
    full = 0b1111111111
    assert acks(broker) == [[(0, full & ~0b1100)], [(0, full & ~0b11000000)]]


async def test_an_abort_on_a_subscription_with_an_order_hands_out_nothing_before_its_messages(broker):
    """What is on its way when the abort happens came first, so that order was lost."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1, 2, epoch=0)
        with failing():
            async with client.transaction() as txn:
                await consumer.receive_many(2, max_wait=1, txn=txn)
                raise ZeroDivisionError
        await broker.until(lambda: asked(broker))
        deliver(broker, 2, epoch=1)  # as a server that is not done with the abort
        broker.on["redeliverUnacknowledgedMessages"] = lambda _pipe, body: deliver(broker, 0, 1, 2, epoch=body.consumer_epoch)
        assert datas(await consumer.receive_many(3, max_wait=2)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", SINGLE)
async def test_an_abort_leaves_the_messages_of_another_unit_of_the_partition_with_it(broker, kind):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind)
        deliver(broker, 0, 1, 2, epoch=0)
        first, second = await client.begin_transaction(), await client.begin_transaction()
        await consumer.receive(1, txn=first)
        await consumer.receive(1, txn=second)
        await first.abort()
        await broker.until(lambda: asked(broker))
        deliver(broker, 0, 1, 2, epoch=1)
        assert datas(await consumer.receive_many(2, max_wait=1)) == [b"0", b"2"]
        await second.commit()
    assert acks(broker) == [[(1, None)]]


async def test_a_hundred_thousand_messages_join_and_leave_without_a_trace(broker):
    """The table is empty afterwards: entries of which everything is settled are forgotten."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=10_000)
        part = reception_of(consumer).partitions.all[0]
        for round_ in range(10):
            for entry in range(100):
                broker.deliver(round_, entry, *([b"x"] * 100))
            async with client.transaction() as txn:
                assert len(await consumer.receive_many(10_000, max_wait=5, txn=txn)) == 10_000
                assert len(part.owners) == 100
            assert len(part.owners) == 0


async def test_very_many_messages_are_acknowledged_and_asked_for_in_pieces_that_fit_into_frames(broker, monkeypatch):
    monkeypatch.setattr("pulsar_txn.client.state.acknowledgements.ENTRIES_PER_REQUEST", 10)
    monkeypatch.setattr("pulsar_txn.client.state.redelivery.ASKED_TOGETHER", 10)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        deliver(broker, *range(50))
        async with client.transaction() as txn:
            await consumer.receive_many(25, max_wait=1, txn=txn)
        with failing():
            async with client.transaction() as txn:
                await consumer.receive_many(25, max_wait=1, txn=txn)
                raise ZeroDivisionError
        await broker.until(lambda: len(asked(broker)) == 3)
    assert [len(each) for each in acks(broker)] == [10, 10, 5]
    assert [len(each) for each in asked(broker)] == [10, 10, 5]
    assert sorted(functools.reduce(operator.iadd, asked(broker), [])) == list(range(25, 50))
