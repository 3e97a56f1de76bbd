"""How a blocking client begins and ends, and makes what it hands out: the program's own code never runs on the loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs

from pulsar_txn.client._shared_interceptors import SharedInterceptors
from pulsar_txn.client.client import AsyncClient, schema_of_producer
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.client.receive.table_view import AsyncTableView
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.send.options import ProducerOptions
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.sync.callbacks import (
    DRAIN_SECONDS,
    AskedKeys,
    ToldInterceptor,
    ToldObserver,
    asked_authentication,
    asked_keys,
)
from pulsar_txn.client.sync.closing import close_hastily, close_in_order
from pulsar_txn.client.sync.sending import EncodedBefore, OwnCode
from pulsar_txn.client.sync.twin import LAST_CALLS_SECONDS, SyncLoop

T = TypeVar("T")

_NO_OPTIONS: Final = frozenset({"self", "unknown", "__class__"})


def opened(given: Mapping[str, Any]) -> tuple[SyncLoop, AsyncClient]:
    """A loop that has not started yet, and the asyncio client that is going to live on it.

    `given` has the local names of `Client.__init__`: its arguments, and what is no option.
    """
    options = {name: value for name, value in given.items() if name not in _NO_OPTIONS} | given["unknown"]
    if not isinstance(options.get("coordinator"), str | None):
        raise InvalidConfiguration(
            "a blocking client lives on a loop of its own, and shares no coordinator",
            hint="give coordinator= the URL; or use AsyncClient for a transaction over several clusters",
        )
    loop = SyncLoop()
    if options.get("authentication") is not None:
        options["authentication"] = asked_authentication(loop.callbacks, options["authentication"])
    client = loop.client = AsyncClient(**options)
    client.inside.ask = loop.callbacks.ask
    return loop, client


class Opening:
    """Makes producers, consumers, readers and views of one client on its loop, and closes the client."""

    def __init__(self, loop: SyncLoop, client: AsyncClient) -> None:
        self._loop = loop
        self._client = client
        self.interceptors = SharedInterceptors()

    def check_open(self) -> None:
        """AlreadyClosed when the client is closed, ForkedClientError in a forked child."""
        self._loop.call(lambda: None)

    def close(self) -> None:
        """Close the client, then its threads; see `Client.close`."""
        loop = self._loop
        if not loop.is_ours or loop.stopped:
            return
        if not loop.started:
            self._client.inside.closed = True  # there is nothing to close
            loop.stop()
            return
        seconds = DRAIN_SECONDS
        try:
            loop.run(lambda: close_in_order(self._client))
        except BaseException:
            seconds = LAST_CALLS_SECONDS
            loop.run(lambda: close_hastily(self._client))
            raise
        finally:
            loop.callbacks.drain(seconds)  # while they can still ask the client
            loop.stop()
            loop.callbacks.close(LAST_CALLS_SECONDS)

    def producer(self, topic: str, schema: Schema[Any] | None, options: dict[str, Any]) -> tuple[AsyncProducer[Any], OwnCode]:
        """A producer of encoded payloads, and what encodes them: the program's schema, router and interceptors."""
        known = self._loop.run(lambda: schema_of_producer(self._client.inside, topic, schema))
        given = ProducerOptions(interceptors=options.pop("interceptors", ())).interceptors  # which are checked there
        own = OwnCode(schema=known, interceptors=(*self.interceptors.of_producers, *given))
        if callable(options.get("routing")):
            own = attrs.evolve(own, router=options.pop("routing"))
        self._ask_for_keys(options)
        if isinstance(options.get("crypto_keys"), AskedKeys):
            options["crypto_keys"].fetch(options.get("encryption_keys", ()))
        encoded = EncodedBefore(own.schema)
        return self._loop.run(lambda: self._client.create_producer(topic, schema=encoded, **options)), own

    def consumer(
        self, topic: Any, subscription: str, schema: Schema[Any] | None, options: dict[str, Any], twin_of: Callable[[Any], T]
    ) -> T:
        """The twin of a new consumer, which its interceptors are told of."""
        own = ConsumerOptions(interceptors=options.get("interceptors", ())).interceptors  # which are checked there
        given = (*self.interceptors.of_consumers, *own)
        told = [ToldInterceptor(self._loop.callbacks, each) for each in given]
        if told:
            options["interceptors"] = told
        self._ask_for_keys(options)
        consumer: AsyncConsumer[Any] = self._loop.run(
            lambda: self._client.subscribe(topic, subscription, schema=schema, **options)
        )
        twin = twin_of(consumer)
        for each in told:
            each.consumer = twin
        return twin

    def reader(self, topic: str, start: Any, options: dict[str, Any]) -> AsyncReader[Any]:
        """A new reader."""
        self._ask_for_keys(options)
        return self._loop.run(lambda: self._client.create_reader(topic, start, **options))

    def table_view(self, topic: str, schema: Schema[Any] | None, options: dict[str, Any]) -> AsyncTableView[Any]:
        """A new table view."""
        self._ask_for_keys(options)
        return self._loop.run(lambda: self._client.create_table_view(topic, schema=schema, **options))

    def observe(self, change: Callable[[object], None], observer: object, twin_of: Callable[[Any], Any]) -> None:
        """Add or remove an observer: here before the thread starts, because a program that forks later may have observers."""
        told = ToldObserver(self._loop.callbacks, twin_of, observer)
        if self._loop.started or self._loop.stopped:
            self._loop.call(functools.partial(change, told))
        else:
            change(told)

    def _ask_for_keys(self, options: dict[str, Any]) -> None:
        if options.get("crypto_keys") is not None:
            options["crypto_keys"] = asked_keys(self._loop.callbacks, options["crypto_keys"])
