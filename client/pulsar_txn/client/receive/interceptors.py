"""Code of the program's own around receiving and acknowledging: for tracing and auditing.

Interceptors run on the event loop, so they must be quick; the blocking client calls them in a thread for that. What one of them
raises is logged, and the message goes its way.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pulsar_txn.client.send.interceptors import guarded
from pulsar_txn.wire.ids import MessageId

if TYPE_CHECKING:
    from pulsar_txn.client.receive.message import Message


class ConsumerInterceptor:
    """A base of interceptors: override what is of interest, and give it to `subscribe(interceptors=[…])`.

    `consumer` is a consumer of the client that is used: `AsyncConsumer` or `Consumer`.
    """

    def on_receive(self, consumer: Any, message: Message[Any]) -> None:
        """The program receives this message now."""

    def on_acknowledge(self, consumer: Any, messages: Sequence[Message[Any] | MessageId], error: BaseException | None) -> None:
        """These were acknowledged (in a transaction: as part of it), or could not be."""

    def on_negative_acknowledge(self, consumer: Any, message: Message[Any] | MessageId) -> None:
        """This is to be delivered again."""


class ConsumerChain:
    """The interceptors of one consumer, in the order given."""

    def __init__(self, consumer: Any, interceptors: Sequence[ConsumerInterceptor]) -> None:
        self._consumer = consumer
        self._interceptors = tuple(interceptors)

    def received(self, messages: Sequence[Message[Any]]) -> None:
        """The program gets these."""
        for message in messages:
            for interceptor in self._interceptors:
                guarded(functools.partial(interceptor.on_receive, self._consumer, message))

    def acknowledged(self, messages: Sequence[Message[Any] | MessageId], error: BaseException | None) -> None:
        """The program has acknowledged these."""
        for interceptor in self._interceptors:
            guarded(functools.partial(interceptor.on_acknowledge, self._consumer, messages, error))

    def refused(self, message: Message[Any] | MessageId) -> None:
        """The program wants this again."""
        for interceptor in self._interceptors:
            guarded(functools.partial(interceptor.on_negative_acknowledge, self._consumer, message))
