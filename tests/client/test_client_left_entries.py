"""Entries that are neither handed out nor acknowledged: too large, too new, chunks that were given up. None may be lost."""

import asyncio
import contextlib
import logging

import pytest
from fake_broker import fake_client

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, Compression, ConsumerType, InitialPosition
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.state import chunks as chunks_module
from pulsar_txn.client.state.chunks import UnsettledEntries
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.compression import compress
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.ids import TxnId
from pulsar_txn.wire.topics import ASSIGN_TOPIC

MIB = 1024 * 1024


@pytest.fixture
def transactional(broker):
    broker.partitions[ASSIGN_TOPIC] = 1
    return broker


def deliver_large(broker, entry_id, size, **fields):
    broker.deliver(1, entry_id, compress(3, bytes(size)), compression=3, uncompressed_size=size, **fields)


def deliver_chunk(broker, entry_id, uuid, number, count, data, total):
    fields = {"uuid": uuid, "chunk_id": number, "num_chunks_from_msg": count, "total_chunk_msg_size": total}
    broker.deliver(1, entry_id, data, **fields)


def deliver_too_new(broker, entry_id, payload, *, batch=False):
    """Compressed by what our protocol has no number for."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uncompressed_size=100)
    if batch:
        metadata.num_messages_in_batch = 5
    head = metadata.SerializeToString() + bytes([pb.MessageMetadata.COMPRESSION_FIELD_NUMBER << 3, 9])
    entry = encode_entry(pb.MessageMetadata.FromString(head), payload)
    broker.pipe.send(b"".join(hot.encode_message(broker.consumer_id, 1, entry_id, entry)))


def acked(broker):
    return [(body[1], [each[:2] for each in body[2]]) for body in broker.all("ack")]


def asked_again(broker):
    asked = broker.all("redeliverUnacknowledgedMessages")
    return [[(each.ledgerId, each.entryId) for each in body.message_ids] for body in asked]


async def received(consumer, count):
    messages = await consumer.receive_many(count, max_wait=2)
    assert len(messages) == count
    return messages


# --- larger or newer than we take ------------------------------------------------------------------------------------


async def test_a_compressed_message_above_64_mib_is_received_and_not_destroyed():
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
        consumer = await client.subscribe("t", "s", initial_position=InitialPosition.EARLIEST)
        producer = await client.create_producer("t", compression=Compression.ZSTD)
        await producer.send(bytes(65 * MIB))
        assert len((await consumer.receive(20)).data) == 65 * MIB


async def test_a_message_above_the_limit_stays_with_the_broker_for_a_consumer_with_a_larger_one(pulsar, topic):
    async with AsyncClient(pulsar.service_url) as client:
        options = {"initial_position": InitialPosition.EARLIEST}
        consumer = await client.subscribe(topic, "s", max_uncompressed_bytes=1000, **options)
        producer = await client.create_producer(topic, compression=Compression.ZSTD)
        await producer.send(bytes(1001))
        await producer.send(b"behind")
        behind = await consumer.receive(5)
        assert behind.data == b"behind"
        await consumer.acknowledge_cumulative(behind, receipt=True)
        await consumer.close()
        again = await client.subscribe(topic, "s", **options)
        assert [message.data for message in await received(again, 1)] == [bytes(1001)]
        await asyncio.sleep(0.1)
        assert again.queued == 0


@pytest.mark.parametrize("batch", [False, True])
async def test_an_unknown_compression_is_neither_acknowledged_nor_handed_out_as_it_is(broker, batch, caplog):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=10)
        deliver_too_new(broker, 0, b"compressed" * 9, batch=batch)
        broker.deliver(1, 1, b"good")
        assert (await consumer.receive(1)).data == b"good"
        await asyncio.sleep(0.15)
        assert not broker.all("ack")
        taken = 6 if batch else 2
        for number in range(5):
            broker.deliver(1, 2 + number, b"more")
        await received(consumer, 5)
        await broker.until(lambda: broker.permits[broker.consumer_id] >= 10 + min(taken, 5))
    assert "update pulsar-txn" in caplog.text


async def test_what_is_too_large_is_said_once_as_an_error_and_a_bomb_takes_no_memory(broker, caplog):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_uncompressed_bytes=MIB)
        with caplog.at_level(logging.WARNING, "pulsar_txn.client"):
            for number in range(3):
                deliver_large(broker, number, 2 * MIB)
            broker.deliver(1, 3, b"lies", compression=3, uncompressed_size=2**31 - 1)
            broker.deliver(1, 4, b"impossible", compression=3, uncompressed_size=2**31)
            broker.deliver(1, 5, b"good")
            assert (await consumer.receive(1)).data == b"good"
        await broker.until(lambda: acked(broker) == [(False, [(1, 4)])])
    left = [record for record in caplog.records if "stays unacknowledged" in record.message]
    assert [record.levelno for record in left] == [logging.ERROR] + 3 * [logging.WARNING]
    assert "max_uncompressed_bytes" in left[0].message


async def test_what_is_damaged_is_still_discarded(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        broker.deliver(1, 0, b"rubbish", compression=3, uncompressed_size=100)
        broker.deliver(1, 1, b"good")
        assert (await consumer.receive(1)).data == b"good"
        await broker.until(lambda: acked(broker) == [(False, [(1, 0)])])


async def test_a_cumulative_acknowledgement_does_not_take_along_what_was_left(transactional):
    broker = transactional
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_uncompressed_bytes=1000)
        broker.deliver(1, 0, b"before")
        deliver_large(broker, 1, 1001)
        broker.deliver(1, 2, b"behind")
        broker.deliver(1, 3, b"behind")
        before, one, other = await received(consumer, 3)
        await consumer.acknowledge_cumulative(before, receipt=True)
        await consumer.acknowledge_cumulative(one, receipt=True)
        assert acked(broker) == [(True, [(1, 0)]), (False, [(1, 2)])]
        assert other.data == b"behind"


async def test_a_transactional_batch_does_not_take_along_what_was_left(transactional):
    broker = transactional
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_uncompressed_bytes=1000)
        deliver_large(broker, 0, 1001)
        broker.deliver(1, 1, b"a")
        broker.deliver(1, 2, b"b")
        await broker.until(lambda: consumer.queued == 2)
        async with consumer.transactional_batch(10, 0.05) as batch:
            assert len(batch) == 2
        assert acked(broker) == [(False, [(1, 1), (1, 2)])]
        assert broker.all("ack")[0][3] == TxnId(0, 1)


async def test_what_was_left_is_watched_over_a_reconnect_until_it_has_come_again(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_uncompressed_bytes=1000, ack_group_delay=0)
        deliver_large(broker, 1, 1001)
        broker.deliver(1, 2, b"held by the program")
        held = await consumer.receive(1)
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        await consumer.acknowledge_cumulative(held)
        assert await asyncio.wait_for(_acked(broker, 1), 1) == [(False, [(1, 2)])]
        broker.deliver(1, 0, b"moved back by an administrator")
        await received(consumer, 1)
        broker.deliver(1, 3, b"the one that was left was skipped by an administrator")
        (last,) = await received(consumer, 1)
        await consumer.acknowledge_cumulative(last)
        assert (await asyncio.wait_for(_acked(broker, 2), 1))[-1] == (True, [(1, 3)])


async def _acked(broker, count):
    await broker.until(lambda: len(broker.all("ack")) >= count)
    return acked(broker)


async def test_chunks_above_the_limit_are_left_as_a_whole(broker, caplog):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_uncompressed_bytes=10, ack_receipt=True, expire_incomplete_chunks=0.05)
        for number in range(3):
            deliver_chunk(broker, number, "a", number, 3, b"12345", 15)
        broker.deliver(1, 3, b"behind")
        (message,) = await received(consumer, 1)
        await consumer.acknowledge_cumulative(message)
        await asyncio.sleep(0.1)
        assert acked(broker) == [(False, [(1, 3)])]
        left = reception_of(consumer).partitions.all[0].machine.chunks.unsettled
        assert [left.before((1, entry)) for entry in (0, 1)] == [False, True]
    assert "max_uncompressed_bytes=10" in caplog.text


# --- chunks that were given up for lack of room ----------------------------------------------------------------------


def deliver_more_than_there_is_room_for(broker):
    deliver_chunk(broker, 0, "A", 0, 2, b"aa", 4)
    deliver_chunk(broker, 1, "B", 0, 2, b"bb", 4)
    deliver_chunk(broker, 2, "B", 1, 2, b"bb", 4)
    deliver_chunk(broker, 3, "A", 1, 2, b"aa", 4)
    broker.deliver(1, 4, b"plain")


async def test_an_evicted_chunked_message_is_not_lost_to_the_next_cumulative_acknowledgement(broker):
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_pending_chunked_messages=1, ack_receipt=True)
        deliver_more_than_there_is_room_for(broker)
        b, plain = await received(consumer, 2)
        assert (b.data, plain.data) == (b"bbbb", b"plain")
        await consumer.acknowledge_cumulative(plain)
        assert not any(cumulative for cumulative, _ in acked(broker))
        assert {place for _, ids in acked(broker) for place in ids}.isdisjoint({(1, 0), (1, 3)})
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        deliver_chunk(broker, 0, "A", 0, 2, b"aa", 4)
        deliver_chunk(broker, 3, "A", 1, 2, b"aa", 4)
        (a,) = await received(consumer, 1)
        assert a.data == b"aaaa"
        await consumer.acknowledge_cumulative(a)
        assert acked(broker)[-1] == (True, [(1, 3)])


async def test_an_evicted_chunked_message_is_not_lost_to_a_transactional_batch(transactional):
    broker = transactional
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", max_pending_chunked_messages=1)
        deliver_more_than_there_is_room_for(broker)
        await broker.until(lambda: consumer.queued == 2)
        async with consumer.transactional_batch(10, 0.05) as batch:
            assert len(batch) == 2
        assert acked(broker) == [(False, [(1, 1), (1, 2), (1, 4)])]


async def test_the_chunks_of_a_complete_message_are_not_acknowledged_along_by_one_that_stands_between_them(transactional):
    """It was not handled yet: when it comes again, it needs its beginning."""
    broker = transactional
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_receipt=True)
        deliver_chunk(broker, 0, "A", 0, 2, b"aa", 4)
        broker.deliver(1, 1, b"between")
        broker.deliver(1, 2, b"between")
        deliver_chunk(broker, 3, "A", 1, 2, b"aa", 4)
        await broker.until(lambda: consumer.queued == 3)
        async with consumer.transactional_batch(2, 1) as batch:
            assert len(batch) == 2
        await consumer.acknowledge_cumulative(batch[1])
        a = await consumer.receive(1)
        await consumer.acknowledge_cumulative(a)
        assert acked(broker) == [(False, [(1, 1), (1, 2)]), (False, [(1, 2)]), (True, [(1, 3)])]


@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED])
async def test_evicted_chunks_are_asked_for_again_where_that_is_possible(broker, kind):
    options = {"max_pending_chunked_messages": 1, "negative_ack_delay": 0.05}
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind, **options)
        deliver_more_than_there_is_room_for(broker)
        await received(consumer, 2)
        assert asked_again(broker) == []
        await broker.until(lambda: asked_again(broker) == [[(1, 0), (1, 3)]])
        deliver_chunk(broker, 0, "A", 0, 2, b"aa", 4)
        deliver_chunk(broker, 3, "A", 1, 2, b"aa", 4)
        (a,) = await received(consumer, 1)
        assert a.data == b"aaaa"
        await consumer.acknowledge(a, receipt=True)
        assert acked(broker) == [(False, [(1, 0), (1, 3)])]


async def test_every_message_in_chunks_arrives_although_there_is_room_for_few(pulsar, topic):
    options = {"initial_position": InitialPosition.EARLIEST, "max_pending_chunked_messages": 2, "negative_ack_delay": 0.2}
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(pulsar.service_url)) for _ in range(6)]
        consumer = await clients[0].subscribe(topic, "s", consumer_type=ConsumerType.SHARED, **options)
        producers = [await client.create_producer(topic, chunking=True, chunk_max_bytes=1000) for client in clients]
        sending = [producer.send(bytes([n]) * 50_000) for n, producer in enumerate(producers) for _ in range(3)]
        await asyncio.gather(*sending)
        seen = set()
        while len(seen) < len(sending):
            message = await consumer.receive(20)
            assert len(message.data) == 50_000
            seen.add(message.message_id)
            await consumer.acknowledge(message)


async def test_evicted_chunks_are_not_asked_for_over_a_connection_that_brings_them_by_itself(broker):
    options = {"max_pending_chunked_messages": 1, "negative_ack_delay": 0.05, "consumer_type": ConsumerType.SHARED}
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", **options)
        deliver_more_than_there_is_room_for(broker)
        await received(consumer, 2)
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        await asyncio.sleep(0.2)
        assert asked_again(broker) == []


async def test_a_subscription_without_memory_acknowledges_cumulatively_past_what_it_left(broker):
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", max_uncompressed_bytes=1000)
        deliver_large(broker, 0, 1001)
        broker.deliver(1, 1, b"a")
        assert (await reader.read_next(1)).data == b"a"
        await broker.until(lambda: acked(broker) == [(True, [(1, 1)])])


def test_what_is_remembered_of_what_was_left_is_bounded(monkeypatch):
    monkeypatch.setattr(chunks_module, "LIMIT", 2)
    left = UnsettledEntries(watched=True)
    left.add([(1, 5), (1, 3), (1, 7), (1, 3), (1, 9)])
    assert left._places == [(1, 3), (1, 5)]
    assert [left.before((1, entry)) for entry in (3, 4, 8)] == [False, True, True]
    left.start_over([(1, 1)])
    assert left.owed == [(1, 1), (1, 3)]
    left.came((1, 2))
    assert left.before((1, 4))
    left.came((1, 3))
    assert not left.before((1, 4))
