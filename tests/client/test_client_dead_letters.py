"""Redelivery by itself: dead letters, the retry topic, time-outs of acknowledgements, growing delays."""

import asyncio

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client import ConsumerType, DeadLetterPolicy, InitialPosition, KeySharedPolicy, RedeliveryBackoff
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.consumer import reception_of

pytestmark = pytest.mark.quick

SHARED = {"consumer_type": ConsumerType.SHARED, "initial_position": InitialPosition.EARLIEST}


async def test_what_fails_too_often_goes_to_the_dead_letter_topic_and_is_not_seen_again(client):
    policy = DeadLetterPolicy(max_redeliver_count=2, initial_subscription="letters")
    consumer = await client.subscribe("t", "s", negative_ack_delay=0.01, dead_letter_policy=policy, **SHARED)
    producer = await client.create_producer("t")
    bad = await producer.send(b"bad", key="k", ordering_key=b"o", properties={"a": "1"}, event_time_ms=7)
    seen = []
    for _ in range(3):
        message = await consumer.receive(5)
        seen.append((message.data, message.redelivery_count))
        consumer.negative_acknowledge(message)
    assert seen == [(b"bad", 0), (b"bad", 1), (b"bad", 2)]
    letters = await client.subscribe("t-s-DLQ", "letters")
    letter = await letters.receive(5)
    assert (letter.data, letter.key, letter.ordering_key, letter.event_time_ms) == (b"bad", "k", b"o", 7)
    assert letter.properties == {
        "a": "1",
        "REAL_TOPIC": "persistent://public/default/t",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": str(bad),
    }
    await producer.send(b"good")
    assert (await consumer.receive(5)).data == b"good"
    await consumer.close()
    again = await client.subscribe("t", "s", **SHARED)
    assert [message.data for message in await again.receive_many(5, max_wait=0.3)] == [b"good"]


async def test_of_a_batch_only_what_was_not_acknowledged_becomes_a_dead_letter(client):
    policy = DeadLetterPolicy(max_redeliver_count=1, dead_letter_topic="dead", initial_subscription="letters")
    consumer = await client.subscribe("t", "s", negative_ack_delay=0.01, dead_letter_policy=policy, **SHARED)
    producer = await client.create_producer("t")
    await asyncio.gather(*(producer.send(payload) for payload in (b"a", b"b", b"c")))
    first = await consumer.receive_many(3, max_wait=5)
    await consumer.acknowledge(first[1], receipt=True)
    for message in (first[0], first[2]):
        consumer.negative_acknowledge(message)
    for message in await consumer.receive_many(2, max_wait=5):
        consumer.negative_acknowledge(message)
    letters = await client.subscribe("dead", "letters")
    assert [message.data for message in await letters.receive_many(2, max_wait=5)] == [b"a", b"c"]


async def test_reconsume_later_brings_it_by_the_retry_topic_and_in_the_end_to_the_dead_letters(client):
    policy = DeadLetterPolicy(max_redeliver_count=1, retry=True, initial_subscription="letters")
    consumer = await client.subscribe("t", "s", dead_letter_policy=policy, **SHARED)
    assert [topic.rpartition("/")[2] for topic in consumer.topics] == ["t", "t-s-RETRY"]
    producer = await client.create_producer("t")
    origin = await producer.send(b"later")
    await consumer.reconsume_later(await consumer.receive(5), delay=0.02, properties={"why": "busy"})
    again = await consumer.receive(5)
    assert again.topic.endswith("/t-s-RETRY")
    expected = {"RECONSUMETIMES": "1", "DELAY_TIME": "20", "why": "busy", "ORIGIN_MESSAGE_ID": str(origin)}
    assert expected.items() <= again.properties.items()
    await consumer.reconsume_later(again)
    letters = await client.subscribe("t-s-DLQ", "letters")
    letter = await letters.receive(5)
    assert (letter.data, letter.properties["RECONSUMETIMES"]) == (b"later", "2")
    assert letter.properties["REAL_TOPIC"] == "persistent://public/default/t"


async def test_putting_off_in_a_transaction_that_aborts_has_not_happened(client):
    policy = DeadLetterPolicy(max_redeliver_count=3, retry=True)
    consumer = await client.subscribe("t", "s", dead_letter_policy=policy, **SHARED)
    producer = await client.create_producer("t")
    await producer.send(b"m")
    async with client.transaction() as txn:
        await consumer.reconsume_later(await consumer.receive(5), txn=txn)
        await txn.rollback()
    message = await consumer.receive(5)
    assert (message.topic, "RECONSUMETIMES" in message.properties) == (consumer.topic, False)
    async with client.transaction() as txn:
        await consumer.reconsume_later(message, txn=txn)
    assert (await consumer.receive(5)).topic.endswith("-RETRY")
    assert await consumer.receive_many(1, max_wait=0.2) == []


async def test_what_is_not_acknowledged_in_time_comes_again_with_growing_delays(client):
    backoff = RedeliveryBackoff(0.05, 0.2, 2)
    consumer = await client.subscribe("t", "s", ack_timeout_backoff=backoff, **SHARED)
    producer = await client.create_producer("t")
    await asyncio.gather(*(producer.send(payload) for payload in (b"a", b"b")))
    kept, forgotten = await consumer.receive_many(2, max_wait=5)
    await consumer.acknowledge(kept)
    for count in (1, 2):
        forgotten = await consumer.receive(5)
        assert (forgotten.data, forgotten.redelivery_count) == (b"b", count)
    await consumer.acknowledge(forgotten)
    assert await consumer.receive_many(1, max_wait=0.4) == []


async def test_a_time_out_brings_everything_of_an_exclusive_subscription_in_order():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_timeout=0.05)
        for number in range(3):
            broker.deliver(1, number, b"%d" % number)
        messages = await consumer.receive_many(3, max_wait=1)
        await consumer.acknowledge_cumulative(messages[0])
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
        assert reception_of(consumer).partitions.all[0].machine.redelivery.awaited_acks == 0
        broker.deliver(1, 1, b"1", epoch=1)
        await consumer.acknowledge(await consumer.receive(1))
        await asyncio.sleep(0.1)
        assert len(broker.all("redeliverUnacknowledgedMessages")) == 1


async def test_negative_acknowledgements_wait_longer_each_time():
    broker = FakeBroker()
    async with fake_client(broker) as client:
        backoff = RedeliveryBackoff(0.02, 60)
        consumer = await client.subscribe("t", "s", negative_ack_backoff=backoff, **SHARED)
        broker.deliver(1, 0, b"m")
        consumer.negative_acknowledge(await consumer.receive(1))
        await broker.until(lambda: broker.all("redeliverUnacknowledgedMessages"))
    assert [backoff.delay(count) for count in (0, 1, 3)] == [0.02, 0.04, 0.16]
    assert RedeliveryBackoff(1, 600).delay(50_000) == 600


@pytest.mark.parametrize(
    "make",
    [
        lambda: RedeliveryBackoff(5, 1),
        lambda: RedeliveryBackoff(1, 2, 0.5),
        lambda: DeadLetterPolicy(max_redeliver_count=0),
        lambda: KeySharedPolicy(sticky_ranges=[(0, 65536)]),
        lambda: KeySharedPolicy(sticky_ranges=[(5, 9), (0, 5)]),
    ],
)
def test_policies_that_cannot_work_are_refused(make):
    with pytest.raises(InvalidConfiguration):
        make()


async def test_a_policy_without_effect_and_a_retry_without_topic_are_refused(client):
    policy = DeadLetterPolicy(max_redeliver_count=1)
    with pytest.raises(InvalidConfiguration, match="no effect"):
        await client.subscribe("t", "s", dead_letter_policy=policy)
    plain = await client.subscribe("t", "p", **SHARED)
    buried = await client.subscribe("t", "s", dead_letter_policy=policy, **SHARED)
    await (await client.create_producer("t")).send(b"m")
    for consumer in (plain, buried):
        with pytest.raises(InvalidConfiguration, match="retry"):
            await consumer.reconsume_later(await consumer.receive(5))
