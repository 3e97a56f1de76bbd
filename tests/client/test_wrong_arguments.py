"""Wrong arguments, one row each: the call, the error's class, and a word of its text. Asyncio and sync say the same.

A row is called with the asyncio client and its objects, and with the sync ones.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_txn import compat as pulsar
from pulsar_txn.client import (
    EARLIEST_ID,
    AccessMode,
    AsyncClient,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    JsonSchema,
    KeySharedPolicy,
    MessageId,
    RedeliveryBackoff,
    TokenAuthentication,
    sync,
)
from pulsar_txn.client.encoded import open_entry_reader
from pulsar_txn.client.errors import (
    ConnectionLost,
    InvalidConfiguration,
    InvalidTopicName,
    OperationTimeout,
    ProducerFenced,
    RemoteProtocolError,
    TransactionConflict,
    TransactionStateError,
    UsageError,
)
from pulsar_txn.client.messages import deserialize_message_id
from pulsar_txn.client.options import AutoClusterFailover
from pulsar_txn.client.outbox import AsyncOutbox
from pulsar_txn.client.schemas import KeyValueSchema
from pulsar_txn.client.sync.loop_thread import LoopThread

HALF = "a\ud800"
"""No text that UTF-8 can say."""
THREE_SECONDS = timedelta(seconds=3)
NAN = math.nan
SHARED = {"consumer_type": ConsumerType.SHARED}

Row = tuple[Callable[[Any], Any], type[BaseException], str]


class Async:
    """An asyncio client with a producer and a consumer, on a loop of a thread."""

    def __init__(self, url: str) -> None:
        self.thread = LoopThread()
        self.see = self.thread.run(lambda: self._open(url))

    async def _open(self, url: str) -> SimpleNamespace:
        client = AsyncClient(url, operation_timeout=5)
        producer = await client.create_producer("asyncio")
        consumer = await client.subscribe("asyncio", "s", initial_position=InitialPosition.EARLIEST)
        return SimpleNamespace(client=client, producer=producer, consumer=consumer, url=url, new=AsyncClient)

    def run(self, call: Callable[[Any], Any]) -> Any:
        async def work() -> Any:
            given = call(self.see)
            return await given if inspect.isawaitable(given) else given

        return self.thread.run(lambda: asyncio.wait_for(work(), 10))

    def close(self) -> None:
        self.run(lambda see: see.client.close())
        self.thread.stop()


class Sync:
    """The same with the blocking client."""

    def __init__(self, url: str) -> None:
        client = sync.Client(url, operation_timeout=5)
        producer = client.create_producer("sync")
        consumer = client.subscribe("sync", "s", initial_position=InitialPosition.EARLIEST)
        self.see = SimpleNamespace(client=client, producer=producer, consumer=consumer, url=url, new=sync.Client)

    def run(self, call: Callable[[Any], Any]) -> Any:
        return call(self.see)

    def close(self) -> None:
        self.see.client.close()


@pytest.fixture(params=[Async, Sync], ids=["asyncio", "sync"], scope="module")
def side(request: pytest.FixtureRequest, module_url: str) -> Iterator[Async | Sync]:
    side = request.param(module_url)
    yield side
    side.close()


def client_row(word: str, **options: Any) -> Row:
    return lambda see: see.new(see.url, **options), InvalidConfiguration, word


def producer_row(word: str, **options: Any) -> Row:
    return lambda see: see.client.create_producer("t", **options), InvalidConfiguration, word


def consumer_row(word: str, **options: Any) -> Row:
    return lambda see: see.client.subscribe("t", "other", **options), InvalidConfiguration, word


def send_row(word: str, **options: Any) -> Row:
    return lambda see: see.producer.send(b"x", **options), InvalidConfiguration, word


def pipeline_row(word: str, **options: Any) -> Row:
    return lambda see: see.client.pipeline(see.consumer, print, **options), InvalidConfiguration, word


CLIENTS: list[Row] = [
    *(
        (lambda see, url=url: see.new(url), InvalidConfiguration, "service_url")
        for url in (None, 5, b"pulsar://h", ["pulsar://h"])
    ),
    client_row("authentication", authentication="token"),
    client_row("authentication", authentication=TokenAuthentication),
    client_row("operation_timeout", operation_timeout="5"),
    client_row("operation_timeout", operation_timeout=None),
    client_row("operation_timeout", operation_timeout=NAN),
    client_row("connection_timeout", connection_timeout="x"),
    client_row("keep_alive_interval", keep_alive_interval=None),
    client_row("initial_backoff", initial_backoff=[]),
    client_row("description", description=None),
    client_row("description", description=5),
    client_row("listener_name", listener_name=5),
    client_row("transactional_id", transactional_id=5),
    client_row("max_lookup_redirects", max_lookup_redirects="a"),
    client_row("sni_proxy_url", sni_proxy_url=5),
    client_row("memory_limit", memory_limit="1"),
    client_row("tls_context", tls_context=5),
    client_row("tls_trust_certs_file", tls_trust_certs_file=5),
    client_row("tls_validate_hostname", tls_validate_hostname="no"),
]

TOPICS: list[Row] = [
    *(
        (lambda see, name=name: see.client.create_producer(name), InvalidConfiguration, "topic must")
        for name in (None, 5, b"x", HALF)
    ),
    *((lambda see, name=name: see.client.create_reader(name), InvalidConfiguration, "topic must") for name in (None, HALF)),
    *(
        (lambda see, name=name: see.client.subscribe(name, "s2"), InvalidConfiguration, "topic must")
        for name in (None, 5, [1], b"x", HALF)
    ),
    *(
        (lambda see, name=name: see.client.subscribe("t", name), InvalidConfiguration, "subscription must")
        for name in (None, 5, b"s", HALF)
    ),
    (lambda see: see.client.subscribe(re.compile(b"x"), "s2"), InvalidConfiguration, "pattern of topic must"),
    (lambda see: see.client.get_topic_partitions(None), InvalidConfiguration, "topic must"),
    (lambda see: see.client.create_producer("public//x"), InvalidTopicName, "empty namespace"),
    (lambda see: see.client.create_producer("/default/x"), InvalidTopicName, "empty tenant"),
    (lambda see: see.client.create_reader("t", "x"), InvalidConfiguration, "start must"),
    (lambda see: see.client.create_reader("t", **SHARED), InvalidConfiguration, "consumer_type=SHARED"),
    (lambda see: see.client.create_reader("t", durable=True), InvalidConfiguration, "durable"),
    (lambda see: see.client.create_reader("t", consumer_name="z"), InvalidConfiguration, "reader_name"),
]

SENDS: list[Row] = [
    send_row("partition", partition="x"),
    send_row("partition", partition=1.0),
    send_row("deliver_at", deliver_at=datetime.min),  # noqa: DTZ901 - that is the mistake
    send_row("time zone", deliver_at=datetime(2030, 1, 1)),  # noqa: DTZ001 - that is the mistake
    send_row("properties", properties={1: 2}),
    send_row("properties", properties=["a"]),
    (lambda see: see.producer.send(b"x", txn=see.client.transaction()), UsageError, "with client.transaction"),
    (lambda see: see.producer.send(b"x", key="k", txn=see.client.transaction()), UsageError, "with client.transaction"),
    (lambda see: see.producer.send(b"x", deliver_after=1, txn=see.client.transaction()), UsageError, "with client.transaction"),
    (lambda see: see.producer.send_nowait(b"x", txn=see.client.transaction()), UsageError, "with client.transaction"),
    (lambda see: see.consumer.acknowledge(see.message, txn=see.client.transaction()), UsageError, "with client.transaction"),
    (lambda see: see.consumer.acknowledge_cumulative(see.message, txn=see.client.transaction()), UsageError, "with client.tr"),
]

PRODUCERS: list[Row] = [
    producer_row("send_timeout is no time", send_timeout="x"),
    producer_row("send_timeout", send_timeout=None),
    producer_row("send_timeout", send_timeout=NAN),
    producer_row("batching_max_delay", batching_max_delay="x"),
    producer_row(r"access_mode must be one of AccessMode\.SHARED", access_mode="x"),
    producer_row("compression must be one of Compression.NONE", compression="LZ4"),
    producer_row("batching_type", batching_type="x"),
    producer_row("hashing", hashing="x"),
    producer_row("routing must be one of RoutingMode.*a function", routing="x"),
    producer_row("schema", schema=str),
    producer_row("schema", schema=5),
    producer_row("schema", schema="bytes"),
    producer_row("a name in properties", properties={1: 2}),
    producer_row("producer_name", producer_name=5),
    producer_row("initial_sequence_id", initial_sequence_id="x"),
    producer_row("initial_sequence_id", initial_sequence_id=-1),
    producer_row("initial_sequence_id .*at most", initial_sequence_id=1 << 63),
    producer_row("initial_subscription", initial_subscription=5),
    producer_row("max_pending_messages", max_pending_messages="x"),
    producer_row("batching_max_messages", batching_max_messages="x"),
    producer_row("chunking", chunking="x"),
    producer_row("crypto_keys", encryption_keys=["x"], crypto_keys=5),
    producer_row("encryption_keys", encryption_keys=5),
    producer_row("nope", nope=1),
]

CONSUMERS: list[Row] = [
    consumer_row("schema", schema=str),
    consumer_row("schema", schema=5),
    consumer_row("consumer_type must be one of ConsumerType.EXCLUSIVE", consumer_type="Shared"),
    consumer_row(
        "initial_position must be one of InitialPosition.LATEST, InitialPosition.EARLIEST, or 'latest'",
        initial_position="first",
    ),
    consumer_row("consumer_name", consumer_name=5),
    consumer_row("interceptors", interceptors=[5]),
    consumer_row("durable", durable="x"),
    consumer_row("receiver_queue_size", receiver_queue_size=1.5),
    consumer_row("receiver_queue_size", receiver_queue_size="x"),
    consumer_row("receiver_queue_size", receiver_queue_size=0),
    consumer_row("ack_timeout is no time", ack_timeout="x"),
    consumer_row("negative_ack_backoff", negative_ack_backoff=5),
    consumer_row("start_message_id", start_message_id="x"),
    consumer_row("crypto_keys", crypto_keys=5),
    consumer_row("crypto_failure_action", crypto_failure_action="x"),
    consumer_row("properties", properties={1: 1}),
    consumer_row("subscription_properties", subscription_properties=5),
    consumer_row("dead_letter_policy", dead_letter_policy=5, **SHARED),
    consumer_row("key_shared_policy", key_shared_policy=5),
    consumer_row("priority_level", priority_level="x"),
    consumer_row("priority_level .*at most", priority_level=1 << 31),
    consumer_row("replicate_subscription_state", replicate_subscription_state="x"),
]

RECEIVES: list[Row] = [
    (lambda see: see.consumer.receive("x"), InvalidConfiguration, "timeout is no time"),
    (lambda see: see.consumer.receive(NAN), InvalidConfiguration, "timeout is no time"),
    (lambda see: see.consumer.receive_many("x"), InvalidConfiguration, "max_messages"),
    (lambda see: see.consumer.receive_many(1.5, max_wait=1), InvalidConfiguration, "max_messages"),
    (lambda see: see.consumer.receive_many(5, max_wait="x"), InvalidConfiguration, "max_wait"),
    (lambda see: see.consumer.receive(timedelta(seconds=0.01)), OperationTimeout, "within 0.01 s"),
    *(
        (lambda see, it=it: see.consumer.negative_acknowledge(it), InvalidConfiguration, "message must")
        for it in (None, 5, "x")
    ),
    *(
        (lambda see, it=it: see.consumer.acknowledge_cumulative(it), InvalidConfiguration, "message must")
        for it in ([None], "x")
    ),
    *(
        (lambda see, it=it: see.consumer.acknowledge(it, receipt=True), InvalidConfiguration, "message must")
        for it in (None, 5, "x", b"x", [None], {"a": 1})
    ),
    *(
        (lambda see, ask=ask, it=it: ask(see.consumer, MessageId(*it)), InvalidConfiguration, "no message's place")
        for it in ((-5, 0), (0, 1 << 63), (1 << 64, 0))
        for ask in (
            lambda consumer, it: consumer.acknowledge(it, receipt=True),
            lambda consumer, it: consumer.acknowledge_cumulative(it),
            lambda consumer, it: consumer.negative_acknowledge(it),
            lambda consumer, it: consumer.seek(it),
        )
    ),
    (lambda see: see.consumer.seek(datetime.min), InvalidConfiguration, "a MessageId, a datetime"),  # noqa: DTZ901
    (lambda see: see.consumer.negative_acknowledge(see.message, delay="x"), InvalidConfiguration, "delay is no time"),
]

UNITS: list[Row] = [
    (lambda see: see.client.run_transaction(print, attempts="x"), InvalidConfiguration, "attempts"),
    (lambda see: see.client.run_transaction(print, attempts=0), InvalidConfiguration, "attempts"),
    (lambda see: see.client.run_transaction(print, backoff=5), InvalidConfiguration, "backoff"),
    pipeline_row("on_poison must be one of Poison.DEAD_LETTER", on_poison="x"),
    pipeline_row("concurrency", concurrency="x"),
    pipeline_row("max_messages", max_messages=0),
    pipeline_row("max_aborts", max_aborts="x"),
    pipeline_row("max_wait", max_wait="x"),
]

VALUES: list[Row] = [
    (lambda _: DeadLetterPolicy(max_redeliver_count="x"), InvalidConfiguration, "max_redeliver_count"),
    (lambda _: DeadLetterPolicy(max_redeliver_count=1, dead_letter_topic=5), InvalidConfiguration, "dead_letter_topic must"),
    (lambda _: KeySharedPolicy(5), InvalidConfiguration, "sticky_ranges"),
    (lambda _: KeySharedPolicy(["ab"]), InvalidConfiguration, "sticky_ranges"),
    (lambda _: RedeliveryBackoff(min_delay="x"), InvalidConfiguration, "min_delay"),
    (
        lambda _: AutoClusterFailover(primary="pulsar://a", secondaries=["pulsar://b"], check_interval="x"),
        UsageError,
        "check_in",
    ),
    (lambda _: AutoClusterFailover(primary=5, secondaries=["pulsar://b"]), UsageError, "service_url"),
    (lambda _: KeyValueSchema(5, JsonSchema()), InvalidConfiguration, "key must"),
    (lambda _: JsonSchema(5), InvalidConfiguration, "of must"),
    (lambda _: TokenAuthentication(None), InvalidConfiguration, "token must"),
    (lambda _: deserialize_message_id(5), InvalidConfiguration, "data must"),
]


@pytest.mark.parametrize(
    ("call", "error", "word"), [*CLIENTS, *TOPICS, *SENDS, *PRODUCERS, *CONSUMERS, *RECEIVES, *UNITS, *VALUES]
)
def test_a_wrong_argument_is_named(
    side: Async | Sync, call: Callable[[Any], Any], error: type[BaseException], word: str
) -> None:
    if not hasattr(side.see, "message"):
        side.run(lambda see: see.producer.send(b"first"))
        side.see.message = side.run(lambda see: see.consumer.receive(10))
    with pytest.raises(error, match=word) as caught:
        side.run(call)
    assert isinstance(caught.value, UsageError | OperationTimeout)


def test_what_was_refused_has_left_nothing_behind(side: Async | Sync) -> None:
    test_a_wrong_argument_is_named(side, *SENDS[0])
    for call, _, _ in SENDS:
        with pytest.raises(UsageError):
            side.run(call)
    stats = side.run(lambda see: see.client.stats())
    assert (stats.producers, stats.consumers) == (1, 1)
    side.run(lambda see: see.producer.send(b"goes on"))
    side.run(lambda see: see.producer.flush())
    assert side.run(lambda see: see.consumer.receive(10)).data == b"goes on"
    assert side.run(lambda see: see.producer.stats()).in_flight_messages == 0
    assert all(txn.id is None for txn in side.run(lambda see: see.client.transactions()))


class Unready:
    """No transaction."""


async def work(_given: Any) -> None:
    """Does nothing."""


OF_ASYNCIO: list[Row] = [
    send_row("txn must be a transaction", txn=5),
    send_row("txn must be a transaction", txn=Unready()),
    (lambda see: see.producer.send_nowait(b"x", txn=5), InvalidConfiguration, "txn must"),
    (lambda see: see.consumer.acknowledge(see.message, txn=5), InvalidConfiguration, "txn must"),
    (lambda see: see.consumer.acknowledge_cumulative(see.message, txn=5), InvalidConfiguration, "txn must"),
    (lambda see: see.consumer.acknowledge(None), InvalidConfiguration, "message must"),
    (lambda see: see.consumer.acknowledge("x"), InvalidConfiguration, "message must"),
    (lambda see: see.consumer.acknowledge_cumulative(None), InvalidConfiguration, "message must"),
    producer_row("interceptors", interceptors=[5]),
    producer_row("interceptors", interceptors=5),
    consumer_row("interceptors", interceptors=5),
    (lambda see: see.client.run_transaction(5), InvalidConfiguration, "work must"),
    (lambda see: see.client.pipeline(see.consumer, work, stop=5), InvalidConfiguration, "stop must"),
    (lambda see: see.client.pipeline(see.consumer, work, observer=5), InvalidConfiguration, "observer must"),
    (lambda see: see.client.pipeline(None, work), InvalidConfiguration, "consumer must"),
    (lambda see: open_entry_reader(see.consumer, "t", EARLIEST_ID), InvalidConfiguration, "client must"),
    (lambda see: AsyncOutbox(see.consumer, "orders", work), InvalidConfiguration, "client must"),
]


@pytest.mark.parametrize(("call", "error", "word"), OF_ASYNCIO)
@pytest.mark.parametrize("side", [Async], indirect=True, ids=["asyncio"])
def test_a_wrong_argument_of_the_asyncio_client_is_named(
    side: Async | Sync, call: Callable[[Any], Any], error: type[BaseException], word: str
) -> None:
    test_a_wrong_argument_is_named(side, call, error, word)


async def test_a_sync_transaction_is_no_asyncio_one(module_url: str) -> None:
    with sync.Client(module_url) as other, other.transaction() as txn:
        async with AsyncClient(module_url) as client:
            producer = await client.create_producer("mixed")
            with pytest.raises(TransactionStateError, match="of the other kind"):
                await producer.send(b"x", txn=txn)  # type: ignore[arg-type]  # that is the mistake
            await producer.send(b"y")
            assert producer.stats().in_flight_messages == 0


async def test_the_same_topic_twice_is_one_topic(module_url: str) -> None:
    async with AsyncClient(module_url) as client:
        producer = await client.create_producer("d1")
        consumer = await client.subscribe(["d1", "persistent://public/default/d1", "d2"], "s")
        assert [name.rsplit("/", 1)[1] for name in consumer.topics] == ["d1", "d2"]
        await producer.send(b"once")
        assert (await consumer.receive(10)).data == b"once"
        with pytest.raises(OperationTimeout):
            await consumer.receive(0.1)


async def test_a_conflict_says_what_to_do(module_url: str) -> None:
    async with AsyncClient(module_url) as client:
        producer = await client.create_producer("conflict")
        consumer = await client.subscribe("conflict", "s")
        await producer.send(b"x")
        message = await consumer.receive(10)
        async with client.transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
            other = await client.begin_transaction()
            with pytest.raises(TransactionConflict, match="run the unit again"):
                await consumer.acknowledge(message, txn=other)
            await other.abort()


async def test_a_second_exclusive_producer_is_told_of_the_first_and_not_of_a_successor(module_url: str) -> None:
    async with AsyncClient(module_url) as client:
        await client.create_producer("exclusive", access_mode=AccessMode.EXCLUSIVE)
        with pytest.raises(ProducerFenced, match="WAIT_FOR_EXCLUSIVE") as caught:
            await client.create_producer("exclusive", access_mode=AccessMode.EXCLUSIVE)
        assert "successor" not in str(caught.value)


async def test_times_are_timedeltas_too(module_url: str) -> None:
    options = {"operation_timeout": THREE_SECONDS, "max_backoff": THREE_SECONDS}
    async with AsyncClient(module_url, **options) as client:
        producer = await client.create_producer("times", send_timeout=THREE_SECONDS, batching_max_delay=timedelta())
        consumer = await client.subscribe("times", "s", ack_timeout=THREE_SECONDS, negative_ack_delay=THREE_SECONDS)
        reader = await client.create_reader("times")
        await producer.send(b"x", deliver_at=datetime.now(UTC))
        assert (await consumer.receive(THREE_SECONDS)).data == b"x"
        assert (await reader.read_next(THREE_SECONDS)).data == b"x"
        assert await consumer.receive_many(max_wait=timedelta(seconds=0.01)) == []
        async with consumer.transactional_batch(max_wait=timedelta(seconds=0.01)) as batch:
            assert not batch
        view = await client.create_table_view("times")
        await view.refresh(THREE_SECONDS)


async def _answers(answer: bytes) -> asyncio.Server:
    """A server that says this to whoever writes, and leaves."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(answer)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_an_http_port_is_called_one() -> None:
    async with await _answers(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        port = server.sockets[0].getsockname()[1]
        async with AsyncClient(f"pulsar://127.0.0.1:{port}", operation_timeout=2) as client:
            with pytest.raises(RemoteProtocolError, match="this is an HTTP port") as caught:
                await client.create_producer("t")
    assert "maxMessageSize" not in str(caught.value)


@pytest.mark.parametrize("new", [AsyncClient, sync.Client])
async def test_a_plain_port_is_told_apart_from_none(module_url: str, new: Any) -> None:
    url = module_url.replace("pulsar://", "pulsar+ssl://")

    def open_with_sync() -> None:
        with sync.Client(url, operation_timeout=1) as client:
            client.create_producer("t")

    with pytest.raises(ConnectionLost, match=r"TLS.*is this a TLS port"):
        if new is sync.Client:
            await asyncio.to_thread(open_with_sync)
        else:
            async with AsyncClient(url, operation_timeout=1) as client:
                await client.create_producer("t")


async def test_the_advice_about_names_is_given_once(module_url: str) -> None:
    async with AsyncClient(module_url) as client:
        consumer = await client.subscribe("letters", "s")
        with pytest.raises(InvalidTopicName) as caught:
            await client.pipeline(consumer, work, dead_letter_topic="a/b")
    assert str(caught.value).count("persistent://") == 1


def test_the_command_sends_bytes_that_are_no_text(module_url: str) -> None:
    program = [sys.executable, "-c", "from pulsar_txn.broker.cli import main; main()"]
    sent = subprocess.run([*program, "produce", "--url", module_url, "bytes", b"\xff\xfe"], capture_output=True, check=False)
    assert (sent.returncode, sent.stderr.split()[0]) == (0, b"1")
    for wrong in ([b"\xff", "x"], ["bytes", "x", "--key", b"\xff"], ["bytes", "x", "-p", b"a=\xff"]):
        done = subprocess.run([*program, "produce", "--url", module_url, *wrong], capture_output=True, check=False)
        assert done.returncode == 2, done
        assert b"Traceback" not in done.stderr


def test_the_official_names_raise_official_errors() -> None:
    with pytest.raises(pulsar.InvalidConfiguration):
        pulsar.MessageId.deserialize(b"junk")
    with pytest.raises(ValueError, match="no message id"):
        pulsar.MessageId.deserialize(b"junk")
    with pytest.raises(InvalidConfiguration, match="refused"):
        pulsar.functions.PickleSerDe()


async def _asyncio_transaction(url):
    async with AsyncClient(url) as client:
        return await client.begin_transaction()


@pytest.mark.parametrize("send", ["send", "send_nowait"])
@pytest.mark.parametrize("more", [{}, {"key": "k"}])
def test_a_sync_send_in_what_is_no_sync_transaction_is_told_so(url, send, more):
    with sync.Client(url) as client:
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s")
        producer.send(b"before")
        message = consumer.receive(timeout=10)
        for txn in (5, client.transaction(), asyncio.run(_asyncio_transaction(url))):
            with pytest.raises(UsageError):
                getattr(producer, send)(b"x", txn=txn, **more)
            with pytest.raises(UsageError):
                consumer.acknowledge(message, txn=txn)
        assert producer.stats().in_flight_messages == 0
        assert producer.send(b"behind")


def test_a_sync_pipeline_is_told_what_is_no_consumer_and_no_event(url):
    with sync.Client(url) as client:
        consumer = client.subscribe("t", "s")
        with pytest.raises(InvalidConfiguration, match="consumer"):
            client.pipeline(5, lambda batch: None)
        with pytest.raises(InvalidConfiguration, match="stop"):
            client.pipeline(consumer, lambda batch: None, stop=5)
