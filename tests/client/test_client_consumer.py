"""Consumers: permits, batches, what is dropped when the server starts over, acknowledgements, seeking."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from fake_broker import SILENCE, FakeBroker, FakeTransaction, fake_client

from pulsar_txn.client import EARLIEST_ID, LATEST_ID, ConsumerType, KeySharedPolicy, MessageId, StringSchema
from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthorizationError,
    ConnectionLost,
    ConsumerBusy,
    InvalidConfiguration,
    OperationTimeout,
    SchemaMismatch,
    TransactionConflict,
    TransactionStateError,
)
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.wire import hot
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import TxnAction


async def datas(consumer, count):
    return [(await consumer.receive(1)).data for _ in range(count)]


def acks(broker):
    return [(body[1], body[2]) for body in broker.all("ack")]


# --- receiving -----------------------------------------------------------------------------------------------------


async def test_permits_are_given_at_the_start_and_back_at_half(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=10)
        for index in range(10):
            broker.deliver(1, index, b"%d" % index)
        await broker.until(lambda: consumer.queued == 10)
        await datas(consumer, 4)
        assert [body.messagePermits for body in broker.all("flow")] == [10]
        await datas(consumer, 1)
        await broker.until(lambda: len(broker.all("flow")) == 2)
        assert broker.all("flow")[1].messagePermits == 5


async def test_a_batch_is_unpacked_and_what_is_acknowledged_already_is_left_out(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=4)
        broker.deliver(1, 0, b"a", b"b", b"c", b"d", ack_set=0b1010)
        messages = await consumer.receive_many(10, max_wait=0.02)
        assert [(message.data, message.message_id) for message in messages] == [
            (b"b", MessageId(1, 0, -1, 1, 4)),
            (b"d", MessageId(1, 0, -1, 3, 4)),
        ]
        await broker.until(lambda: broker.permits[broker.consumer_id] == 8)


async def test_a_message_says_everything_that_was_said_of_it(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", schema=StringSchema())
        broker.deliver(
            1,
            5,
            "grüß".encode(),
            partition_key="k",
            ordering_key=b"o",
            event_time=9,
            properties=[{"key": "a", "value": "1"}],
            txnid_most_bits=2,
            txnid_least_bits=3,
        )
        message = await consumer.receive(1)
        assert (message.value, message.key, message.ordering_key, message.properties) == ("grüß", "k", b"o", {"a": "1"})
        assert (message.event_time_ms, message.publish_time_ms, message.sequence_id) == (9, 1, 5)
        assert (message.producer_name, message.txn_id, message.redelivery_count) == ("p", (2, 3), 0)
        assert message.topic == "persistent://public/default/t"
        assert "1:5:-1" in repr(message)
        broker.deliver(1, 6, b"", null_value=True)
        assert (await consumer.receive(1)).value is None
        broker.deliver(1, 7, b"\xff")
        with pytest.raises(SchemaMismatch):
            _ = (await consumer.receive(1)).value


async def test_receiving_waits_times_out_and_loses_nothing_when_cancelled(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        with pytest.raises(OperationTimeout, match="no message"):
            await consumer.receive(0.01)
        received = []
        for number in range(30):
            waiting = asyncio.create_task(consumer.receive())
            for _ in range(number % 3):
                await asyncio.sleep(0)
            broker.deliver(1, number, b"%d" % number)
            for _ in range(number % 5):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                received.append(waiting.result().data)
        received += await datas(consumer, 30 - len(received))
        assert received == [b"%d" % number for number in range(30)]


async def test_several_receivers_get_one_message_each(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        waiting = [asyncio.create_task(consumer.receive(1)) for _ in range(3)]
        await asyncio.sleep(0)
        broker.deliver(1, 0, b"a", b"b", b"c")
        assert [(await task).data for task in waiting] == [b"a", b"b", b"c"]


async def test_receive_many_waits_for_enough_or_for_its_time(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        assert await consumer.receive_many(5, max_wait=0.01) == []
        many = asyncio.create_task(consumer.receive_many(3, max_wait=1))
        await asyncio.sleep(0)
        broker.deliver(1, 0, b"a", b"b")
        await asyncio.sleep(0.01)
        assert not many.done()
        broker.deliver(1, 1, b"c", b"d")
        assert [message.data for message in await many] == [b"a", b"b", b"c"]
        assert [message.data for message in await consumer.receive_many(5)] == [b"d"]
        assert consumer.receive_nowait() == []
        with pytest.raises(InvalidConfiguration):
            await consumer.receive_many(0)


async def test_a_receiver_behind_one_that_is_cancelled_gets_the_message_that_is_queued(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        many = asyncio.create_task(consumer.receive_many(500, max_wait=60))
        await asyncio.sleep(0)
        one = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        broker.deliver(1, 0, b"a")
        await broker.until(lambda: consumer.queued)
        many.cancel()
        assert (await asyncio.wait_for(one, 1)).data == b"a"
        assert many.cancelled()


async def test_a_receiver_that_is_cancelled_with_nothing_queued_leaves_the_others_waiting(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        first, second = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        broker.deliver(1, 0, b"a")
        assert (await asyncio.wait_for(second, 1)).data == b"a"


async def test_permits_leave_before_the_program_works_on_what_it_took(broker):
    """A program that finds its queue full never waits: the broker would stand still until the queue is empty."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=4)
        for index in range(4):
            broker.deliver(1, index, b"%d" % index)
        await broker.until(lambda: consumer.queued == 4)
        before = len(broker.pipe.writes)
        await consumer.receive_many(2)
        assert len(broker.pipe.writes) == before + 1


async def test_a_large_batch_wait_does_not_starve_on_held_back_permits(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=10)
        for index in range(4):
            broker.deliver(1, index, b"x")
        await datas(consumer, 4)
        many = asyncio.create_task(consumer.receive_many(1000, max_wait=1))
        await broker.until(lambda: broker.permits[broker.consumer_id] == 14)
        for index in range(4, 14):
            broker.deliver(1, index, b"x")
        assert len(await many) == 10


async def test_iteration_ends_when_the_consumer_is_closed(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        seen = [message.data async for message in _closing_after_first(consumer)]
    assert seen == [b"a"]


async def _closing_after_first(consumer):
    async for message in consumer:
        yield message
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(consumer.close()))


async def test_damaged_entries_are_reported_and_passed_over(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        frame = b"".join(hot.encode_message(broker.consumer_id, 1, 0, b"\x0e\x01\x00\x00\x00\x00\x00\x00\x00\x02ab"))
        broker.pipe.send(frame)
        broker.deliver(1, 1, b"rubbish", compression=1, uncompressed_size=100)
        broker.deliver(1, 2, b"rubbish", num_messages_in_batch=3)
        broker.deliver(1, 3, b"good")
        assert await datas(consumer, 1) == [b"good"]
        await broker.until(lambda: len(broker.all("ack")) == 3)


async def test_what_cannot_be_read_stays_unacknowledged(broker, caplog):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"secret", encryption_keys=[{"key": "k", "value": b"v"}])
        broker.deliver(1, 1, b"good")
        assert await datas(consumer, 1) == [b"good"]
    assert "encrypted" in caplog.text
    assert not broker.all("ack")


# --- the server starts over ------------------------------------------------------------------------------------------


async def test_after_a_reconnect_the_queue_starts_anew(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", initial_position=1)
        broker.deliver(1, 0, b"a")
        broker.deliver(1, 1, b"b")
        assert await datas(consumer, 1) == [b"a"]
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        assert broker.all("flow")[1].messagePermits == 1000
        broker.deliver(1, 0, b"a")
        assert await datas(consumer, 1) == [b"a"]
        assert consumer.queued == 0


async def test_a_silent_rewind_of_an_exclusive_subscription_drops_what_was_queued(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        for index in range(4):
            broker.deliver(1, index, b"%d" % index)
        assert await datas(consumer, 2) == [b"0", b"1"]
        for index in range(4):
            broker.deliver(1, index, b"%d" % index)
        await asyncio.sleep(0.01)
        assert await datas(consumer, 2) == [b"2", b"3"]
        assert consumer.queued == 0


async def test_a_shared_subscription_may_go_back_without_a_rewind(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        for index in (5, 6, 2):
            broker.deliver(1, index, b"%d" % index)
        assert await datas(consumer, 3) == [b"5", b"6", b"2"]


async def test_our_own_redelivery_drops_the_queue_and_what_was_on_its_way(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=4)
        broker.deliver(1, 0, b"old", epoch=0)
        await broker.until(lambda: consumer.queued)
        consumer.redeliver_unacknowledged()
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        broker.deliver(1, 1, b"stale", epoch=0)
        broker.deliver(1, 0, b"new", epoch=1)
        assert await datas(consumer, 1) == [b"new"]
        assert consumer.queued == 0
        await broker.until(lambda: broker.permits[broker.consumer_id] >= 6)
    body = broker.all("redeliverUnacknowledgedMessages")[0]
    assert (body.consumer_epoch, list(body.message_ids)) == (1, [])


@pytest.mark.parametrize(("kind", "named"), [(ConsumerType.SHARED, [(1, 0), (1, 2)]), (ConsumerType.EXCLUSIVE, [])])
async def test_negative_acknowledgements_go_together_after_their_delay(broker, kind, named):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind)
        for index in range(3):
            broker.deliver(1, index, b"x")
        messages = await consumer.receive_many(3, max_wait=1)
        for message in (messages[0], messages[2], messages[0]):
            consumer.negative_acknowledge(message, delay=0.02)
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        await asyncio.sleep(0.03)
    (body,) = broker.all("redeliverUnacknowledgedMessages")
    assert [(place.ledgerId, place.entryId) for place in body.message_ids] == named


# --- acknowledging ---------------------------------------------------------------------------------------------------


async def test_acknowledgements_are_collected_for_a_moment(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_group_delay=0.02)
        broker.deliver(1, 0, b"a")
        broker.deliver(1, 1, b"b", b"c", b"d")
        broker.deliver(1, 2, b"e", b"f")
        messages = await consumer.receive_many(6, max_wait=1)
        for index in (0, 1, 3, 4, 5):
            await consumer.acknowledge(messages[index])
        assert not broker.all("ack")
        await broker.until(lambda: broker.all("ack"))
        assert acks(broker) == [(False, [(1, 0, None, 0), (1, 1, 0b010, 3), (1, 2, None, 2)])]
        await consumer.acknowledge(messages[2].message_id)
        await broker.until(lambda: len(broker.all("ack")) == 2)
        assert acks(broker)[1] == (False, [(1, 1, None, 3)])


async def test_an_acknowledgement_in_a_transaction_comes_after_plain_ones(broker):
    """Otherwise the transaction would take what is acknowledged already."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_group_delay=60)
        broker.deliver(1, 0, b"a")
        broker.deliver(1, 1, b"b", b"c")
        messages = await consumer.receive_many(3, max_wait=1)
        await consumer.acknowledge_cumulative(messages[0])
        await consumer.acknowledge(messages[1])
        txn = FakeTransaction()
        await consumer.acknowledge(messages[1], txn=txn)
        assert [(*body[1:4],) for body in broker.all("ack")] == [
            (True, [(1, 0, None, 0)], None),
            (False, [(1, 1, 0b10, 2)], None),
            (False, [(1, 1, 0b10, 2)], txn.txn_id),
        ]


async def test_a_receipt_is_waited_for_and_its_error_told(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_receipt=True)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        await consumer.acknowledge(message)
        assert broker.all("ack")[0][4] is not None
        broker.on["ack"] = lambda _pipe, body: hot.encode_ack_response(body[0], body[4], error=22, message="no")
        with pytest.raises(Exception, match="no"):
            await consumer.acknowledge([message, message.message_id])


async def test_cumulative_acknowledgements_merge_and_cut_batches(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_group_delay=0.02)
        broker.deliver(1, 0, b"a", b"b", b"c")
        messages = await consumer.receive_many(3, max_wait=1)
        await consumer.acknowledge_cumulative(messages[1])
        await consumer.acknowledge_cumulative(messages[0])
        await broker.until(lambda: broker.all("ack"))
        await consumer.acknowledge_cumulative(messages[2])
        await broker.until(lambda: len(broker.all("ack")) == 2)
    assert acks(broker) == [(True, [(1, 0, 0b100, 3)]), (True, [(1, 0, None, 3)])]


@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED])
async def test_there_is_no_cumulative_acknowledgement_on_shared_subscriptions(broker, kind):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind)
        with pytest.raises(InvalidConfiguration, match="one by one"):
            await consumer.acknowledge_cumulative(MessageId(1, 0))


async def test_acknowledgements_wait_for_the_connection_and_leave_before_closing(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_group_delay=30)
        broker.deliver(1, 0, b"a")
        await consumer.acknowledge(await consumer.receive(1))
        broker.pipe.cut()
        await broker.until(lambda: broker.all("ack"))
        await consumer.acknowledge(MessageId(1, 1))
        await consumer.close()
    assert acks(broker) == [(False, [(1, 0, None, 0)]), (False, [(1, 1, None, 0)])]


# --- in transactions -------------------------------------------------------------------------------------------------


@pytest.mark.seed_rows("D62")
async def test_an_acknowledgement_in_a_transaction_is_registered_merged_and_answered(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a", b"b", b"c")
        messages = await consumer.receive_many(3, max_wait=1)
        txn = FakeTransaction(registered=False)
        acknowledging = asyncio.create_task(consumer.acknowledge(messages[:2], txn=txn))
        await asyncio.sleep(0.01)
        assert not broker.all("ack")
        txn.registration.set_result(txn.txn_id)
        await acknowledging
        (body,) = broker.all("ack")
        assert (body[1], body[2], body[3]) == (False, [(1, 0, 0b100, 3)], txn.txn_id)
        assert txn.finished == [(2, None)]
        await consumer.acknowledge_cumulative(messages[2], txn=txn)
        assert broker.all("ack")[1][1:4] == (True, [(1, 0, None, 3)], txn.txn_id)


async def test_a_second_acknowledgement_in_an_open_transaction_is_refused_here(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a", b"b")
        first, second = await consumer.receive_many(2, max_wait=1)
        one, two = FakeTransaction(), FakeTransaction()
        await consumer.acknowledge(first, txn=one)
        with pytest.raises(TransactionConflict, match="still open"):
            await consumer.acknowledge(first, txn=two)
        assert len(broker.all("ack")) == 1
        assert [type(error) for _, error in two.finished] == [TransactionConflict]
        with pytest.raises(TransactionStateError, match="abort"):
            consumer.negative_acknowledge(first)
        await consumer.acknowledge(second, txn=FakeTransaction())
        one.end(TxnAction.ABORT)
        await consumer.acknowledge(first, txn=FakeTransaction())


async def test_a_copy_of_what_was_committed_is_refused_also_among_all_of_its_batch(broker):
    """Such a request does not say which messages it means; stock brokers take it, and work would be done twice."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        broker.deliver(1, 0, b"a", b"b", b"c")
        copies = await consumer.receive_many(3, max_wait=1)
        committed = FakeTransaction()
        await consumer.acknowledge(copies[:2], txn=committed)
        committed.end()
        with pytest.raises(TransactionConflict, match="before"):
            await consumer.acknowledge(copies, txn=FakeTransaction())
        assert len(broker.all("ack")) == 1
        # The broker has the last word: the subscription was moved back.
        broker.deliver(1, 0, b"a", b"b", b"c")
        await consumer.acknowledge(await consumer.receive_many(3, max_wait=1), txn=FakeTransaction())


async def test_after_a_conflict_about_one_message_the_others_join_the_transaction_for_its_abort_to_bring_back(broker):
    """A stock dispatcher forgets all messages of a refused request."""
    refused = []

    def refuse_entry_1(_pipe, body):
        if any(entry_id == 1 for _, entry_id, _, _ in body[2]):
            refused.append(len(body[2]))
            return hot.encode_ack_response(body[0], body[4], txn=body[3], error=23, message="pending")
        return hot.encode_ack_response(body[0], body[4], txn=body[3])

    broker.on["ack"] = refuse_entry_1
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        for entry in range(3):
            broker.deliver(1, entry, b"%d" % entry)
        messages = await consumer.receive_many(3, max_wait=1)
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge(messages, txn=FakeTransaction())
        assert refused == [3, 1]
        assert [[each[1] for each in body[2]] for body in broker.all("ack")[1:]] == [[0], [1], [2]]


async def test_a_copy_that_crossed_the_acknowledgement_is_dropped_and_one_behind_it_is_not(broker):
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        txn = FakeTransaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(message, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        broker.deliver(1, 0, b"a")
        await asyncio.sleep(0.01)
        assert consumer.queued == 0
        answer = hot.encode_ack_response(broker.consumer_id, broker.all("ack")[0][4])
        broker.pipe.send(answer)
        broker.deliver(1, 0, b"a")  # the transaction was aborted; END_TXN's answer comes later
        await acknowledging
        assert await datas(consumer, 1) == [b"a"]
        await consumer.acknowledge(MessageId(1, 1), receipt=False)


async def test_a_subscription_without_memory_begins_at_its_initial_position(broker):
    async with fake_client(broker) as client:
        await client.subscribe("t", "s", durable=False, initial_position=1)
        await client.subscribe("t", "s", durable=False)
    earliest, latest = [body.start_message_id for body in broker.all("subscribe")]
    assert (earliest.ledgerId, latest.ledgerId) == (2**64 - 1, 2**63 - 1)


@pytest.mark.parametrize("cumulative", [False, True])
async def test_what_was_queued_before_an_abort_is_not_handed_out_before_what_the_abort_brings_back(broker, cumulative):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        for index in range(3):
            broker.deliver(1, index, b"%d" % index, epoch=0)
        message = await consumer.receive(1)
        txn = FakeTransaction()
        await (consumer.acknowledge_cumulative if cumulative else consumer.acknowledge)(message, txn=txn)
        txn.end(TxnAction.ABORT)
        assert consumer.queued == 0
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        broker.deliver(1, 0, b"of the server's own rewind", epoch=0)
        for index in range(3):
            broker.deliver(1, index, b"%d" % index, epoch=1)
        assert await datas(consumer, 3) == [b"0", b"1", b"2"]
        assert [body.consumer_epoch for body in broker.all("redeliverUnacknowledgedMessages")] == [1]


@pytest.mark.parametrize("outcome", [None, TxnAction.COMMIT])
async def test_only_an_abort_makes_a_consumer_start_over(broker, outcome):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        for index in range(2):
            broker.deliver(1, index, b"%d" % index)
        txn = FakeTransaction()
        await consumer.acknowledge(await consumer.receive(1), txn=txn)
        txn.end(outcome)
        assert await datas(consumer, 1) == [b"1"]
    assert not broker.all("redeliverUnacknowledgedMessages")


async def test_a_shared_consumer_keeps_what_it_has_through_an_abort(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        for index in range(2):
            broker.deliver(1, index, b"%d" % index)
        txn = FakeTransaction()
        await consumer.acknowledge(await consumer.receive(1), txn=txn)
        txn.end(TxnAction.ABORT)
        broker.deliver(1, 0, b"0")
        assert await datas(consumer, 2) == [b"1", b"0"]
    assert not broker.all("redeliverUnacknowledgedMessages")


@asynccontextmanager
async def unanswered_acknowledgement(broker, txn):
    """A Shared consumer, and its acknowledgement of message 0 in a transaction, which has left."""
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        broker.deliver(1, 0, b"a")
        acknowledging = asyncio.create_task(consumer.acknowledge(await consumer.receive(1), txn=txn))
        await broker.until(lambda: broker.all("ack"))
        yield consumer, acknowledging


def answer(broker, **error):
    """Answer the first acknowledgement."""
    broker.pipe.send(hot.encode_ack_response(broker.consumer_id, broker.all("ack")[0][4], **error))


async def test_a_copy_dropped_for_an_acknowledgement_that_failed_is_asked_for_again(broker):
    async with unanswered_acknowledgement(broker, FakeTransaction()) as (_, acknowledging):
        broker.deliver(1, 0, b"a")
        answer(broker, error=23, message="conflict")
        with pytest.raises(TransactionConflict, match="conflict"):
            await acknowledging
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        assert broker.all("redeliverUnacknowledgedMessages")[0].message_ids[0].entryId == 0


@pytest.mark.parametrize("outcome", [None, TxnAction.ABORT])
async def test_what_is_refused_after_the_end_of_its_transaction_is_asked_for_again(broker, outcome):
    """Named after a fault: the chain found messages that no other consumer was given until this one was closed."""
    txn = FakeTransaction()
    async with unanswered_acknowledgement(broker, txn) as (consumer, acknowledging):
        txn.end(outcome)
        answer(broker, error=23, message="it has ended")
        with pytest.raises(TransactionConflict):
            await acknowledging
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        broker.deliver(1, 0, b"a")
        assert await datas(consumer, 1) == [b"a"]


async def test_what_has_come_again_before_it_is_refused_is_not_asked_for(broker):
    txn = FakeTransaction()
    async with unanswered_acknowledgement(broker, txn) as (consumer, acknowledging):
        txn.end(TxnAction.ABORT)
        broker.deliver(1, 0, b"a")
        assert await datas(consumer, 1) == [b"a"]
        answer(broker, error=23, message="it has ended")
        with pytest.raises(TransactionConflict):
            await acknowledging
    assert not broker.all("redeliverUnacknowledgedMessages")


@pytest.mark.parametrize("outcome", [None, TxnAction.ABORT])
async def test_a_copy_that_overtook_the_answer_of_its_acknowledgement_is_asked_for_at_the_end(broker, outcome):
    """The abort at the timeout brings it back before the answer is here, and it was dropped as a copy."""
    txn = FakeTransaction()
    async with unanswered_acknowledgement(broker, txn) as (consumer, acknowledging):
        broker.deliver(1, 0, b"a")
        await asyncio.sleep(0.01)
        answer(broker)
        await acknowledging
        txn.end(outcome)
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        broker.deliver(1, 0, b"a")
        assert await datas(consumer, 1) == [b"a"]


async def test_a_cancelled_acknowledgement_is_finished_as_failed(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        txn = FakeTransaction(registered=False)
        acknowledging = asyncio.create_task(consumer.acknowledge(MessageId(1, 0), txn=txn))
        await asyncio.sleep(0)
        acknowledging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acknowledging
        assert isinstance(txn.finished[0][1], asyncio.CancelledError)
        assert not txn.registration.cancelled()


async def test_a_topic_that_keeps_nothing_takes_no_transactional_acknowledgement(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("non-persistent://public/default/t", "s")
        with pytest.raises(InvalidConfiguration, match="persistent topic"):
            await consumer.acknowledge(MessageId(1, 0), txn=FakeTransaction())


# --- the subscription ------------------------------------------------------------------------------------------------


async def test_a_seek_drops_what_came_before_its_answer_and_holds_subscribing_back(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 7, b"old")
        await broker.until(lambda: consumer.queued)

        def slow_seek(pipe, body):
            broker.deliver(1, 8, b"crossing")
            broker.say("close_consumer", consumer_id=body.consumer_id, request_id=2**64 - 1)
            answer = command("success", request_id=body.request_id)
            asyncio.get_running_loop().call_later(0.02, pipe.send, answer)

        broker.on["seek"] = slow_seek
        await consumer.seek(MessageId(1, 3), inclusive=True)
        assert len(broker.all("subscribe")) == 1
        await broker.until(lambda: len(broker.all("flow")) == 2)
        broker.deliver(1, 3, b"wanted")
        assert await datas(consumer, 1) == [b"wanted"]
    assert broker.all("seek")[0].message_id.entryId == 3


async def test_a_seek_to_the_middle_of_a_batch_starts_there(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        await consumer.seek(MessageId(1, 3, -1, 1, 4))
        assert list(broker.all("seek")[0].message_id.ack_set) == [0b1100]
        broker.deliver(1, 3, b"0", b"1", b"2", b"3")
        assert await datas(consumer, 2) == [b"2", b"3"]
        await consumer.seek(MessageId(1, 5))
        broker.deliver(1, 5, b"itself")
        broker.deliver(1, 6, b"next")
        assert await datas(consumer, 1) == [b"next"]


async def test_ends_and_times_can_be_sought(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        await consumer.seek(EARLIEST_ID)
        await consumer.seek(LATEST_ID)
        await consumer.seek(1234)
    first, last, time = broker.all("seek")
    assert (first.message_id.ledgerId, first.message_id.entryId) == (2**64 - 1, 2**64 - 1)
    assert (last.message_id.ledgerId, last.message_id.entryId) == (2**63 - 1, 2**63 - 1)
    assert time.message_publish_time == 1234


async def test_a_busy_subscription_is_said_at_once(broker):
    broker.on["subscribe"] = lambda _pipe, body: command("error", request_id=body.request_id, error=5, message="taken")
    async with fake_client(broker) as client:
        with pytest.raises(ConsumerBusy, match="close the other consumer"):
            await client.subscribe("t", "s")
        with pytest.raises(InvalidConfiguration, match="name"):
            await client.subscribe("t", "")


async def test_unsubscribing_deletes_and_closes(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        await consumer.unsubscribe()
        with pytest.raises(AlreadyClosed):
            await consumer.receive()
    assert len(broker.all("unsubscribe")) == 1


async def test_several_topics_and_partitions_share_one_queue(broker):
    broker.partitions["persistent://public/default/a"] = 2
    async with fake_client(broker) as client:
        consumer = await client.subscribe(["a", "b"], "s")
        assert [body.topic[-13:] for body in broker.all("subscribe")] == ["a-partition-0", "a-partition-1", "lic/default/b"]
        broker.deliver(1, 0, b"of b")
        message = await consumer.receive(1)
        await consumer.acknowledge(message, receipt=True)
        assert broker.all("ack")[0][0] == broker.consumer_id
        with pytest.raises(InvalidConfiguration, match="give the message"):
            await consumer.acknowledge(MessageId(1, 0, 7))


async def test_sticky_ranges_and_subscription_options_reach_the_broker(broker):
    async with fake_client(broker) as client:
        await client.subscribe(
            "t",
            "s",
            consumer_type=ConsumerType.KEY_SHARED,
            key_shared_policy=KeySharedPolicy(sticky_ranges=[(0, 100)]),
            consumer_name="me",
            priority_level=2,
            properties={"a": "1"},
        )
    (body,) = broker.all("subscribe")
    assert (body.subType, body.consumer_name, body.priority_level, body.metadata[0].value) == (3, "me", 2, "1")
    assert (body.keySharedMeta.keySharedMode, body.keySharedMeta.hashRanges[0].end) == (1, 100)


async def test_an_unknown_option_is_refused_by_name(broker):
    async with fake_client(broker) as client:
        with pytest.raises(InvalidConfiguration, match="recever_queue_size"):
            await client.subscribe("t", "s", recever_queue_size=1)
        with pytest.raises(InvalidConfiguration, match="receiver_queue_size"):
            await client.subscribe("t", "s", receiver_queue_size=0)


async def test_a_consumer_that_can_never_come_back_tells_its_receivers(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        broker.on["subscribe"] = lambda _pipe, body: command("error", request_id=body.request_id, error=4, message="revoked")
        broker.pipe.cut()
        with pytest.raises(Exception, match="revoked"):
            await waiting


async def test_the_failure_of_one_partition_is_logged_at_once_also_by_a_consumer_that_is_busy(broker, caplog):
    broker.partitions["persistent://public/default/t"] = 2
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", initial_position=1)
        broker.deliver(1, 0, b"a")
        await broker.until(lambda: consumer.queued)
        first = reception_of(consumer).partitions.all[0]
        broker.on["subscribe"] = lambda _pipe, body: command("error", request_id=body.request_id, error=4, message="no longer")
        broker.say("close_consumer", consumer_id=first.id, request_id=2**64 - 1)
        await broker.until(lambda: "has failed, create a new one" in caplog.text)
        assert await datas(consumer, 1) == [b"a"]
        with pytest.raises(AuthorizationError, match="no longer"):
            await consumer.receive(1)
    (record,) = [record for record in caplog.records if "has failed, create a new one" in record.message]
    assert (record.levelname, "t-partition-0" in record.message) == ("ERROR", True)


@pytest.mark.parametrize("topics", ["t", ["t-partition-0", "t-partition-1"]])
async def test_a_cancelled_subscribe_leaves_no_partition_consumer_behind(broker, topics):
    if isinstance(topics, str):
        broker.partitions["persistent://public/default/t"] = 2

    def subscribe(pipe, body):
        return SILENCE if body.topic.endswith("1") else FakeBroker._subscribe(broker, pipe, body)

    broker.on["subscribe"] = subscribe
    async with fake_client(broker) as client:
        subscribing = asyncio.create_task(client.subscribe(topics, "s", consumer_type=ConsumerType.SHARED))
        await broker.until(lambda: broker.all("flow") and len(broker.all("subscribe")) == 2)
        subscribing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await subscribing
        opened = {body.consumer_id for body in broker.all("subscribe")}
        await broker.until(lambda: {body.consumer_id for body in broker.all("close_consumer")} == opened)
        broker.pipe.cut()
        await asyncio.sleep(0.05)
        assert len(broker.all("subscribe")) == 2


async def test_a_cancelled_close_closes_all_partitions(broker):
    broker.partitions["persistent://public/default/t"] = 2
    broker.on["close_consumer"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await broker.until(lambda: len(broker.all("close_consumer")) == 2)
        broker.pipe.cut()
        await asyncio.sleep(0.02)
        assert len(broker.all("subscribe")) == 2


async def test_an_operation_on_a_consumer_without_a_connection_waits_for_it_and_gives_up_in_time(broker):
    async with fake_client(broker, operation_timeout=0.6) as client:
        consumer = await client.subscribe("t", "s")
        broker.refuses = True
        broker.pipe.cut()
        await broker.until(lambda: not consumer.is_connected)
        with pytest.raises(ConnectionLost, match="not connected again"):
            await consumer.get_last_message_id()


# --- readers ---------------------------------------------------------------------------------------------------------


async def test_a_reader_starts_behind_its_message_and_goes_on_there_after_a_reconnect(broker):
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", MessageId(1, 3, -1, 0, 2))
        (body,) = broker.all("subscribe")
        assert (body.durable, body.start_message_id.entryId, body.start_message_id.batch_index) == (False, 3, 0)
        broker.deliver(1, 3, b"0", b"1")
        broker.deliver(1, 4, b"queued only")
        assert (await reader.read_next(1)).data == b"1"
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        again = broker.all("subscribe")[1].start_message_id
        assert (again.entryId, again.batch_index) == (3, 1)
        broker.deliver(1, 3, b"0", b"1")
        broker.deliver(1, 4, b"queued only")
        assert (await reader.read_next(1)).data == b"queued only"


@pytest.mark.parametrize(
    ("start", "inclusive", "last", "expected"),
    [
        (EARLIEST_ID, False, (-1, -1), False),
        (EARLIEST_ID, False, (1, 0), True),
        (MessageId(1, 5), False, (1, 5), False),
        (MessageId(1, 5), True, (1, 5), True),
        (MessageId(1, 5), False, (1, 6), True),
        (LATEST_ID, False, (1, 6), False),
    ],
)
async def test_whether_a_reader_has_messages(broker, start, inclusive, last, expected):
    broker.on["getLastMessageId"] = lambda _pipe, body: command(
        "getLastMessageIdResponse",
        request_id=body.request_id,
        last_message_id={"ledgerId": last[0] % 2**64, "entryId": last[1] % 2**64},
        consumer_mark_delete_position={"ledgerId": 1, "entryId": 6},
    )
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", start, start_inclusive=inclusive)
        assert await reader.has_message_available() is expected
