"""Messages in chunks: sent, put together, acknowledged; incomplete ones; both ways with the official client."""

import asyncio

import pulsar as official
import pytest
from fake_broker import SILENCE, FakeBroker, FakeTransaction, fake_client, sent_entry

from pulsar_txn.client import EARLIEST_ID, AsyncClient, Compression, ConsumerType, InitialPosition, MessageId
from pulsar_txn.client.errors import BrokerError, InvalidConfiguration, MessageTooLarge
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.wire.frames import command

EARLIEST = InitialPosition.EARLIEST
LARGE = bytes(range(256)) * 40


def deliver_chunk(broker, entry_id, uuid, number, count, data, total):
    fields = {"uuid": uuid, "chunk_id": number, "num_chunks_from_msg": count, "total_chunk_msg_size": total}
    broker.deliver(1, entry_id, data, **fields)


def acked(broker):
    return [(body[1], [each[:2] for each in body[2]]) for body in broker.all("ack")]


async def test_a_large_message_leaves_in_chunks_that_say_where_they_belong():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", producer_name="p", chunking=True, chunk_max_bytes=1000)
        await producer.send(b"small")
        message_id = await producer.send(LARGE, key="k", properties={"a": "1"})
        await producer.send(b"behind")
        sends = broker.all("send")
        entries = [sent_entry(body) for body in sends[1:-1]]
        assert b"".join(bytes(payload) for _, payload in entries) == LARGE
        assert all(body[5] and len(body[7]) <= 1020 for body in sends[1:-1])
        assert {body[1] for body in sends[1:-1]} == {1}
        assert sends[-1][1] == 2
        for number, (metadata, _) in enumerate(entries):
            said = (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg, metadata.total_chunk_msg_size)
            assert said == ("p-1", number, len(entries), len(LARGE))
            assert metadata.partition_key == "k"
        assert message_id == MessageId(1, len(entries), -1)
        assert producer.last_sequence_id == 2


async def test_what_compresses_well_is_not_cut_and_without_chunking_it_is_too_large():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", chunking=True, chunk_max_bytes=1000, compression=Compression.ZLIB)
        await producer.send(b"a" * 50_000)
        assert [body[5] for body in broker.all("send")] == [False]
        plain = await client.create_producer("t")
        with pytest.raises(MessageTooLarge, match="chunking"):
            await plain.send(b"a" * 6_000_000)
        crowded = await client.create_producer("t", chunking=True, chunk_max_bytes=100)
        with pytest.raises(MessageTooLarge, match="properties"):
            await crowded.send(LARGE, properties={"a": "b" * 200})


async def test_a_refused_chunk_fails_the_message_and_its_transaction_once():
    broker = FakeBroker()
    broker.on["send"] = lambda _pipe, body: (
        command("send_error", producer_id=body[0], sequence_id=body[1], error=22, message="not this one")
        if len(broker.all("send")) == 1
        else SILENCE
    )
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", chunking=True, chunk_max_bytes=1000)
        txn = FakeTransaction()
        with pytest.raises(BrokerError, match="not this one"):
            await producer.send(LARGE, txn=txn)
        assert (txn.started, [messages for messages, _ in txn.finished]) == (1, [1])
        assert "0 in flight" in repr(producer)
        broker.on.pop("send")
        await producer.send(b"next")


@pytest.mark.parametrize("kind", [ConsumerType.EXCLUSIVE, ConsumerType.SHARED])
async def test_chunks_come_back_as_one_message_and_are_acknowledged_together(client, kind):
    consumer = await client.subscribe("t", "s", consumer_type=kind, initial_position=EARLIEST, negative_ack_delay=0.01)
    producer = await client.create_producer("t", chunking=True, chunk_max_bytes=1000)
    ids = await asyncio.gather(producer.send(b"before"), producer.send(LARGE, key="k"), producer.send(b"behind"))
    messages = await consumer.receive_many(3, max_wait=5)
    assert [(message.data, message.key) for message in messages] == [(b"before", None), (LARGE, "k"), (b"behind", None)]
    assert messages[1].message_id == ids[1]
    consumer.negative_acknowledge(messages[1])
    again = await consumer.receive(5)
    while again.data != LARGE:
        again = await consumer.receive(5)
    await consumer.acknowledge([messages[0], again, messages[2]], receipt=True)
    await consumer.close()
    after = await client.subscribe("t", "s", consumer_type=kind)
    assert await after.receive_many(1, max_wait=0.2) == []
    assert reception_of(after).partitions.all[0].machine.chunks.incomplete == 0
    reader = await client.create_reader("t", EARLIEST_ID)
    assert [(await reader.read_next(5)).data for _ in range(3)] == [b"before", LARGE, b"behind"]


async def test_chunks_in_transactions_are_seen_and_acknowledged_all_or_not_at_all(client):
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    producer = await client.create_producer("t", chunking=True, chunk_max_bytes=1000, compression=Compression.LZ4)
    async with client.transaction() as txn:
        await producer.send(LARGE + b"aborted", txn=txn)
        await txn.rollback()
    async with client.transaction() as txn:
        await producer.send(LARGE, txn=txn)
    async with client.transaction() as txn:
        message = await consumer.receive(5)
        assert message.data == LARGE
        await consumer.acknowledge(message, txn=txn)
        await txn.rollback()
    async with client.transaction() as txn:
        message = await consumer.receive(5)
        assert message.data == LARGE
        await consumer.acknowledge(message, txn=txn)
    await consumer.close()
    again = await client.subscribe("t", "s")
    assert await again.receive_many(1, max_wait=0.2) == []
    assert reception_of(again).partitions.all[0].machine.chunks.incomplete == 0


async def test_mixed_repeated_and_headless_chunks():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        deliver_chunk(broker, 0, "x", 1, 2, b"?", 2)
        deliver_chunk(broker, 1, "a", 0, 3, b"a1", 6)
        deliver_chunk(broker, 2, "b", 0, 2, b"b1", 4)
        deliver_chunk(broker, 3, "a", 1, 3, b"a2", 6)
        deliver_chunk(broker, 4, "a", 1, 3, b"a2", 6)
        deliver_chunk(broker, 5, "b", 1, 2, b"b2", 4)
        deliver_chunk(broker, 6, "a", 2, 3, b"a3", 6)
        b, a = await consumer.receive_many(2, max_wait=1)
        assert (a.data, b.data) == (b"a1a2a3", b"b1b2")
        await consumer.acknowledge(a, receipt=True)
        await consumer.acknowledge(b.message_id, receipt=True)
        positions = [list(ids) for _, ids in acked(broker)]
        assert positions == [[(1, 1), (1, 3), (1, 4), (1, 6)], [(1, 2), (1, 5)]]
        deliver_chunk(broker, 7, "c", 0, 2, b"c" * 5, 4)
        deliver_chunk(broker, 8, "d", 0, 2, b"d", 2)
        deliver_chunk(broker, 9, "d", 1, 2, b"d", 2)
        assert (await consumer.receive(1)).data == b"dd"
        assert reception_of(consumer).partitions.all[0].machine.chunks.incomplete == 0


async def test_incomplete_messages_are_bounded_and_expire():
    broker = FakeBroker()
    options = {"max_pending_chunked_messages": 2, "expire_incomplete_chunks": 0.6, "ack_group_delay": 0}
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", auto_ack_oldest_chunked_message=True, **options)
        for number, uuid in enumerate("abc"):
            deliver_chunk(broker, number, uuid, 0, 2, b"1", 2)
        chunks = reception_of(consumer).partitions.all[0].machine.chunks
        await broker.until(lambda: acked(broker)[:1] == [(False, [(1, 0)])])
        assert chunks.incomplete <= 2
        await broker.until(lambda: [each for _, ids in acked(broker) for each in ids] == [(1, 0), (1, 1), (1, 2)], 10)
        assert reception_of(consumer).partitions.all[0].machine.chunks.incomplete == 0


async def test_a_cumulative_acknowledgement_does_not_take_an_incomplete_message_along():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_receipt=True)
        deliver_chunk(broker, 0, "a", 0, 2, b"1", 2)
        broker.deliver(1, 1, b"m")
        message = await consumer.receive(1)
        await consumer.acknowledge_cumulative(message)
        assert acked(broker) == [(False, [(1, 1)])]
        txn = FakeTransaction()
        with pytest.raises(InvalidConfiguration, match="chunks"):
            await consumer.acknowledge_cumulative(message, txn=txn)
        deliver_chunk(broker, 2, "a", 1, 2, b"2", 2)
        whole = await consumer.receive(1)
        assert whole.data == b"12"
        await consumer.acknowledge_cumulative(whole)
        assert acked(broker)[-1] == (True, [(1, 2)])


async def test_the_official_client_and_ours_read_each_others_chunks(pulsar, topic):
    def official_side(payload):
        theirs = official.Client(pulsar.service_url)
        consumer = theirs.subscribe(f"{topic}-ours", "s", initial_position=official.InitialPosition.Earliest)
        received = consumer.receive(timeout_millis=10_000)
        consumer.acknowledge(received)
        producer = theirs.create_producer(topic, chunking_enabled=True, batching_enabled=False)
        producer.send(payload, partition_key="k")
        data = received.data()
        theirs.close()
        return data

    large = bytes(range(256)) * 4 * 6 * 1024
    async with AsyncClient(pulsar.service_url) as client:
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = await client.create_producer(f"{topic}-ours", chunking=True)
        await producer.send(large)
        assert await asyncio.to_thread(official_side, large[::-1]) == large
        message = await consumer.receive(10)
        assert (message.data, message.key) == (large[::-1], "k")
        await consumer.acknowledge(message, receipt=True)
