"""OpenTelemetry in one line: `instrument(client)`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from pulsar_txn.client._validation import refused
from pulsar_txn.client.client import AsyncClient
from pulsar_txn.client.sync import Client

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger("pulsar_txn.client")

_INSTRUMENTED: Final[WeakSet[AsyncClient | Client]] = WeakSet()


def instrument(
    client: AsyncClient | Client,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Record OpenTelemetry traces and metrics of a client: of its messages, and of its transactions.

    The producers and consumers that the client creates after this call are traced and counted, and so are all of its
    transactions; readers and table views are not. Without providers, the global ones of OpenTelemetry are used.
    A second call for the same client has no effect. Raises InvalidConfiguration where opentelemetry-api is not installed.
    """
    from pulsar_txn.client import otel, otel_metrics  # they need the extra

    if not isinstance(client, AsyncClient | Client):
        raise refused("client", client, "an AsyncClient or a Client")
    if client in _INSTRUMENTED:
        logger.warning("%r is instrumented already: the second call of instrument() has no effect", client)
        return
    _INSTRUMENTED.add(client)
    client.add_interceptors(
        otel.TracingProducer(tracer_provider),
        otel.TracingConsumer(tracer_provider),
        otel_metrics.MetricsProducer(meter_provider),
        otel_metrics.MetricsConsumer(meter_provider),
    )
    client.add_observer(otel_metrics.TransactionMetrics(meter_provider))
