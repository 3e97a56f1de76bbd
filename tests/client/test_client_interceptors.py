"""Interceptors, statistics, and the OpenTelemetry adapter made of them."""

import attrs
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pulsar_txn.client import ConsumerType
from pulsar_txn.client.errors import SchemaMismatch
from pulsar_txn.client.events import ConsumerInterceptor, ProducerInterceptor
from pulsar_txn.client.otel import TracingConsumer, TracingProducer


class Sent(ProducerInterceptor):
    def __init__(self):
        self.finished = []

    def before_send(self, producer, message):
        return attrs.evolve(message, properties={**(message.properties or {}), "by": producer.producer_name})

    def on_send_finished(self, producer, message, message_id, error):
        self.finished.append((message.value, message_id, error))


class Seen(ConsumerInterceptor):
    def __init__(self):
        self.calls = []

    def on_receive(self, consumer, message):
        self.calls.append(("receive", message.data))

    def on_acknowledge(self, consumer, messages, error):
        self.calls.append(("acknowledge", len(messages), type(error)))

    def on_negative_acknowledge(self, consumer, message):
        self.calls.append(("refuse", message.data))


class Broken(ProducerInterceptor, ConsumerInterceptor):
    def before_send(self, producer, message):
        raise RuntimeError("before")

    def on_receive(self, consumer, message):
        raise RuntimeError("receive")


async def test_interceptors_see_and_change_what_goes_by_and_their_errors_stop_nothing(client, caplog):
    sent, seen = Sent(), Seen()
    producer = await client.create_producer("t", producer_name="p", interceptors=[Broken(), sent])
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED, interceptors=[Broken(), seen])
    message_id = await producer.send(b"a", properties={"x": "1"})
    with pytest.raises(SchemaMismatch):
        await producer.send("text")
    assert sent.finished[0] == (b"a", message_id, None)
    assert isinstance(sent.finished[1][2], SchemaMismatch)
    message = await consumer.receive(5)
    assert message.properties == {"x": "1", "by": "p"}
    consumer.negative_acknowledge(message, delay=0.01)
    (message,) = await consumer.receive_many(1, max_wait=5)
    await consumer.acknowledge(message)
    none = type(None)
    assert seen.calls == [("receive", b"a"), ("refuse", b"a"), ("receive", b"a"), ("acknowledge", 1, none)]
    assert caplog.text.count("an interceptor failed") == 4


async def test_an_acknowledgement_that_fails_is_told(client):
    seen = Seen()
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s", interceptors=[seen])
    await producer.send(b"a")
    message = await consumer.receive(5)
    async with client.transaction() as txn:
        await consumer.acknowledge([message], txn=txn)
        with pytest.raises(Exception, match="still open"):
            await consumer.acknowledge([message], txn=txn)
        await txn.rollback()
    assert [call[0] for call in seen.calls] == ["receive", "acknowledge", "acknowledge"]
    assert seen.calls[1][2] is type(None)
    assert issubclass(seen.calls[2][2], Exception)


async def test_statistics_say_what_was_done(client):
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
    tickets = [producer.send_nowait(b"12345") for _ in range(10)]
    before = producer.stats()
    assert (before.messages, before.bytes, before.answered, before.in_flight_messages) == (10, 50, 0, 10)
    for ticket in tickets:
        await ticket
    after = producer.stats()
    assert (after.messages, after.answered, after.failed, after.in_flight_bytes) == (10, 10, 0, 0)
    messages = await consumer.receive_many(10, max_wait=5)
    await consumer.acknowledge(messages[:6])
    await consumer.acknowledge(messages[6], receipt=True)
    consumer.negative_acknowledge(messages[7])
    stats = consumer.stats()
    assert (stats.received, stats.acknowledged, stats.negatively_acknowledged, stats.queued) == (10, 7, 1, 0)
    assert (stats.connected_partitions, stats.partitions) == (1, 1)


async def test_a_trace_goes_on_from_the_send_to_the_processing(client):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    producer = await client.create_producer("t", interceptors=[TracingProducer(provider)])
    consumer = await client.subscribe("t", "s", interceptors=[TracingConsumer(provider)])
    await producer.send(b"good")
    await producer.send(b"bad")
    good, bad = await consumer.receive_many(2, max_wait=5)
    assert "traceparent" in good.properties
    await consumer.acknowledge(good)
    consumer.negative_acknowledge(bad)
    spans = exporter.get_finished_spans()
    assert [span.kind for span in spans] == [SpanKind.PRODUCER] * 2 + [SpanKind.CONSUMER] * 2
    sent, processed = spans[0], spans[2]
    assert (sent.name, processed.name) == (f"send {producer.topic}", f"process {producer.topic}")
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id
    assert sent.attributes["messaging.message.id"] == processed.attributes["messaging.message.id"] == str(good.message_id)
    assert [span.status.status_code for span in spans[2:]] == [StatusCode.UNSET, StatusCode.ERROR]
