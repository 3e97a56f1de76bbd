"""Names that are too long: refused with a typed error wherever they come in, and nothing of anybody else is lost by them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from admin_client import Admin
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, ConsumerType, DeadLetterPolicy, InitialPosition
from pulsar_txn.client.errors import InvalidConfiguration, InvalidTopicName, PulsarError
from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.frames import FrameReader, command, decode_command
from pulsar_txn.wire.topics import MAX_SUBSCRIPTION_BYTES, MAX_TOPIC_BYTES

LONG = FULL + "x" * 70_000
TOPIC = FULL + "x" * (MAX_TOPIC_BYTES - len(FULL))
SUBSCRIPTION = "ü" * (MAX_SUBSCRIPTION_BYTES // 2)
BITS = {"txnid_most_bits": 0, "txnid_least_bits": 0}

BAD: list[tuple[str, dict[str, Any], ServerError]] = [
    *(
        (name, {"topic": topic, **fields}, ServerError.InvalidTopicName)
        for topic in (LONG, "public/" + "x" * 70_000 + "/t", TOPIC + "x", "ü" * 1500)
        for name, fields in (
            ("lookupTopic", {}),
            ("partitionMetadata", {}),
            ("producer", {"producer_id": 1}),
            ("subscribe", {"subscription": "s", "subType": 0, "consumer_id": 1}),
            ("getSchema", {}),
            ("getOrCreateSchema", {"schema": pb.Schema(name="s", schema_data=b"{}", type=2)}),  # type: ignore[arg-type] # a number
        )
    ),
    ("subscribe", {"topic": "t", "subscription": "s" * 70_000, "subType": 0, "consumer_id": 1}, ServerError.NotAllowedError),
    (
        "subscribe",
        {"topic": "t", "subscription": SUBSCRIPTION + "s", "subType": 0, "consumer_id": 1, "durable": False},
        ServerError.NotAllowedError,
    ),
    ("producer", {"topic": "t", "producer_id": 1, "initial_subscription_name": "s" * 70_000}, ServerError.NotAllowedError),
    ("addPartitionToTxn", {**BITS, "partitions": [LONG]}, ServerError.InvalidTopicName),
    (
        "addSubscriptionToTxn",
        {**BITS, "subscription": [pb.Subscription(topic=LONG, subscription="s")]},
        ServerError.InvalidTopicName,
    ),
    (
        "addSubscriptionToTxn",
        {**BITS, "subscription": [pb.Subscription(topic=FULL + "t", subscription="s" * 40_000)]},
        ServerError.NotAllowedError,
    ),
    ("getTopicsOfNamespace", {"namespace": "public/" + "x" * 70_000, "mode": 2}, ServerError.InvalidTopicName),
    (
        "watchTopicList",
        {"namespace": "x" * 70_000 + "/default", "watcher_id": 1, "topics_pattern": "t.*"},
        ServerError.InvalidTopicName,
    ),
]


@pytest.mark.parametrize(("name", "fields", "code"), BAD, ids=lambda value: value if isinstance(value, str) else "")
async def test_every_command_answers_a_name_that_is_too_long(
    client: RawClient, bench: Any, name: str, fields: dict[str, Any], code: ServerError
) -> None:
    with pytest.raises(Refused, match="choose a shorter name") as refused:
        await client.request(name, **fields)
    assert refused.value.code == code
    assert [each for each in bench.store.names() if "x" * 100 in each or "s" * 100 in each] == []


async def test_the_administration_refuses_names_that_are_too_long(admin: Admin, bench: Any) -> None:
    long, base = "y" * 2100, "/admin/v2"
    for method, path in (
        ("PUT", f"{base}/persistent/public/default/{long}"),
        ("PUT", f"{base}/persistent/public/default/{long}/partitions"),
        ("GET", f"{base}/persistent/public/default/{long}/stats"),
        ("PUT", f"{base}/persistent/public/default/t/subscription/{long}"),
        ("PUT", f"{base}/namespaces/public/{long}"),
        ("PUT", f"{base}/tenants/{long}"),
    ):
        status, answer = await admin(method, path, 2 if path.endswith("partitions") else None)
        assert (status, "shorter name" in str(answer)) == (412, True), path
    assert [name for name in bench.store.names() if "y" * 100 in name] == []


async def test_the_longest_names_together_take_part_in_a_transaction_and_survive_a_restart(tmp_path: Path) -> None:
    for turn in range(2):
        async with (
            JournalStore(tmp_path, segment_bytes=1 << 20) as store,
            Standalone(store=store) as broker,
            AsyncClient(broker.service_url) as client,
        ):
            producer = await client.create_producer(TOPIC)
            consumer = await client.subscribe(TOPIC, SUBSCRIPTION, initial_position=InitialPosition.EARLIEST)
            if turn:
                assert (await consumer.receive(5)).data == b"after the commit"
                continue
            await producer.send(b"acknowledged")
            async with client.transaction() as txn:
                await consumer.acknowledge(await consumer.receive(5), txn=txn)
                await producer.send(b"after the commit", txn=txn)


async def test_pending_acks_that_no_log_can_be_named_after_are_refused_and_not_left_without_an_answer(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names that the ledger takes alone and not together: as if the check of names had a hole."""
    monkeypatch.setattr("pulsar_txn.wire.topics._check_size", lambda *_: None)
    topic, subscription = FULL + "x" * 60_000, "s" * 40_000
    await client.producer(topic)
    await client.subscribe(topic, subscription)
    await client.sent(b"message")
    message = await client.receive()
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (topic, subscription))
    for _ in range(2):
        with pytest.raises(Refused, match="choose a shorter one") as refused:
            await client.ack(message, txn=txn)
        assert refused.value.code == ServerError.NotAllowedError
    await client.abort(txn)
    await client.ack(message)


async def test_our_client_refuses_before_it_asks_and_says_what_to_do(tmp_path: Path) -> None:
    async with Standalone() as broker, AsyncClient(broker.service_url) as client:
        for topic in (LONG, "public/" + "x" * 70_000 + "/t"):
            with pytest.raises(InvalidTopicName, match="choose a shorter name"):
                await client.create_producer(topic)
            with pytest.raises(InvalidTopicName, match="choose a shorter name"):
                await client.subscribe(topic, "s")
        with pytest.raises(InvalidConfiguration, match="choose a shorter name"):
            await client.subscribe("t", "s" * 70_000)
        with pytest.raises(InvalidConfiguration, match="choose a shorter name"):
            await client.create_producer("t", initial_subscription="s" * 70_000)
        with pytest.raises(InvalidConfiguration, match="dead_letter_topic="):
            policy = DeadLetterPolicy(max_redeliver_count=1)
            await client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=ConsumerType.SHARED, dead_letter_policy=policy)


class Hostile:
    """A client of bare frames on a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._frames = reader, writer, FrameReader()

    @classmethod
    async def connected(cls, port: int) -> Hostile:
        hostile = cls(*await asyncio.open_connection("127.0.0.1", port))
        hostile._writer.write(command("connect", client_version="raw", protocol_version=21))
        await hostile.answer("connected")
        return hostile

    async def answer(self, name: str) -> Any:
        async with asyncio.timeout(10):
            while True:
                for frame in self._frames.feed(await self._reader.read(1 << 16)):
                    found = decode_command(frame)
                    if found.HasField(name):  # type: ignore[arg-type] # the name of a field
                        return getattr(found, name)

    async def refused(self, name: str, **fields: Any) -> str:
        self._writer.write(command(name, request_id=7, **fields))
        said: str = (await self.answer("error")).message
        return said

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("bounds", ["of names", "of the ledger alone"])
async def test_names_of_any_length_cost_nobody_else_a_message_across_segments_and_a_restart(
    tmp_path: Path, bounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside twenty senders: names that are too long. Then segments roll, the broker starts again, everything is read."""
    if bounds == "of the ledger alone":  # as if the check of names had a hole
        monkeypatch.setattr("pulsar_txn.wire.topics._check_size", lambda *_: None)
    confirmed: dict[str, list[bytes]] = {f"good-{number}": [] for number in range(4)}
    failed: list[PulsarError] = []
    async with (
        JournalStore(tmp_path, segment_bytes=1 << 20) as store,
        Standalone(store=store) as broker,
        AsyncClient(broker.service_url) as client,
    ):
        stop = asyncio.Event()

        async def send(topic: str, number: int) -> None:
            producer = await client.create_producer(topic, batching=False)
            turn = 0
            while not stop.is_set():
                data = b"%d:%d:" % (number, turn) + bytes(2000)
                turn += 1
                try:
                    await producer.send(data)
                    confirmed[topic].append(data)
                except PulsarError as error:
                    failed.append(error)

        senders = [asyncio.create_task(send(topic, number)) for number, topic in enumerate([*confirmed] * 5)]
        hostile = await Hostile.connected(int(broker.service_url.rpartition(":")[2]))
        for _ in range(3):
            for topic in (LONG, "public/" + "x" * 70_000 + "/t"):
                assert "choose a shorter" in await hostile.refused("producer", topic=topic, producer_id=1)
            said = await hostile.refused("subscribe", topic="t", subscription="s" * 70_000, subType=0, consumer_id=1)
            assert "choose a shorter" in said
        hostile.close()
        first = store.writer.planned_segment
        while store.writer.planned_segment < first + 3:  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*senders)
        await asyncio.wait_for((await client.create_producer("good-0")).send(b"last"), 10)
        confirmed["good-0"].append(b"last")
    assert failed == []
    async with (
        JournalStore(tmp_path, segment_bytes=1 << 20) as store,
        Standalone(store=store) as broker,
        AsyncClient(broker.service_url) as client,
    ):
        for topic, expected in confirmed.items():
            reader = await client.create_reader(topic)
            found = [(await reader.read_next(5)).data for _ in expected]
            assert sorted(found) == sorted(expected)
            assert not await reader.has_message_available()
