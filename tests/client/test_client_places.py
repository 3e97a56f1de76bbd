"""Where a subscription is after a seek: by time, to a message on a durable subscription, with nothing behind it."""

import asyncio
import datetime as dt

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client import EARLIEST_ID, AsyncClient, InitialPosition, MessageId
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
def broker():
    return FakeBroker()


@pytest.fixture
async def client(pulsar):
    async with AsyncClient(pulsar.service_url) as connected:
        yield connected


def closing_on_seek(broker):
    """As brokers do: all consumers are closed, then the seek is answered."""

    def seek(_pipe, body):
        broker.say("close_consumer", consumer_id=body.consumer_id, request_id=2**64 - 1)
        return command("success", request_id=body.request_id)

    broker.on["seek"] = seek


def break_connections(client):
    for connection in core_of(client).pool.current():
        connection._transport.abort()


def acked(broker):
    return [(body[1], body[2]) for body in broker.all("ack")]


def now():
    return dt.datetime.now(dt.UTC)


# --- by time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", [False, True])
async def test_a_reader_by_time_goes_back_to_its_time_after_a_lost_connection_and_not_to_the_beginning(broker, closes):
    if closes:
        closing_on_seek(broker)
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", dt.datetime.fromtimestamp(1.5, dt.UTC))
        await broker.until(lambda: len(broker.all("flow")) == (2 if closes else 1))
        assert [body.message_publish_time for body in broker.all("seek")] == [1500]
        for lost in (2, 3):
            broker.pipe.cut()
            await broker.until(lambda lost=lost: len(broker.all("seek")) == lost and reader.is_connected)
        await asyncio.sleep(0.05)
        assert [body.message_publish_time for body in broker.all("seek")] == [1500] * 3
        subscribed = [what for what, _ in broker.got if what in ("subscribe", "seek", "flow")]
        assert subscribed[-1] == "flow"  # nothing may come before it is there
        broker.deliver(1, 7, b"the first")
        assert (await reader.read_next(1)).data == b"the first"
        broker.pipe.cut()
        await broker.until(lambda: len(broker.pipes) == 4 and reader.is_connected)
        again = broker.all("subscribe")[-1].start_message_id
        assert (again.ledgerId, again.entryId, len(broker.all("seek"))) == (1, 7, 3)


async def test_a_return_to_a_time_that_is_refused_is_tried_again(broker):
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", dt.datetime.fromtimestamp(1.5, dt.UTC))

        def refuse_once(_pipe, body):
            del broker.on["seek"]
            return command("error", request_id=body.request_id, error=6, message="not yet")

        broker.on["seek"] = refuse_once
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        what = [name for name, _ in broker.got if name in ("subscribe", "seek", "flow", "close_consumer")]
        assert what == ["subscribe", "flow", "seek", "subscribe", "seek", "close_consumer", "subscribe", "seek", "flow"]
        assert reader.is_connected


async def test_a_durable_subscription_that_was_sought_by_time_is_not_moved_again(broker):
    async with fake_client(broker) as client:
        await client.subscribe("t", "s")
        consumer = await client.subscribe("t", "s")
        await consumer.seek(1500)
        broker.pipe.cut()
        await broker.until(lambda: len(broker.pipes) == 2 and consumer.is_connected)
        await asyncio.sleep(0.02)
        assert len(broker.all("seek")) == 1


async def test_a_seek_to_a_message_ends_the_return_to_a_time(broker):
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", dt.datetime.fromtimestamp(1.5, dt.UTC))
        await reader.seek(MessageId(1, 5))
        broker.pipe.cut()
        await broker.until(lambda: len(broker.pipes) == 2 and reader.is_connected)
        assert len(broker.all("seek")) == 2
        start = broker.all("subscribe")[-1].start_message_id
        assert (start.ledgerId, start.entryId) == (1, 5)


async def test_a_reader_by_time_does_not_replay_the_topic_after_a_lost_connection_on_a_real_broker(client, topic):
    producer = await client.create_producer(topic)
    for number in range(3):
        await producer.send(b"old %d" % number)
    await asyncio.sleep(0.02)
    reader = await client.create_reader(topic, now())
    break_connections(client)
    await asyncio.sleep(0.02)
    await producer.send(b"new")
    assert (await reader.read_next(10)).data == b"new"


async def test_has_message_available_is_false_after_a_seek_by_time_beyond_the_last_message(broker):
    def last(_pipe, body):
        fields = {"last_message_id": {"ledgerId": 1, "entryId": 5}, "consumer_mark_delete_position": mark}
        return command("getLastMessageIdResponse", request_id=body.request_id, **fields)

    broker.on["getLastMessageId"] = last
    async with fake_client(broker) as client:
        mark = {"ledgerId": 1, "entryId": 5}
        reader = await client.create_reader("t", now())
        assert not await reader.has_message_available()
        mark = {"ledgerId": 1, "entryId": 4}
        assert await reader.has_message_available()
        consumer = await client.subscribe("t", "s")
        await consumer.seek(now())
        assert await consumer.has_message_available()
        mark = {"ledgerId": 1, "entryId": 5}
        assert not await consumer.has_message_available()


async def test_reading_while_there_are_messages_ends_after_a_seek_by_time(client, topic):
    producer = await client.create_producer(topic)
    for number in range(3):
        await producer.send(b"%d" % number)
    await asyncio.sleep(0.02)
    reader = await client.create_reader(topic, now() + dt.timedelta(seconds=1))
    assert not await reader.has_message_available()
    await reader.seek(now() - dt.timedelta(seconds=60))
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next(5)).data)
    assert found == [b"0", b"1", b"2"]


# --- to a message, on a subscription with memory ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "payloads", "expected"),
    [
        (MessageId(1, 5), [b"itself"], [(1, 5, None, 0)]),
        (MessageId(1, 5), [b"a", b"b"], [(1, 5, None, 2)]),
        (MessageId(1, 5, -1, 1, 2), [b"a", b"b"], [(1, 5, None, 2)]),
        (MessageId(1, 5, -1, 0, 3), [b"a", b"b", b"c"], [(1, 5, 0b110, 3)]),
    ],
)
async def test_what_a_durable_seek_skips_is_acknowledged(broker, target, payloads, expected):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        await consumer.seek(target)
        broker.deliver(1, 5, *payloads)
        broker.deliver(1, 6, b"next")
        await broker.until(lambda: broker.all("ack"))
        assert acked(broker) == [(False, expected)]
        messages = await consumer.receive_many(3 if len(payloads) == 3 else 1, max_wait=1)
        assert messages[-1].data == b"next"
        await consumer.acknowledge(messages[:-1], receipt=True)
        if len(payloads) == 3:
            assert acked(broker)[-1] == (False, [(1, 5, None, 3)])


async def test_what_a_seek_skipped_is_not_hidden_from_a_later_reset_by_an_administrator(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        await consumer.seek(MessageId(1, 5))
        broker.deliver(1, 5, b"skipped")
        broker.deliver(1, 6, b"next")
        assert (await consumer.receive(1)).data == b"next"
        broker.say("close_consumer", consumer_id=broker.consumer_id, request_id=2**64 - 1)
        await broker.until(lambda: len(broker.all("flow")) == 2)
        broker.deliver(1, 5, b"skipped")
        assert (await consumer.receive(1)).data == b"skipped"


async def test_a_seek_with_the_message_itself_hides_and_acknowledges_nothing(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", start_message_id=MessageId(1, 4))
        broker.deliver(1, 4, b"a durable subscription has its own place")
        await consumer.receive(1)
        await consumer.seek(MessageId(1, 5), inclusive=True)
        broker.deliver(1, 5, b"itself")
        assert (await consumer.receive(1)).data == b"itself"
        await asyncio.sleep(0.15)
        assert not broker.all("ack")


async def test_after_a_durable_seek_another_process_gets_the_message_behind_it(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    ids = [await producer.send(b"%d" % number) for number in range(3)]
    await consumer.seek(ids[1])
    message = await consumer.receive(5)
    assert message.data == b"2"
    await consumer.close()
    again = await client.subscribe(topic, "s")
    assert [each.data for each in await again.receive_many(2, max_wait=0.3)] == [b"2"]
    await again.acknowledge(message, receipt=True)
    assert not await again.has_message_available()
    await again.seek(EARLIEST_ID)
    assert await again.has_message_available()
    assert (await again.receive(5)).data == b"0"


async def test_nothing_is_available_behind_a_durable_seek_to_the_last_message(client, topic):
    consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = await client.create_producer(topic)
    last = [await producer.send(b"%d" % number) for number in range(3)][-1]
    await consumer.seek(last)
    for _ in range(5):
        assert not await consumer.has_message_available()
        await asyncio.sleep(0.05)
