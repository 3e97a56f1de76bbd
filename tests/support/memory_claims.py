"""The claims of one cluster in memory: what `TopicClaims` promises, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LeaseLost


class ClaimsOfCluster:
    """The cluster. `holders`: the backends that are open, by store. `is_away`: nobody reaches it."""

    def __init__(self) -> None:
        self.metadata = MemoryStore().metadata
        self.holders: dict[str, list[MemoryClaims]] = {}
        self.is_away = False
        self.left = asyncio.Event()


class MemoryClaims:
    """The backend of one process; `beside()` is that of another one in the same cluster."""

    def __init__(self, cluster: ClaimsOfCluster | None = None) -> None:
        self.cluster = cluster or ClaimsOfCluster()
        self._store = ""
        self._lost: asyncio.Future[str]

    def beside(self) -> MemoryClaims:
        return MemoryClaims(self.cluster)

    @property
    def metadata(self) -> Any:
        return self.cluster.metadata

    async def open(self, store: str, *, is_shared: bool) -> None:
        if self.cluster.is_away:
            raise LeaseLost("the cluster is away")
        while not is_shared and self.cluster.holders.get(store):
            self.cluster.left.clear()
            await self.cluster.left.wait()
        self._store, self._lost = store, asyncio.get_running_loop().create_future()
        self.cluster.holders.setdefault(store, []).append(self)

    async def lost(self) -> str:
        return await asyncio.shield(self._lost)

    async def is_alive(self, store: str) -> bool:
        holders = self.cluster.holders.setdefault(store, [])
        if holders:
            return True
        probe = self.beside()  # it has the store for a moment, as a producer does
        holders.append(probe)
        await asyncio.sleep(0)
        holders.remove(probe)
        self.cluster.left.set()
        return False

    async def close(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The process has died."""
        holders = self.cluster.holders.get(self._store, [])
        if self in holders:
            holders.remove(self)
        self.cluster.left.set()

    def lose(self, why: str = "the topic was moved") -> None:
        self.forget()
        self._lost.set_result(why)
