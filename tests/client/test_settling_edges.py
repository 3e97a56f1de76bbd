"""Acknowledgements at the edges: cancelled ones, ids without a size, readers, vanished topics, transactions of others."""

import asyncio
import contextlib
import gc
import logging
import re
import weakref

import pytest
from fake_broker import SILENCE, FakeTransaction, fake_client

from pulsar_txn.client import ConsumerType, TransactionConflict, TransactionState
from pulsar_txn.client.errors import ConnectionLost, InvalidConfiguration, PulsarError, TransactionTimedOut
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.wire import hot
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.ids import MessageId, TxnAction

pytestmark = pytest.mark.quick

SHARED = ConsumerType.SHARED


def answer(broker, number=-1, *, error=None):
    """Answer an acknowledgement that was met with silence."""
    body = broker.all("ack")[number]
    said = {} if error is None else {"error": int(error), "message": "refused"}
    broker.pipe.send(hot.encode_ack_response(body[0], body[4], txn=body[3], **said))


def ends(broker):
    return [body.txn_action for body in broker.all("endTxn")]


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- a cancelled acknowledgement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [None, ServerError.TransactionConflict])
async def test_the_abort_behind_a_cancelled_acknowledgement_waits_for_its_answer(broker, refused):
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)

        async def work():
            async with client.transaction() as txn:
                await consumer.acknowledge(message, txn=txn)

        working = asyncio.create_task(work())
        await broker.until(lambda: broker.all("ack"))
        working.cancel()
        await asyncio.sleep(0.05)
        assert ends(broker) == []
        answer(broker, error=refused)
        with pytest.raises(asyncio.CancelledError):
            await working
        assert ends(broker) == [TxnAction.ABORT]
        broker.on.clear()
        broker.deliver(1, 0, b"a")
        await consumer.acknowledge(await consumer.receive(1), txn=FakeTransaction())


async def test_an_acknowledgement_is_not_sent_again_behind_the_abort(broker):
    """Its connection broke, and the abort did not wait for as long as the consumer was away."""
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=5) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        txn = await client.begin_transaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(message, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        refused = {"error": 6, "message": "loading"}
        broker.on["subscribe"] = lambda _pipe, body: command("error", request_id=body.request_id, **refused)
        broker.pipe.cut()
        await txn.abort(timeout=0.1)
        assert ends(broker) == [TxnAction.ABORT]
        broker.on.clear()
        with pytest.raises(TransactionTimedOut, match="was over"):
            await acknowledging
    assert len(broker.all("ack")) == 1


async def test_a_cancelled_acknowledgement_is_finished_once_when_its_answer_is_there(broker):
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a")
        message, txn = await consumer.receive(1), FakeTransaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(message, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        await cancelled(acknowledging)
        assert txn.finished == []
        with pytest.raises(TransactionConflict, match="still open"):
            await consumer.acknowledge(message, txn=FakeTransaction())
        answer(broker, 0)
        await broker.until(lambda: txn.finished)
        ((messages, error),) = txn.finished
        assert (messages, type(error)) == (1, asyncio.CancelledError)


async def test_a_cancelled_acknowledgement_whose_connection_is_lost_is_finished_then(broker):
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        message, txn = await consumer.receive(1), FakeTransaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(message, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        await cancelled(acknowledging)
        broker.pipe.cut()
        await broker.until(lambda: txn.finished)
        assert reception_of(consumer).partitions.all[0].owners.open_acks == 0


async def test_a_cancelled_acknowledgement_that_never_left_is_finished_at_once(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.refuses = True
        broker.pipe.cut()
        await broker.until(lambda: not consumer.is_connected)
        txn = FakeTransaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(MessageId(1, 0), txn=txn))
        await asyncio.sleep(0.01)
        await cancelled(acknowledging)
        assert len(txn.finished) == 1


async def test_a_cancelled_search_for_the_conflict_among_many_is_finished_when_all_are_answered(broker):
    def first_conflicts(_pipe, body):
        if len(body[2]) > 1:
            return hot.encode_ack_response(body[0], body[4], txn=body[3], error=23, message="one of them")
        return SILENCE

    broker.on["ack"] = first_conflicts
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a")
        broker.deliver(1, 1, b"b")
        messages, txn = await consumer.receive_many(2, max_wait=1), FakeTransaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(messages, txn=txn))
        await broker.until(lambda: len(broker.all("ack")) == 3)
        await cancelled(acknowledging)
        answer(broker, 1)
        await asyncio.sleep(0.01)
        assert txn.finished == []
        answer(broker, 2)
        await broker.until(lambda: txn.finished)
        assert reception_of(consumer).partitions.all[0].owners.open_acks == 0


# --- ids without the size of their batch ----------------------------------------------------------------------------


@pytest.mark.parametrize("txn", [False, True])
async def test_an_id_without_batch_size_does_not_acknowledge_the_rest_of_its_batch(broker, txn):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a", b"b", b"c")
        await consumer.receive(1)
        within = FakeTransaction() if txn else None
        await consumer.acknowledge(MessageId(1, 0, -1, 0), txn=within, receipt=True)
        assert broker.all("ack")[-1][2] == [(1, 0, 0b110, 3)]
        await consumer.acknowledge_cumulative(MessageId(1, 0, -1, 1), txn=within, receipt=True)
        assert broker.all("ack")[-1][2] == [(1, 0, 0b100, 3)]


@pytest.mark.parametrize("message_id", [MessageId(1, 5, -1, 0), MessageId(1, 0, -1, 3), MessageId(1, 5, -1, 2, 2)])
async def test_an_id_of_a_batch_whose_size_nobody_knows_is_refused(broker, message_id):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a", b"b", b"c")
        await consumer.receive(1)
        for options in ({}, {"receipt": True}, {"txn": FakeTransaction()}):
            with pytest.raises(InvalidConfiguration, match="batch_size"):
                await consumer.acknowledge(message_id, **options)
        consumer.negative_acknowledge(message_id)  # which means the entry anyway
        assert not broker.all("ack")


# --- readers in an ambient transaction ------------------------------------------------------------------------------


async def test_reading_inside_an_ambient_transaction_is_no_part_of_it(broker):
    async with fake_client(broker) as client:
        reader = await client.create_reader("t")
        for entry in range(3):
            broker.deliver(1, entry, b"%d" % entry)
        with contextlib.suppress(ZeroDivisionError):
            async with client.transaction(ambient=True):
                assert (await reader.read_next(1)).data == b"0"
                assert [message.data for message in await reader.read_many(1, max_wait=1)] == [b"1"]
                raise ZeroDivisionError
        assert (await reader.read_next(1)).data == b"2"
    assert not broker.all("addSubscriptionToTxn")
    assert not broker.all("redeliverUnacknowledgedMessages")
    assert {body[3] for body in broker.all("ack")} == {None}


async def test_acknowledging_inside_an_ambient_transaction_still_is_a_part_of_it(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        async with client.transaction(ambient=True) as txn:
            await consumer.acknowledge(await consumer.receive(1))
    assert [body[3] for body in broker.all("ack")] == [txn.id]


# --- acknowledgements that are refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("txn", [False, True])
async def test_what_the_broker_refuses_to_acknowledge_comes_again_when_its_time_is_over(broker, txn):
    broker.on["ack"] = lambda _pipe, body: hot.encode_ack_response(body[0], body[4], txn=body[3], error=2, message="no store")
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED, ack_timeout=0.1)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        within = await client.begin_transaction() if txn else None
        with pytest.raises(Exception, match="no store"):
            await consumer.acknowledge(message, txn=within, receipt=True)
        if within is not None:
            await within.abort()
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))


@pytest.mark.parametrize("cumulative", [False, True])
async def test_what_was_acknowledged_in_a_transaction_is_not_late_any_more(broker, cumulative):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_timeout=0.1)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        await (consumer.acknowledge_cumulative if cumulative else consumer.acknowledge)(message, txn=FakeTransaction())
        assert reception_of(consumer).partitions.all[0].machine.redelivery.awaited_acks == 0


# --- topics that a pattern has lost ---------------------------------------------------------------------------------


@pytest.fixture
async def lost(broker):
    """A client, a consumer of a pattern, and a message of a topic that is gone."""
    topics = ["persistent://public/default/x1", "persistent://public/default/x2"]
    broker.on["getTopicsOfNamespace"] = lambda _pipe, body: command(
        "getTopicsOfNamespaceResponse", request_id=body.request_id, topics=topics
    )
    async with fake_client(broker) as client:
        pattern = re.compile("public/default/x.*")
        consumer = await client.subscribe(pattern, "s", consumer_type=SHARED, pattern_discovery_period=0.02)
        broker.deliver(1, 0, b"a")
        (message,) = await consumer.receive_many(1, max_wait=1)
        topics.remove(message.topic)
        await broker.until(lambda: len(consumer.topics) == 1)
        yield client, consumer, message


async def test_settling_a_message_of_a_topic_that_a_pattern_has_lost_has_no_effect(broker, lost):
    _, consumer, message = lost
    await consumer.acknowledge(message)
    await consumer.acknowledge([message], receipt=True)
    consumer.give_back([message])
    consumer.negative_acknowledge(message)
    await asyncio.sleep(0.05)
    assert not broker.all("ack")
    assert not broker.all("redeliverUnacknowledgedMessages")


async def test_no_transaction_acknowledges_a_message_of_a_topic_that_a_pattern_has_lost(lost):
    client, consumer, message = lost
    with pytest.raises(ConnectionLost, match="not received from any more") as caught:
        async with client.transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
    assert caught.value.retriable
    assert txn.state is TransactionState.ABORTED


async def test_a_message_that_was_never_received_here_is_still_refused(broker, lost):
    client, consumer, _ = lost
    other = await client.subscribe("elsewhere", "s")
    broker.deliver(1, 0, b"b")
    message = await other.receive(1)
    with pytest.raises(InvalidConfiguration, match="does not receive from"):
        await consumer.acknowledge(message)


# --- transactions that somebody else ends ---------------------------------------------------------------------------


async def acknowledge_attached(client, consumer, number):
    """Up to the next message, in a transaction that is somebody else's; its handle."""
    message = await consumer.receive(1)
    handle = client.attach_transaction(f"(0,{number})")
    await consumer.acknowledge_cumulative(message, txn=handle)
    return handle


async def test_a_message_that_an_abort_elsewhere_has_brought_back_can_be_acknowledged_again(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        handle = await acknowledge_attached(client, consumer, 9)
        del handle
        gc.collect()
        broker.deliver(1, 0, b"a")
        await consumer.acknowledge(await consumer.receive(1), txn=FakeTransaction())


@pytest.mark.parametrize("reconnects", [False, True])
async def test_what_comes_again_stays_with_an_open_transaction_whose_end_will_be_known_here(broker, reconnects):
    """Stock brokers deliver it, and would take it into a second transaction as well: the work would be done twice."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        handle = await acknowledge_attached(client, consumer, 9)
        if reconnects:
            broker.pipe.cut()
            await broker.until(lambda: len(broker.all("flow")) == 2)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        with pytest.raises(TransactionConflict, match="still open"):
            await consumer.acknowledge(message, txn=FakeTransaction())
        await handle.abort()
        await consumer.acknowledge(message, txn=FakeTransaction())


async def test_a_transaction_whose_acknowledgement_failed_is_collected_when_it_is_dropped(broker):
    broker.on["ack"] = lambda _pipe, body: hot.encode_ack_response(body[0], body[4], txn=body[3], error=23, message="taken")
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        handle = client.attach_transaction("(0,9)")
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge(await consumer.receive(1), txn=handle)
        gone = weakref.ref(handle)
        del handle
        await asyncio.sleep(0.01)  # this turn of the loop still knows the error
        gc.collect()
        assert gone() is None


async def test_acknowledgements_in_transactions_that_others_end_do_not_pile_up(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        for number in range(10):
            broker.deliver(1, number, b"m")
            if number % 2:
                handle = client.attach_transaction(f"(0,{number})")
                await consumer.acknowledge(await consumer.receive(1), txn=handle)
            else:
                handle = await acknowledge_attached(client, consumer, number)
            del handle
            gc.collect()
        broker.deliver(1, 10, b"m")
        await consumer.receive(1)
        assert reception_of(consumer).partitions.all[0].owners.open_acks == 1


# --- the deadlock of stock servers ----------------------------------------------------------------------------------


async def test_the_deadlock_is_warned_of_when_only_the_timeout_aborts(broker, caplog):
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Pulsar Server4.2.4", protocol_version=21, max_message_size=5 * 1024 * 1024
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=SHARED)
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        with caplog.at_level(logging.WARNING, logger="pulsar_txn.client"):
            txn = await client.begin_transaction(timeout=0.1)
            await txn.acknowledge(consumer, message)
            await broker.until(lambda: txn.state is TransactionState.TIMED_OUT)
            await broker.until(lambda: "can deadlock" in caplog.text)  # the abort itself comes after the state


# --- an acknowledgement that is sent again ------------------------------------------------------------------------------


@pytest.mark.parametrize("cumulative", [False, True])
async def test_an_acknowledgement_that_is_sent_again_keeps_its_key(broker, cumulative):
    """The first one had it already: a broker may know it. Each other one has another key, also that of another consumer."""
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        for entry in range(2):
            broker.deliver(1, entry, b"a")
        first, second = await consumer.receive(1), await consumer.receive(1)
        acknowledge, txn = consumer.acknowledge_cumulative if cumulative else consumer.acknowledge, FakeTransaction()
        acknowledging = asyncio.create_task(acknowledge(first, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("ack")) == 2)
        answer(broker)
        await acknowledging
        del broker.on["ack"]
        await acknowledge(second, txn=txn)
        other = await client.subscribe("t", "other")
        broker.deliver(1, 0, b"a")
        await other.acknowledge(await other.receive(1), txn=txn)
        await other.acknowledge(MessageId(1, 5), receipt=True)
    keys = [body[5] for body in broker.all("ack")]
    assert keys[0] == keys[1] is not None
    assert len({*keys[:4]}) == 3
    assert keys[3][0] != keys[0][0]
    assert keys[4:] == [None], "outside of transactions"


async def test_a_resend_that_a_broker_without_keys_refuses_is_unknown_and_nothing_of_it_commits(broker):
    """Stock has taken the first one, or another process was given the message: nobody can tell, so the transaction aborts."""
    broker.on["ack"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a")
        message = await consumer.receive(1)
        txn = await client.begin_transaction()
        acknowledging = asyncio.create_task(consumer.acknowledge(message, txn=txn))
        await broker.until(lambda: broker.all("ack"))
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("ack")) == 2)
        answer(broker, error=ServerError.TransactionConflict)
        with pytest.raises(ConnectionLost) as lost:
            await acknowledging
        assert lost.value.maybe_processed
        assert isinstance(lost.value.__cause__, TransactionConflict)
        with pytest.raises(PulsarError):
            await txn.commit()
        await txn.abort()
    assert ends(broker) == [TxnAction.ABORT]
