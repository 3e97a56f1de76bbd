"""Making of what a blocking client hands out: the program's own code never runs on the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from pulsar_txn.client._shared_interceptors import SharedInterceptors
from pulsar_txn.client.client import AsyncClient, schema_of_producer
from pulsar_txn.client.receive.consistent.reader import AsyncConsistentReader
from pulsar_txn.client.receive.consumer import AsyncConsumer
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.receive.reader import AsyncReader
from pulsar_txn.client.receive.table_view import AsyncTableView
from pulsar_txn.client.schema.base import Schema
from pulsar_txn.client.send.options import ProducerOptions
from pulsar_txn.client.send.producer import AsyncProducer
from pulsar_txn.client.sync.blocking import SyncLoop
from pulsar_txn.client.sync.callbacks import AskedKeys, ToldInterceptor, asked_keys
from pulsar_txn.client.sync.sending import EncodedBefore, OwnCode
from pulsar_txn.client.txn.transactions import core_of

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
        return self._loop.run(lambda: self._client.create_table_view(topic, schema=schema, **options))

    def _ask_for_keys(self, options: dict[str, Any]) -> None:
        if options.get("crypto_keys") is not None:
            options["crypto_keys"] = asked_keys(self._loop.callbacks, options["crypto_keys"])
