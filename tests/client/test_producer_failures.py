"""Producers: what cannot be sent, what is too late, and who still waits when something was cancelled or failed."""

import asyncio
import time
from datetime import timedelta

import pytest
from fake_broker import SILENCE, FakeTransaction, fake_client, sent_entry
from insides import partitions_of
from keeping import kept_by

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import BatchingType, MessageId, TxnId, sync
from pulsar_txn.client.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    MessageTooLarge,
    ProducerFenced,
    TransactionAborted,
    TransactionOperationFailed,
    TransactionTimedOut,
    UsageError,
)
from pulsar_txn.client.events import ProducerInterceptor
from pulsar_txn.client.sync.loop_thread import LoopThread
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick

TOPIC = "persistent://public/default/t"


def silent(broker):
    broker.on["send"] = lambda _pipe, _body: SILENCE


# --- what cannot be sent --------------------------------------------------------------------------------------------

WRONG = [
    ("properties", {"n": 1}, "properties['n'] must be text, not 1"),
    ("properties", {1: "n"}, "a name in properties must be text, not 1"),
    ("properties", [("n", "1")], "properties must be a mapping of text to text"),
    ("properties", {"n": "\ud800"}, "properties['n'] must be text that UTF-8 can say"),
    ("event_time_ms", 1.7e12, "event_time_ms must be a whole number"),
    ("event_time_ms", -1, "event_time_ms must be a whole number, 0 or more"),
    ("ordering_key", "text", "ordering_key must be bytes"),
    ("key", 5, "key must be text"),
    ("key", "\ud800", "key must be text that UTF-8 can say"),
    ("sequence_id", "1", "sequence_id must be a whole number"),
    ("sequence_id", 2**63, "sequence_id must be a whole number"),
    ("deliver_at", 1.7e12, "deliver_at must be a datetime"),
    ("deliver_after", "1", "deliver_after must be seconds or a timedelta"),
    ("deliver_after", float("inf"), "deliver_after must be seconds or a timedelta"),
    ("replicate_to", "eu", "replicate_to must be a sequence of names"),
    ("replicate_to", [1], "a cluster of replicate_to must be text"),
]


@pytest.mark.parametrize(("argument", "value", "text"), WRONG)
@pytest.mark.parametrize("tombstone", [False, True])
async def test_an_argument_that_cannot_be_sent_is_refused_before_anything_is_queued(broker, argument, value, text, tombstone):
    """Named after a hang: it was found when the batch was encoded, whose tickets then never ended."""
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        neighbours = [producer.send_nowait(b"before")]
        with pytest.raises(InvalidConfiguration) as refused:
            producer.send_nowait(None if tombstone else b"x", **{argument: value})
        assert text in str(refused.value)
        assert isinstance(refused.value, UsageError | ValueError)
        str(refused.value).encode()
        neighbours.append(producer.send_nowait(b"behind"))
        await asyncio.gather(*neighbours)
        assert producer.stats().in_flight_messages == 0
    assert [sent_entry(body)[0].num_messages_in_batch for body in broker.all("send")] == [2]


async def test_arguments_are_checked_behind_the_interceptors(broker):
    class Counts(ProducerInterceptor):
        def before_send(self, _producer, message):
            message.properties["count"] = 1
            return message

    async with fake_client(broker) as client:
        producer = await client.create_producer("t", interceptors=[Counts()])
        with pytest.raises(InvalidConfiguration, match="count"):
            await producer.send(b"x", properties={})


async def test_what_fails_while_it_is_encoded_fails_its_batch_and_nothing_else(broker):
    """A mapping that the program changes after the call, say."""
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_type=BatchingType.KEY_BASED)
        properties = {"n": "1"}
        bad = [producer.send_nowait(b"x", key="bad", properties=properties), producer.send_nowait(b"y", key="bad")]
        good = producer.send_nowait(b"z", key="good")
        properties["n"] = 1
        with pytest.raises(InvalidConfiguration, match="cannot be encoded: AttributeError"):
            await producer.flush()
        for ticket in bad:
            assert isinstance(ticket.exception(), InvalidConfiguration)
        await good
        await producer.send(b"again", key="bad")
        assert (producer.stats().in_flight_bytes, producer.stats().failed) == (0, 2)


async def test_what_fails_while_it_is_encoded_dooms_its_transaction_at_once(broker):
    async with fake_client(broker, operation_timeout=30) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        await producer.send(b"before", txn=txn)
        properties = {"n": "1"}
        producer.send_nowait(b"x", properties=properties, txn=txn)
        properties["n"] = 1
        began = time.monotonic()
        with pytest.raises(TransactionOperationFailed) as failed:
            await txn.commit()
        assert isinstance(failed.value.__cause__, InvalidConfiguration)
        assert time.monotonic() - began < 5
    assert [body.txn_action for body in broker.all("endTxn")] == [1]


def test_the_sync_client_refuses_them_too():
    thread = LoopThread()
    server = Standalone(None)
    thread.run(server.__aenter__)
    with sync.Client(server.service_url) as client:
        producer = client.create_producer("t")
        for argument, value, _ in WRONG:
            with pytest.raises(InvalidConfiguration):
                producer.send(b"x", **{argument: value})
            with pytest.raises(InvalidConfiguration):
                producer.send_nowait(b"x", **{argument: value}).result(5)
        producer.flush()
        assert producer.send(b"y").entry_id == 0
    thread.run(lambda: server.__aexit__(None, None, None))
    thread.stop()


# --- what is too late -----------------------------------------------------------------------------------------------


async def test_a_send_of_a_transaction_that_was_aborted_is_not_sent_again(broker):
    """Named after a topic held back for all readers: a stock broker takes a late send for one of an open transaction."""
    silent(broker)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching=False)
        txn = await client.begin_transaction()
        late = [producer.send_nowait(b"x", txn=txn) for _ in range(3)]
        other = producer.send_nowait(b"y")
        await broker.until(lambda: len(broker.all("send")) == 4)
        await txn.abort(timeout=0.05)
        del broker.on["send"]
        broker.got.clear()
        broker.pipe.cut()
        await other
        for ticket in late:
            with pytest.raises(TransactionAborted, match="was over"):
                await ticket
        assert producer.stats().in_flight_bytes == 0
    assert [sent_entry(body)[1] for body in broker.all("send")] == [b"y"]


async def test_a_send_of_a_transaction_whose_time_is_over_is_not_sent_again(broker):
    silent(broker)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = FakeTransaction()
        late = producer.send_nowait(b"x", txn=txn)
        await broker.until(lambda: broker.all("send"))
        txn.in_time = lambda: False
        broker.pipe.cut()
        with pytest.raises(TransactionTimedOut):
            await late
        assert [(count, type(error)) for count, error in txn.finished] == [(1, TransactionTimedOut)]
        assert len(broker.all("send")) == 1


def deduplicates(broker):
    """From now on, as a broker that has this producer's message 0."""
    broker.on["producer"] = lambda _pipe, body: command(
        "producer_success", request_id=body.request_id, producer_name="p", last_sequence_id=0
    )


@pytest.mark.seed_rows("C40")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_broker_that_does_not_look_for_duplicates_gets_no_send_of_a_transaction_twice(broker, chunked):
    """Named after a fault: a committed transaction had the message twice whose receipt was lost with its connection."""
    silent(broker)
    payload = bytes(12_000_000) if chunked else b"x"
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", chunking=True)
        with pytest.raises(TransactionOperationFailed, match="does not look for duplicates"):
            async with client.transaction() as txn:
                ticket = producer.send_nowait(payload, txn=txn)
                plain = producer.send_nowait(b"y")
                await broker.until(lambda: len(broker.all("send")) == (3 if chunked else 1) + 1)
                del broker.on["send"]
                broker.got.clear()
                broker.pipe.cut()
        assert isinstance(ticket.exception(), TransactionAborted)
        assert (await plain).entry_id >= 0
        assert producer.stats().in_flight_bytes == 0
        async with client.transaction() as txn:
            await producer.send(b"z", txn=txn)
    assert [sent_entry(body)[1] for body in broker.all("send")] == [b"y", b"z"]


async def test_what_no_connection_took_is_sent_when_there_is_one(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        async with client.transaction() as txn:
            await producer.send(b"1", txn=txn)
            broker.pipe.cut()
            await asyncio.sleep(0)
            ticket = producer.send_nowait(b"2", txn=txn)
        assert ticket.exception() is None


async def test_the_sends_of_a_transaction_that_is_being_committed_are_sent_again(broker):
    silent(broker)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = await client.begin_transaction()
        ticket = producer.send_nowait(b"x", txn=txn)
        await broker.until(lambda: broker.all("send"))
        committing = asyncio.create_task(txn.commit())
        await asyncio.sleep(0.01)
        del broker.on["send"]
        deduplicates(broker)
        broker.pipe.cut()
        await committing
        assert ticket.exception() is None
    assert [body[3] for body in broker.all("send")] == [txn.id] * 2
    assert [body.txn_action for body in broker.all("endTxn")] == [0]


async def test_a_registration_that_is_answered_behind_the_abort_lets_nothing_leave(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        txn = FakeTransaction(registered=False)
        late = [producer.send_nowait(b"x", txn=txn), producer.send_nowait(b"x", txn=txn, deliver_after=60)]
        txn.end(None)
        txn.registration.set_result(txn.txn_id)
        for ticket in late:
            with pytest.raises(TransactionAborted, match="was over"):
                await ticket
        await producer.send(b"y")
    assert [sent_entry(body)[1] for body in broker.all("send")] == [b"y"]


async def test_a_producer_asks_a_transaction_once_for_its_end_and_forgets_it(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        partition = partitions_of(producer)[0]
        before = kept_by(partition)
        txn = FakeTransaction(TxnId(0, 1))
        for _ in range(3):
            await producer.send(b"x", txn=txn)
        assert len(txn.end_callbacks) == 1
        assert kept_by(partition) == before + 1
        del txn
        assert kept_by(partition) == before


# --- who still waits ------------------------------------------------------------------------------------------------


async def test_flush_and_close_wait_for_a_batch_whose_last_ticket_was_cancelled(broker):
    silent(broker)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        first = producer.send_nowait(b"1")
        last = producer.send_nowait(b"2")
        await broker.until(lambda: broker.all("send"))
        last.cancel()
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0.01)
        assert not flushing.done()
        closing = asyncio.create_task(producer.close())
        broker.receipt(0, 0)
        await asyncio.gather(flushing, closing)
        assert first.result() == MessageId(1, 0, -1, 0, 2)


async def test_flush_waits_for_what_is_registered_later_and_tells_its_error(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_messages=2)
        txn = FakeTransaction(registered=False)
        tickets = [producer.send_nowait(b"x", txn=txn) for _ in range(5)]
        tickets[-1].cancel()
        flushes = [asyncio.create_task(producer.flush()) for _ in range(2)]
        await asyncio.sleep(0.01)
        txn.registration.set_exception(ProducerFenced("by another"))
        for flushing in flushes:
            with pytest.raises(ProducerFenced, match="by another"):
                await flushing
        assert sum(messages for messages, *_ in txn.finished) == 5


async def test_a_batch_that_collects_behind_one_that_is_refused_for_good_fails_with_it(broker):
    """Named after a hang: settling the one in flight sent the other, which nobody failed then."""
    silent(broker)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", batching_max_delay=30, send_timeout=0)
        first = producer.send_nowait(b"1")
        await broker.until(lambda: broker.all("send"))
        txn = FakeTransaction()
        rest = [producer.send_nowait(b"2"), producer.send_nowait(b"3"), producer.send_nowait(b"4", txn=txn)]
        broker.say("send_error", producer_id=broker.producer_id, sequence_id=0, error=25, message="fenced")
        async with asyncio.timeout(2):
            for ticket in (first, *rest):
                with pytest.raises(ProducerFenced):
                    await ticket
        assert producer.stats().in_flight_messages == 0
        assert (txn.started, sum(count for count, _ in txn.finished)) == (1, 1)


async def test_a_batch_that_collects_fails_too_when_the_producer_is_closed_without_receipts(broker):
    silent(broker)
    async with fake_client(broker, operation_timeout=0.05) as client:
        producer = await client.create_producer("t", send_timeout=0, batching_max_delay=30)
        tickets = [producer.send_nowait(b"1")]
        await broker.until(lambda: broker.all("send"))
        tickets.append(producer.send_nowait(b"2"))
        await producer.close()
        assert [type(ticket.exception()) for ticket in tickets] == [AlreadyClosed, AlreadyClosed]


@pytest.mark.parametrize("cancelled", [True, False])
async def test_creating_a_producer_that_is_cancelled_or_fails_leaves_no_partition_behind(broker, cancelled):
    def answer(pipe, body):
        if body.topic.endswith("1") and cancelled:
            return SILENCE
        if body.topic.endswith("1"):
            return command("error", request_id=body.request_id, error=4, message="not yours")
        return broker._producer(pipe, body)

    broker.partitions[TOPIC] = 3
    broker.on["producer"] = answer
    async with fake_client(broker) as client:
        with pytest.raises(TimeoutError if cancelled else Exception):
            await asyncio.wait_for(client.create_producer("t"), 0.05)
        opened = {body.producer_id for body in broker.all("producer")}
        closed = {body.producer_id for body in broker.all("close_producer")}
        assert len(opened) == 3
        assert len(closed) == 3 if cancelled else 2
        assert core_of(client).pool.current()[0].producers == {}
        broker.pipe.cut()
        await asyncio.sleep(0.05)
        assert len(broker.all("producer")) == 3


async def test_cancelling_the_creation_twice_closes_all_the_same(broker):
    """The second cancellation comes while the answer to the first one's closing is awaited."""
    broker.partitions[TOPIC] = 2
    broker.on["producer"] = lambda pipe, body: SILENCE if body.topic.endswith("1") else broker._producer(pipe, body)
    broker.on["close_producer"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker) as client:
        creating = asyncio.create_task(client.create_producer("t"))
        await broker.until(lambda: len(broker.all("producer")) == 2)
        opened = core_of(client).pool.current()[0].producers
        await broker.until(lambda: any(each.is_connected for each in opened.values()))
        creating.cancel()
        await broker.until(lambda: len(broker.all("close_producer")) == 2)
        assert not creating.done()
        creating.cancel()
        await asyncio.wait([creating])
        assert creating.cancelled()
        assert len(broker.all("close_producer")) == 2
        assert core_of(client).pool.current()[0].producers == {}


# --- sizes ----------------------------------------------------------------------------------------------------------


async def test_a_batch_never_outgrows_what_the_broker_takes(broker):
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="F", protocol_version=21, max_message_size=64 * 1024
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        await asyncio.gather(*(producer.send(bytes(1000)) for _ in range(120)))
        await asyncio.gather(*(producer.send(bytes(1000), deliver_after=timedelta(seconds=1)) for _ in range(2)))
    assert [sent_entry(body)[0].num_messages_in_batch for body in broker.all("send")][:2] == [65, 55]


async def test_a_batch_that_outgrows_it_by_keys_and_properties_leaves_in_parts(broker):
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="F", protocol_version=21, max_message_size=64 * 1024
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        tickets = [producer.send_nowait(b"%d" % number, properties={"p": "x" * 500}) for number in range(800)]
        tickets.append(producer.send_nowait(b"alone", properties={"p": "x" * 100_000}))
        with pytest.raises(MessageTooLarge):
            await tickets.pop()
        ids = await asyncio.gather(*tickets)
        assert producer.stats().in_flight_bytes == 0
    assert len(set(ids)) == 800
    assert ids == sorted(ids)
    sizes = [sent_entry(body)[0].num_messages_in_batch for body in broker.all("send")]
    assert sum(sizes) == 800
    assert [body[1] for body in broker.all("send")] == [sum(sizes[:index]) for index in range(len(sizes))]


@pytest.mark.parametrize("alone", [0, 1, 2, 3])
async def test_flush_tells_the_error_of_any_part_of_a_batch_that_was_cut(broker, alone):
    """Named after a gap: only the error of the last part was told."""
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="F", protocol_version=21, max_message_size=64 * 1024
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        sizes = [20_000] * 4
        sizes[alone] = 100_000
        tickets = [producer.send_nowait(b"x", properties={"p": "x" * size}) for size in sizes]
        with pytest.raises(MessageTooLarge):
            await producer.flush()
        assert [ticket.done() for ticket in tickets] == [True] * 4  # it has waited for all of them
        assert [index for index, ticket in enumerate(tickets) if ticket.exception()] == [alone]
