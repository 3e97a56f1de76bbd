"""Brokers over a memory store, in the test's own loop, and raw clients of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from admin_client import Admin, admin_of
from raw_client import RawClient

from pulsar_txn.broker.base.runtime import AsyncioRuntime, Runtime
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.broker import Broker
from pulsar_txn.ledger.memory import MemoryStore


class Bench:
    """A broker that can crash: `broker` and `store` are the present ones."""

    def __init__(self, **config: object) -> None:
        self.config = BrokerConfig(**{"number_of_transaction_coordinators": 2, **config})  # type: ignore[arg-type] # by name
        self.store = MemoryStore()
        self.runtime: Runtime = AsyncioRuntime()
        self.broker: Broker

    async def start(self) -> Bench:
        await self.store.start()
        self.broker = Broker(self.config, self.store, self.runtime)
        await self.broker.start()
        return self

    def client(self) -> RawClient:
        return RawClient(self.broker)

    async def crash(self) -> None:
        """Only what was confirmed survives; a new broker recovers it."""
        self.store = self.store.crash()
        self.broker.participants.close()
        self.broker._closing = True
        await self.start()

    async def restart(self) -> None:
        """An ordinary stop and start."""
        await self.broker.close()
        await self.start()


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., Bench]]:
    """Makes brokers with a configuration; they are closed at the end."""
    made: list[Bench] = []

    def make(**config: object) -> Bench:
        made.append(Bench(**config))
        return made[-1]

    yield make
    for bench in made:
        if bench.broker.storage_failure is None:
            await bench.broker.close()
            await bench.store.close()


@pytest.fixture
async def bench(benches: Callable[..., Bench]) -> Bench:
    """A started broker with two coordinators."""
    return await benches().start()


@pytest.fixture
async def client(bench: Bench) -> RawClient:
    """A connected client of `bench`."""
    return bench.client()


@pytest.fixture
async def admin(bench: Bench) -> AsyncIterator[Admin]:
    """The administration of `bench`."""
    async with admin_of(bench) as client:
        yield client
