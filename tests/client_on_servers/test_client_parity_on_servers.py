"""Dead letters, putting off, patterns, table views, growing partitions, sticky keys: on every server."""

import asyncio
import re
import urllib.request

from pulsar_txn.client import ConsumerType, DeadLetterPolicy, InitialPosition, KeySharedPolicy

SHARED = {"consumer_type": ConsumerType.SHARED, "initial_position": InitialPosition.EARLIEST}


async def test_a_message_that_fails_is_put_off_by_the_retry_topic_and_ends_among_the_dead_letters(client, topic):
    policy = DeadLetterPolicy(max_redeliver_count=1, retry=True, initial_subscription="letters")
    consumer = await client.subscribe(topic, "s", dead_letter_policy=policy, **SHARED)
    producer = await client.create_producer(topic)
    origin = await producer.send(b"bad", key="k")
    await consumer.reconsume_later(await consumer.receive(10), delay=0.1)
    async with client.transaction() as txn:
        await consumer.reconsume_later(await consumer.receive(20), txn=txn)
    letters = await client.subscribe(f"{topic}-s-DLQ", "letters")
    letter = await letters.receive(10)
    assert (letter.data, letter.key, letter.properties["RECONSUMETIMES"]) == (b"bad", "k", "2")
    assert letter.properties["ORIGIN_MESSAGE_ID"] == str(origin)


async def test_a_message_that_is_refused_too_often_becomes_a_dead_letter(client, topic):
    policy = DeadLetterPolicy(max_redeliver_count=1, initial_subscription="letters")
    consumer = await client.subscribe(topic, "s", dead_letter_policy=policy, negative_ack_delay=0.05, **SHARED)
    await (await client.create_producer(topic)).send(b"bad")
    for count in (0, 1):
        message = await consumer.receive(10)
        assert message.redelivery_count == count
        consumer.negative_acknowledge(message)
    letters = await client.subscribe(f"{topic}-s-DLQ", "letters")
    assert (await letters.receive(10)).data == b"bad"


async def test_a_policy_that_names_no_subscription_keeps_its_letters_all_the_same(client, topic):
    policy = DeadLetterPolicy(max_redeliver_count=1)
    consumer = await client.subscribe(topic, "s", dead_letter_policy=policy, negative_ack_delay=0.05, **SHARED)
    await (await client.create_producer(topic)).send(b"bad")
    for _ in range(2):
        consumer.negative_acknowledge(await consumer.receive(10))
    assert await consumer.receive_many(1, max_wait=0.5) == []
    letters = await client.subscribe(f"{topic}-s-DLQ", "dead-letters")  # at the end, if it were made only now
    assert (await letters.receive(10)).data == b"bad"


async def test_the_initial_subscription_of_a_producer_has_what_the_topic_has_already(client, topic):
    """On our broker it began after what was there, so that earlier dead letters belonged to nobody."""
    await (await client.create_producer(topic)).send(b"before")
    producer = await client.create_producer(topic, initial_subscription="first")
    await producer.send(b"after")
    consumer = await client.subscribe(topic, "first")
    assert [(await consumer.receive(10)).data for _ in range(2)] == [b"before", b"after"]


async def test_a_pattern_finds_topics_and_a_table_view_follows_its_keys(client, topic):
    name = topic.rpartition("/")[2]
    producer = await client.create_producer(f"{topic}-0")
    consumer = await client.subscribe(re.compile(rf"{re.escape(name)}-\d"), "s", pattern_discovery_period=0.2)
    later = await client.create_producer(f"{topic}-1")
    await producer.send(b"0", key="a")
    async with client.transaction() as txn:
        await later.send(b"1", key="a", txn=txn)
    assert {message.data for message in await consumer.receive_many(2, max_wait=15)} == {b"0", b"1"}
    async with await client.create_table_view(f"{topic}-0") as view:
        assert view.snapshot() == {"a": b"0"}
        await producer.send(b"2", key="a")
        await view.refresh(10)
        assert view.get("a") == b"2"


async def test_a_pattern_is_told_of_new_topics_long_before_it_looks_again(client, topic):
    name = topic.rsplit("/", 1)[1]
    consumer = await client.subscribe(re.compile(rf"{re.escape(name)}-\d"), "s", pattern_discovery_period=600.0)
    for number in range(2):
        producer = await client.create_producer(f"{topic}-{number}")
        await producer.send(b"%d" % number)
        assert (await consumer.receive(20)).data == b"%d" % number


async def test_partitions_that_are_added_are_used(client, pulsar, topic):
    url = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"

    def partitions(count, method):
        request = urllib.request.Request(url, str(count).encode(), {"Content-Type": "application/json"}, method=method)
        urllib.request.urlopen(request, timeout=10).close()

    await asyncio.to_thread(partitions, 1, "PUT")
    producer = await client.create_producer(topic, auto_update_partitions=0.2, batching=False)
    consumer = await client.subscribe(topic, "s", auto_update_partitions=0.2)
    await asyncio.to_thread(partitions, 2, "POST")
    async with asyncio.timeout(20):
        while producer.partitions < 2 or len(consumer.topics) < 2 or not consumer.is_connected:  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.05)
    sent = {(await producer.send(b"%d" % number)).partition for number in range(4)}
    received = {message.message_id.partition for message in await consumer.receive_many(4, max_wait=10)}
    assert sent == received == {0, 1}


async def test_sticky_ranges_divide_the_keys_for_good(client, topic):
    producer = await client.create_producer(topic, batching=False)
    halves = []
    for ranges in ([(0, 32767)], [(32768, 65535)]):
        policy = KeySharedPolicy(sticky_ranges=ranges)
        halves.append(await client.subscribe(topic, "s", consumer_type=ConsumerType.KEY_SHARED, key_shared_policy=policy))
    for number in range(40):
        await producer.send(b"m", key=str(number % 20))
    first, second = [{message.key for message in await half.receive_many(40, max_wait=2)} for half in halves]
    assert first
    assert second
    assert not first & second
    assert len(first | second) == 20


async def test_chunks_of_a_message_reach_one_consumer_of_a_shared_subscription(client, topic):
    consumers = [await client.subscribe(topic, "s", **SHARED) for _ in range(2)]
    producer = await client.create_producer(topic, chunking=True, chunk_max_bytes=1000)
    sent = {bytes([number]) * 5000 for number in range(10)}
    await asyncio.gather(*(producer.send(payload) for payload in sent))
    received = [message.data for each in consumers for message in await each.receive_many(10, max_wait=2)]
    assert len(received) == len(sent)
    assert set(received) == sent
