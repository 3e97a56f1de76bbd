"""Programs of the official client's users: clients, producers and what is sent; see `compat_kit`."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

from compat_kit import QUIET, WAIT, drain, open_client, program, raised


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
    client = pulsar.Client(url, logger=QUIET)
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    facts = [raised(pulsar, client.create_producer, topic, access_mode=mode.Exclusive)]
    second = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    facts += [second.send(b"x").entry_id(), raised(pulsar, first.send, b"y")]
    raised(pulsar, client.close)  # the official one sometimes raises AlreadyClosed, for the producer that was fenced
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
    return len(told), sorted(names)


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
def a_listener_name(pulsar, url, topic):
    with open_client(pulsar, url, listener_name="internal") as client:
        return client.create_producer(topic).is_connected(), raised(pulsar, pulsar.Client, url, listener_name=7)


@program(partitions=5)
def partitions_and_routing(pulsar, url, topic):
    """Keys go to the same partitions with both packages; what has no key goes round, or to one, or where a function says."""
    mode = pulsar.PartitionsRoutingMode
    keys = ["", "a", "ann", "grüß", "order-7", "a key of more than eight bytes", *(f"k{number}" for number in range(30))]
    with open_client(pulsar, url) as client:
        facts = [client.get_topic_partitions(topic)]
        producer = client.create_producer(topic, message_routing_mode=mode.RoundRobinDistribution)
        facts.append([producer.send(b"x", partition_key=key).partition() for key in keys[1:]])
        facts.append(len({producer.send(b"x").partition() for _ in range(5)}))
        producer = client.create_producer(topic, message_routing_mode=mode.UseSinglePartition)
        facts.append([producer.send(b"x", partition_key=key).partition() for key in keys[1:]])
        facts.append(len({producer.send(b"x").partition() for _ in range(5)}))
        seen = []

        def chosen(message, count):
            seen.append((message.data(), message.partition_key(), message.properties(), count))
            return int(message.data()) % count

        producer = client.create_producer(topic, message_routing_mode=mode.CustomPartition, message_router=chosen)
        facts.append([producer.send(b"%d" % number, {"n": str(number)}, "k").partition() for number in range(7)])
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        found = drain(consumer, 2 * (len(keys) - 1) + 10 + 7)
        facts += [seen, len(found), sorted({message.topic_name() for message in found})]
        facts.append(sorted(message.message_id().partition() for message in found if message.partition_key() == "k"))
    return facts


@program
def where_a_message_is_replicated_to(pulsar, url, topic):
    """A topic that is not replicated takes both wishes and goes on."""
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=True)
        producer.send(b"here", disable_replication=True)
        producer.send(b"there", replication_clusters=["standalone"])
        producer.send_async(b"later", lambda *_: None, disable_replication=True)
        producer.flush()
        facts = [message.data() for message in drain(consumer, 3)]
        wrong = [
            raised(pulsar, producer.send, b"x", replication_clusters="x"),
            raised(pulsar, producer.send, b"x", disable_replication=1),
        ]
    return facts, wrong


@program
def large_messages_in_chunks(pulsar, url, topic):
    with open_client(pulsar, url) as client:
        consumer = client.subscribe(
            topic, "s", max_pending_chunked_message=2, auto_ack_oldest_chunked_message_on_queue_full=True
        )
        producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
        producer.send(b"x" * (6 * 1024 * 1024), {"a": "b"})
        message = consumer.receive(WAIT)
        return len(message.data()), set(message.data()), message.properties()


@program
def logging_to_a_logger(pulsar, url, topic):
    """One of Python's own; the official package sends there what the first client of a process was told to."""
    own = logging.getLogger("compat-programs.own")
    own.setLevel(logging.CRITICAL)
    facts = [raised(pulsar, pulsar.Client, url, logger=wrong) for wrong in ("x", 7)]
    client = pulsar.Client(url, logger=own)
    facts.append(client.create_producer(topic).is_connected())
    client.close()
    return facts


@program
def from_a_cluster_that_is_gone(pulsar, url, topic):
    gone = pulsar.ServiceInfo("pulsar://127.0.0.1:1")
    clusters = pulsar.AutoClusterFailover(gone, [pulsar.ServiceInfo(url)], check_interval_ms=100)
    with open_client(pulsar, clusters) as client:
        until = time.monotonic() + 20
        while raised(pulsar, client.create_producer, topic) != "nothing" and time.monotonic() < until:
            time.sleep(0.1)  # the official one fails meanwhile, ours waits
        sent = client.create_producer(topic).send(b"x")
        facts = [client.get_service_info().service_url == url, sent.entry_id()]
    wrong = [(gone, []), (gone, [7]), (7, [gone]), (gone, [gone], 0), (gone, [gone], 5000, 0), (gone, [gone], 5000, 1, 0)]
    facts += [raised(pulsar, pulsar.AutoClusterFailover, *arguments) for arguments in wrong]
    facts.append(raised(pulsar, pulsar.Client, clusters, authentication=pulsar.AuthenticationToken("x")))
    return facts
