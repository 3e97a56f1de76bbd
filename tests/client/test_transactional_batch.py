"""A batch of messages acknowledged in one transaction: how, and what becomes of the messages when it is aborted."""

import asyncio
import logging
import math

import pytest
from fake_broker import fake_client

from pulsar_txn.client import CommitOutcomeUnknown, ConsumerType, TransactionConflict, TransactionState
from pulsar_txn.client.errors import (
    InvalidConfiguration,
    NotAllowedError,
    TransactionOperationFailed,
    TransactionStateError,
    TransactionTimedOut,
)
from pulsar_txn.client.net.core import is_defective
from pulsar_txn.client.state.redelivery import TIMES
from pulsar_txn.wire import hot
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick


def deliver(broker, *entries, epoch=None):
    for entry in entries:
        broker.deliver(1, entry, b"%d" % entry, epoch=epoch)


def acks(broker):
    """(cumulative, entry ids) of each acknowledgement in a transaction."""
    return [(body[1], [each[1] for each in body[2]]) for body in broker.all("ack") if body[3] is not None]


def ends(broker):
    return [body.txn_action for body in broker.all("endTxn")]


def refuse(broker, *orders):
    """Acknowledgements in transactions conflict, those whose number (0, 1, …) is given."""
    seen = []

    def answer(_pipe, body):
        if body[3] is None:
            return None
        seen.append(body)
        fields = {"txn": body[3]}
        if len(seen) - 1 in orders:
            fields |= {"error": int(ServerError.TransactionConflict), "message": "taken"}
        return hot.encode_ack_response(body[0], body[4], **fields)

    broker.on["ack"] = answer


# --- how it acknowledges --------------------------------------------------------------------------------------------


async def test_a_batch_of_messages_ends_where_an_entry_ends_for_stock_keeps_a_part_of_one_badly(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a", b"b")
        broker.deliver(1, 1, b"c", b"d", b"e")
        broker.deliver(1, 2, b"f", b"g", b"h", b"i", b"j")
        taken = []
        for _ in range(4):
            async with consumer.transactional_batch(max_messages=4, max_wait=0.2) as batch:
                taken.append(b"".join(message.data for message in batch))
    assert taken == [b"ab", b"cde", b"fghi", b"j"]


@pytest.mark.parametrize("kind", list(ConsumerType))
async def test_a_batch_names_every_message_that_it_acknowledges(broker, kind):
    """A cumulative acknowledgement takes along what others have settled, and what was never delivered here."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind)
        deliver(broker, 0, 1, 2)
        async with consumer.transactional_batch(max_messages=3, max_wait=1) as batch:
            assert [message.data for message in batch] == [b"0", b"1", b"2"]
            assert (batch.txn.id, len(batch), batch[1].data) == (None, 3, b"1")
        deliver(broker, 3, 4)
        async with consumer.transactional_batch(max_messages=2, max_wait=1):
            pass
    assert acks(broker) == [(False, [0, 1, 2]), (False, [3, 4])]
    assert ends(broker) == [0, 0]
    assert batch.txn.state is TransactionState.COMMITTED


async def test_what_comes_again_while_a_batch_has_it_is_not_handed_out_twice(broker):
    """A new connection brings everything that is not acknowledged; the batch still acknowledges what it has."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1)
        async with consumer.transactional_batch(max_messages=2, max_wait=1):
            broker.pipe.cut()
            await broker.until(lambda: len(broker.all("flow")) == 2)
            deliver(broker, 0, 1, 2)
            await broker.until(lambda: consumer.queued)
        async with consumer.transactional_batch(max_messages=3, max_wait=0.05) as batch:
            assert [message.data for message in batch] == [b"2"]
    assert acks(broker) == [(False, [0, 1]), (False, [2])]


async def test_an_empty_batch_opens_no_transaction_unless_it_is_eager(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        async with consumer.transactional_batch(max_wait=0.01) as batch:
            assert not batch
        assert not broker.all("newTxn")
        async with consumer.transactional_batch(max_wait=0.01, eager=True) as batch:
            assert batch.txn.id is not None
        assert client.transactions() == ()
    assert len(broker.all("newTxn")) == 1
    assert ends(broker) == [0]


async def test_what_is_sent_in_an_empty_batch_is_committed(broker):
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s"), await client.create_producer("out")
        async with consumer.transactional_batch(max_wait=0.01) as batch:
            await batch.txn.send(producer, b"heartbeat", key="k")
    assert ends(broker) == [0]


async def test_a_block_is_entered_once_and_commits_itself(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        block = consumer.transactional_batch(max_wait=0.01)
        async with block as batch:
            with pytest.raises(TransactionStateError, match="leaving its block"):
                await batch.txn.commit()
        with pytest.raises(TransactionStateError, match="entered once"):
            await block.__aenter__()
        for wrong in (0, math.inf, math.nan, "soon"):
            with pytest.raises(InvalidConfiguration, match=r"timeout (must be at least a millisecond|is no time)"):
                consumer.transactional_batch(timeout=wrong)
        with pytest.raises(InvalidConfiguration, match="max_messages"):
            async with consumer.transactional_batch(max_messages=0):
                pass


# --- aborts ---------------------------------------------------------------------------------------------------------


async def test_an_exception_aborts_without_an_acknowledgement_and_the_messages_come_again(broker):
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s"), await client.create_producer("out")
        deliver(broker, 0, 1, 2, epoch=0)
        with pytest.raises(ZeroDivisionError):
            async with consumer.transactional_batch(max_messages=2, max_wait=1) as batch:
                await producer.send(b"never", txn=batch.txn)
                raise ZeroDivisionError
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        assert consumer.queued == 0
        deliver(broker, 2, epoch=0)  # was on its way
        deliver(broker, 0, 1, 2, epoch=1)
        async with consumer.transactional_batch(max_messages=3, max_wait=1) as batch:
            assert [message.data for message in batch] == [b"0", b"1", b"2"]
    assert acks(broker) == [(False, [0, 1, 2])]
    assert ends(broker) == [1, 0]


async def test_on_shared_exactly_the_batch_is_asked_for_again(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver(broker, 0, 1, 2)
        with pytest.raises(ZeroDivisionError):
            async with consumer.transactional_batch(max_messages=2, max_wait=1):
                raise ZeroDivisionError
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        assert consumer.queued == 1
    (asked,) = broker.all("redeliverUnacknowledgedMessages")
    assert [each.entryId for each in asked.message_ids] == [0, 1]
    assert not broker.all("newTxn")


async def test_what_the_server_brings_back_by_itself_is_not_asked_for_twice(broker):
    """On Shared the abort redelivers what was acknowledged in it; asking again would double it."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe(["a", "b"], "s", consumer_type=ConsumerType.SHARED)
        first, second = (body.consumer_id for body in broker.all("subscribe"))
        for consumer_id in (first, second):
            entry = _entry()
            broker.pipe.send(b"".join(hot.encode_message(consumer_id, 1, consumer_id, entry)))
        refuse(broker, 1)
        with pytest.raises(TransactionOperationFailed) as raised:
            async with consumer.transactional_batch(max_messages=2, max_wait=1):
                pass
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
    assert isinstance(raised.value.__cause__, TransactionConflict)
    assert len(broker.all("redeliverUnacknowledgedMessages")) == 1
    assert ends(broker) == [1]


def _entry():
    from pulsar_txn.wire import pulsar_pb2 as pb
    from pulsar_txn.wire.entries import encode_entry

    return encode_entry(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x")


async def test_a_failed_operation_that_nobody_looked_at_aborts_without_acknowledging(broker):
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s"), await client.create_producer("out")
        broker.on["addPartitionToTxn"] = lambda _pipe, body: command(
            "addPartitionToTxnResponse", request_id=body.request_id, error=int(ServerError.InvalidTxnStatus), message="no"
        )
        deliver(broker, 0)
        with pytest.raises(TransactionOperationFailed, match="no"):
            async with consumer.transactional_batch(max_messages=1, max_wait=1) as batch:
                ticket = producer.send_nowait(b"x", txn=batch.txn)
                await asyncio.wait([ticket])
                ticket.exception()
    assert acks(broker) == []
    assert ends(broker) == [1]


async def test_a_rollback_leaves_quietly_and_the_messages_come_again(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)
        async with consumer.transactional_batch(max_messages=1, max_wait=1) as batch:
            batch.txn.rollback()
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
    assert batch.txn.state is TransactionState.ABORTED


async def test_behind_its_timeout_a_batch_is_aborted(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)
        with pytest.raises(TransactionTimedOut):
            async with consumer.transactional_batch(max_messages=1, max_wait=1, timeout=0.05, eager=True):
                await asyncio.sleep(0.06)
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
    assert acks(broker) == []


async def test_a_cancelled_block_is_aborted(broker):
    entered = asyncio.Event()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)

        async def work():
            async with consumer.transactional_batch(max_messages=1, max_wait=1, eager=True):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ends(broker) == [1]


async def test_an_unknown_commit_asks_for_nothing_until_it_is_resolved(broker):
    broker.keeps_outcomes = True

    def cut(pipe, body):
        broker.on["endTxn"] = not_found
        pipe.cut()

    def not_found(_pipe, body):
        error = int(ServerError.TransactionNotFound)
        return command("endTxnResponse", request_id=body.request_id, error=error, message="forgotten")

    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver(broker, 0)
        broker.on["endTxn"] = cut
        with pytest.raises(CommitOutcomeUnknown) as raised:
            async with consumer.transactional_batch(max_messages=1, max_wait=1) as batch:
                pass
        assert batch.txn.state is TransactionState.UNKNOWN
        assert not broker.all("redeliverUnacknowledgedMessages")
        assert client.stats().transactions.unknown == 1
        broker.on["endTxn"] = lambda _pipe, body: command(
            "endTxnResponse", request_id=body.request_id, error=int(ServerError.InvalidTxnStatus), message="was aborted"
        )
        assert await raised.value.resolve() is TransactionState.ABORTED
        batch.redeliver()
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        assert client.stats().transactions.unknown == 0


async def test_when_the_transaction_cannot_begin_the_messages_come_again(broker):
    broker.on["newTxn"] = lambda _pipe, body: command(
        "newTxnResponse", request_id=body.request_id, error=int(ServerError.NotAllowedError), message="off"
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0)
        with pytest.raises(NotAllowedError):
            async with consumer.transactional_batch(max_messages=1, max_wait=1, eager=True):
                pass
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))


# --- negative acknowledgement, conflicts ----------------------------------------------------------------------------


async def test_what_an_open_transaction_has_acknowledged_cumulatively_is_taken(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1, 2)
        messages = await consumer.receive_many(3, max_wait=1)
        first, second = await client.begin_transaction(), await client.begin_transaction()
        await first.acknowledge(consumer, messages[2])
        await consumer.acknowledge_cumulative(messages[1], txn=first)
        for message in messages:
            with pytest.raises(TransactionStateError, match="still open"):
                consumer.negative_acknowledge(message)
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge(messages[0], txn=second)
        await first.commit()
        await second.abort()
        consumer.negative_acknowledge(messages[0])


# --- the deadlock of stock servers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "risky"),
    [
        ("Pulsar Server4.2.4", True),
        ("Pulsar Server4.0.8", True),
        ("Pulsar Server4.1.0-SNAPSHOT", True),
        ("Pulsar Server3.0.0", False),
        ("Pulsar Server5.0.0", False),
        ("pulsar-txn 0.1", False),
        ("", False),
    ],
)
def test_servers_with_the_deadlock_are_known_by_their_version(version, risky):
    assert is_defective(version) is risky


async def test_a_cumulative_acknowledgement_inside_a_batch_is_warned_of_once_on_a_server_that_loses_the_rest(broker, caplog):
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Pulsar Server4.2.4", protocol_version=21, max_message_size=5 * 1024 * 1024
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"a", b"b", b"c")
        messages = await consumer.receive_many(3, max_wait=1)
        said = []
        for message in messages:
            async with client.transaction() as txn:
                await consumer.acknowledge_cumulative(message, txn=txn)
            said.append(caplog.text.count("loses the rest of a batch"))
    assert said == [1, 1, 1]


async def test_an_abort_of_shared_acknowledgements_is_warned_of_once_on_a_server_with_the_deadlock(broker, caplog):
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="Pulsar Server4.2.4", protocol_version=21, max_message_size=5 * 1024 * 1024
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver(broker, 0, 1, 2)
        messages = await consumer.receive_many(3, max_wait=1)
        with caplog.at_level(logging.WARNING, logger="pulsar_txn.client"):
            for message, end in zip(messages, ("commit", "abort", "abort"), strict=True):
                txn = await client.begin_transaction()
                await txn.acknowledge(consumer, message)
                await getattr(txn, end)()
                warnings = [record.getMessage() for record in caplog.records if "can deadlock" in record.getMessage()]
                assert len(warnings) == (end == "abort")
    assert "docs/stock-pulsar.md" in warnings[0]


async def aborted(consumer, max_messages):
    """A batch of so many messages whose body fails."""
    with pytest.raises(ZeroDivisionError):
        async with consumer.transactional_batch(max_messages=max_messages, max_wait=1):
            raise ZeroDivisionError


async def test_a_server_that_does_not_bring_back_what_comes_first_is_asked_again(broker):
    """Stock servers may answer a redelivery as if the acknowledgements of the aborted transaction were still pending."""
    asked = []

    def redeliver(_pipe, body):
        asked.append(body.consumer_epoch)
        deliver(broker, *((0, 1, 2) if len(asked) > 3 else (2,)), epoch=body.consumer_epoch)

    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.on["redeliverUnacknowledgedMessages"] = redeliver
        deliver(broker, 0, 1, 2, epoch=0)
        await aborted(consumer, 2)
        async with consumer.transactional_batch(max_messages=3, max_wait=0.05) as batch:
            assert not batch  # not 2, and it does not wait longer than it was told to
        async with consumer.transactional_batch(max_messages=3, max_wait=5) as batch:
            assert [message.data for message in batch] == [b"0", b"1", b"2"]
    assert acks(broker) == [(False, [0, 1, 2])]


async def test_what_somebody_else_has_settled_is_not_waited_for_for_ever(broker, monkeypatch):
    monkeypatch.setattr("pulsar_txn.client.state.redelivery.FIRST_PAUSE", 0.02)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.on["redeliverUnacknowledgedMessages"] = lambda _pipe, body: deliver(broker, 2, epoch=body.consumer_epoch)
        deliver(broker, 0, 1, 2, epoch=0)
        await aborted(consumer, 2)
        async with consumer.transactional_batch(max_messages=1, max_wait=None) as batch:
            assert [message.data for message in batch] == [b"2"]
    assert len(broker.all("redeliverUnacknowledgedMessages")) == 1 + TIMES + 1
    assert acks(broker) == [(False, [2])]


async def test_the_permits_of_what_is_kept_back_return_with_it(broker):
    """Else a consumer whose queue is small would be given nothing any more."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=4)
        asked = []

        def redeliver(_pipe, body):
            asked.append(body.consumer_epoch)
            deliver(broker, *((0, 1, 2, 3) if len(asked) > 2 else (2, 3)), epoch=body.consumer_epoch)

        broker.on["redeliverUnacknowledgedMessages"] = redeliver
        deliver(broker, 0, 1, epoch=0)
        await aborted(consumer, 2)
        async with consumer.transactional_batch(max_messages=4, max_wait=5) as batch:
            assert [message.data for message in batch] == [b"0", b"1", b"2", b"3"]
    delivered = 2 + 2 + 2 + 4
    assert broker.permits[broker.consumer_id] - delivered in (3, 4)  # half a queue travels at once


async def test_the_program_may_settle_by_hand_what_a_batch_has_failed_at(broker):
    """The message that was poison does not come again, and what follows is not kept waiting for it."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_group_delay=0)
        broker.on["redeliverUnacknowledgedMessages"] = lambda _pipe, body: deliver(
            broker, *((1, 2) if any(ack[3] is None for ack in broker.all("ack")) else (2,)), epoch=body.consumer_epoch
        )
        deliver(broker, 0, 1, 2, epoch=0)
        with pytest.raises(ZeroDivisionError):
            async with consumer.transactional_batch(max_messages=2, max_wait=1) as batch:
                raise ZeroDivisionError
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        await consumer.acknowledge(batch[0])
        async with consumer.transactional_batch(max_messages=2, max_wait=5) as batch:
            assert [message.data for message in batch] == [b"1", b"2"]
    assert len(broker.all("redeliverUnacknowledgedMessages")) <= 3


@pytest.mark.parametrize("cumulative", [False, True])
async def test_nothing_is_waited_for_that_was_settled_by_hand_before_anything_else_came(broker, cumulative):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1, epoch=0)
        with pytest.raises(ZeroDivisionError):
            async with consumer.transactional_batch(max_messages=2, max_wait=1) as batch:
                raise ZeroDivisionError
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        if cumulative:
            await consumer.acknowledge_cumulative(batch[1])
        else:
            await consumer.acknowledge(batch.messages)
        deliver(broker, 2, epoch=1)
        assert (await consumer.receive(5)).data == b"2"
    assert len(broker.all("redeliverUnacknowledgedMessages")) == 1


async def test_an_abort_while_the_connection_is_away_lets_nothing_overtake(broker):
    """Named after a loss of order: what was queued came first, and what was asked while nobody was there counted."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, 0, 1, 2, 3, epoch=0)
        await broker.until(lambda: consumer.queued == 4)
        with pytest.raises(ZeroDivisionError):
            async with consumer.transactional_batch(max_messages=2, max_wait=1):
                broker.refuses = True
                broker.pipe.cut()
                await broker.until(lambda: not consumer.is_connected)
                raise ZeroDivisionError
        async with consumer.transactional_batch(max_messages=4, max_wait=2) as batch:
            assert not batch
        broker.refuses = False
        await broker.until(lambda: consumer.is_connected, seconds=20)
        deliver(broker, 2, 3, epoch=1)  # as a server whose abort is not done yet
        broker.on["redeliverUnacknowledgedMessages"] = lambda _pipe, body: deliver(
            broker, 0, 1, 2, 3, epoch=body.consumer_epoch
        )
        async with consumer.transactional_batch(max_messages=4, max_wait=5) as batch:
            assert [message.data for message in batch] == [b"0", b"1", b"2", b"3"]


async def test_a_message_that_is_there_twice_is_in_the_batch_once(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver(broker, 0, 1, 0, 1, 2)
        async with consumer.transactional_batch(max_messages=5, max_wait=1) as batch:
            assert [message.data for message in batch] == [b"0", b"1", b"2"]
    assert acks(broker) == [(False, [0, 1, 2])]


async def test_two_copies_of_a_message_in_one_acknowledgement_of_a_transaction_conflict(broker):
    """The chain found it: a message that was received twice was worked on twice, and committed."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver(broker, 0, 1, 0)
        messages = await consumer.receive_many(3, max_wait=1)
        txn = await client.begin_transaction()
        with pytest.raises(TransactionConflict):
            await consumer.acknowledge(messages, txn=txn)
        assert txn.doomed
        await txn.abort()
    assert acks(broker) == []
