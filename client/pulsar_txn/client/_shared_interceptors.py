"""The interceptors that a client gives to all of its producers and consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs

from pulsar_txn.client._validation import refused
from pulsar_txn.client.receive.interceptors import ConsumerInterceptor
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.send.interceptors import ProducerInterceptor
from pulsar_txn.client.send.options import ProducerOptions

O = TypeVar("O", ProducerOptions, ConsumerOptions)  # noqa: E741 - options


class SharedInterceptors:
    """Those of producers and those of consumers, each in the order in which they were added."""

    def __init__(self) -> None:
        self.of_producers: tuple[ProducerInterceptor, ...] = ()
        self.of_consumers: tuple[ConsumerInterceptor, ...] = ()

    def add(self, interceptors: Sequence[Any]) -> None:
        """Add interceptors of either kind; one with the methods of both is added to both."""
        for each in interceptors:
            sends = not isinstance(each, type) and hasattr(each, "before_send")
            receives = not isinstance(each, type) and hasattr(each, "on_receive")
            if not sends and not receives:
                raise refused("an interceptor", each, "a ProducerInterceptor or a ConsumerInterceptor")
            self.of_producers += (each,) * sends
            self.of_consumers += (each,) * receives

    def before(self, options: O) -> O:
        """The options of a producer or consumer, with the shared interceptors before its own."""
        shared: Sequence[Any] = self.of_producers if isinstance(options, ProducerOptions) else self.of_consumers
        return attrs.evolve(options, interceptors=(*shared, *options.interceptors)) if shared else options
