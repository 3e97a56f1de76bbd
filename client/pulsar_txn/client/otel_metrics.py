"""OpenTelemetry metrics: messages sent and consumed, how long that takes, and how transactions end.

Names and attributes of messages are those of OpenTelemetry's conventions for messaging. Needs the extra `otel`
(opentelemetry-api); readers and exporters are the program's choice.

    producer = await client.create_producer("orders", interceptors=[MetricsProducer()])
    consumer = await client.subscribe("orders", "billing", interceptors=[MetricsConsumer()])
    client.add_observer(TransactionMetrics())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.net.runtime import monotonic_seconds
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.receive.message import Message
from pulsar_txn.client.send.interceptors import OutgoingMessage, ProducerInterceptor
from pulsar_txn.client.sync.blocking import Blocking, inner
from pulsar_txn.client.txn.observers import TransactionObserver
from pulsar_txn.client.txn.transaction import unit_of
from pulsar_txn.wire.ids import MessageId, TxnId

try:
    from opentelemetry import metrics
except ImportError as missing:
    raise InvalidConfiguration("opentelemetry-api is needed", hint="pip install '.[otel]' in a checkout") from missing

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import Acknowledged, AsyncConsumer
    from pulsar_txn.client.send.producer import AsyncProducer
    from pulsar_txn.client.txn.transaction import AsyncTransaction

_NAME: Final = "pulsar_txn.client"
MAX_OPEN: Final = 100_000
"""Messages, or transactions, whose beginning is remembered; beyond it the oldest is not timed."""


class _Beginnings:
    """Times at which things began."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: dict[Any, tuple[float, Any]] = {}

    def note(self, key: Any, kept: Any = None) -> None:
        """Note that it begins now. `kept` lives as long: an object whose `id()` is the key."""
        if len(self._of) >= MAX_OPEN:
            del self._of[next(iter(self._of))]
        self._of[key] = (self._clock(), kept)

    def take(self, key: Any) -> float | None:
        """The seconds since; None when it is not known, and never twice."""
        known = self._of.pop(key, None)
        return None if known is None else self._clock() - known[0]


class MetricsProducer(ProducerInterceptor):
    """`messaging.client.sent.messages` and `messaging.client.operation.duration` (seconds, until the receipt), by topic.

    Failed sends have `error.type`, the name of the error's class.
    """

    def __init__(
        self, meter_provider: metrics.MeterProvider | None = None, *, clock: Callable[[], float] = monotonic_seconds
    ) -> None:
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages sent, or failed to be")
        self._duration = meter.create_histogram("messaging.client.operation.duration", "s", "From send to its receipt")
        self._begun = _Beginnings(clock)

    def before_send(self, producer: AsyncProducer[Any], message: OutgoingMessage) -> OutgoingMessage:
        """Start the clock."""
        del producer
        copy = attrs.evolve(message)  # an object of its own, whatever the program does with the other one
        self._begun.note(id(copy), copy)
        return copy

    def on_send_finished(
        self, producer: AsyncProducer[Any], message: OutgoingMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        """Count it."""
        del message_id
        attributes = _attributes(producer.topic, "send", error)
        self._sent.add(1, attributes)
        seconds = self._begun.take(id(message))
        if seconds is not None:
            self._duration.record(seconds, attributes)


class MetricsConsumer(ConsumerInterceptor):
    """`messaging.client.consumed.messages` and `messaging.process.duration`, by topic and subscription.

    The duration is in seconds, from receiving to acknowledging, in a transaction or not. Messages that are refused have an
    `error.type` of `negative_acknowledge`; those of a failed acknowledgement that of its error.
    """

    def __init__(
        self, meter_provider: metrics.MeterProvider | None = None, *, clock: Callable[[], float] = monotonic_seconds
    ) -> None:
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages received")
        self._duration = meter.create_histogram("messaging.process.duration", "s", "From receiving to acknowledging")
        self._begun = _Beginnings(clock)

    def on_receive(self, consumer: AsyncConsumer[Any], message: Message[Any]) -> None:
        """Count it, and start the clock."""
        self._consumed.add(1, _consuming(consumer, message, "receive", None))
        self._begun.note(_key(consumer, message))

    def on_acknowledge(
        self, consumer: AsyncConsumer[Any], messages: Sequence[Acknowledged], error: BaseException | None
    ) -> None:
        """Stop the clocks of these; ids without their message are not known here."""
        for message in messages:
            self._finish(consumer, message, error)

    def on_negative_acknowledge(self, consumer: AsyncConsumer[Any], message: Acknowledged) -> None:
        """Stop its clock."""
        self._finish(consumer, message, "negative_acknowledge")

    def _finish(self, consumer: AsyncConsumer[Any], message: Acknowledged, error: BaseException | str | None) -> None:
        if isinstance(message, Message):
            seconds = self._begun.take(_key(consumer, message))
            if seconds is not None:
                self._duration.record(seconds, _consuming(consumer, message, "process", error))


class TransactionMetrics(TransactionObserver):
    """`pulsar.transaction.open`, `pulsar.transaction.ended` and `pulsar.transaction.duration` (seconds).

    The attribute `pulsar.transaction.outcome` is the state at the end: `COMMITTED`, `ABORTED`, `TIMED_OUT`, … What follows on
    a transaction that timed out, or whose outcome was unknown, is not counted again.
    """

    def __init__(
        self, meter_provider: metrics.MeterProvider | None = None, *, clock: Callable[[], float] = monotonic_seconds
    ) -> None:
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self._open = meter.create_up_down_counter("pulsar.transaction.open", "{transaction}", "Transactions under way")
        self._ended = meter.create_counter("pulsar.transaction.ended", "{transaction}", "Transactions that ended")
        self._duration = meter.create_histogram("pulsar.transaction.duration", "s", "From opening to the end")
        self._begun = _Beginnings(clock)

    def txn_opened(self, txn: AsyncTransaction) -> None:
        """Count it, and start the clock."""
        self._open.add(1)
        self._begun.note(_id_of(txn))

    def txn_ended(self, txn: AsyncTransaction) -> None:
        """Count its outcome, once."""
        identity = _id_of(txn)
        seconds = self._begun.take(identity)
        if seconds is not None:
            outcome = {"pulsar.transaction.outcome": txn.state.value}
            self._open.add(-1)
            self._ended.add(1, outcome)
            self._duration.record(seconds, outcome)


def _id_of(txn: AsyncTransaction) -> TxnId | None:
    """Its id, which the program is not shown by this. Blocking clients tell of their own transactions."""
    identity: TxnId | None = unit_of(inner(txn) if isinstance(txn, Blocking) else txn).id
    return identity


def _key(consumer: AsyncConsumer[Any], message: Message[Any]) -> tuple[int, str, MessageId]:
    return (id(consumer), message.topic, message.message_id)


def _attributes(topic: str, operation: str, error: BaseException | str | None) -> dict[str, str]:
    attributes = {
        "messaging.system": "pulsar",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
    }
    if error is not None:
        attributes["error.type"] = error if isinstance(error, str) else type(error).__name__
    return attributes


def _consuming(
    consumer: AsyncConsumer[Any], message: Message[Any], operation: str, error: BaseException | str | None
) -> dict[str, str]:
    attributes = _attributes(message.topic, operation, error)
    return attributes | {"messaging.destination.subscription.name": consumer.subscription}
