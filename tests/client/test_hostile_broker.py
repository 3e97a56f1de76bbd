"""Brokers that are broken or mean it: the client answers with typed errors, in bounded memory and time, and nothing is lost
on the event loop: every test here fails when an exception reaches the loop's handler."""

import asyncio
import logging
import os
import zlib

import pytest
from fake_broker import SILENCE, fake_client

from pulsar_txn.client import InitialPosition
from pulsar_txn.client.errors import (
    ConnectionLost,
    OperationTimeout,
    ProtocolError,
    PulsarError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.frames import FRAME_PADDING, MAX_MESSAGE_SIZE, command

BOMB = zlib.compress(bytes(80_000_000), 1)
"""Small, and larger than what the client unpacks."""

PROMPT = 3.0
"""Seconds in which everything here has to be answered."""


@pytest.fixture(autouse=True)
async def unhandled():
    """What reached the loop's exception handler; nothing may."""
    found = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: found.append(context))
    yield found
    await asyncio.sleep(0)
    assert found == []


async def fails(work, *kinds):
    """The typed error that `work` ends with, in time."""
    async with asyncio.timeout(PROMPT):
        with pytest.raises(kinds or PulsarError) as caught:
            await work
    return caught.value


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
@pytest.mark.parametrize("when", ["connect", "partitionMetadata", "lookupTopic", "producer", "send"])
async def test_garbage_instead_of_an_answer_is_a_typed_error(broker, when, size):
    broker.on[when] = lambda _pipe, _body: b"\x00\x00\x00\x10" + os.urandom(size)
    async with fake_client(broker, operation_timeout=0.3, connection_timeout=0.1) as client:

        async def produce():
            producer = await client.create_producer("t", send_timeout=0.3)
            await producer.send(b"x")

        await fails(produce())


@pytest.mark.parametrize("when", ["connect", "partitionMetadata", "lookupTopic", "producer", "send", "subscribe", "flow"])
async def test_a_connection_that_closes_in_the_middle_of_everything_is_connection_lost_or_a_timeout(broker, when):
    broker.on[when] = lambda pipe, _body: pipe.cut()
    async with fake_client(broker, operation_timeout=0.3) as client:

        async def everything():
            consumer = await client.subscribe("t", "s")
            producer = await client.create_producer("t", send_timeout=0.3)
            await producer.send(b"x")
            await consumer.receive(0.3)

        await fails(everything(), ConnectionLost, OperationTimeout)


async def test_an_oversize_frame_is_refused_before_its_bytes_are_kept(broker):
    async with fake_client(broker, operation_timeout=0.3) as client:
        await client.create_producer("t")
        connection = core_of(client).pool.current()[0]
        broker.pipe.send((MAX_MESSAGE_SIZE + FRAME_PADDING + 1).to_bytes(4) + b"x" * 1000)
        await broker.until(lambda: connection.closed)
        assert isinstance(connection.error, RemoteProtocolError)
        assert connection._reader.buffered < 2000


async def test_a_maximum_without_measure_in_connected_is_not_believed(broker):
    """The frame that the client is ready to buffer stays bounded, whatever the broker announces."""
    broker.on["connect"] = lambda _pipe, _body: command(
        "connected", server_version="x", protocol_version=21, max_message_size=2**31 - 1
    )
    async with fake_client(broker, operation_timeout=0.3) as client:
        await client.create_producer("t")
        connection = core_of(client).pool.current()[0]
        broker.pipe.send((2**31 - 2).to_bytes(4) + b"x" * 1000)
        await broker.until(lambda: connection.closed)
        assert isinstance(connection.error, RemoteProtocolError)


async def test_a_truncated_frame_waits_and_is_a_timeout(broker):
    broker.on["lookupTopic"] = lambda _pipe, body: command("lookupTopicResponse", request_id=body.request_id)[:-1]
    async with fake_client(broker, operation_timeout=0.2) as client:
        await fails(client.create_producer("t"), OperationTimeout, ConnectionLost)


async def test_an_answer_of_the_wrong_kind_is_a_protocol_error(broker):
    broker.on["lookupTopic"] = lambda _pipe, body: command("success", request_id=body.request_id)
    async with fake_client(broker, operation_timeout=0.3) as client:
        await fails(client.create_producer("t"), RemoteProtocolError)


async def test_an_ack_response_to_another_request_is_a_protocol_error(broker):
    broker.on["partitionMetadata"] = lambda _pipe, body: hot.encode_ack_response(1, body.request_id)
    async with fake_client(broker, operation_timeout=0.3) as client:
        await fails(client.get_topic_partitions("t"), RemoteProtocolError)


async def test_answers_to_nobody_are_ignored(broker):
    async with fake_client(broker) as client:
        producer = await client.create_producer("t")
        for number in (0, 12345, 2**63, 2**64 - 1):
            broker.say("success", request_id=number)
            broker.say("error", request_id=number, error=1, message="nobody asked")
            broker.say("lookupTopicResponse", request_id=number, response=1)
            broker.pipe.send(hot.encode_ack_response(7, number))
            broker.say("close_producer", producer_id=number, request_id=number)
            broker.say("close_consumer", consumer_id=number, request_id=number)
            broker.say("reachedEndOfTopic", consumer_id=number)
            broker.say("active_consumer_change", consumer_id=number, is_active=True)
        assert await producer.send(b"x")
        assert len(broker.pipes) == 1


async def test_answers_to_the_wrong_request_time_the_right_one_out(broker):
    broker.on["lookupTopic"] = lambda _pipe, body: command("lookupTopicResponse", request_id=body.request_id + 1000, response=1)
    async with fake_client(broker, operation_timeout=0.2) as client:
        await fails(client.create_producer("t"), OperationTimeout, ConnectionLost)


async def test_receipts_for_unknown_sequence_ids_settle_nothing(broker):
    broker.on["send"] = lambda _pipe, body: hot.encode_send_receipt(body[0], body[1] + 77, 1, 1)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", send_timeout=0.2)
        await fails(producer.send(b"x"), OperationTimeout)


async def test_endless_redirects_end_with_a_protocol_error(broker):
    broker.on["lookupTopic"] = lambda _pipe, body: command(
        "lookupTopicResponse", request_id=body.request_id, response=0, brokerServiceUrl=f"pulsar://{broker.address}"
    )
    async with fake_client(broker, max_lookup_redirects=5) as client:
        await fails(client.create_producer("t"), RemoteProtocolError)
        assert len(broker.all("lookupTopic")) < 100


@pytest.mark.parametrize("url", ["", "x", "http://a", "pulsar://", "pulsar://a:99999999", "pulsar://[::", "\x00" * 10])
async def test_a_lookup_that_names_nonsense_is_a_protocol_error(broker, url):
    broker.on["lookupTopic"] = lambda _pipe, body: command(
        "lookupTopicResponse", request_id=body.request_id, response=1, brokerServiceUrl=url
    )
    async with fake_client(broker, operation_timeout=0.3) as client:
        await fails(client.create_producer("t"), ProtocolError)


@pytest.mark.parametrize("count", [2**32 - 1, 1_000_000_000])
async def test_a_topic_of_billions_of_partitions_is_a_protocol_error(broker, count):
    broker.partitions["persistent://public/default/t"] = count
    async with fake_client(broker, operation_timeout=0.3) as client:
        await fails(client.create_producer("t"), RemoteProtocolError)
        await fails(client.subscribe("t", "s"), RemoteProtocolError)
        await fails(client.get_topic_partitions("t"), RemoteProtocolError)


@pytest.mark.parametrize("version", [0, 1, 16, -1])
async def test_a_wrong_protocol_version_is_refused(broker, version):
    broker.on["connect"] = lambda _pipe, _body: command("connected", server_version="x", protocol_version=version)
    async with fake_client(broker) as client:
        await fails(client.create_producer("t"), UnsupportedVersionError)


@pytest.mark.parametrize("name", ["partitionMetadata", "lookupTopic", "producer", "subscribe"])
async def test_a_broker_that_does_not_answer_is_a_timeout(broker, name):
    broker.on[name] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=0.2) as client:
        work = client.subscribe("t", "s") if name == "subscribe" else client.create_producer("t")
        await fails(work, OperationTimeout, ConnectionLost)


@pytest.mark.parametrize("name", ["producer", "lookupTopic"])
async def test_a_place_in_a_queue_that_nobody_asked_for_does_not_wait_for_ever(broker, name):
    """Only WAIT_FOR_EXCLUSIVE waits without a limit for its turn."""
    broker.on[name] = lambda _pipe, body: command(
        "producer_success", request_id=body.request_id, producer_name="p", producer_ready=False
    )
    async with fake_client(broker, operation_timeout=0.2) as client:
        await fails(client.create_producer("t"), OperationTimeout, ConnectionLost, RemoteProtocolError)


async def test_a_producer_that_is_closed_at_once_again_and_again_ends_with_the_sends_timeout(broker):
    broker.on["send"] = lambda _pipe, body: command("close_producer", producer_id=body[0], request_id=1)
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", send_timeout=0.3)
        await fails(producer.send(b"x"), OperationTimeout)
        assert len(broker.all("producer")) < 200


# --- messages -----------------------------------------------------------------------------------------------------------


def message_frame(broker, entry, entry_id=0):
    return b"".join(hot.encode_message(broker.consumer_id, 1, entry_id, entry))


async def subscribed(client, **options):
    return await client.subscribe("t", "s", initial_position=InitialPosition.EARLIEST, **options)


@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1, 1_000_000, 3])
async def test_a_batch_that_lies_about_its_count_is_discarded_and_its_permits_stay_within_measure(broker, count):
    async with fake_client(broker) as client:
        consumer = await subscribed(client, receiver_queue_size=10)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
        broker.pipe.send(message_frame(broker, encode_entry(metadata, b"xxxxx")))
        broker.deliver(1, 1, b"good")
        assert (await consumer.receive(1)).data == b"good"
        await asyncio.sleep(0.02)
        assert broker.permits[broker.consumer_id] < 1000


@pytest.mark.parametrize("claimed", [0, 10, 2**31, 2**32 - 1])
async def test_a_decompression_bomb_is_discarded(broker, claimed):
    async with fake_client(broker) as client:
        consumer = await subscribed(client)
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, compression=2, uncompressed_size=claimed
        )
        broker.pipe.send(message_frame(broker, encode_entry(metadata, BOMB)))
        broker.deliver(1, 1, b"good")
        assert (await consumer.receive(2)).data == b"good"
        await broker.until(lambda: broker.all("ack"))


async def test_a_flood_beyond_the_permits_closes_the_connection(broker):
    """Bounded memory: a broker that does not count is taken for broken once it is far beyond what it was allowed."""
    async with fake_client(broker) as client:
        consumer = await subscribed(client, receiver_queue_size=10)
        first = broker.pipe
        entry = encode_entry(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x" * 100)
        for number in range(60_000):
            if not first.is_open:
                break
            first._to_client(message_frame(broker, entry, number))
        assert not first.is_open
        assert consumer.queued < 20_000


async def test_text_that_is_no_text_in_a_message_is_discarded_or_kept_from_the_loop(broker):
    async with fake_client(broker) as client:
        consumer = await subscribed(client)
        plain = pb.MessageMetadata(producer_name="PROD", sequence_id=0, publish_time=1, partition_key="KEYS")
        plain.properties.add(key="PROP", value="VALUE")
        head = plain.SerializeToString()
        for number, word in enumerate((b"PROD", b"KEYS", b"PROP", b"VALUE")):
            bad = head.replace(word, b"\xff" * len(word))
            raw = len(bad).to_bytes(4) + bad + b"payload"
            broker.pipe.send(message_frame(broker, raw, number))
        broker.deliver(1, 10, b"good")
        seen = []
        while not seen or seen[-1].data != b"good":
            seen.append(await consumer.receive(1))
        for message in seen:
            assert isinstance(message.key, str | None)
            assert isinstance(message.producer_name, str)
            assert isinstance(dict(message.properties), dict)


async def test_a_log_of_what_is_wrong_is_written(broker, caplog):
    async with fake_client(broker) as client:
        consumer = await subscribed(client)
        with caplog.at_level(logging.ERROR, "pulsar_txn.client"):
            broker.pipe.send(message_frame(broker, b"\x0e\x01" + b"garbage" * 10))
            broker.deliver(1, 1, b"good")
            assert (await consumer.receive(1)).data == b"good"
        assert "was discarded" in caplog.text
