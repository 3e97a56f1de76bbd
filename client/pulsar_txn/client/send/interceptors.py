"""Code of the program's own around sending: for tracing, auditing, headers.

Interceptors run on the event loop, so they must be quick; the blocking client calls them in a thread for that. What one of them
raises is logged, and the message is sent all the same.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_txn.client.send.batching import SendTicket
from pulsar_txn.wire.ids import MessageId

logger = logging.getLogger("pulsar_txn.client.interceptors")


@attrs.frozen(kw_only=True)
class OutgoingMessage:
    """Message that is about to be sent; `attrs.evolve` makes another one of it."""

    value: Any
    key: str | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


class ProducerInterceptor:
    """A base of interceptors: override what is of interest, and give it to `create_producer(interceptors=[…])`.

    `producer` is a producer of the client that is used: `AsyncProducer` or `Producer`.
    """

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """The message to send instead, or the same."""
        del producer
        return message

    def on_send_finished(
        self, producer: Any, message: OutgoingMessage, message_id: MessageId | None, error: BaseException | None
    ) -> None:
        """The receipt came (`message_id`), or the send failed (`error`)."""


class ProducerChain:
    """The interceptors of one producer, in the order given."""

    def __init__(self, producer: Any, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._producer = producer
        self._interceptors = tuple(interceptors)

    def before(self, message: OutgoingMessage) -> list[OutgoingMessage]:
        """Message as the interceptors change it, one after the other; the last one is sent."""
        steps = []
        for interceptor in self._interceptors:
            message = guarded(functools.partial(interceptor.before_send, self._producer, message)) or message
            steps.append(message)
        return steps

    def watch(self, steps: Sequence[OutgoingMessage], future: SendTicket) -> None:
        """Tell them how it ends."""
        future.add_done_callback(functools.partial(self._finished, steps))

    def _finished(self, steps: Sequence[OutgoingMessage], future: SendTicket) -> None:
        if future.cancelled():
            self.finish(steps, None, asyncio.CancelledError())
            return
        error = future.exception()
        self.finish(steps, future.result() if error is None else None, error)

    def finish(self, steps: Sequence[OutgoingMessage], message_id: MessageId | None, error: BaseException | None) -> None:
        """Each is told with the message that it returned itself."""
        for interceptor, message in zip(self._interceptors, steps, strict=True):
            guarded(functools.partial(interceptor.on_send_finished, self._producer, message, message_id, error))


def guarded(call: Callable[[], Any]) -> Any:
    """Result of the program's code; None when it raises, which is logged."""
    try:
        return call()
    except Exception:
        logger.exception("an interceptor failed")
        return None
