"""Dead letters and pipelines at the edges: large ones, names that senders choose, vanished topics, cancellation."""

import asyncio
import re

import pytest
from fake_broker import SILENCE, fake_client, sent_entry
from keeping import kept_by

from pulsar_txn.client import Compression, ConsumerType, DeadLetterPolicy, InitialPosition
from pulsar_txn.client.errors import InvalidTopicName
from pulsar_txn.client.receive import dead_letters
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.wire import hot
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.entries import encode_entry
from pulsar_txn.wire.frames import command

SHARED = {"consumer_type": ConsumerType.SHARED, "initial_position": InitialPosition.EARLIEST}
LARGE = bytes(6 * 1024 * 1024)
ROOM = "persistent://public/default/"


def match(broker, *names):
    """What a pattern finds."""
    topics = [ROOM + name for name in names]
    broker.on["getTopicsOfNamespace"] = lambda _pipe, body: command(
        "getTopicsOfNamespaceResponse", request_id=body.request_id, topics=topics
    )
    return topics


def deliver(broker, name, entry, *, redelivered=0, **properties):
    """A message of one of several topics."""
    (consumer_id, *_) = [body.consumer_id for body in broker.all("subscribe") if body.topic == ROOM + name]
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1)
    for key, value in properties.items():
        metadata.properties.add(key=key, value=value)
    frame = hot.encode_message(consumer_id, 1, entry, encode_entry(metadata, b"m"), redelivery_count=redelivered)
    broker.pipe.send(b"".join(frame))


def letters_to(broker):
    return {body.topic.removeprefix(ROOM) for body in broker.all("producer")}


# --- large ones ---------------------------------------------------------------------------------------------------


async def test_a_compressed_message_that_is_too_large_for_one_entry_becomes_a_dead_letter(client):
    policy = DeadLetterPolicy(max_redeliver_count=1, initial_subscription="letters")
    consumer = await client.subscribe("t", "s", negative_ack_delay=0.01, dead_letter_policy=policy, **SHARED)
    producer = await client.create_producer("t", compression=Compression.ZLIB)
    await producer.send(LARGE)
    for _ in range(2):
        consumer.negative_acknowledge(await consumer.receive(5))
    letters = await client.subscribe("t-s-DLQ", "letters")
    assert (await letters.receive(5)).data == LARGE


async def test_a_pipeline_puts_a_poison_message_aside_that_is_too_large_for_one_entry(client):
    consumer = await client.subscribe("t", "s", **SHARED)
    letters = await client.subscribe("t-s-DLQ", "letters")
    await (await client.create_producer("t", compression=Compression.ZLIB)).send(LARGE)
    stop, kinds = asyncio.Event(), []

    async def handler(_batch):
        raise LookupError

    def observer(event):
        kinds.append(event.kind)
        if "dead_letter" in kinds or len(kinds) > 3:
            stop.set()

    async with asyncio.timeout(20):
        await client.pipeline(consumer, handler, max_wait=0.01, max_aborts=1, stop=stop, observer=observer)
    assert kinds == ["aborted", "dead_letter"]
    assert (await letters.receive(5)).data == LARGE


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["victim", "a//b c://"])
async def test_the_sender_of_a_message_does_not_choose_its_dead_letters_topic(broker, said):
    match(broker, "x1")
    policy = DeadLetterPolicy(max_redeliver_count=1, retry_letter_topic="again")
    async with fake_client(broker) as client:
        consumer = await client.subscribe(
            re.compile("public/default/x.*"), "s", dead_letter_policy=policy, consumer_type=ConsumerType.SHARED
        )
        before = kept_by(reception_of(consumer).letters)
        deliver(broker, "x1", 0, redelivered=2, REAL_TOPIC=said)
        await broker.until(lambda: broker.all("ack"))
        assert letters_to(broker) == {"x1-s-DLQ"}
        await broker.until(
            lambda: kept_by(reception_of(consumer).letters) == before + 1
        )  # a producer; it is told after the acknowledgement
        deliver(broker, "x1", 1, REAL_TOPIC=said)
        await consumer.reconsume_later(await consumer.receive(1))
        (metadata, _) = _sent(broker)[-1]
        assert {pair.key: pair.value for pair in metadata.properties}["REAL_TOPIC"] == ROOM + "x1"


@pytest.mark.parametrize(("said", "topic"), [(ROOM + "x7", "x7-s-DLQ"), ("a//b c://", "again-s-DLQ")])
async def test_what_was_put_off_goes_to_the_dead_letters_of_the_topic_it_came_from(broker, said, topic):
    match(broker, "x1")
    policy = DeadLetterPolicy(max_redeliver_count=1, retry_letter_topic="again")
    async with fake_client(broker) as client:
        await client.subscribe(
            re.compile("public/default/x.*"), "s", dead_letter_policy=policy, consumer_type=ConsumerType.SHARED
        )
        deliver(broker, "again", 0, redelivered=2, REAL_TOPIC=said)
        await broker.until(lambda: broker.all("ack"))
        assert letters_to(broker) == {topic}


async def test_names_of_letter_topics_are_checked_at_once(client):
    with pytest.raises(InvalidTopicName):
        DeadLetterPolicy(max_redeliver_count=1, dead_letter_topic="a//b c://")
    with pytest.raises(InvalidTopicName):
        DeadLetterPolicy(max_redeliver_count=1, retry_letter_topic="a/b")
    consumer = await client.subscribe("t", "s", **SHARED)
    with pytest.raises(InvalidTopicName):
        await client.pipeline(consumer, asyncio.sleep, dead_letter_topic="a/b")


def _sent(broker):
    return [sent_entry(body) for body in broker.all("send")]


async def test_a_broker_that_makes_no_subscription_for_letters_is_told_of_with_what_to_do(broker, caplog):
    def refuses(_pipe, body):
        if body.initial_subscription_name:
            return command("error", request_id=body.request_id, error=22, message="no subscriptions are made here")
        return None

    broker.on["producer"] = refuses
    policy = DeadLetterPolicy(max_redeliver_count=1)
    async with fake_client(broker) as client:
        await client.subscribe("t", "s", dead_letter_policy=policy, consumer_type=ConsumerType.SHARED)
        deliver(broker, "t", 0, redelivered=2)
        await broker.until(lambda: "was not sent to the dead letter topic" in caplog.text)
        assert "the subscription 'dead-letters' of persistent://public/default/t-s-DLQ keeps the dead letters" in caplog.text


# --- the producers of letters -------------------------------------------------------------------------------------


async def test_producers_of_letters_do_not_pile_up_with_the_topics_of_a_pattern(broker, monkeypatch):
    monkeypatch.setattr(dead_letters, "MAX_PRODUCERS", 2)
    names = [f"x{number}" for number in range(5)]
    match(broker, *names)
    policy = DeadLetterPolicy(max_redeliver_count=1)
    async with fake_client(broker) as client:
        consumer = await client.subscribe(
            re.compile("public/default/x.*"), "s", dead_letter_policy=policy, consumer_type=ConsumerType.SHARED
        )
        before = kept_by(reception_of(consumer).letters)
        for number, name in enumerate(names):
            deliver(broker, name, number, redelivered=2)
            await broker.until(lambda number=number: len(broker.all("ack")) == number + 1)
        await broker.until(lambda: len(broker.all("close_producer")) == 3)
        await broker.until(
            lambda: kept_by(reception_of(consumer).letters) == before + 2
        )  # the answers to the closings have come


async def test_a_producer_of_letters_that_was_being_made_does_not_outlive_its_consumer(broker):
    broker.on["producer"] = lambda _pipe, _body: SILENCE
    policy = DeadLetterPolicy(max_redeliver_count=1)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("x1", "s", dead_letter_policy=policy, consumer_type=ConsumerType.SHARED)
        deliver(broker, "x1", 0, redelivered=2)
        await broker.until(lambda: broker.all("producer"))
        await consumer.close()
        (body,) = broker.all("producer")
        broker.on.clear()
        broker.pipe.send(broker._producer(broker.pipe, body))
        await broker.until(lambda: broker.all("close_producer"))


# --- pipelines ----------------------------------------------------------------------------------------------------


class Cancels(ConsumerInterceptor):
    """Cancels a task when a message is handed out."""

    task = None

    def on_receive(self, _consumer, _message):
        self.task.cancel()


async def idle(_batch):
    """Do nothing."""


def redelivered(broker):
    return {each.entryId for body in broker.all("redeliverUnacknowledgedMessages") for each in body.message_ids}


@pytest.mark.parametrize("lanes", [1, 3])
async def test_what_a_pipeline_has_taken_when_it_is_cancelled_comes_again(broker, lanes):
    cancels = Cancels()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("x1", "s", interceptors=[cancels], consumer_type=ConsumerType.SHARED)
        cancels.task = asyncio.create_task(client.pipeline(consumer, idle, concurrency=lanes))
        await asyncio.sleep(0.01)
        deliver(broker, "x1", 0)
        with pytest.raises(asyncio.CancelledError):
            await cancels.task
        await broker.until(lambda: redelivered(broker) == {0})
        assert not broker.all("ack")


@pytest.mark.parametrize("lanes", [1, 2])
async def test_what_waits_behind_a_group_that_comes_again_comes_again_when_a_pipeline_is_cancelled(broker, lanes):
    broker.on["ack"] = lambda _pipe, body: hot.encode_ack_response(body[0], body[4], txn=body[3], error=23, message="taken")
    async with fake_client(broker) as client:
        consumer = await client.subscribe("x1", "s", consumer_type=ConsumerType.KEY_SHARED)
        running = asyncio.create_task(client.pipeline(consumer, idle, concurrency=lanes, max_wait=0.01))
        deliver(broker, "x1", 0)
        await broker.until(lambda: broker.all("endTxn"))
        deliver(broker, "x1", 1)
        await asyncio.sleep(0.03)
        assert 1 not in redelivered(broker)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await broker.until(lambda: 1 in redelivered(broker))


@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED, ConsumerType.EXCLUSIVE])
async def test_a_pipeline_goes_on_when_a_pattern_loses_a_topic(broker, kind):
    topics, started, stop, committed = match(broker, "x1", "x2"), asyncio.Event(), asyncio.Event(), []
    async with fake_client(broker) as client:
        pattern = re.compile("public/default/x.*")
        consumer = await client.subscribe(pattern, "s", consumer_type=kind, pattern_discovery_period=0.02)

        async def handler(batch):
            if batch[0].topic.endswith("x2"):
                started.set()
                await broker.until(lambda: len(consumer.topics) == 1)

        def observer(event):
            if event.kind == "committed":
                committed.extend(message.topic for message in event.messages)
                stop.set()

        running = asyncio.create_task(client.pipeline(consumer, handler, max_wait=0.01, stop=stop, observer=observer))
        deliver(broker, "x2", 0)
        await started.wait()
        topics.remove(ROOM + "x2")
        await broker.until(lambda: len(consumer.topics) == 1)
        deliver(broker, "x1", 1)
        async with asyncio.timeout(3):
            result = await running
        assert (result.committed, committed) == (1, [ROOM + "x1"])
