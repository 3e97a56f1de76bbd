"""The official client (C++ core) produces to our broker and consumes from it, unmodified."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from raw_client import FULL, RawClient

from pulsar_txn.broker.base.runtime import LoopThread
from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import Compression, ConsumerType
from pulsar_txn.client.sync import Client
from pulsar_txn.wire.ids import TxnAction

TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]
TIMEOUT = 10_000


@pytest.fixture(scope="module")
def thread() -> Iterator[LoopThread[Standalone]]:
    thread = LoopThread(lambda: Standalone(None, port=0))
    thread.service_url = thread.start().service_url  # type: ignore[attr-defined] # for the tests here
    yield thread
    thread.stop()


@pytest.fixture
def official(thread: Any) -> Iterator[pulsar.Client]:
    client = pulsar.Client(thread.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("[", "-").replace("]", "").replace(".", "-")


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_every_subscription_type_receives_what_was_sent(
    official: pulsar.Client, name: str, kind: pulsar.ConsumerType, batching: bool
) -> None:
    consumer = official.subscribe(name, "s", consumer_type=kind)
    producer = official.create_producer(name, batching_enabled=batching, batching_max_publish_delay_ms=5)
    for number in range(200):
        producer.send_async(b"%d" % number, None, partition_key=str(number % 5))
    producer.flush()
    received = []
    for _ in range(200):
        message = consumer.receive(TIMEOUT)
        received.append(int(message.data()))
        consumer.acknowledge(message)
    assert sorted(received) == list(range(200))
    if kind is not pulsar.ConsumerType.KeyShared:
        assert received == list(range(200))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)


def broker_of(thread):
    """The broker that a thread of its own serves."""
    return thread._started.result().broker


def test_what_was_acknowledged_does_not_come_again_and_the_rest_does(official: pulsar.Client, name: str) -> None:
    consumer = official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = official.create_producer(name)
    for number in range(10):
        producer.send(b"%d" % number)
    for number in range(10):
        message = consumer.receive(TIMEOUT)
        if number % 2:
            consumer.acknowledge(message)
    consumer.close()
    consumer = official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert [consumer.receive(TIMEOUT).data() for _ in range(5)] == [b"0", b"2", b"4", b"6", b"8"]


def test_negative_acknowledgements_bring_messages_again_with_a_count(official: pulsar.Client, name: str) -> None:
    consumer = official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    official.create_producer(name).send(b"x")
    message = consumer.receive(TIMEOUT)
    consumer.negative_acknowledge(message)
    again = consumer.receive(TIMEOUT)
    assert (again.data(), again.redelivery_count()) == (b"x", 1)
    consumer.acknowledge(again)


def test_cumulative_acknowledgement(official: pulsar.Client, name: str) -> None:
    consumer = official.subscribe(name, "s")
    producer = official.create_producer(name)
    for number in range(10):
        producer.send(b"%d" % number)
    messages = [consumer.receive(TIMEOUT) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    consumer = official.subscribe(name, "s")
    assert [consumer.receive(TIMEOUT).data() for _ in range(3)] == [b"7", b"8", b"9"]


@pytest.mark.parametrize(
    ("kind", "cumulative", "acknowledged", "left"),
    [
        (pulsar.ConsumerType.Exclusive, False, [1, 3], [b"0", b"2", b"4"]),
        (pulsar.ConsumerType.Exclusive, False, [4], [b"0", b"1", b"2", b"3"]),
        (pulsar.ConsumerType.Shared, False, [4, 0], [b"1", b"2", b"3"]),
        (pulsar.ConsumerType.Exclusive, True, [2], [b"3", b"4"]),
        (pulsar.ConsumerType.Failover, True, [4], []),
    ],
)
def test_part_of_a_batch_is_acknowledged_though_this_client_does_not_say_how_large_the_batch_is(
    official: pulsar.Client,
    name: str,
    kind: pulsar.ConsumerType,
    cumulative: bool,
    acknowledged: list[int],
    left: list[bytes],
) -> None:
    options = {"consumer_type": kind, "batch_index_ack_enabled": True}
    consumer = official.subscribe(name, "s", **options)
    producer = official.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(5):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    messages = [consumer.receive(TIMEOUT) for _ in range(5)]
    for number in acknowledged:
        (consumer.acknowledge_cumulative if cumulative else consumer.acknowledge)(messages[number])
    consumer.close()
    producer.send(b"behind")
    consumer = official.subscribe(name, "s", **options)
    assert [consumer.receive(TIMEOUT).data() for _ in range(len(left) + 1)] == [*left, b"behind"]


@pytest.mark.parametrize("batching", [False, True])
def test_a_reader_reads_everything_and_knows_the_end(official: pulsar.Client, name: str, batching: bool) -> None:
    producer = official.create_producer(name, batching_enabled=batching, batching_max_publish_delay_ms=20)
    for number in range(30):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    reader = official.create_reader(name, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(TIMEOUT)
        found.append(message)
    assert [message.data() for message in found] == [b"%d" % number for number in range(30)]
    middle = official.create_reader(name, found[9].message_id())
    assert middle.read_next(TIMEOUT).data() == b"10"
    latest = official.create_reader(name, pulsar.MessageId.latest)
    assert not latest.has_message_available()


def test_seek_by_message_and_by_time(official: pulsar.Client, name: str) -> None:
    consumer = official.subscribe(name, "s", start_message_id_inclusive=True)
    producer = official.create_producer(name, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    messages = [consumer.receive(TIMEOUT) for _ in range(10)]
    for message in messages:
        consumer.acknowledge(message)
    consumer.seek(messages[4].message_id())
    assert consumer.receive(TIMEOUT).data() == b"4"
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(TIMEOUT).data() == b"0"
    consumer.seek(messages[7].publish_timestamp())
    assert int(consumer.receive(TIMEOUT).data()) <= 7
    reader = official.create_reader(name, pulsar.MessageId.earliest)
    reader.seek(messages[8].message_id())
    assert reader.read_next(TIMEOUT).data() == b"9"  # this client leaves the message itself out unless told otherwise


def test_an_exclusive_subscription_has_one_consumer_and_failover_one_that_is_active(official: pulsar.Client, name: str) -> None:
    first = official.subscribe(name, "e")
    with pytest.raises(pulsar.ConsumerBusy):
        official.subscribe(name, "e")
    first.close()
    a = official.subscribe(name, "f", consumer_type=pulsar.ConsumerType.Failover, consumer_name="a")
    b = official.subscribe(name, "f", consumer_type=pulsar.ConsumerType.Failover, consumer_name="b")
    producer = official.create_producer(name)
    producer.send(b"1")
    assert a.receive(TIMEOUT).data() == b"1"
    a.close()
    assert b.receive(TIMEOUT).data() == b"1"


def test_partitioned_topics_are_produced_to_and_consumed_from(thread: Any, official: pulsar.Client, name: str) -> None:
    from pulsar_txn.wire.topics import TopicName

    async def create(broker: Any) -> None:
        await broker.catalog.create_partitioned(TopicName.parse(name), 3)

    broker = broker_of(thread)
    asyncio.run_coroutine_threadsafe(create(broker), thread._loop).result(10)
    assert len(official.get_topic_partitions(name)) == 3
    consumer = official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = official.create_producer(name)
    for number in range(30):
        producer.send(b"%d" % number)
    found = set()
    for _ in range(30):
        message = consumer.receive(TIMEOUT)
        found.add(int(message.data()))
        consumer.acknowledge(message)
    assert found == set(range(30))


def test_a_pattern_subscription_and_a_schema(official: pulsar.Client, name: str) -> None:
    producer = official.create_producer(name, schema=pulsar.schema.StringSchema())
    consumer = official.subscribe([name], "s", schema=pulsar.schema.StringSchema())
    producer.send("text")
    assert consumer.receive(TIMEOUT).value() == "text"
    import re

    pattern = official.subscribe(
        re.compile(f"persistent://public/default/{name}.*"), "p", initial_position=pulsar.InitialPosition.Earliest
    )
    assert pattern.receive(TIMEOUT).data() == b"text"


def test_unsubscribe_forgets_the_position(official: pulsar.Client, name: str) -> None:
    consumer = official.subscribe(name, "s")
    producer = official.create_producer(name)
    producer.send(b"1")
    consumer.acknowledge(consumer.receive(TIMEOUT))
    consumer.unsubscribe()
    again = official.subscribe(name, "s", initial_position=pulsar.InitialPosition.Earliest)
    assert again.receive(TIMEOUT).data() == b"1"


def test_an_exclusive_producer_keeps_others_out(official: pulsar.Client, name: str) -> None:
    producer = official.create_producer(name, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.PulsarException):
        official.create_producer(name, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.PulsarException):
        official.create_producer(name)
    producer.close()
    official.create_producer(name).send(b"1")


def test_a_large_message_and_many_in_flight(official: pulsar.Client, name: str) -> None:
    consumer = official.subscribe(name, "s")
    producer = official.create_producer(name, batching_enabled=False, max_pending_messages=5000)
    big = bytes(4 * 1024 * 1024)
    producer.send(big)
    for number in range(3000):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    assert consumer.receive(TIMEOUT).data() == big
    assert [consumer.receive(TIMEOUT).data() for _ in range(3000)] == [b"%d" % number for number in range(3000)]


@pytest.mark.seed_rows("D29")
@pytest.mark.parametrize("action", list(TxnAction))
def test_the_official_client_reads_committed_data_only(
    thread: Any, official: pulsar.Client, name: str, action: TxnAction
) -> None:
    consumer = official.subscribe(name, "s")
    broker = broker_of(thread)

    async def begin() -> Any:
        client = RawClient(broker)
        await client.producer(name)
        txn = await client.new_txn()
        await client.add_topics(txn, FULL + name)
        await client.sent(b"in", txn=txn)
        await client.sent(b"plain")
        return client, txn

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, thread._loop).result(20)

    client, txn = run(begin())
    with pytest.raises(pulsar.Timeout):
        consumer.receive(150)
    reader = official.create_reader(name, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    run(client.end(txn, action))
    expected = [b"in", b"plain"] if action is TxnAction.COMMIT else [b"plain"]
    assert [consumer.receive(TIMEOUT).data() for _ in expected] == expected
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(TIMEOUT).data())
    assert found == expected


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=str,
)
def test_compressed_messages_come_out_as_they_went_in_also_in_our_client(
    thread: Any, official: pulsar.Client, name: str, compression: pulsar.CompressionType
) -> None:
    consumer = official.subscribe(name, "s")
    payloads = [b"%d " % number * 500 for number in range(20)]
    for batching in (False, True):
        producer = official.create_producer(
            name, compression_type=compression, batching_enabled=batching, batching_max_publish_delay_ms=20
        )
        for payload in payloads[:10] if not batching else payloads[10:]:
            producer.send_async(payload, None)
        producer.flush()
        producer.close()
    assert [consumer.receive(TIMEOUT).data() for _ in payloads] == payloads
    with Client(thread.service_url) as ours:
        reader = ours.create_reader(name)
        assert [reader.read_next(timeout=10).data for _ in payloads] == payloads


@pytest.mark.parametrize("kind", list(Compression), ids=lambda kind: kind.name)
def test_what_our_client_compressed_in_a_transaction_the_official_one_reads(
    thread: Any, official: pulsar.Client, name: str, kind: Compression
) -> None:
    consumer = official.subscribe(name, "s")
    payloads = [b"%d " % number * 300 for number in range(20)]
    with Client(thread.service_url) as ours:
        producer = ours.create_producer(name, compression=kind)
        with ours.transaction() as txn:
            for payload in payloads:
                producer.send_nowait(payload, txn=txn, key="k", properties={"a": "b"})
    messages = [consumer.receive(TIMEOUT) for _ in payloads]
    assert [message.data() for message in messages] == payloads
    assert {(message.partition_key(), message.properties()["a"]) for message in messages} == {("k", "b")}


@pytest.mark.parametrize("kind", TYPES)
def test_every_subscription_type_of_the_official_client_sees_what_our_transactions_committed_and_nothing_else(
    thread: Any, official: pulsar.Client, name: str, kind: pulsar.ConsumerType
) -> None:
    consumer = official.subscribe(name, "s", consumer_type=kind)
    with Client(thread.service_url) as ours:
        producer = ours.create_producer(name)
        expected = []
        for number in range(12):
            with ours.transaction() as txn:
                for part in range(3):
                    producer.send(b"%d-%d" % (number, part), txn=txn, key=str(number))
                if number % 3 == 1:
                    txn.rollback()
                expected += [b"%d-%d" % (number, part) for part in range(3)]
        open_one = ours.begin_transaction()
        producer.send(b"open", txn=open_one)
        producer.send(b"behind")
        received = []
        for _ in expected:
            message = consumer.receive(TIMEOUT)
            received.append(message.data())
            consumer.acknowledge(message)
        assert received == expected
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
        open_one.abort()
        assert consumer.receive(TIMEOUT).data() == b"behind"


def test_key_shared_keeps_each_key_with_one_official_consumer_and_in_order(official: pulsar.Client, name: str) -> None:
    consumers = [official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.KeyShared) for _ in range(2)]
    producer = official.create_producer(name, batching_type=pulsar.BatchingType.KeyBased)
    for number in range(200):
        producer.send_async(b"%d" % number, None, partition_key=str(number % 20))
    producer.flush()
    seen: list[dict[str, list[int]]] = [{}, {}]
    for which, consumer in enumerate(consumers):
        with contextlib.suppress(pulsar.Timeout):  # that is the end
            while True:
                message = consumer.receive(500)
                seen[which].setdefault(message.partition_key(), []).append(int(message.data()))
                consumer.acknowledge(message)
    assert not seen[0].keys() & seen[1].keys()
    assert seen[0]
    assert seen[1]
    assert {key: numbers for half in seen for key, numbers in half.items()} == {
        str(key): list(range(key, 200, 20)) for key in range(20)
    }


def test_a_partitioned_topic_written_by_our_transaction_is_read_whole_by_the_official_client(
    thread: Any, official: pulsar.Client, name: str
) -> None:
    from pulsar_txn.wire.topics import TopicName

    async def create(broker: Any) -> None:
        await broker.catalog.create_partitioned(TopicName.parse(name), 3)

    broker = broker_of(thread)
    asyncio.run_coroutine_threadsafe(create(broker), thread._loop).result(10)
    consumer = official.subscribe(name, "s")
    with Client(thread.service_url) as ours:
        producer = ours.create_producer(name)
        for outcome in ("aborted", "committed"):
            with ours.transaction() as txn:
                for number in range(30):
                    producer.send(f"{outcome} {number}".encode(), txn=txn, key=str(number))
                if outcome == "aborted":
                    txn.rollback()
    found = {consumer.receive(TIMEOUT).data() for _ in range(30)}
    assert found == {f"committed {number}".encode() for number in range(30)}
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)


@pytest.mark.parametrize("batching", [False, True])
def test_what_our_client_acknowledged_in_a_transaction_does_not_come_to_the_official_one(
    thread: Any, official: pulsar.Client, name: str, batching: bool
) -> None:
    official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared).close()
    producer = official.create_producer(name, batching_enabled=batching, batching_max_publish_delay_ms=20)
    for number in range(6):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    with Client(thread.service_url) as ours:
        consumer = ours.subscribe(name, "s", consumer_type=1)
        messages = [consumer.receive(timeout=10) for _ in range(6)]
        with ours.transaction() as txn:
            consumer.acknowledge([messages[0], messages[3]], txn=txn)
        with ours.transaction() as txn:
            consumer.acknowledge([messages[1]], txn=txn)
            txn.rollback()
    rest = official.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert sorted(rest.receive(TIMEOUT).data() for _ in range(4)) == [b"1", b"2", b"4", b"5"]
    with pytest.raises(pulsar.Timeout):
        rest.receive(100)


@pytest.mark.parametrize("batch_index_ack", [False, True])
def test_what_the_official_client_acknowledges_of_a_batch_leaves_what_our_transaction_held_of_it(
    thread: Any, official: pulsar.Client, name: str, batch_index_ack: bool
) -> None:
    """It is given the rest of a batch and acknowledges that; the transaction aborts, and its message comes again."""
    producer = official.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=1000)
    with Client(thread.service_url) as ours:
        holder = ours.subscribe(name, "s", consumer_type=ConsumerType.SHARED)
        for number in range(3):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        messages = [holder.receive(timeout=10) for _ in range(3)]
        assert len({message.message_id.position for message in messages}) == 1
        txn = ours.begin_transaction()
        holder.acknowledge(messages[0], txn=txn)
        holder.close()
        consumer = official.subscribe(
            name, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=batch_index_ack
        )
        for payload in (b"1", b"2"):
            message = consumer.receive(TIMEOUT)
            assert message.data() == payload
            consumer.acknowledge(message)
        txn.abort()
        assert consumer.receive(TIMEOUT).data() == b"0"
