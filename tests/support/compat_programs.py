"""Small programs in the style of the official client's users; each returns facts that must be equal on both packages.

`pulsar` is the package: the official one, or our compat layer. Each program makes its own client and closes it.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

WAIT = 10_000
QUIET = logging.getLogger("compat-programs")
QUIET.setLevel(logging.CRITICAL)

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@contextmanager
def open_client(pulsar, url, **options):
    client = pulsar.Client(url, logger=QUIET, **options)
    try:
        yield client
    finally:
        client.close()


def raised(pulsar, function, *args, **kwargs):
    """The name of what a call raises, and whether `except PulsarException` catches it."""
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - its kind is the fact
        names = [cls.__name__ for cls in type(error).__mro__]
        return names[0], isinstance(error, pulsar.PulsarException)
    return "nothing"


def drain(consumer, count, wait=WAIT):
    return [consumer.receive(wait) for _ in range(count)]


@program
def client_arguments(pulsar, url, topic):
    options = {"operation_timeout_seconds": 20, "connection_timeout_ms": 5000, "io_threads": 1, "message_listener_threads": 2}
    with open_client(pulsar, url, **options) as client:
        producer = client.create_producer(topic)
        facts = [client.get_topic_partitions(topic), producer.topic(), producer.is_connected()]
        facts.append(client.get_service_info().service_url == url)
    wrong = [
        raised(pulsar, pulsar.Client, 7),
        raised(pulsar, pulsar.Client, url, authentication="x"),
        raised(pulsar, pulsar.Client, url, logger="x"),
    ]
    client = pulsar.Client(url, logger=QUIET)
    client.shutdown()
    return facts, wrong


@program
def several_hosts(pulsar, url, topic):
    with open_client(pulsar, url + "," + url.removeprefix("pulsar://")) as client:
        return client.create_producer(topic).send(b"x").entry_id()


@program
def tokens_and_passwords(pulsar, url, topic):
    ways = [
        pulsar.AuthenticationToken("abc"),
        pulsar.AuthenticationToken(lambda: "abc"),
        pulsar.AuthenticationBasic("user", "secret"),
        pulsar.AuthenticationBasic(auth_params_string='{"username": "user", "password": "secret"}'),
    ]
    facts = [raised(pulsar, pulsar.AuthenticationToken, 7), raised(pulsar, pulsar.AuthenticationTLS, 7, 7)]
    for way in ways:
        with open_client(pulsar, url, authentication=way) as client:
            facts.append(client.create_producer(topic).is_connected())
    return facts


@program
def producer_options(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        producer = client.create_producer(
            topic,
            producer_name="p",
            initial_sequence_id=41,
            send_timeout_millis=5000,
            max_pending_messages=10,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_messages=5,
            batching_max_allowed_size_in_bytes=10_000,
            batching_max_publish_delay_ms=5,
            properties={"a": "b"},
        )
        facts = [producer.producer_name(), producer.last_sequence_id()]
        producer.send(b"1")
        facts.append(producer.last_sequence_id())
        producer.send(b"2", sequence_id=100)
        facts.append(producer.last_sequence_id())
        facts.append(raised(pulsar, client.create_producer, topic, producer_name="p"))
        facts += [
            raised(pulsar, client.create_producer, 7),
            raised(pulsar, client.create_producer, topic, schema="x"),
            raised(pulsar, client.create_producer, topic, batching_enabled=True, chunking_enabled=True),
        ]
    return facts


@program
def every_compression(pulsar, url, topic):
    facts = []
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        for name in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
            kind = getattr(pulsar.CompressionType, name)
            producer = client.create_producer(topic, compression_type=kind)
            producer.send(name.encode() * 500)
            facts.append(consumer.receive(WAIT).data() == name.encode() * 500)
    return facts


@program
def access_modes(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        mode = pulsar.ProducerAccessMode
        first = client.create_producer(topic, access_mode=mode.Exclusive)
        facts = [raised(pulsar, client.create_producer, topic, access_mode=mode.Exclusive)]
        second = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
        facts += [second.send(b"x").entry_id(), raised(pulsar, first.send, b"y")]
    return facts


@program
def a_message_with_everything(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", consumer_name="c")
        producer = client.create_producer(topic, producer_name="p")
        sent = producer.send(b"x", {"a": "1", "b": "2"}, "k", "o", 7, event_timestamp=1234)
        message = consumer.receive(WAIT)
        own = message.message_id()
        facts = [
            message.data(),
            message.value(),
            message.properties(),
            message.partition_key(),
            message.ordering_key(),
            message.event_timestamp(),
            abs(message.publish_timestamp() - time.time() * 1000) < 60_000,
            message.topic_name(),
            message.redelivery_count(),
            message.producer_name(),
            message.schema_version(),
            message.has_null_value(),
            message.encryption_context(),
            own == sent,
            (own.partition(), own.batch_index()),
            producer.last_sequence_id(),
        ]
        producer.send(None, partition_key="k")
        tombstone = consumer.receive(WAIT)
        producer.send(b"")
        empty = consumer.receive(WAIT)
        facts += [tombstone.has_null_value(), tombstone.data(), tombstone.partition_key()]
        facts += [empty.has_null_value(), empty.data(), empty.partition_key(), empty.ordering_key(), empty.event_timestamp()]
        facts += [
            raised(pulsar, producer.send, "text"),
            raised(pulsar, producer.send, b"x", properties="x"),
            raised(pulsar, producer.send, b"x", partition_key=7),
            raised(pulsar, producer.send, b"x" * (5 * 1024 * 1024 + 1)),
        ]
    return facts


@program
def sending_in_the_background(pulsar, url, topic):
    """What is sent comes back in order; callbacks come in order, and not in the caller's thread."""
    results, ids, threads = [], [], set()

    def told(result, message_id):
        results.append(result == pulsar.Result.Ok)
        ids.append((message_id.entry_id(), message_id.batch_index()))
        threads.add(threading.get_ident())

    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=20)
        for number in range(200):
            producer.send_async(b"%d" % number, told)
        producer.flush()
        received = [int(message.data()) for message in drain(consumer, 200)]
        producer.close()
        facts = [raised(pulsar, producer.send, b"x")]
    return facts, received, results, ids == sorted(ids), len(ids), threading.get_ident() in threads


@program
def a_full_queue_is_told_to_the_callback(pulsar, url, topic):
    told = []
    with open_client(pulsar, url) as client:
        producer = client.create_producer(
            topic, max_pending_messages=1, batching_enabled=True, batching_max_publish_delay_ms=500
        )
        for _ in range(50):
            producer.send_async(b"x", lambda result, _id: told.append(str(result).rpartition(".")[2] if result else "Ok"))
        producer.flush()
    names = {name if name == "ProducerQueueIsFull" else "Ok" for name in told}
    return len(told), names


@program
def delayed_delivery(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        producer.send(b"late", deliver_after=timedelta(seconds=2))
        producer.send(b"later", deliver_at=int(time.time() * 1000) + 2500)
        producer.send(b"now")
        return [message.data() for message in drain(consumer, 3)]


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
def message_ids(pulsar, _url, _topic):
    first, second = pulsar.MessageId(1, 2, 3, 4), pulsar.MessageId(-1, 2, 4, -1)
    same = pulsar.MessageId(1, 2, 3, 4)
    ends = [pulsar.MessageId.earliest, pulsar.MessageId.latest]
    back = pulsar.MessageId.deserialize(first.serialize(), "persistent://public/default/t")
    return (
        [(each.ledger_id(), each.entry_id(), each.partition(), each.batch_index()) for each in (first, second, back)],
        [each.serialize() for each in (first, second, *ends)],
        [str(each) for each in (first, second, *ends)],
        [first == same, first != second, first < second, second >= first, first <= same, first > second],
    )


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
def text_json_and_avro(pulsar, url, topic):
    schema = pulsar.schema

    class Colour(enum.Enum):
        red = 1
        green = 2

    class Part(schema.Record):
        name = schema.String(required=True)
        count = schema.Integer(default=1)

    class Order(schema.Record):
        id = schema.Long(required=True)
        price = schema.Double()
        paid = schema.Boolean(default=False)
        colour = Colour
        tags = schema.Array(schema.String())
        amounts = schema.Map(schema.Integer())
        part = Part()
        parts = schema.Array(Part())

    facts = [Order.schema(), Part.schema()]
    order = Order(
        id=7, price=1.5, colour=Colour.green, tags=["a", "b"], amounts={"x": 1}, part=Part(name="p"), parts=[Part(name="q")]
    )
    facts += [raised(pulsar, setattr, order, "id", "x"), raised(pulsar, setattr, order, "other", 1)]
    with open_client(pulsar, url) as client:
        text = schema.StringSchema()
        consumer = client.subscribe(f"{topic}-text", "s", schema=text)
        producer = client.create_producer(f"{topic}-text", schema=text)
        producer.send("grüß")
        facts += [consumer.receive(WAIT).value(), raised(pulsar, producer.send, b"x")]
        for name, kind in (("json", schema.JsonSchema(Order)), ("avro", schema.AvroSchema(Order))):
            consumer = client.subscribe(f"{topic}-{name}", "s", schema=kind)
            producer = client.create_producer(f"{topic}-{name}", schema=kind)
            producer.send(order)
            value = consumer.receive(WAIT).value()
            facts += [value.id, value.price, value.paid, value.tags, value.amounts, value.part.name, value.part.count]
            facts += [value.parts[0].name, raised(pulsar, producer.send, 7)]
    return facts
