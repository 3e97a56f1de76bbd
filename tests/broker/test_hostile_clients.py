"""Mutated frames into the broker's connections: typed answers or a closed connection, and bounded state.

The bytes go straight into `data_received` of a broker over memory, so an exception that nobody expects surfaces here.
PULSAR_TXN_FUZZ_FRAMES sets the number; the seed is fixed, so that a failure comes again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mutations import mutate
from raw_client import FULL, RawClient

from pulsar_txn.broker.net.connection import Connection
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.batches import encode_batch
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import FrameReader, command, decode_command, frame_type
from pulsar_txn.wire.ids import TxnId

FRAMES = int(os.environ.get("PULSAR_TXN_FUZZ_FRAMES", "250000"))
SEEDS = 2
MAX_TXNS = 50
RECEIPT, SEND_ERROR, MESSAGE, ERROR, ACK_RESPONSE = 7, 8, 9, 14, 38
CODES = {int(code) for code in ServerError}


def entries() -> list[bytes]:
    """Messages of all kinds; those without magic and checksum let a mutation through to what is after them."""
    now: dict[str, Any] = {"producer_name": "p", "sequence_id": 1, "publish_time": 1_700_000_000_000}
    kinds = [
        (pb.MessageMetadata(**now, partition_key="k", ordering_key=b"o"), b"payload"),
        (pb.MessageMetadata(**now, num_messages_in_batch=2), encode_batch([(b"a",), (b"b",)])),
        (pb.MessageMetadata(**now, deliver_at_time=1_700_000_100_000), b"later"),
        (pb.MessageMetadata(**now, deliver_at_time=2**62), b"never"),
        (pb.MessageMetadata(**now, uuid="u", num_chunks_from_msg=3, chunk_id=1, total_chunk_msg_size=9), b"chunk"),
        (pb.MessageMetadata(**now, txnid_least_bits=0, txnid_most_bits=0), b"txn"),
        (pb.MessageMetadata(**now, marker_type=21), b""),
    ]
    whole = [encode_entry(metadata, payload) for metadata, payload in kinds]
    return [*whole[:2], *[each[6:] for each in whole]]


def hot_frames() -> list[bytes]:
    """What a client says per message."""
    frames: list[bytes] = []
    for entry in entries():
        frames.append(b"".join(hot.encode_send(1, 7, 1, entry, txn=TxnId(0, 0) if len(frames) % 2 else None)))
    for cumulative in (False, True):
        for left in (None, 1):
            for txn in (None, TxnId(0, 0)):
                frames.append(hot.encode_ack(1 + cumulative, cumulative, [(0, 3, left, 2)], txn=txn, request_id=5))
    frames += [hot.encode_flow(consumer_id, 100) for consumer_id in (1, 2, 3)]
    frames += [command("newTxn", request_id=1, tc_id=0, txn_ttl_millis=1000)]
    bits = {"txnid_least_bits": 0, "txnid_most_bits": 0}
    frames += [command("addPartitionToTxn", request_id=1, **bits, partitions=[FULL + "t"])]
    subscription = pb.Subscription(topic=FULL + "t", subscription="shared")
    frames += [command("addSubscriptionToTxn", request_id=1, **bits, subscription=[subscription])]
    return frames + [command("endTxn", request_id=1, **bits, txn_action=action) for action in (0, 1)]


def cold_frames() -> list[bytes]:
    """Everything else."""
    place = pb.MessageIdData(ledgerId=0, entryId=3)
    schema = pb.Schema(name="s", schema_data=b"{}", type=2)  # type: ignore[arg-type] # a number of the protocol
    named = {"topic": FULL + "t", "request_id": 9}
    meta = pb.KeySharedMeta(keySharedMode=1, hashRanges=[pb.IntRange(start=0, end=100)])  # type: ignore[arg-type] # as above
    return [
        command("connect", client_version="x", protocol_version=21),
        command("ping"),
        command("pong"),
        command("producer", **named, producer_id=1, producer_name="p", producer_access_mode=0),
        command("producer", **named, producer_id=2, producer_access_mode=3, topic_epoch=1, schema=schema, encrypted=True),
        command("close_producer", producer_id=3, request_id=9),
        command("subscribe", **named, subscription="shared", subType=1, consumer_id=1),
        command("subscribe", **named, subscription="keys", subType=3, consumer_id=4, keySharedMeta=meta),
        command("subscribe", **named, subscription="r", subType=0, consumer_id=5, durable=False, start_message_id=place),
        command("subscribe", **named, subscription="alone", subType=0, consumer_id=6, read_compacted=True),
        command("unsubscribe", consumer_id=5, request_id=9),
        command("close_consumer", consumer_id=5, request_id=9),
        command("seek", consumer_id=1, request_id=9, message_id=place),
        command("seek", consumer_id=1, request_id=9, message_publish_time=5),
        command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=[place]),
        command("redeliverUnacknowledgedMessages", consumer_id=2, consumer_epoch=3),
        command("getLastMessageId", consumer_id=1, request_id=9),
        command("consumerStats", consumer_id=1, request_id=9),
        command("partitionMetadata", **named),
        command("lookupTopic", **named, authoritative=False),
        command("getTopicsOfNamespace", request_id=9, namespace="public/default", mode=2),
        command("getTopicsOfNamespace", request_id=9, namespace="public/default", mode=0, topics_pattern="public/.*/(t|u)"),
        command("watchTopicList", request_id=9, watcher_id=1, namespace="public/default", topics_pattern="public/.*/(t|u)"),
        command("watchTopicListClose", request_id=9, watcher_id=1),
        command("getSchema", **named, schema_version=bytes(8)),
        command("getOrCreateSchema", **named, schema=schema),
        command("tcClientConnectRequest", tc_id=0, request_id=9),
        command("tcClientConnectRequest", tc_id=0, request_id=9, transactional_id="me"),
        command("endTxnOnPartition", request_id=9, topic=FULL + "t", txnid_least_bits=0, txnid_most_bits=0),
    ]


class Answers(asyncio.Transport):
    """Reads what the broker says: whole frames, and errors with a code of the protocol. Counts them by kind."""

    def __init__(self, said: Counter[int]) -> None:
        super().__init__()
        self.closed = False
        self._said = said
        self._reader = FrameReader()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for frame in self._reader.feed(b"".join(list_of_data)):
            kind = frame_type(frame)
            self._said[kind] += 1
            if kind not in {RECEIPT, MESSAGE, ACK_RESPONSE}:
                ((field, body),) = [each for each in decode_command(frame).ListFields() if each[0].name != "type"]
                if field.name in {"error", "send_error"} or (hasattr(body, "error") and body.HasField("error")):
                    assert body.error in CODES
                    assert body.message

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """The test goes on."""

    def resume_reading(self) -> None:
        """It did."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Unexpected(logging.Handler):
    """What the broker says only when something happened that nobody thought of."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(logging.Formatter().format(record))


@contextmanager
def unexpected_only() -> Iterator[Unexpected]:
    """The broker's log above warnings, and nothing of it on the terminal: they say a lot."""
    logger, log = logging.getLogger("pulsar_txn"), Unexpected()
    before = logger.level, logger.propagate
    logger.addHandler(log)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield log
    finally:
        logger.removeHandler(log)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Clients:
    """Connections one after the other, with a producer and consumers on each."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench
        self._first: RawClient | None = None
        self.said: Counter[int] = Counter()
        self.now: Connection

    async def begin(self) -> None:
        """New channels, in the way of the protocol, and a new connection with them; what was there is gone."""
        if self._first is not None:
            self._first.drop()
            self.now.connection_lost(None)
            for topic in self._bench.broker.topics.values():  # what was sent is not delivered again and again
                for subscription in topic.subscriptions.values():
                    subscription.cursor.mark_delete_to(topic.log.last_appended)
        for allowed in (True, False):  # names that nobody made stay unmade from here on
            object.__setattr__(self._bench.broker.config, "allow_auto_topic_creation", allowed)
            object.__setattr__(self._bench.broker.config, "allow_auto_subscription_creation", allowed)
            if allowed:
                self._first = await opened(self._bench)
        self.connect()

    def connect(self) -> None:
        """A connection as after a handshake; the channels move over to it, without their commands."""
        assert self._first is not None
        connection: Connection = self._bench.broker.connection()
        connection.connection_made(Answers(self.said))
        connection.connected = True
        for producer_id, producer in self._first.connection.session.producers.items():
            if producer.topic.producers.by_name.get(producer.name) is producer:  # the broker may have closed it
                producer.owner = connection.session
                producer.close()
                connection.session.producers[producer_id] = producer
        for consumer_id, consumer in self._first.connection.session.consumers.items():
            if consumer in consumer.subscription.consumers:
                consumer.owner, consumer.permits = connection.session, 20
                connection.session.consumers[consumer_id] = consumer
        self.now = connection

    def again(self) -> None:
        """After a connection that was closed: what it had of its own goes, the usual channels stay."""
        assert self._first is not None
        before, usual = self.now.session, self._first.connection.session
        for producer_id, producer in usual.producers.items():
            if before.producers.get(producer_id) is producer:
                del before.producers[producer_id]
        for consumer_id, consumer in usual.consumers.items():
            if before.consumers.get(consumer_id) is consumer:
                del before.consumers[consumer_id]
        self.now.connection_lost(None)
        self.connect()


async def opened(bench: Any) -> RawClient:
    client: RawClient = bench.client()
    await client.producer("t", 1, producer_name="p")
    for number, (name, kind) in enumerate((("shared", 1), ("failover", 2), ("keys", 3)), 1):
        await client.subscribe("t", name, number, kind=kind, permits=0)
    await client.sent(b"first", 1)
    return client


def check_bounds(bench: Any) -> None:
    """What one client may make the broker hold has limits, and they are kept."""
    broker = bench.broker
    assert len(broker.connections) <= 3
    assert len(broker.topics) <= 2
    for topic in broker.topics.values():
        assert len(topic.subscriptions) <= 20
    for tc_id in range(2):
        host = broker.coordinators.ready(tc_id)
        assert host is None or host.machine.active_count <= MAX_TXNS


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_mutated_frames_get_typed_answers_or_a_closed_connection(benches: Any, seed: int) -> None:
    bench = await benches(max_active_transactions_per_coordinator=MAX_TXNS).start()
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    clients, rnd = Clients(bench), random.Random(seed)
    frames, cold = hot_frames(), cold_frames()
    with unexpected_only() as log:
        for fed in range(FRAMES // SEEDS):
            if fed % 500 == 0:
                await clients.begin()
                check_bounds(bench)
            healthy = cold if fed % 16 == 0 else frames
            clients.now.data_received(mutate(healthy[rnd.randrange(len(healthy))], rnd))
            if fed % 16 == 0:  # tasks of requests, receipts and messages get their turn
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if clients.now.closed:
                clients.again()
        for _ in range(100):
            await asyncio.sleep(0)
        check_bounds(bench)
    assert unhandled == []
    assert log.records == []
    for kind in (RECEIPT, SEND_ERROR, MESSAGE, ERROR, ACK_RESPONSE):  # the frames did reach what is after the reader
        assert clients.said[kind] > FRAMES // SEEDS // 1000
    assert (await bench.client().request("lookupTopic", topic="t", authoritative=False)).response == 1
