"""Index and time that a broker gives to messages."""

import asyncio

import pytest
import stock_install
from fake_broker import FakeBroker, fake_client
from stock_pulsar import StockPulsar

from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch
from pulsar_txn.wire.entries import encode_entry

INTERCEPTORS = "org.apache.pulsar.common.intercept."
CONF = {
    "brokerEntryMetadataInterceptors": f"{INTERCEPTORS}AppendIndexMetadataInterceptor,"
    f"{INTERCEPTORS}AppendBrokerTimestampMetadataInterceptor",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
}


def deliver(broker, entry_id, metadata, payload, block):
    head = b"" if block is None else b"\x0e\x02" + len(block).to_bytes(4) + block
    frame = hot.encode_message(broker.consumer_id, 1, entry_id, head + encode_entry(metadata, payload))
    broker.pipe.send(b"".join(frame))


async def test_messages_know_what_the_broker_says_of_their_entry():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        assert broker.all("connect")[0].feature_flags.supports_broker_entry_metadata
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        deliver(broker, 0, metadata, b"x", pb.BrokerEntryMetadata(index=6, broker_timestamp=99).SerializeToString())
        deliver(broker, 1, metadata, b"y", None)
        deliver(broker, 2, metadata, b"z", b"")
        metadata.num_messages_in_batch = 3
        block = pb.BrokerEntryMetadata(index=9).SerializeToString()
        deliver(broker, 3, metadata, encode_batch([b"a", b"b", b"c"]), block)
        deliver(broker, 4, metadata, b"w", b"\xff")  # damage: told, and passed over
        messages = [await consumer.receive(5) for _ in range(6)]
    assert [message.data for message in messages] == [b"x", b"y", b"z", b"a", b"b", b"c"]
    assert [message.broker_index for message in messages] == [6, None, None, 7, 8, 9]
    assert [message.broker_publish_time_ms for message in messages] == [99, None, None, None, None, None]
    assert [ack[2][0][:2] for ack in broker.all("ack")] == [(1, 4)]


@pytest.mark.stock
@pytest.mark.timeout(400)
@pytest.mark.skipif(stock_install.missing_tools() is not None, reason="a stock Pulsar of its own is needed")
def test_a_stock_broker_counts_messages_over_batches_and_transactions():
    async def story(url):
        async with AsyncClient(url, operation_timeout=60) as client:
            producer = await client.create_producer("indexed")
            consumer = await client.subscribe("indexed", "s", initial_position=InitialPosition.EARLIEST)
            await asyncio.gather(*(producer.send(b"%d" % number) for number in range(5)))
            await producer.send(b"5")
            return [await consumer.receive(20) for _ in range(6)]

    with StockPulsar(stock_install.VERSIONS[-1], conf=CONF) as server:
        messages = asyncio.run(story(server.service_url))
    assert [message.broker_index for message in messages] == list(range(6))
    assert all(abs(message.broker_publish_time_ms - message.publish_time_ms) < 60_000 for message in messages)
