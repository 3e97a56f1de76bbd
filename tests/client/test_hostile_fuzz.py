"""A million mutated frames into the client's connection: nothing but typed errors, whatever the bytes say.

The bytes go straight into `data_received`, so that an exception which is not typed surfaces here. PULSAR_TXN_FUZZ_FRAMES
sets the number; the seed is fixed, so that a failure comes again.
"""

import asyncio
import logging
import os
import random

import pytest
from fake_broker import FakeBroker, fake_client
from insides import partitions_of
from mutations import mutate

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.net.connection import Connection
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.frames import command

FRAMES = int(os.environ.get("PULSAR_TXN_FUZZ_FRAMES", "1000000"))


def samples(producer_id, consumer_id):
    """One healthy frame of everything that a broker says."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="k")
    metadata.properties.add(key="a", value="b")
    batch = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    entries = [
        encode_entry(metadata, b"payload")[6:],
        encode_entry(metadata, b"x"),
        encode_entry(batch, encode_batch([(b"a",), (b"b",)])),
    ]
    # Without magic and checksum a mutation reaches what is after them.
    entries.append(entries[2][6:])
    frames = [
        b"".join(hot.encode_message(consumer_id, 1, 5, entry, ack_set=ack_set, batch_size=2, redelivery_count=1))
        for entry in entries
        for ack_set in (None, 1)
    ]
    frames += [hot.encode_send_receipt(producer_id, 0, 1, 1, highest_sequence_id=3), hot.encode_ack_response(consumer_id, 1)]
    frames += [command("send_error", producer_id=producer_id, sequence_id=0, error=22, message="no")]
    frames += [command("producer_success", request_id=1, producer_name="p", last_sequence_id=-1, producer_ready=False)]
    frames += [command("lookupTopicResponse", request_id=1, response=1, brokerServiceUrl="pulsar://x:1")]
    frames += [command("partitionMetadataResponse", request_id=1, partitions=3, response=0)]
    frames += [command("success", request_id=1), command("error", request_id=1, error=1, message="no"), command("ping")]
    frames += [command("pong"), command("reachedEndOfTopic", consumer_id=consumer_id)]
    frames += [command("active_consumer_change", consumer_id=consumer_id, is_active=True)]
    frames += [command("connected", server_version="x", protocol_version=21, max_message_size=5_000_000)]
    frames += [command("newTxnResponse", request_id=1, txnid_least_bits=1, txnid_most_bits=1)]
    frames += [command("endTxnResponse", request_id=1, error=24, message="no"), command("authChallenge")]
    frames += [command("close_producer", producer_id=99, request_id=1), command("close_consumer", consumer_id=99, request_id=1)]
    return frames


class Nowhere(asyncio.Transport):
    """Takes what is written, and forgets it."""

    def write(self, data):
        pass

    def writelines(self, list_of_data):
        pass

    def close(self):
        pass


def attached(client, consumer, producer):
    """A connection after its handshake, a consumer and a producer on it, and nobody at the other end."""
    part, other = reception_of(consumer).partitions.all[0], partitions_of(producer)[0]
    connection = Connection(core_of(client).runtime, core_of(client).settings, "nowhere:1")
    connection.connection_made(Nowhere())
    connection.data_received(command("connected", server_version="x", protocol_version=21, max_message_size=5_000_000))
    connection.consumers[part.id], connection.producers[other.id] = part, other
    part.channel.connection = other._connection = connection
    return connection


def looked_at(future):
    if not future.cancelled():
        error = future.exception()
        assert error is None or isinstance(error, PulsarError)


@pytest.mark.parametrize("seed", range(4))
async def test_a_million_mutated_frames_end_in_nothing_but_typed_errors(seed):
    unhandled = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    rnd = random.Random(seed)
    logging.disable(logging.CRITICAL)
    try:
        async with fake_client(FakeBroker()) as client:
            consumer = await client.subscribe("t", "s", receiver_queue_size=100)
            producer = await client.create_producer("t")
            healthy = samples(partitions_of(producer)[0].id, reception_of(consumer).partitions.all[0].id)
            connection = attached(client, consumer, producer)
            for fed in range(FRAMES // 4):
                if connection.closed:
                    assert isinstance(connection.error, PulsarError)
                    connection = attached(client, consumer, producer)
                if fed % 50 == 0:
                    connection.request("lookupTopic", 1, topic="x").add_done_callback(looked_at)
                    consumer.receive_nowait(10_000)
                    assert consumer.queued < 20_000
                if fed % 1000 == 0:
                    await asyncio.sleep(0)
                connection.data_received(mutate(healthy[rnd.randrange(len(healthy))], rnd))
            connection.close()
    finally:
        logging.disable(logging.NOTSET)
    assert unhandled == []
