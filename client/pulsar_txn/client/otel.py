"""OpenTelemetry: a span for each send, one for each message between its receipt and its acknowledgement.

The context travels in the message's properties (W3C `traceparent`, or whatever the program's propagator writes), so that
a trace goes on over topics and languages. Needs the extra `otel` (opentelemetry-api); exporters are the program's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerInterceptor
from pulsar_txn.wire.ids import MessageId

try:
    from opentelemetry import propagate, trace
except ImportError as missing:
    raise InvalidConfiguration("opentelemetry-api is needed", hint="pip install '.[otel]' in a checkout") from missing

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import Acknowledged, AsyncConsumer
    from pulsar_txn.client.send.producer import AsyncProducer

_NAME = "pulsar_txn.client"
MAX_OPEN = 10_000
"""Received messages whose span is open; beyond it the oldest ends without an acknowledgement."""


class TracingProducer(ProducerInterceptor):
    """Spans `send <topic>` of kind PRODUCER, and the context in the message's properties."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._open: dict[int, tuple[OutgoingMessage, trace.Span]] = {}

    def before_send(self, producer: AsyncProducer[Any], message: OutgoingMessage) -> OutgoingMessage:
        """Open the span and write the context down."""
        span = self._tracer.start_span(
            f"send {producer.topic}", kind=trace.SpanKind.PRODUCER, attributes=_attributes(producer.topic, "send")
        )
        properties = dict(message.properties or {})
        propagate.inject(properties, context=trace.set_span_in_context(span))
        changed = attrs.evolve(message, properties=properties)
        self._open[id(changed)] = (changed, span)
        return changed

    def on_send_finished(
        self, producer: AsyncProducer[Any], message: OutgoingMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        """Close it."""
        del producer
        _, span = self._open.pop(id(message), (None, trace.INVALID_SPAN))
        if message_id is not None:
            span.set_attribute("messaging.message.id", str(message_id))
        _end(span, error)


class TracingConsumer(ConsumerInterceptor):
    """Spans `process <topic>` of kind CONSUMER, children of the send's, from receiving to acknowledging."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._open: dict[tuple[int, str, MessageId], trace.Span] = {}

    def on_receive(self, consumer: AsyncConsumer[Any], message: Message[Any]) -> None:
        """Open the span."""
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=propagate.extract(dict(message.properties)),
            kind=trace.SpanKind.CONSUMER,
            attributes=_attributes(message.topic, "process")
            | {
                "messaging.message.id": str(message.message_id),
                "messaging.destination.subscription.name": consumer.subscription,
            },
        )
        key = (id(consumer), message.topic, message.message_id)
        self._end(key, None)
        self._open[key] = span
        if len(self._open) > MAX_OPEN:
            self._end(next(iter(self._open)), None)

    def on_acknowledge(
        self, consumer: AsyncConsumer[Any], messages: Sequence[Acknowledged], error: BaseException | None
    ) -> None:
        """Close those of these messages; ids without their message are not known here."""
        for message in messages:
            if isinstance(message, Message):
                self._end((id(consumer), message.topic, message.message_id), error)

    def on_negative_acknowledge(self, consumer: AsyncConsumer[Any], message: Acknowledged) -> None:
        """Close it as failed."""
        if isinstance(message, Message):
            self._end((id(consumer), message.topic, message.message_id), RuntimeError("negatively acknowledged"))

    def _end(self, key: tuple[int, str, MessageId], error: BaseException | None) -> None:
        known = self._open.pop(key, None)
        if known is not None:
            _end(known, error)


def _attributes(topic: str, operation: str) -> dict[str, str]:
    return {"messaging.system": "pulsar", "messaging.destination.name": topic, "messaging.operation.name": operation}


def _end(span: trace.Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
    span.end()
