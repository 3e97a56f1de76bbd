"""Code of the program's own around sending, receiving and acknowledging: for tracing, auditing, headers.

Interceptors run on the event loop, so they must be quick (the sync client has a thread for them). What one of them raises is
logged; the message goes its way.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pulsar_txn.client.send.batching import SendTicket
from pulsar_txn.wire.ids import MessageId

if TYPE_CHECKING:
    from pulsar_txn.client.receive.consumer import Acknowledged, AsyncConsumer
    from pulsar_txn.client.receive.message import Message
    from pulsar_txn.client.send.producer import AsyncProducer

logger = logging.getLogger("pulsar_txn.client.interceptors")


@attrs.frozen(kw_only=True)
class OutgoingMessage:
    """What is about to be sent; `attrs.evolve` makes another one of it."""

    value: Any
    key: str | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


class ProducerInterceptor:
    """Override what is of interest. Given to `create_producer(interceptors=[…])`."""

    def before_send(self, producer: AsyncProducer[Any], message: OutgoingMessage) -> OutgoingMessage:
        """The message to send instead, or the same."""
        del producer
        return message

    def on_send_finished(
        self, producer: AsyncProducer[Any], message: OutgoingMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        """The receipt came (`message_id`), or the send failed (`error`)."""


class ConsumerInterceptor:
    """Override what is of interest. Given to `subscribe(interceptors=[…])`."""

    def on_receive(self, consumer: AsyncConsumer[Any], message: Message[Any]) -> None:
        """The program receives this message now."""

    def on_acknowledge(
        self, consumer: AsyncConsumer[Any], messages: Sequence[Acknowledged], error: BaseException | None
    ) -> None:
        """These were acknowledged (in a transaction: as part of it), or could not be."""

    def on_negative_acknowledge(self, consumer: AsyncConsumer[Any], message: Acknowledged) -> None:
        """This is to be delivered again."""


class ProducerChain:
    """The interceptors of one producer, in the order given."""

    def __init__(self, producer: AsyncProducer[Any], interceptors: Sequence[ProducerInterceptor]) -> None:
        self._producer = producer
        self._interceptors = tuple(interceptors)

    def before(self, message: OutgoingMessage) -> list[OutgoingMessage]:
        """What each of them makes of it; the last one is sent."""
        steps = []
        for interceptor in self._interceptors:
            message = guarded(functools.partial(interceptor.before_send, self._producer, message)) or message
            steps.append(message)
        return steps

    def watch(self, steps: Sequence[OutgoingMessage], ticket: SendTicket) -> None:
        """Tell them how it ends."""
        ticket.add_done_callback(functools.partial(self._finished, steps))

    def _finished(self, steps: Sequence[OutgoingMessage], ticket: SendTicket) -> None:
        if ticket.cancelled():
            self.finish(steps, None, asyncio.CancelledError())
            return
        error = ticket.exception()
        self.finish(steps, ticket.result() if error is None else None, error)

    def finish(self, steps: Sequence[OutgoingMessage], message_id: MessageId | None, error: BaseException | None) -> None:
        """Each is told with the message that it returned itself."""
        for interceptor, message in zip(self._interceptors, steps, strict=True):
            guarded(functools.partial(interceptor.on_send_finished, self._producer, message, message_id, error))


class ConsumerChain:
    """The interceptors of one consumer, in the order given."""

    def __init__(self, consumer: AsyncConsumer[Any], interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._consumer = consumer
        self._interceptors = tuple(interceptors)

    def received(self, messages: Sequence[Message[Any]]) -> None:
        """The program gets these."""
        for message in messages:
            for interceptor in self._interceptors:
                guarded(functools.partial(interceptor.on_receive, self._consumer, message))

    def acknowledged(self, messages: Sequence[Acknowledged], error: BaseException | None) -> None:
        """The program has acknowledged these."""
        for interceptor in self._interceptors:
            guarded(functools.partial(interceptor.on_acknowledge, self._consumer, messages, error))

    def refused(self, message: Acknowledged) -> None:
        """The program wants this again."""
        for interceptor in self._interceptors:
            guarded(functools.partial(interceptor.on_negative_acknowledge, self._consumer, message))


def guarded(call: Callable[[], Any]) -> Any:
    """What the program's code returns; None when it raises, which is logged."""
    try:
        return call()
    except Exception:
        logger.exception("an interceptor failed")
        return None
