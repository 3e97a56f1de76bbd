"""What one client, and all of them, may make the broker hold: every limit is reached, and named by its key."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from memory_network import MemoryNetwork, run_virtual
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.admin.metrics import exposition
from pulsar_txn.broker.base.limits import Limits
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.broker import Broker
from pulsar_txn.broker.net.connection import Connection
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import FrameReader, command, decode_command
from pulsar_txn.wire.hot import encode_ack, encode_flow, encode_send
from pulsar_txn.wire.topics import TopicName

CONNECT = command("connect", client_version="raw", protocol_version=21)
NAMESPACE = {"namespace": "public/default", "mode": 2}
HIGH, LOW = 1 << 20, 1 << 18


class Socket(asyncio.Transport):
    """A socket whose client reads only when the test says so; the protocol hears of its buffer as from a real one."""

    def __init__(self, broker: Broker, address: str | None = "192.0.2.1") -> None:
        super().__init__()
        self.address = address
        self.unread = 0
        self.said = b""
        self.reading = True
        self.closed = False
        self._is_full = False
        self.connection: Connection = broker.connection()
        self.connection.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.address, 40_000) if name == "peername" and self.address is not None else default

    def write(self, data: Any) -> None:
        self.unread += len(data)
        self.said += bytes(data)
        if self.unread > HIGH and not self._is_full:
            self._is_full = True
            self.connection.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def read(self, size: int = 1 << 62) -> None:
        """The client takes so much."""
        self.unread = max(0, self.unread - size)
        if self._is_full and self.unread <= LOW:
            self._is_full = False
            self.connection.resume_writing()

    def frames(self) -> list[Any]:
        return [decode_command(each) for each in FrameReader(1 << 30).feed(self.said)]

    def get_write_buffer_size(self) -> int:
        return self.unread

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (HIGH, LOW)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    abort = close


def connected(broker: Broker, address: str = "192.0.2.1") -> Socket:
    socket = Socket(broker, address)
    socket.connection.data_received(CONNECT)
    return socket


async def turns(count: int = 300) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def requests(name: str, count: int, *, first: int = 0, **fields: Any) -> bytes:
    return b"".join(command(name, request_id=each, **fields) for each in range(first, first + count))


# ---- requests


async def topics(bench: Any, count: int) -> None:
    for each in range(count):
        await bench.broker.catalog.create_partitioned(_name(f"topic-with-a-long-name-{each}"), 1)


def _name(text: str) -> Any:
    return TopicName.parse(text)


async def test_five_thousand_lists_of_a_thousand_topics_leave_every_turn_to_others(bench: Any) -> None:
    await topics(bench, 1000)
    lists, most = 0, 0
    index = bench.broker.catalog.index
    made = index.topics_and_partitions

    def counted(*name: str) -> Any:
        nonlocal lists
        lists += 1
        return made(*name)

    index.topics_and_partitions = counted
    greedy, other = connected(bench.broker), bench.client()
    greedy.connection.data_received(requests("getTopicsOfNamespace", 5000, **NAMESPACE))
    before = 0
    for _ in range(200):
        greedy.read()
        request_id = other.start("lookupTopic", topic="t", authoritative=False)
        waited = 0
        while request_id not in other._answers:
            await asyncio.sleep(0)
            most, before, waited = max(most, lists - before), lists, waited + 1
            assert waited < 5, "a small request of another client waits for long ones"
    assert most <= 1
    assert lists > 20
    assert bench.broker.limits.requests <= 1000
    greedy.close()
    await turns()
    assert bench.broker.limits.requests == bench.broker.limits.request_bytes == 0


async def test_a_client_that_does_not_read_its_lists_gets_no_more_of_them(bench: Any) -> None:
    await topics(bench, 1000)
    greedy = connected(bench.broker)
    for _ in range(20):
        greedy.connection.data_received(requests("getTopicsOfNamespace", 5000, **NAMESPACE))
        await turns()
    one = len(greedy.said) - greedy.said.rindex(b"topic-with-a-long-name-0") + 100_000
    assert greedy.unread < HIGH + one
    assert not greedy.reading
    assert bench.broker.limits.requests <= 1000
    before = len(greedy.said)
    greedy.read()
    await turns()
    assert len(greedy.said) > before, "whoever reads again is served again"
    assert bench.broker.limits.list_bytes > 0
    greedy.close()
    await turns()
    assert bench.broker.limits.list_bytes == 0


async def test_lists_that_nobody_reads_are_bounded_over_all_clients(benches: Any) -> None:
    bench = await benches(max_topic_list_in_flight_heap_mem_size_mb=4).start()
    await topics(bench, 1000)
    greedy = [connected(bench.broker, f"192.0.2.{each}") for each in range(10)]
    for each in greedy:
        each.connection.data_received(requests("getTopicsOfNamespace", 100, **NAMESPACE))
    await turns(2000)
    assert bench.broker.limits.list_bytes < 5 << 20
    client = bench.client()
    with pytest.raises(Refused, match="maxTopicListInFlightHeapMemSizeMB") as refused:
        await client.request("getTopicsOfNamespace", **NAMESPACE)
    assert refused.value.code == ServerError.TooManyRequests
    for each in greedy:
        each.close()
    await turns()
    assert len((await client.request("getTopicsOfNamespace", **NAMESPACE)).topics) == 1000


async def test_requests_of_all_clients_are_bounded(benches: Any) -> None:
    bench = await benches(max_concurrent_lookup_request=50).start()
    greedy = [connected(bench.broker, f"192.0.2.{each}") for each in range(3)]
    for each in greedy:
        each.connection.data_received(requests("getTopicsOfNamespace", 30, **NAMESPACE))
    assert bench.broker.limits.requests == 50
    await turns()
    errors = [each.error for socket in greedy for each in socket.frames() if each.HasField("error")]
    assert len(errors) == 40
    assert {each.error for each in errors} == {ServerError.TooManyRequests}
    assert all("maxConcurrentLookupRequest" in each.message for each in errors)
    assert bench.broker.limits.requests == 0
    text = "".join([part async for part in exposition(bench.broker)])
    assert 'limit_reached_total{cluster="standalone",limit="maxConcurrentLookupRequest"} 40.0' in text


async def test_bytes_of_requests_are_bounded_per_connection_and_in_all(benches: Any) -> None:
    bench = await benches(max_concurrent_request_size_in_mb=20).start()
    schema = pb.Schema(name="s", schema_data=bytes(60_000), type=2)  # type: ignore[arg-type] # a number of the protocol
    one = command("getOrCreateSchema", request_id=1, topic="t", schema=schema)
    held = [connected(bench.broker, f"192.0.2.{each}") for each in range(4)]
    lock = bench.broker.catalog.schema_version = Gate(bench.broker.catalog.schema_version)
    for socket in held:
        for _ in range(500):
            if socket.reading:
                socket.connection.data_received(one)
            else:
                await turns(1)
    assert not any(each.reading for each in held[:2])
    assert all(each.connection._request_bytes < (8 << 20) + len(one) for each in held)
    assert 19 << 20 < bench.broker.limits.request_bytes <= 20 << 20
    errors = [each.error for socket in held for each in socket.frames() if each.HasField("error")]
    assert errors
    assert all("maxConcurrentRequestSizeInMB" in each.message for each in errors)
    lock.open.set()
    await turns()
    assert bench.broker.limits.request_bytes == 0
    assert all(each.reading for each in held)


class Gate:
    """A coroutine function that waits until the test opens it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.open = asyncio.Event()
        self._function = function

    async def __call__(self, *args: Any) -> Any:
        await self.open.wait()
        return await self._function(*args)


async def test_a_connection_is_not_read_while_a_thousand_of_its_requests_have_no_answer(benches: Any) -> None:
    bench = benches(max_active_transactions_per_coordinator=0)
    await bench.start()
    client = connected(bench.broker)
    client.connection.data_received(requests("tcClientConnectRequest", 1, tc_id=0))
    await turns()
    bench.store.auto_confirm = False
    for first in (0, 1500, 3000):
        client.connection.data_received(requests("newTxn", 1500, first=first, tc_id=0, txn_ttl_millis=60_000))
        await turns(20)
    machine = bench.broker.coordinators.ready(0).machine
    assert machine.active_count == 1000
    assert not client.reading
    bench.store.auto_confirm = True
    bench.store.confirm()
    await turns(2000)
    assert machine.active_count == 4500
    assert client.reading


async def test_no_more_sends_are_taken_than_may_be_without_a_receipt(benches: Any) -> None:
    bench = await benches(max_pending_publish_requests_per_connection=100).start()
    client = connected(bench.broker)
    client.connection.data_received(command("producer", request_id=1, topic="t", producer_id=1, producer_name="p"))
    await turns()
    bench.store.auto_confirm = False
    metadata = {"producer_name": "p", "publish_time": 1}
    sends = [
        b"".join(encode_send(1, each, 1, encode_entry(pb.MessageMetadata(**metadata, sequence_id=each), b"x")))
        for each in range(350)
    ]
    client.connection.data_received(b"".join(sends))
    topic = bench.broker.topics[f"{FULL}t"]
    assert topic.messages_in == 100
    assert not client.reading
    bench.store.auto_confirm = True
    bench.store.confirm()
    await turns(2000)
    assert topic.messages_in == 350
    assert client.reading


async def test_receipts_of_acknowledgements_are_bounded(benches: Any) -> None:
    bench = await benches(max_concurrent_requests_per_connection=100).start()
    producer = bench.client()
    await producer.producer("t")
    client = connected(bench.broker)
    subscribe = command("subscribe", request_id=1, topic="t", subscription="s", subType=1, consumer_id=1)
    client.connection.data_received(subscribe)
    await turns()
    positions = [await producer.sent(b"x") for _ in range(350)]
    bench.store.auto_confirm = False
    acks = [encode_ack(1, False, [(*each, None, 0)], request_id=number) for number, each in enumerate(positions)]
    client.connection.data_received(b"".join(acks))
    subscription = bench.broker.topics[f"{FULL}t"].subscriptions["s"]
    assert len(subscription._receipts) == 100
    client.connection.session.consumer_closed(client.connection.session.consumers[1])  # what it waits for is nobody's any more
    await turns()
    assert client.reading
    assert not client.connection.is_busy
    bench.store.auto_confirm = True
    bench.store.confirm()
    await turns()
    assert not client.connection.is_busy


# ---- connections


async def test_connections_are_bounded_in_all_and_per_address(benches: Any) -> None:
    bench = await benches(broker_max_connections=5, broker_max_connections_per_ip=3).start()
    for address, key, granted in (("192.0.2.1", "brokerMaxConnectionsPerIp", 3), ("192.0.2.2", "brokerMaxConnections ", 2)):
        sockets = [Socket(bench.broker, address) for _ in range(10)]
        refused = [each for each in sockets if each.closed]
        assert len(refused) == 10 - granted
        for each in refused:
            (error,) = [frame.error for frame in each.frames()]
            assert key in error.message
            assert error.error == ServerError.NotAllowedError
    assert bench.broker.limits.connections == len(bench.broker.connections) == 5
    for connection in list(bench.broker.connections):
        connection._transport.close()
    assert bench.broker.limits.connections == 0
    assert not connected(bench.broker).closed


async def test_open_files_are_left_for_the_store() -> None:
    limits = Limits(BrokerConfig(), descriptors=300)
    granted = [limits.enter(f"192.0.2.{each}") for each in range(100)]
    assert granted.count(None) == 300 - 256
    assert "ulimit -n" in str(granted[-1])


async def test_nobody_sends_more_than_64_kib_before_connect(bench: Any) -> None:
    socket = Socket(bench.broker)
    socket.connection.data_received(((1 << 16) + 1).to_bytes(4) + bytes(100))
    assert socket.closed
    socket = connected(bench.broker)
    socket.connection.data_received(((1 << 16) + 1).to_bytes(4) + bytes(100))
    assert not socket.closed


async def test_a_second_connect_closes_the_connection(bench: Any) -> None:
    socket = connected(bench.broker)
    socket.connection.data_received(CONNECT)
    assert socket.closed


async def test_large_frames_that_are_not_complete_are_bounded_over_all_clients(benches: Any) -> None:
    bench = await benches(max_message_publish_buffer_size_in_mb=10).start()
    half = (4 << 20).to_bytes(4) + bytes(1 << 20)
    sockets = [connected(bench.broker, f"192.0.2.{each}") for each in range(6)]
    for each in sockets:
        each.connection.data_received(half)
    assert [each.reading for each in sockets] == [True, True, False, False, False, False]
    assert bench.broker.limits.incoming_bytes <= 10 << 20
    sockets[3].close()  # it waited
    sockets[0].close()
    assert [each.reading for each in sockets] == [True, True, True, False, False, False]
    sockets[1].close()
    sockets[2].close()
    assert [each.reading for each in sockets[4:]] == [True, True]
    for each in sockets:
        each.close()
    assert bench.broker.limits.incoming_bytes == 0
    assert not bench.broker.limits._waiting


class Silent(asyncio.Protocol):
    """A client that says what the test tells it to."""

    def __init__(self) -> None:
        self.lost_at: float | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_at = asyncio.get_running_loop().time()


async def _stay(network: MemoryNetwork, say: Callable[[Any], Any]) -> float:
    """Seconds that a broker keeps a client which does only what `say` does."""
    async with MemoryStore() as store:
        broker = Broker(BrokerConfig(number_of_transaction_coordinators=1), store, network)
        await broker.start()
        listener = await network.listen("h", 1, broker.connection)
        client = await network.connect(Silent, "h", 1)
        await say(client.transport)
        for _ in range(600):
            await asyncio.sleep(1 if client.lost_at is None else 0)
        await listener.close()
        await broker.close()
        return float(client.lost_at or 600)


def test_a_client_that_does_not_say_connect_is_sent_away() -> None:
    async def nothing(_: Any) -> None: ...

    stayed, _network = run_virtual(lambda network: _stay(network, nothing))
    assert 29 < stayed < 41


@pytest.mark.parametrize("tail", [b"\0", (1000).to_bytes(4) + b"half of it"])
def test_a_client_that_does_not_finish_a_frame_is_sent_away_also_when_it_trickles(tail: bytes) -> None:
    async def trickle(transport: Any) -> None:
        transport.write(CONNECT + tail)
        while not transport.closed and asyncio.get_running_loop().time() < 500:
            await asyncio.sleep(2)
            if len(tail) > 1:
                transport.write(b"x")

    stayed, _network = run_virtual(lambda network: _stay(network, trickle))
    assert 29 < stayed < 42


def test_a_client_that_finishes_its_frames_slowly_stays() -> None:
    async def slowly(transport: Any) -> None:
        transport.write(CONNECT)
        pong = command("pong")
        for _ in range(25):
            transport.write(pong[:5])
            await asyncio.sleep(20)
            transport.write(pong[5:])

    stayed, _network = run_virtual(lambda network: _stay(network, slowly))
    assert stayed > 500


# ---- §7.3: lists and texts


async def test_one_request_names_a_thousand_participants_at_most(client: RawClient) -> None:
    txn = await client.new_txn()
    await client.add_topics(txn, *[f"{FULL}t-{each}" for each in range(1000)])
    with pytest.raises(Refused, match="send several"):
        await client.add_topics(txn, *[f"{FULL}u-{each}" for each in range(1001)])


async def test_names_of_producers_and_consumers_are_bounded(client: RawClient) -> None:
    with pytest.raises(Refused, match="shorter name"):
        await client.producer("t", producer_name="p" * 2049)
    with pytest.raises(Refused, match="shorter name"):
        await client.subscribe("t", consumer_name="c" * 2049)
    await client.producer("t", producer_name="p" * 2048)


@pytest.mark.parametrize("name", ["ack", "redeliverUnacknowledgedMessages"])
async def test_too_many_messages_in_one_request_close_the_connection(client: RawClient, name: str) -> None:
    await client.subscribe("t", kind=1)
    ids = [pb.MessageIdData(ledgerId=0, entryId=each) for each in range(100_001)]
    if name == "ack":
        client.raw(command(name, consumer_id=0, ack_type=0, message_id=ids))
    else:
        client.raw(command(name, consumer_id=0, message_ids=ids))
    assert client.connection.closed


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("producer", {"producer_id": 1, "producer_name": "p" * 65_537}),
        ("producer", {"producer_id": 1, "metadata": [pb.KeyValue(key=str(each), value="") for each in range(101)]}),
        ("producer", {"producer_id": 1, "metadata": [pb.KeyValue(key="k", value="v" * 65_536)]}),
        ("getOrCreateSchema", {"schema": pb.Schema(name="s" * 65_537, schema_data=b"", type=2)}),  # type: ignore[arg-type] # a number of the protocol
    ],
)
async def test_long_texts_and_lists_of_a_request_are_refused_and_the_connection_stays(
    client: RawClient, bench: Any, name: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(Refused, match="send less of it") as refused:
        await client.request(name, topic="t", **fields)
    assert refused.value.code == ServerError.NotAllowedError
    assert not client.connection.closed
    assert not bench.broker.topics


async def test_a_subscription_takes_a_thousand_key_ranges_at_most(client: RawClient) -> None:
    ranges = [pb.IntRange(start=2 * each, end=2 * each + 1) for each in range(1001)]
    meta = pb.KeySharedMeta(keySharedMode=1, hashRanges=ranges)  # type: ignore[arg-type] # a number of the protocol
    with pytest.raises(Refused, match="1001 items"):
        await client.subscribe("t", kind=3, keySharedMeta=meta)


# ---- what is sent to somebody who does not read


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("batched", [False, True])
async def test_a_consumer_that_does_not_read_holds_a_bounded_part_of_its_backlog(bench: Any, kind: int, batched: bool) -> None:
    producer = bench.client()
    await producer.producer("t")
    for _ in range(400):
        for _ in range(10):
            producer.send([bytes(1000)] * 10 if batched else bytes(10_000))
        await producer.settle(5)
    stuck = connected(bench.broker)
    subscribe = {"topic": "t", "subscription": "s", "subType": kind, "consumer_id": 1, "initialPosition": 1}
    stuck.connection.data_received(command("subscribe", request_id=1, **subscribe))
    await turns()
    for _ in range(3):
        stuck.connection.data_received(encode_flow(1, 1_000_000))
        await turns()
    assert HIGH < stuck.unread < HIGH + (5 << 20)
    assert not stuck.reading
    before = len(stuck.said)
    stuck.read()
    await turns()
    assert len(stuck.said) > before, "it goes on when the client reads"


async def test_a_client_that_reads_slowly_stays_and_one_that_does_not_read_goes(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(bench.broker.turn.runtime, "monotonic", lambda: now, raising=False)
    slow, stuck = connected(bench.broker), connected(bench.broker)
    for socket in (slow, stuck):
        socket.connection.write(bytes(2 << 20))
        socket.connection.flush()
        assert not socket.reading
    for _ in range(5):
        now += 31
        slow.read(100_000)
        for socket in (slow, stuck):
            socket.connection._heard = True
            if not socket.closed:
                socket.connection.tick()
    assert not slow.closed
    assert stuck.closed


async def test_a_consumer_id_that_is_in_use_is_not_given_to_another_subscription(client: RawClient) -> None:
    await client.subscribe("t", "s", 1)
    await client.request("subscribe", topic="t", subscription="s", subType=0, consumer_id=1)
    for topic, subscription in (("t", "other"), ("u", "s")):
        with pytest.raises(Refused, match="open on 's'"):
            await client.subscribe(topic, subscription, 1)


async def test_a_connection_that_ends_is_freed_at_once(bench: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        kept = []
        for ending in ("broken", "closed"):
            socket = connected(bench.broker)
            producer = command("producer", request_id=1, topic="t", producer_id=1)
            subscribe = command("subscribe", request_id=2, topic="t", subscription="s", subType=1, consumer_id=1)
            socket.connection.data_received(producer + subscribe)
            await turns()
            kept.append(weakref.ref(socket.connection))
            if ending == "closed":
                socket.connection.close()
            socket.close()
            await turns()
            del socket.connection, socket
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()
