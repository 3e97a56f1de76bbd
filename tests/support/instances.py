"""Several instances of a coordinator service in one loop, with one network, one shared store and scripted clusters."""

from __future__ import annotations

import asyncio
from typing import Any

from coordinator_bench import ScriptedCluster
from leased_store import LeasedStore, SharedLogs
from memory_claims import MemoryClaims
from memory_network import MemoryNetwork

from pulsar_txn.client import AsyncCoordinator
from pulsar_txn.tc_service.config import CoordinatorConfig
from pulsar_txn.tc_service.server.clusters import Clusters, agree_on_count
from pulsar_txn.tc_service.server.incarnations import store_id
from pulsar_txn.tc_service.server.leaders import Address
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.wire.ids import TxnId


class Instance:
    """One of them. Killed, it answers nobody any more."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.port = 7000 + number
        self.cluster = ScriptedCluster(world.claims.beside())
        self.store = LeasedStore(world.logs)
        self.service: CoordinatorService
        self._world = world
        self._listener: Any = None

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def front_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port + 100}"

    async def start(self) -> None:
        world = self._world
        count = await agree_on_count(self.store, world.config.number_of_transaction_coordinators)
        clusters = Clusters({"east": self.cluster})
        clusters.claim(await store_id(self.store, world.network), is_shared=True)
        self.service = CoordinatorService(world.config, self.store, clusters, world.network)
        self._listener = await world.network.listen("127.0.0.1", self.port, self.service.connection)
        self.service.service_url = self.url
        await self.service.start(count, front=Address(self.front_url if world.config.has_front else ""))

    async def stop(self) -> None:
        await self._listener.close()
        await self.service.close()

    async def kill(self) -> None:
        await self._listener.close()
        self.store.kill()
        self.cluster.answers = False
        for connection in list(self.service.connections):
            connection.close()

    @property
    def leads(self) -> list[int]:
        return self.service.coordinators.here


class World:
    """All of them. `told` are the ends that any of them told, over the lives of all."""

    def __init__(self, network: MemoryNetwork, count: int = 2, *, coordinators: int = 4, **config: Any) -> None:
        self.network = network
        self.logs = SharedLogs()
        self.claims = MemoryClaims()
        self.config = CoordinatorConfig(number_of_transaction_coordinators=coordinators, **config)
        self.instances = [Instance(self, number) for number in range(count)]
        self._gone: list[Instance] = []

    async def start(self) -> World:
        for each in self.instances:
            await each.start()
        return self

    async def replace(self, instance: Instance) -> Instance:
        """Start another one in the place of one that is gone."""
        self._gone.append(instance)
        successor = self.instances[instance.number] = Instance(self, instance.number)
        await successor.start()
        return successor

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        """Let time pass until it holds."""
        loop = self.network.loop
        end = loop.time() + seconds
        while not condition():
            assert loop.time() < end, f"never happened: {condition}"
            await asyncio.sleep(0.005)

    def coordinator(self, **options: Any) -> AsyncCoordinator:
        """A client's, that knows all of them."""
        url = "pulsar://" + ",".join(f"127.0.0.1:{each.port}" for each in self.instances)
        return AsyncCoordinator(url, runtime=self.network, **options)

    def told(self) -> dict[TxnId, set[str]]:
        """The outcomes that participants were told, by transaction."""
        found: dict[TxnId, set[str]] = {}
        for each in (*self._gone, *self.instances):
            for effect in each.cluster.told:
                found.setdefault(effect.txn_id, set()).add(effect.action.name)
        return found
