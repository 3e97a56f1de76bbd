"""OpenTelemetry metrics of messages and transactions."""

import itertools

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import ConsumerType, StringSchema, sync
from pulsar_txn.client.errors import SchemaMismatch
from pulsar_txn.client.otel import TracingConsumer
from pulsar_txn.client.otel_metrics import MetricsConsumer, MetricsProducer, TransactionMetrics
from pulsar_txn.client.sync.loop_thread import LoopThread
from pulsar_txn.client.txn.transaction import unit_of

TOPIC = "persistent://public/default/t"


class Metrics:
    """What was measured; a clock that goes on by a second whenever it is read."""

    def __init__(self):
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])
        self.clock = itertools.count().__next__

    def points(self, name):
        """By the attributes that differ: sums, or (count, sum) of histograms."""
        data = self._reader.get_metrics_data()
        found = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points if metric.name == name else ():
                kind = point.attributes.get("error.type") or point.attributes.get("pulsar.transaction.outcome")
                found[kind] = point.value if hasattr(point, "value") else (point.count, point.sum)
        return found

    def attributes(self, name):
        data = self._reader.get_metrics_data()
        (metric,) = [each for each in data.resource_metrics[0].scope_metrics[0].metrics if each.name == name]
        return [dict(point.attributes) for point in metric.data.data_points]


@pytest.fixture
def measured():
    return Metrics()


async def test_sends_are_counted_and_timed_and_those_that_fail_by_their_error(client, measured):
    metered = MetricsProducer(measured.provider, clock=measured.clock)
    producer = await client.create_producer("t", schema=StringSchema(), interceptors=[metered])
    for value in ("a", "b"):
        await producer.send(value)
    with pytest.raises(SchemaMismatch):
        await producer.send(3)
    assert measured.points("messaging.client.sent.messages") == {None: 2, "SchemaMismatch": 1}
    assert measured.points("messaging.client.operation.duration") == {None: (2, 2.0), "SchemaMismatch": (1, 1.0)}
    assert measured.attributes("messaging.client.sent.messages")[0] == {
        "messaging.system": "pulsar",
        "messaging.destination.name": TOPIC,
        "messaging.operation.name": "send",
    }


async def test_messages_are_counted_when_received_and_timed_until_they_are_settled(client, measured):
    metered = MetricsConsumer(measured.provider, clock=measured.clock)
    consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED, interceptors=[metered])
    producer = await client.create_producer("t", batching=False)
    for _ in range(3):
        await producer.send(b"x")
    first, second, third = [await consumer.receive(5) for _ in range(3)]
    async with client.transaction() as txn:
        await consumer.acknowledge(first, txn=txn)
    await consumer.acknowledge(second)
    await consumer.acknowledge(second)  # not timed twice
    consumer.negative_acknowledge(third)
    await consumer.acknowledge(third.message_id)
    assert measured.points("messaging.client.consumed.messages") == {None: 3}
    assert measured.points("messaging.process.duration") == {None: (2, 6.0), "negative_acknowledge": (1, 3.0)}
    subscriptions = measured.attributes("messaging.process.duration")
    assert {each["messaging.destination.subscription.name"] for each in subscriptions} == {"s"}


async def test_transactions_are_counted_by_how_they_end(client, measured):
    client.add_observer(TransactionMetrics(measured.provider, clock=measured.clock))
    for _ in range(2):
        async with client.transaction(eager=True):
            pass
    async with client.transaction(eager=True) as txn:
        await txn.rollback()
    still_open = await client.begin_transaction()
    assert measured.points("pulsar.transaction.ended") == {"COMMITTED": 2, "ABORTED": 1}
    assert measured.points("pulsar.transaction.duration") == {"COMMITTED": (2, 2.0), "ABORTED": (1, 1.0)}
    assert measured.points("pulsar.transaction.open") == {None: 1}
    await still_open.abort()
    assert measured.points("pulsar.transaction.open") == {None: 0}


async def test_a_transaction_that_timed_out_ends_once(client, measured):
    client.add_observer(TransactionMetrics(measured.provider, clock=measured.clock))
    txn = await client.begin_transaction()
    unit_of(txn).expire()
    await txn.abort()
    assert measured.points("pulsar.transaction.ended") == {"TIMED_OUT": 1}
    assert measured.points("pulsar.transaction.open") == {None: 0}


def test_what_is_never_settled_takes_bounded_memory(measured, monkeypatch):
    monkeypatch.setattr("pulsar_txn.client.otel_metrics.MAX_OPEN", 3)
    metered = TransactionMetrics(measured.provider, clock=measured.clock)
    for number in range(10):
        metered._begun.note(number)
    assert [metered._begun.take(number) is not None for number in range(10)] == [False] * 7 + [True] * 3


def test_the_sync_client_measures_as_well(measured, caplog):
    thread = LoopThread()
    broker = Standalone(None)
    thread.run(broker.__aenter__)
    try:
        with sync.Client(broker.service_url) as client:
            client.add_observer(TransactionMetrics(measured.provider))
            producer = client.create_producer("t", interceptors=[MetricsProducer(measured.provider)])
            consumer = client.subscribe("t", "s", interceptors=[MetricsConsumer(measured.provider), TracingConsumer()])
            with client.transaction() as txn:
                producer.send(b"x", txn=txn)
            consumer.acknowledge(consumer.receive(10))
    finally:
        thread.run(lambda: broker.__aexit__(None, None, None))
        thread.stop()
    assert measured.points("messaging.client.sent.messages") == {None: 1}
    assert measured.points("messaging.client.consumed.messages") == {None: 1}
    assert measured.points("messaging.process.duration")[None][0] == 1
    assert measured.points("pulsar.transaction.ended") == {"COMMITTED": 1}
    assert "failed" not in caplog.text
