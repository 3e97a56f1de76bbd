"""Stores of logs in topics, for tests: several instances on one server, each with connections of its own."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from pulsar_txn.client.inside import AsyncioRuntime, Settings
from pulsar_txn.tc_service.topic_ledger.store import TopicStore

LEASE_MS: Final = 2000
_SETTINGS: Final = Settings(operation_timeout=10, connection_timeout=10)


class TopicStores:
    """Makes stores in one namespace of the server at `url`: `pulsar_txn.ledger.testing.Stores`, and more of the same logs."""

    def __init__(self, url: str, namespace: str = "pulsar/system", **options: Any) -> None:
        self.url = url
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self._namespace = namespace
        self._options = {"lease_ms": LEASE_MS} | options
        self.made: list[TopicStore] = []

    def make(self, advertised: str = "pulsar://here", **options: Any) -> TopicStore:
        """One more instance, not started."""
        made = TopicStore(
            self.url,
            _SETTINGS,
            AsyncioRuntime(),
            namespace=self._namespace,
            prefix=self.prefix,
            advertised=advertised,
            **(self._options | options),
        )
        self.made.append(made)
        return made

    async def new(self, **options: Any) -> TopicStore:
        """The first, or another instance, started."""
        store = self.make(**options)
        await store.start()
        return store

    async def reopened(self, store: TopicStore) -> TopicStore:
        """Closed, and opened again."""
        await store.close()
        return await self.new()

    async def crashed(self, store: TopicStore) -> TopicStore:
        """Its connections break, as when its process is killed; another instance goes on."""
        break_connections(store)
        silence(store)
        return await self.new()

    async def discard(self, store: TopicStore) -> None:
        """Close it."""
        await store.close()

    async def close(self) -> None:
        """Close all of them."""
        await asyncio.gather(*(store.close() for store in self.made))


def break_connections(store: TopicStore) -> None:
    """Reset every connection of a store, as a network does."""
    for connection in store._brokers._pool.current():
        transport = connection._transport
        assert transport is not None
        transport.abort()


def silence(store: TopicStore) -> None:
    """The store's process is gone: nothing of it is sent any more."""
    for log in list(store._open_logs.by_name.values()):
        log._writer.give_up("this test has killed its process")
    store._brokers._pool._closed = True
