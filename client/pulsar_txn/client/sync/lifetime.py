"""Begin and end of blocking clients and coordinators on a loop thread, and the sharing of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import attrs

from pulsar_txn.client._shared_interceptors import SharedInterceptors
from pulsar_txn.client.client import AsyncClient, schema_of_producer, view_of
from pulsar_txn.client.coordinator import AsyncCoordinator
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.options import ConsumerOptions, ReaderOptionsDict
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.client.receive.table_view import AsyncTableView, values_of
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.send.options import ProducerOptions
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.sync.blocking import LAST_CALLS_SECONDS, Blocking, SyncLoop
from pulsar_txn.client.sync.callbacks import (
    DRAIN_SECONDS,
    AskedKeys,
    ToldInterceptor,
    ToldObserver,
    asked_authentication,
    asked_keys,
)
from pulsar_txn.client.sync.closing import Resident, close_hastily, close_in_order
from pulsar_txn.client.sync.sending import EncodedBefore, OwnCode
from pulsar_txn.client.txn.transactions import core_of

_NO_OPTIONS: Final = frozenset({"self", "unknown", "__class__"})


def client_on_loop(given: Mapping[str, Any]) -> tuple[SyncLoop, AsyncClient]:
    """A loop, and the asyncio client for it: its own, or that of the coordinator it shares.

    `given` has the local names of `Client.__init__`: its arguments, and what is no option. AlreadyClosed, ForkedClientError.
    """
    options = _options(given)
    match options.get("coordinator"):
        case Blocking(_inner=AsyncCoordinator() as shared, _loop=SyncLoop() as loop):
            options["coordinator"] = shared
        case AsyncCoordinator():
            raise InvalidConfiguration(
                "a blocking client cannot share an AsyncCoordinator, which lives on another loop",
                hint="make a Coordinator for blocking clients, or give the URL",
            )
        case _:
            loop = SyncLoop()
    _ask(loop, options)
    return loop, loop.take_in(lambda: AsyncClient(**options))


def coordinator_on_loop(given: Mapping[str, Any]) -> tuple[SyncLoop, AsyncCoordinator]:
    """A loop that has not started yet, and the asyncio coordinator for it. `given` as for `client_on_loop`."""
    options, loop = _options(given), SyncLoop()
    _ask(loop, options)
    return loop, loop.take_in(lambda: AsyncCoordinator(**options))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    unknown: dict[str, Any] = given["unknown"]
    return {name: value for name, value in given.items() if name not in _NO_OPTIONS} | unknown


def _ask(loop: SyncLoop, options: dict[str, Any]) -> None:
    if options.get("authentication") is not None:
        options["authentication"] = asked_authentication(loop.callbacks, options["authentication"])


class LoopLifetime:
    """Lifetime of one client or coordinator on its loop thread. The last one that is closed ends the thread."""

    def __init__(self, loop: SyncLoop, resident: Resident) -> None:
        self._loop = loop
        self._resident = resident
        self.core = core_of(resident)

    def check_open(self) -> None:
        """AlreadyClosed when it is closed, ForkedClientError in a forked child."""
        self._loop.call(self.core.check_open)

    def close(self) -> None:
        """Close it, and its threads if nobody else lives there; see `Client.close`."""
        loop = self._loop
        if not loop.is_ours or loop.stopped:
            return
        if not loop.started:
            self.core.shut()  # there is nothing to close
            if loop.is_left_by(self._resident):
                loop.stop()
            return
        seconds = DRAIN_SECONDS
        try:
            loop.run(lambda: close_in_order(self._resident))
        except BaseException:
            seconds = LAST_CALLS_SECONDS
            loop.run(lambda: close_hastily([self._resident]))
            raise
        finally:
            loop.callbacks.drain(seconds)  # while they can still ask the client
            if loop.is_left_by(self._resident):
                loop.stop()
                loop.callbacks.close(LAST_CALLS_SECONDS)

    def observe(self, change: Callable[[object], None], observer: object, blocking_of: Callable[[Any], Any]) -> None:
        """Add or remove an observer: here before the thread starts, because a program that forks later may have observers."""
        told = ToldObserver(self._loop.callbacks, blocking_of, observer)
        self._loop.call_here_or_there(lambda: change(told))


T = TypeVar("T")


class ResourceFactory:
    """Makes producers, consumers, readers and views of one client on its loop."""

    def __init__(self, loop: SyncLoop, client: AsyncClient) -> None:
        self._loop = loop
        self._client = client
        self._core = core_of(client)
        self.interceptors = SharedInterceptors()

    def producer(self, topic: str, schema: Schema[Any] | None, options: dict[str, Any]) -> tuple[AsyncProducer[Any], OwnCode]:
        """A producer of encoded payloads, and what encodes them: the program's schema, router and interceptors."""
        known = self._loop.run(lambda: schema_of_producer(self._core, topic, schema))
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
        self,
        topic: Any,
        subscription: str,
        schema: Schema[Any] | None,
        options: dict[str, Any],
        wrap: Callable[[Any], T],
    ) -> T:
        """The blocking consumer over a new one, which its interceptors are told of."""
        own = ConsumerOptions(interceptors=options.get("interceptors", ())).interceptors  # which are checked there
        given = (*self.interceptors.of_consumers, *own)
        told = [ToldInterceptor(self._loop.callbacks, each) for each in given]
        if told:
            options["interceptors"] = told
        self._ask_for_keys(options)
        consumer: AsyncConsumer[Any] = self._loop.run(
            lambda: self._client.subscribe(topic, subscription, schema=schema, **options)
        )
        blocking = wrap(consumer)
        for each in told:
            each.consumer = blocking
        return blocking

    def reader(self, topic: str, start: Any, options: dict[str, Any]) -> AsyncReader[Any]:
        """A new reader."""
        self._ask_for_keys(options)
        return self._loop.run(lambda: self._client.create_reader(topic, start, **options))

    def consistent_reader(self, topics: Any, start: Any, options: dict[str, Any]) -> AsyncConsistentReader[Any]:
        """A new consistent reader."""
        self._ask_for_keys(options)
        return self._loop.run(lambda: self._client.consistent_reader(topics, start, **options))

    def table_view(self, topic: str, schema: Schema[Any] | None, options: dict[str, Any]) -> AsyncTableView[Any]:
        """A new table view."""
        self._ask_for_keys(options)
        read_values = functools.partial(self._loop.callbacks.ask, values_of)
        return self._loop.run(lambda: view_of(self._client, topic, schema, cast("ReaderOptionsDict", options), read_values))

    def _ask_for_keys(self, options: dict[str, Any]) -> None:
        if options.get("crypto_keys") is not None:
            options["crypto_keys"] = asked_keys(self._loop.callbacks, options["crypto_keys"])
