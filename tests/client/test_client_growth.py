"""Topics found by a pattern, and partitions that are added, while producers and consumers live."""

import asyncio
import re

import pytest
from fake_broker import FakeBroker, fake_client

from pulsar_txn.client import ConsumerType, DeadLetterPolicy, InitialPosition
from pulsar_txn.client.errors import InvalidConfiguration, InvalidTopicName
from pulsar_txn.client.net.growth import TopicPattern
from pulsar_txn.client.options import RegexSubscriptionMode
from pulsar_txn.client.txn.transaction import AMBIENT, unit_of
from pulsar_txn.client.txn.transactions import core_of
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick

BASE = "persistent://public/default/"


async def test_a_pattern_receives_from_what_matches_and_from_what_comes_to_match_later(client):
    producers = {name: await client.create_producer(name) for name in ("orders-a", "orders-b", "other")}
    consumer = await client.subscribe(re.compile("orders-.*"), "s", pattern_discovery_period=0.05)
    assert sorted(consumer.topics) == [f"{BASE}orders-a", f"{BASE}orders-b"]
    producers["orders-c"] = await client.create_producer("orders-c")
    for name, producer in producers.items():
        await producer.send(name.encode())
    messages = await consumer.receive_many(3, max_wait=5)
    assert sorted(message.value for message in messages) == [b"orders-a", b"orders-b", b"orders-c"]
    async with client.transaction() as txn:
        await consumer.acknowledge(messages, txn=txn)
    await consumer.close()
    again = await client.subscribe(re.compile(r"public/default/orders-.*"), "s")
    assert await again.receive_many(1, max_wait=0.2) == []


async def test_a_pattern_may_stand_for_nothing_yet(client):
    consumer = await client.subscribe(re.compile("soon-.*"), "s", pattern_discovery_period=0.05)
    whole = "persistent://public/default/soon-.*"
    assert (consumer.topic, consumer.topics, consumer.is_connected) == (whole, [], True)
    waiting = asyncio.create_task(consumer.receive(5))
    await (await client.create_producer("soon-now")).send(b"m")
    assert (await waiting).value == b"m"
    await consumer.close()
    await (await client.subscribe(re.compile("never"), "s")).unsubscribe()


async def test_what_is_listed_no_more_is_left_and_the_rest_goes_on():
    broker = FakeBroker()
    topics = [f"{BASE}a", f"{BASE}b-partition-0", f"{BASE}__change_events", f"{BASE}a-s__transaction_pending_ack"]
    asked = []

    def listed(_pipe, body):
        asked.append((body.namespace, body.mode))
        return command("getTopicsOfNamespaceResponse", request_id=body.request_id, topics=topics)

    broker.on["getTopicsOfNamespace"] = listed
    async with fake_client(broker) as client:
        mode = RegexSubscriptionMode.ALL_TOPICS
        consumer = await client.subscribe(re.compile(".*"), "s", pattern_discovery_period=0.02, regex_subscription_mode=mode)
        assert consumer.topics == topics[:2]
        broker.deliver(1, 0, b"of b")
        await broker.until(lambda: consumer.queued == 1)
        del topics[1]
        await broker.until(lambda: consumer.topics == topics[:1] and broker.all("close_consumer"))
        assert consumer.queued == 0
        assert asked[0] == ("public/default", 2)
        topics.append(f"{BASE}new")
        await broker.until(lambda: len(broker.all("subscribe")) == 3)
        assert [int(body.initialPosition) for body in broker.all("subscribe")] == [0, 0, 1]


async def test_new_partitions_are_sent_to_and_received_from():
    broker = FakeBroker()
    broker.partitions[f"{BASE}t"] = 1
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", auto_update_partitions=0.02, batching=False)
        consumer = await client.subscribe("t", "s", auto_update_partitions=0.02)
        fixed = await client.create_producer("t", auto_update_partitions=0)
        assert (producer.partitions, consumer.topics) == (1, [f"{BASE}t-partition-0"])
        broker.partitions[f"{BASE}t"] = 3
        await broker.until(lambda: producer.partitions == 3 and len(consumer.topics) == 3 and consumer.is_connected)
        assert {(await producer.send(b"m")).partition for _ in range(6)} == {0, 1, 2}
        assert fixed.partitions == 1
        broker.deliver(1, 0, b"m")
        message = await consumer.receive(1)
        assert message.topic == f"{BASE}t-partition-2"
        await consumer.acknowledge(message, receipt=True)
        assert int(broker.all("subscribe")[-1].initialPosition) == InitialPosition.EARLIEST


async def test_a_partition_that_cannot_be_opened_yet_is_tried_again():
    broker = FakeBroker()
    broker.partitions[f"{BASE}t"] = 1
    refused = []

    def refuse_once(_pipe, body):
        if body.topic.endswith("-1") and not refused:
            refused.append(body)
            return command("error", request_id=body.request_id, error=3, message="not now")
        return command("producer_success", request_id=body.request_id, producer_name="p", last_sequence_id=-1)

    broker.on["producer"] = refuse_once
    async with fake_client(broker) as client:
        producer = await client.create_producer("t", auto_update_partitions=0.02)
        broker.partitions[f"{BASE}t"] = 2
        await broker.until(lambda: producer.partitions == 2)
        assert len(refused) == 1


@pytest.mark.parametrize("text", ["tenant/x", "ten.*/[a]/x", "a/b/"])
def test_a_pattern_that_leaves_the_namespace_open_is_refused(text):
    with pytest.raises(InvalidTopicName):
        TopicPattern.parse(re.compile(text))


def test_a_pattern_keeps_its_flags_and_slashes():
    pattern = TopicPattern.parse(re.compile("non-persistent://a/b/X+", re.IGNORECASE))
    assert (pattern.namespace, pattern.matches("persistent://a/b/xx"), pattern.matches("persistent://a/b/xy")) == (
        "a/b",
        True,
        False,
    )


async def test_the_retry_topic_of_a_pattern_needs_a_name(client):
    policy = DeadLetterPolicy(max_redeliver_count=1, retry=True)
    with pytest.raises(InvalidConfiguration, match="retry topic"):
        await client.subscribe(re.compile("x"), "s", consumer_type=ConsumerType.SHARED, dead_letter_policy=policy)


async def test_messages_of_a_pattern_can_be_put_off_and_end_with_the_dead_letters_of_their_topics(client):
    policy = DeadLetterPolicy(max_redeliver_count=1, retry_letter_topic="later", initial_subscription="dead")
    consumer = await client.subscribe(
        re.compile("orders-.*"),
        "s",
        consumer_type=ConsumerType.SHARED,
        dead_letter_policy=policy,
        pattern_discovery_period=0.05,
    )
    async with asyncio.timeout(20):
        for name in ("orders-a", "orders-b"):
            await (await client.create_producer(name)).send(name.encode(), key=name)
        for where in ("orders", "later"):
            for _ in range(2):
                message = await consumer.receive()
                assert where in message.topic
                await consumer.reconsume_later(message, properties={"why": "not now"})
        for name in ("orders-a", "orders-b"):
            letters = await client.subscribe(f"{name}-s-DLQ", "dead")
            letter = await letters.receive()
            assert (letter.data, letter.key, letter.properties["why"]) == (name.encode(), name, "not now")
    assert any("later" in topic for topic in consumer.topics)


class Watched(FakeBroker):
    """A broker that tells of topics; `topics` are what it lists."""

    def __init__(self):
        super().__init__()
        self.topics = []
        self.on["connect"] = lambda _pipe, _body: command(
            "connected",
            server_version="Fake",
            protocol_version=21,
            max_message_size=5 * 1024 * 1024,
            feature_flags={"supports_topic_watchers": True},
        )
        self.on["getTopicsOfNamespace"] = lambda _pipe, body: command(
            "getTopicsOfNamespaceResponse", request_id=body.request_id, topics=self.topics
        )
        self.on["watchTopicList"] = lambda _pipe, body: command(
            "watchTopicListSuccess", request_id=body.request_id, watcher_id=body.watcher_id, topics_hash=""
        )

    def tell(self, *topics, watcher_id=None):
        self.topics = list(topics)
        known = self.all("watchTopicList")[-1].watcher_id
        new = [] if watcher_id else topics
        self.say("watchTopicUpdate", watcher_id=watcher_id or known, new_topics=new, topics_hash="")


ORDERS = [f"persistent://public/default/orders-{name}" for name in "abc"]


async def watching(broker, client):
    consumer = await client.subscribe(re.compile("orders-.*"), "s", pattern_discovery_period=600.0)
    await broker.until(lambda: broker.all("watchTopicList") and len(broker.all("getTopicsOfNamespace")) > 1)
    return consumer


async def test_a_pattern_hears_at_once_of_topics_that_come_and_go():
    broker = Watched()
    async with fake_client(broker) as client:
        consumer = await watching(broker, client)
        asked = broker.all("watchTopicList")[0]
        assert (asked.namespace, asked.topics_pattern) == ("public/default", ".*")
        broker.tell(ORDERS[0], "persistent://public/default/else")
        await broker.until(lambda: consumer.topics == [ORDERS[0]])
        broker.tell(ORDERS[1])
        await broker.until(lambda: consumer.topics == [ORDERS[1]])
        broker.tell(ORDERS[2], watcher_id=99)
        await asyncio.sleep(0.05)
        assert consumer.topics == [ORDERS[1]]
        await consumer.close()
        await broker.until(lambda: broker.all("watchTopicListClose"))
        assert broker.all("watchTopicListClose")[0].watcher_id == asked.watcher_id


async def test_a_pattern_asks_again_to_be_told_after_a_lost_connection_and_looks_at_what_it_missed():
    broker = Watched()
    async with fake_client(broker) as client:
        consumer = await watching(broker, client)
        broker.topics = [ORDERS[0]]
        broker.pipe.cut()
        await broker.until(lambda: consumer.topics == [ORDERS[0]])
        assert len(broker.all("watchTopicList")) == 2
        broker.tell(*ORDERS[:2])
        await broker.until(lambda: consumer.topics == ORDERS[:2])


@pytest.mark.parametrize("broker", [Watched(), FakeBroker()], ids=["refuses", "cannot"])
async def test_where_brokers_do_not_tell_topics_are_looked_for_from_time_to_time(broker):
    topics = []
    broker.on["watchTopicList"] = lambda _pipe, body: command(
        "error", request_id=body.request_id, error=pb.NotAllowedError, message="switched off"
    )
    broker.on["getTopicsOfNamespace"] = lambda _pipe, body: command(
        "getTopicsOfNamespaceResponse", request_id=body.request_id, topics=topics
    )
    async with fake_client(broker) as client:
        consumer = await client.subscribe(re.compile("orders-.*"), "s", pattern_discovery_period=0.05)
        topics.append(ORDERS[0])
        await broker.until(lambda: consumer.topics == [ORDERS[0]])
    assert len(broker.all("watchTopicList")) == (1 if isinstance(broker, Watched) else 0)


@pytest.mark.parametrize("make", ["producer", "consumer", "pattern"])
async def test_who_looks_for_changes_does_not_take_part_in_the_unit_in_which_he_was_made(client, monkeypatch, make):
    seen = asyncio.get_running_loop().create_future()

    async def found(*_arguments, **_options):
        seen.set_result(AMBIENT.get())
        await asyncio.Event().wait()

    real = type(core_of(client).lookup).partitions

    async def two(lookup, topic, *, create=True):
        return 2 if topic.endswith("parts") else await real(lookup, topic, create=create)

    monkeypatch.setattr(type(core_of(client).lookup), "partitions", two)
    async with client.transaction(ambient=True) as txn:
        if make == "producer":
            await client.create_producer("parts", auto_update_partitions=0.01)
        elif make == "consumer":
            await client.subscribe("parts", "s", auto_update_partitions=0.01)
        else:
            await client.subscribe(re.compile("parts.*"), "s", pattern_discovery_period=0.01)
        monkeypatch.setattr(type(core_of(client).lookup), "partitions", found)
        monkeypatch.setattr(type(core_of(client).lookup), "topics", found)
        assert await asyncio.wait_for(seen, 5) is None
        assert AMBIENT.get() is unit_of(txn)


@pytest.mark.parametrize("said", ["soon-.*", "public/default/soon-.*", "persistent://public/default/soon-.*"])
async def test_the_topic_of_a_pattern_is_the_whole_pattern_as_the_official_client_says_it(client, said):
    """It was the first topic that the pattern had found, and another one later."""
    await client.create_producer("soon-now")
    consumer = await client.subscribe(re.compile(said), "s")
    assert consumer.topics == ["persistent://public/default/soon-now"]
    assert consumer.topic == "persistent://public/default/soon-.*"
