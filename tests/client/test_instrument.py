"""`instrument(client)`: OpenTelemetry traces and metrics of either client in one line."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys

import pytest

from pulsar_txn.client import AsyncClient, Client, InvalidConfiguration, instrument
from pulsar_txn.client.events import ConsumerInterceptor, ProducerInterceptor

sdk = pytest.importorskip("opentelemetry.sdk.trace")
metrics_sdk = pytest.importorskip("opentelemetry.sdk.metrics")
exporting = pytest.importorskip("opentelemetry.sdk.metrics.export")
processing = pytest.importorskip("opentelemetry.sdk.trace.export")
in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


class Telemetry:
    """Providers whose spans and numbers stay here."""

    def __init__(self) -> None:
        self.exporter = in_memory.InMemorySpanExporter()
        self.tracer_provider = sdk.TracerProvider()
        self.tracer_provider.add_span_processor(processing.SimpleSpanProcessor(self.exporter))
        self.reader = exporting.InMemoryMetricReader()
        self.meter_provider = metrics_sdk.MeterProvider([self.reader])

    def instrument(self, client) -> None:
        instrument(client, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)

    def spans(self) -> list[str]:
        return sorted(span.name.split()[0] for span in self.exporter.get_finished_spans())

    def counts(self) -> dict[str, int]:
        data = self.reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics:
            for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
                if metric.name in ("messaging.client.sent.messages", "messaging.client.consumed.messages"):
                    found[metric.name.split(".")[2]] = sum(point.value for point in metric.data.data_points)
                if metric.name == "pulsar.transaction.ended":
                    found["ended"] = sum(point.value for point in metric.data.data_points)
        return found


EXPECTED = (["process", "send"], {"sent": 1, "consumed": 1, "ended": 1})


async def test_one_line_traces_and_counts_the_asyncio_client(url):
    telemetry = Telemetry()
    async with AsyncClient(url) as client:
        telemetry.instrument(client)
        producer, consumer = await client.create_producer("one-line"), await client.subscribe("one-line", "s")
        async with client.transaction() as txn:
            await producer.send(b"x", txn=txn)
        message = await consumer.receive(5)
        await consumer.acknowledge(message)
    assert (telemetry.spans(), telemetry.counts()) == EXPECTED


def test_one_line_traces_and_counts_the_blocking_client(url):
    telemetry = Telemetry()
    with Client(url) as client:
        telemetry.instrument(client)
        producer, consumer = client.create_producer("blocking-line"), client.subscribe("blocking-line", "s")
        with client.transaction() as txn:
            producer.send(b"x", txn=txn)
        message = consumer.receive(5)
        consumer.acknowledge(message)
    assert (telemetry.spans(), telemetry.counts()) == EXPECTED


async def test_a_second_call_has_no_effect_and_says_so(url, caplog):
    telemetry = Telemetry()
    async with AsyncClient(url) as client:
        telemetry.instrument(client)
        with caplog.at_level(logging.WARNING, logger="pulsar_txn.client"):
            telemetry.instrument(client)
        await (await client.create_producer("twice")).send(b"x")
    assert telemetry.spans() == ["send"]
    assert "instrumented already" in caplog.text


@pytest.mark.parametrize("given", [None, "pulsar://localhost", AsyncClient])
def test_what_is_no_client_is_refused(given):
    with pytest.raises(InvalidConfiguration, match="an AsyncClient or a Client"):
        instrument(given)


def test_without_the_extra_the_error_has_the_command_that_installs_it():
    program = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "from pulsar_txn.client import Client, InvalidConfiguration, instrument\n"
        "client = Client('pulsar://localhost')\n"
        "try:\n    instrument(client)\nexcept InvalidConfiguration as error:\n    print(error)\n"
        "client.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install '.[otel]'" in done.stdout


# --- what it is made of ---------------------------------------------------------------------------------------------


class Noted(ProducerInterceptor, ConsumerInterceptor):
    """Writes down that it was called, and by which name."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def before_send(self, producer, message):
        self.notes.append(f"{self.name} sends")
        return message

    def on_receive(self, consumer, message):
        self.notes.append(f"{self.name} receives")


async def test_interceptors_of_a_client_come_before_those_of_the_options(url):
    notes: list[str] = []
    async with AsyncClient(url) as client:
        await client.create_producer("before")
        client.add_interceptors(Noted("client", notes))
        producer = await client.create_producer("before", interceptors=[Noted("own", notes)])
        consumer = await client.subscribe("before", "s", interceptors=[Noted("own", notes)])
        await producer.send(b"x")
        await consumer.receive(5)
    assert notes == ["client sends", "own sends", "client receives", "own receives"]


def test_interceptors_of_a_blocking_client_come_before_those_of_the_options(url):
    notes: list[str] = []
    with Client(url) as client:
        client.add_interceptors(Noted("client", notes))
        producer = client.create_producer("before-too", interceptors=[Noted("own", notes)])
        consumer = client.subscribe("before-too", "s", interceptors=[Noted("own", notes)])
        producer.send(b"x")
        consumer.receive(5)
    assert notes[:2] == ["client sends", "own sends"]
    assert notes[2:] == ["client receives", "own receives"]


@pytest.mark.parametrize("wrong", [5, "text", ProducerInterceptor, object()])
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_what_is_no_interceptor_is_refused(kind, wrong):
    client = kind("pulsar://localhost")
    with pytest.raises(InvalidConfiguration, match="a ProducerInterceptor or a ConsumerInterceptor"):
        client.add_interceptors(wrong)
    closing = client.close()
    if closing is not None:
        asyncio.run(_closed(closing))


async def _closed(closing):
    await closing
