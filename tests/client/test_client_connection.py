"""Connections: handshake, signs of life, requests, and what a stranger at the other end looks like."""

import asyncio
import socket

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client
from hypothesis import given, settings
from hypothesis import strategies as st
from insides import partitions_of

from pulsar_txn.client import AsyncClient, TokenAuthentication
from pulsar_txn.client.errors import (
    AlreadyClosed,
    AuthenticationError,
    ConnectionLost,
    InvalidConfiguration,
    InvalidTopicName,
    OperationTimeout,
    PulsarError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from pulsar_txn.client.net.service_url import Address, parse_service_url
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.txn import transactions
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import ASSIGN_TOPIC

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6650",
        "http://localhost:8080",
        "kafka://localhost:9092",
        "pulsar://",
        "pulsar://host:port",
        "pulsar://a/b",
        "",
    ],
)
async def test_a_wrong_url_is_refused_with_what_to_write_instead(url):
    with pytest.raises(InvalidConfiguration, match="host"):
        AsyncClient(url)


def test_hosts_and_ports_of_a_service_url():
    assert parse_service_url("pulsar://a,b:1,[::1]:2") == [Address("a", 6650), Address("b", 1), Address("::1", 2)]
    assert parse_service_url("pulsar+ssl://a") == [Address("a", 6651, tls=True)]
    assert str(Address("::1", 2)) == "[::1]:2"


@pytest.mark.parametrize("option", ["operation_timeout", "connection_timeout", "keep_alive_interval"])
async def test_a_timeout_that_is_not_positive_is_refused(option):
    with pytest.raises(InvalidConfiguration, match=option):
        AsyncClient("pulsar://localhost", **{option: 0})


async def test_a_closed_port_is_connection_lost_with_a_hint():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with AsyncClient(f"pulsar://127.0.0.1:{port}", operation_timeout=0.2) as client:
        with pytest.raises(ConnectionLost, match="is a broker running there") as caught:
            await client.get_topic_partitions("t")
    assert caught.value.endpoint == f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"-ERR unknown command\r\n", b"\x15\x03\x03\x00\x02\x02\x46"]
)
async def test_a_server_that_is_not_pulsar_is_named_so(greeting):
    async def answer(reader, writer):
        await reader.read(10)
        writer.write(greeting)
        await writer.drain()
        writer.close()  # since Python 3.12 a server waits for its connections when it closes

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, AsyncClient(f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}", operation_timeout=2) as client:
        with pytest.raises(RemoteProtocolError, match="Pulsar broker"):
            await client.get_topic_partitions("t")


async def test_a_server_that_hangs_up_during_the_handshake_is_asked_about():
    broker = FakeBroker()
    broker.on["connect"] = lambda pipe, _body: pipe.cut()
    async with fake_client(broker, operation_timeout=0.1) as client:
        with pytest.raises(ConnectionLost, match="binary port"):
            await client.get_topic_partitions("t")


async def test_a_server_that_says_nothing_times_out():
    broker = FakeBroker()
    broker.on["connect"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=0.3, connection_timeout=0.05) as client:
        with pytest.raises(OperationTimeout, match="CONNECT"):
            await client.get_topic_partitions("t")


async def test_a_broker_that_is_too_old_is_refused():
    broker = FakeBroker()
    broker.on["connect"] = lambda _pipe, _body: command("connected", server_version="Pulsar Server2.0", protocol_version=12)
    async with fake_client(broker) as client:
        with pytest.raises(UnsupportedVersionError, match=r"2\.10"):
            await client.get_topic_partitions("t")


async def test_a_rejected_token_is_an_authentication_error():
    broker = FakeBroker()
    broker.on["connect"] = lambda _pipe, _body: command("error", request_id=2**64 - 1, error=3, message="bad token")
    async with fake_client(broker, authentication=TokenAuthentication("secret")) as client:
        with pytest.raises(AuthenticationError, match="bad token"):
            await client.get_topic_partitions("t")
    assert broker.all("connect")[0].auth_data == b"secret"
    assert broker.all("connect")[0].auth_method_name == "token"


async def test_a_challenge_is_answered_with_the_current_token():
    tokens = iter(["first", "second"])
    broker = FakeBroker()
    async with fake_client(broker, authentication=TokenAuthentication(lambda: next(tokens))) as client:
        await client.get_topic_partitions("t")
        broker.say("authChallenge", server_version="x")
        await broker.until(lambda: broker.all("authResponse"))
    assert broker.all("authResponse")[0].response.auth_data == b"second"


async def test_a_frame_that_is_too_large_closes_the_connection_with_a_typed_error():
    broker = FakeBroker()
    broker.on["partitionMetadata"] = lambda pipe, _body: (200 * 1024 * 1024).to_bytes(4) + b"x"
    async with fake_client(broker, operation_timeout=0.1) as client:
        with pytest.raises(RemoteProtocolError, match="bytes is announced"):
            await client.get_topic_partitions("t")
    assert not broker.pipes[0].is_open


async def test_a_ping_is_answered():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        await client.get_topic_partitions("t")
        broker.say("ping")
        await broker.until(lambda: broker.all("pong"))


async def test_a_broker_without_a_sign_of_life_is_left():
    broker = FakeBroker()
    async with fake_client(broker, keep_alive_interval=0.03) as client:
        await client.get_topic_partitions("t")
        await asyncio.sleep(0.1)
        assert broker.pipe.is_open  # pongs came
        broker.on["ping"] = lambda _pipe, _body: SILENCE
        await broker.until(lambda: not broker.pipes[0].is_open)


async def test_what_is_written_in_one_turn_of_the_loop_leaves_in_one_write():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        await client.get_topic_partitions("t")
        writes = len(broker.pipe.writes)
        await asyncio.gather(*(client.get_topic_partitions(f"t{index}") for index in range(20)))
        assert len(broker.pipe.writes) == writes + 1
    assert len(broker.pipes) == 1


async def test_a_request_without_an_answer_times_out_and_may_have_been_processed():
    broker = FakeBroker()
    broker.on["partitionMetadata"] = lambda _pipe, _body: SILENCE
    async with fake_client(broker, operation_timeout=0.05) as client:
        with pytest.raises(OperationTimeout):
            await client.get_topic_partitions("t")


async def test_a_lost_connection_fails_its_requests_as_maybe_processed_and_the_operation_is_tried_again():
    broker = FakeBroker()
    broker.on["partitionMetadata"] = lambda pipe, _body: broker.on.pop("partitionMetadata") and pipe.cut()
    async with fake_client(broker) as client:
        assert await client.get_topic_partitions("t") == ["persistent://public/default/t"]
    assert len(broker.pipes) == 2


async def test_use_after_close_is_already_closed():
    broker = FakeBroker()
    client = fake_client(broker)
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s")
    await client.close()
    await client.close()
    with pytest.raises(AlreadyClosed):
        await client.create_producer("t")
    with pytest.raises(AlreadyClosed):
        await client.subscribe("t", "s")
    with pytest.raises(AlreadyClosed):
        await producer.send(b"x")
    with pytest.raises(AlreadyClosed):
        await consumer.receive()
    assert not any(pipe.is_open for pipe in broker.pipes)


async def test_closing_goes_on_when_who_asked_for_it_is_cancelled():
    broker = FakeBroker()
    broker.on["send"] = lambda _pipe, _body: SILENCE
    client = fake_client(broker, operation_timeout=0.2)
    producer = await client.create_producer("t")
    waiting = producer.send_nowait(b"no receipt comes")
    closing = asyncio.create_task(client.close())
    await broker.until(lambda: broker.all("send"))
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await client.close()
    assert waiting.done()
    assert not any(pipe.is_open for pipe in broker.pipes)


@pytest.mark.parametrize("silent", ["connect", "lookupTopic", "producer", "tcClientConnectRequest"])
async def test_what_is_under_way_when_the_client_is_closed_is_not_left_hanging(silent):
    broker = FakeBroker()
    broker.partitions[ASSIGN_TOPIC] = 1
    broker.on[silent] = lambda _pipe, _body: SILENCE
    client = fake_client(broker, operation_timeout=20, connection_timeout=20)
    opening = [asyncio.create_task(client.create_producer("t")), asyncio.create_task(client.begin_transaction())]
    await broker.until(lambda: broker.all(silent))
    await client.close()
    async with asyncio.timeout(1):
        results = await asyncio.gather(*opening, return_exceptions=True)
    assert any(isinstance(result, PulsarError) for result in results)
    assert not any(isinstance(result, asyncio.CancelledError) for result in results)


@pytest.mark.parametrize("silent", [None, "producer", "newTxn", "subscribe"])
async def test_a_client_may_be_closed_in_any_turn_of_the_loop(silent, monkeypatch):
    """Named after a hang: what was registered after the last look at what is to be closed was cut off without a word."""
    monkeypatch.setattr(transactions, "CLOSE_SECONDS", 0.02)  # an unanswered NEW_TXN is waited for, in most of the turns
    for turns in range(40):
        broker = FakeBroker()
        broker.partitions[ASSIGN_TOPIC] = 1
        if silent is not None:
            broker.on[silent] = lambda _pipe, _body: SILENCE
        client = fake_client(broker, operation_timeout=20)
        work = (client.create_producer("t"), client.begin_transaction(), client.subscribe("u", "s"))
        opening = [asyncio.create_task(each) for each in work]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await client.close()
            results = await asyncio.gather(*opening, return_exceptions=True)
        assert all(not isinstance(each, BaseException) or isinstance(each, PulsarError) for each in results), turns


@pytest.mark.parametrize("name", ["", "a/b", "ftp://a/b/c", "persistent://a/b"])
async def test_a_bad_topic_name_is_refused_before_anything_is_sent(name):
    broker = FakeBroker()
    async with fake_client(broker) as client:
        with pytest.raises(InvalidTopicName):
            await client.create_producer(name)
    assert broker.pipes == []


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_garbage_ends_in_a_typed_error_and_nothing_else(garbage, framed):
    async def run():
        problems = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        broker = FakeBroker()
        data = len(garbage).to_bytes(4) + garbage if framed else garbage
        broker.on["partitionMetadata"] = lambda _pipe, _body: data
        client = fake_client(broker, operation_timeout=0.02)
        with pytest.raises(PulsarError):
            await client.get_topic_partitions("t")
        await client.close()
        assert problems == []

    asyncio.run(run())


async def test_the_rest_of_a_message_that_looks_like_a_receipt_is_none():
    """What is read in one go when it comes by itself."""
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer, producer = await client.subscribe("t", "s"), await client.create_producer("t")
        broker.on["send"] = lambda _pipe, _body: SILENCE
        ticket = producer.send_nowait(b"x")
        await broker.until(lambda: broker.all("send"))
        receipt = hot.encode_send_receipt(partitions_of(producer)[0].id, 0, 1, 1)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        entry = encode_entry(metadata, b"payload" + receipt)
        frame = b"".join(hot.encode_message(reception_of(consumer).partitions.all[0].id, 1, 1, entry))
        connection = reception_of(consumer).partitions.all[0].channel.connection
        connection.data_received(frame[: -len(receipt)])
        connection.data_received(frame[-len(receipt) :])
        assert (await consumer.receive(5)).data == b"payload" + receipt
        assert not ticket.done()
        connection.data_received(receipt)
        assert (await ticket).entry_id == 1
