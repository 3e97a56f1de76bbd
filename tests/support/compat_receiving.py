"""Programs of the official client's users: consumers and readers; see `compat_kit`."""

from __future__ import annotations

import re
import threading
import time

from compat_kit import WAIT, drain, open_client, program, raised


@program
def all_subscription_types(pulsar, url, topic):
    facts = []
    with open_client(pulsar, url) as client:
        for name in ("Exclusive", "Shared", "Failover", "KeyShared"):
            kind = getattr(pulsar.ConsumerType, name)
            mine = f"{topic}-{name}"
            consumer = client.subscribe(mine, "s", consumer_type=kind, consumer_name="c", properties={"a": "b"})
            producer = client.create_producer(mine, batching_type=pulsar.BatchingType.KeyBased, batching_enabled=True)
            for number in range(20):
                producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 3}")
            producer.flush()
            found = drain(consumer, 20)
            for message in found:
                consumer.acknowledge(message)
            facts += [sorted(int(message.data()) for message in found), consumer.consumer_name()]
            facts += [consumer.subscription_name(), consumer.topic(), consumer.is_connected()]
        facts.append(raised(pulsar, client.subscribe, f"{topic}-Exclusive", "s"))
        facts += [raised(pulsar, client.subscribe, 7, "s"), raised(pulsar, client.subscribe, topic, 7)]
    return facts


@program
def timeouts_and_closed_consumers(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s")
        facts = [raised(pulsar, consumer.receive, 50), raised(pulsar, consumer.receive, "x"), consumer.batch_receive()]
        consumer.close()
        facts += [raised(pulsar, consumer.receive, 50), consumer.is_connected()]
    return facts


@program
def acknowledging(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        options = {"initial_position": pulsar.InitialPosition.Earliest}
        consumer = client.subscribe(topic, "s", **options)
        producer = client.create_producer(topic)
        for number in range(6):
            producer.send(b"%d" % number)
        found = drain(consumer, 6)
        consumer.acknowledge_cumulative(found[1])
        consumer.acknowledge(found[3])
        consumer.acknowledge(found[4].message_id())
        consumer.close()
        consumer = client.subscribe(topic, "s", **options)
        facts = [message.data() for message in drain(consumer, 2)]
        consumer.redeliver_unacknowledged_messages()
        facts += [message.data() for message in drain(consumer, 2)]
        shared = client.subscribe(topic, "t", consumer_type=pulsar.ConsumerType.Shared, **options)
        facts.append(raised(pulsar, shared.acknowledge_cumulative, shared.receive(WAIT)))
    return facts


@program
def negative_acknowledgement(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        shared = pulsar.ConsumerType.Shared
        consumer = client.subscribe(topic, "s", consumer_type=shared, negative_ack_redelivery_delay_ms=100)
        producer = client.create_producer(topic)
        producer.send(b"x")
        first = consumer.receive(WAIT)
        consumer.negative_acknowledge(first)
        again = consumer.receive(WAIT)
        return first.data(), again.data(), again.redelivery_count() > 0, first.message_id() == again.message_id()


@program
def batch_receiving(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        policy = pulsar.ConsumerBatchReceivePolicy(3, -1, 2000)
        consumer = client.subscribe(topic, "s", batch_receive_policy=policy)
        producer = client.create_producer(topic)
        for number in range(8):
            producer.send(b"%d" % number)
        batches = [consumer.batch_receive() for _ in range(3)]
        return [[message.data() for message in batch] for batch in batches]


@program
def seeking(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        ids = [producer.send(b"%d" % number) for number in range(5)]
        published = [message.publish_timestamp() for message in drain(consumer, 5)]
        facts = [consumer.get_last_message_id() == ids[-1]]
        for place in (ids[1], pulsar.MessageId.earliest, published[0] - 60_000):
            consumer.seek(place)
            facts.append(consumer.receive(WAIT).data())
        consumer.seek(pulsar.MessageId.latest)
        producer.send(b"new")
        facts += [consumer.receive(WAIT).data(), raised(pulsar, consumer.seek, "x")]
        consumer.close()
        inclusive = client.subscribe(topic, "s", start_message_id_inclusive=True)
        inclusive.seek(ids[1])
        facts.append(inclusive.receive(WAIT).data())
        inclusive.unsubscribe()
        facts.append(client.subscribe(topic, "s").is_connected())
    return facts


@program
def a_listener(pulsar, url, topic):
    seen, threads, done = [], set(), threading.Event()

    def on_message(consumer, message):
        seen.append((message.data(), consumer.subscription_name()))
        threads.add(threading.get_ident())
        consumer.acknowledge(message)
        if len(seen) == 20:
            done.set()

    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", message_listener=on_message)
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"%d" % number)
        finished = done.wait(10)
        refused = raised(pulsar, consumer.receive, 50)
        consumer.pause_message_listener()
        time.sleep(0.2)
        producer.send(b"paused")
        time.sleep(0.3)
        paused = len(seen)
        consumer.resume_message_listener()
        until = time.monotonic() + 10
        while len(seen) < 21 and time.monotonic() < until:
            time.sleep(0.01)
    return seen, finished, refused, paused, threading.get_ident() in threads


@program
def several_topics_and_a_pattern(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        names = [f"{topic}-{number}" for number in range(3)]
        producers = [client.create_producer(name) for name in names]
        earliest = pulsar.InitialPosition.Earliest
        many = client.subscribe(names, "s", initial_position=earliest)
        matching = client.subscribe(re.compile(topic + "-.*"), "t", initial_position=earliest)
        for producer, name in zip(producers, names, strict=True):
            producer.send(name.encode())
        found = drain(many, 3)
        for message in found:
            many.acknowledge(message.message_id())
        return sorted(message.data() for message in found), sorted(message.data() for message in drain(matching, 3))


@program
def reading(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        producer = client.create_producer(topic)
        ids = [producer.send(b"%d" % number) for number in range(5)]

        def rest(start, **options):
            reader = client.create_reader(topic, start, **options)
            found = []
            while reader.has_message_available():
                found.append(reader.read_next(WAIT).data())
            facts = [found, reader.topic(), reader.is_connected(), raised(pulsar, reader.read_next, 50)]
            reader.close()
            return facts

        facts = [
            rest(pulsar.MessageId.earliest),
            rest(pulsar.MessageId.latest),
            rest(ids[2]),
            rest(ids[2], start_message_id_inclusive=True, reader_name="r", receiver_queue_size=2),
            rest(pulsar.MessageId.deserialize(ids[1].serialize())),
        ]
        reader = client.create_reader(topic, pulsar.MessageId.latest)
        reader.seek(pulsar.MessageId.earliest)
        facts.append(reader.read_next(WAIT).data())
        facts.append(raised(pulsar, client.create_reader, topic, "x"))
    return facts


@program
def reading_what_is_compacted(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        producer = client.create_producer(topic)
        for number in range(4):
            producer.send(b"%d" % number, partition_key=f"k{number % 2}")
        reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        return [reader.read_next(WAIT).data() for _ in range(4)]


@program
def a_reader_with_a_listener(pulsar, url, topic):
    seen, done = [], threading.Event()

    def on_message(_reader, message):
        seen.append(message.data())
        if len(seen) == 5:
            done.set()

    with open_client(pulsar, url) as client:
        producer = client.create_producer(topic)
        for number in range(5):
            producer.send(b"%d" % number)
        client.create_reader(topic, pulsar.MessageId.earliest, reader_listener=on_message)
        return done.wait(10), seen


@program
def key_shared_ranges(pulsar, url, topic):
    facts = [raised(pulsar, pulsar.ConsumerKeySharedPolicy, pulsar.KeySharedMode.Sticky)]
    policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 65535)])
    facts += [policy.key_shared_mode == pulsar.KeySharedMode.Sticky, policy.sticky_ranges, policy.allow_out_of_order_delivery]
    with open_client(pulsar, url) as client:
        kind = pulsar.ConsumerType.KeyShared
        consumer = client.subscribe(topic, "s", consumer_type=kind, key_shared_policy=policy)
        producer = client.create_producer(topic)
        for number in range(5):
            producer.send(b"%d" % number, partition_key=f"k{number}")
        facts.append([message.data() for message in drain(consumer, 5)])
        facts.append(raised(pulsar, client.subscribe, topic, "s", consumer_type=kind, key_shared_policy=policy))
    return facts


@program
def dead_letters(pulsar, url, topic):
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "keep")
    facts = [policy.max_redeliver_count, policy.dead_letter_topic, policy.initial_subscription_name]
    facts.append(raised(pulsar, pulsar.ConsumerDeadLetterPolicy, 0))
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(
            topic,
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=50,
        )
        letters = client.subscribe(f"{topic}-dead", "keep", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(topic).send(b"poison")
        for _ in range(3):
            message = consumer.receive(WAIT)
            facts.append((message.data(), message.redelivery_count()))
            consumer.negative_acknowledge(message)
        until = time.monotonic() + 15
        while time.monotonic() < until:
            raised(pulsar, consumer.receive, 200)
            try:
                facts.append(letters.receive(200).data())
                break
            except pulsar.Timeout:
                continue
    return facts


@program
def subscribing_with_many_options(pulsar, url, topic):
    options = {
        "receiver_queue_size": 3,
        "max_total_receiver_queue_size_across_partitions": 50000,
        "replicate_subscription_state_enabled": False,
        "is_read_compacted": True,
        "schema": pulsar.schema.BytesSchema(),
    }
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", **options)
        producer = client.create_producer(topic)
        for number in range(10):
            producer.send(b"%d" % number, partition_key=f"k{number % 2}")
        facts = [message.data() for message in drain(consumer, 10)]
        for name, value in (("receiver_queue_size", "x"), ("is_read_compacted", 1), ("initial_position", 0)):
            facts.append((name, raised(pulsar, client.subscribe, topic, "t", **{name: value})))
    return facts


@program
def part_of_a_batch_is_acknowledged(pulsar, url, topic):
    options = {"batch_index_ack_enabled": True, "initial_position": pulsar.InitialPosition.Earliest}
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", **options)
        producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
        for number in range(5):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        found = drain(consumer, 5)
        consumer.acknowledge(found[1])
        consumer.acknowledge(found[3].message_id())
        consumer.close()
        consumer = client.subscribe(topic, "s", **options)
        return [message.data() for message in drain(consumer, 3)], raised(pulsar, consumer.receive, 300)


@program
def unacknowledged_for_too_long(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        shared = pulsar.ConsumerType.Shared
        consumer = client.subscribe(topic, "s", consumer_type=shared, unacked_messages_timeout_ms=10_000)
        client.create_producer(topic).send(b"x")
        first, again = consumer.receive(WAIT), consumer.receive(30_000)
        return first.data(), again.data(), again.redelivery_count() > 0


@program
def a_pattern_of_persistent_topics(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        earliest, persistent = pulsar.InitialPosition.Earliest, pulsar.RegexSubscriptionMode.PersistentOnly
        client.create_producer(f"{topic}-1").send(b"old")
        consumer = client.subscribe(
            re.compile(topic + "-.*"),
            "s",
            initial_position=earliest,
            regex_subscription_mode=persistent,
            pattern_auto_discovery_period=1,
        )
        facts = [consumer.receive(WAIT).data(), raised(pulsar, client.subscribe, topic, "t", regex_subscription_mode=0)]
        facts.append(raised(pulsar, client.subscribe, topic, "t", pattern_auto_discovery_period="x"))
    return facts


@program
def a_table_view(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        text = pulsar.schema.StringSchema()
        producer = client.create_producer(topic, schema=text)
        for key, value in (("a", "1"), ("b", "2"), ("a", "3"), ("gone", "4"), ("gone", "")):
            producer.send(value, partition_key=key)
        producer.send("without a key")
        view = client.create_table_view(topic, schema=text)
        facts = [len(view), view.get("a"), view.get("gone"), view.get("never"), str(view)]
        listed, heard, done = [], [], threading.Event()
        view.for_each(lambda key, value: listed.append((key, value)))

        def on_change(key, value):
            heard.append((key, value))
            if key == "last":
                done.set()

        view.for_each_and_listen(on_change)
        facts += [sorted(listed), sorted(heard)]
        producer.send("5", partition_key="b")
        producer.send(None, partition_key="a")
        producer.send("6", partition_key="last")
        facts += [done.wait(10), heard[2:], len(view), view.get("a"), view.get("b")]
        view.close()
        facts += [raised(pulsar, client.create_table_view, 7), raised(pulsar, client.create_table_view, topic, schema=7)]
    return facts
