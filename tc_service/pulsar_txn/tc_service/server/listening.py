"""A coordinator service that listens: its folder, its clusters and its port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pulsar_txn.broker.serving import AsyncioRuntime, Ports, Runtime, close_store, drain, reachable
from pulsar_txn.client.inside import AsyncioRuntime as ClientRuntime
from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LogStore
from pulsar_txn.tc_service.cluster.admin import AdminApi
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.tc_service.topic_ledger.store import TopicStore

from .clusters import Clusters, OneCluster, agree_on_count, compare_clusters
from .incarnations import is_shared, store_id
from .leaders import NO_ADDRESS, Address
from .service import CoordinatorService

logger = logging.getLogger("pulsar_txn.tc_service")


class CoordinatorServer:
    """One coordinator service in this process, listening on one port. An async context manager; one start per object.

    `data_dir` None keeps everything in memory: nothing survives the end. With `ledgerProvider=topic` it is not used. `port` 0
    takes a free one.
    Entering raises OSError (port in use, address not here), LedgerError (folder in use, newer format, damage, …) and
    ClusterRefused (a cluster cannot take part as it is configured).
    Leaving drains: clients are sent away and everything that was answered is durable.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        clusters: Mapping[str, ClusterConfig],
        data_dir: str | Path | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> None:
        self.config = config
        self.service: CoordinatorService
        self.storage_failed = asyncio.Event()
        self.changed = asyncio.Event()
        """Set whenever this instance begins or ceases to lead a coordinator."""
        self._clusters = clusters
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._runtime = runtime or AsyncioRuntime()
        self._store: LogStore
        self._ports: Ports | None = None
        self._all: Clusters | None = None
        self._each_of: dict[str, OneCluster] = {}
        self._count = 0

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for `coordinator=` of clients; `pulsar+ssl://…` where there is TLS only."""
        return self.addresses[0]

    @property
    def store(self) -> LogStore:
        """Store with the logs of the coordinators."""
        return self._store

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store, listen, and begin to fold the coordinators' logs."""
        await self.listen()
        await self.lead()

    async def listen(self) -> None:
        """Open the store, and listen. Nothing is led yet, so other ports may be opened now. Then `lead`, or `abandon`."""
        self._store = self._open_store()
        await self._store.start()
        try:
            self._count = await agree_on_count(self._store, self.config.number_of_transaction_coordinators)
            await compare_clusters(self._store.metadata, self._clusters)
            runtime = ClientRuntime()
            repeat = self.config.transaction_end_repeat_delay_in_seconds or None
            each_of = self._each_of = {name: OneCluster(name, each, runtime, repeat) for name, each in self._clusters.items()}
            self._all = clusters = Clusters(each_of)
            await clusters.start()
            clusters.claim(await store_id(self._store, self._runtime), is_shared=is_shared(self._store))
            self.service = CoordinatorService(
                self.config,
                self._store,
                clusters,
                self._runtime,
                admins=self.admins,
                storage_failed=self.storage_failed,
                changed=self.changed,
            )
            await self._listen()
        except BaseException:
            await self.abandon()
            raise

    async def lead(self, *, front: Address = NO_ADDRESS, web: Address = NO_ADDRESS) -> None:
        """Begin to fold the coordinators' logs. `front`, `web`: see `CoordinatorService.start`."""
        try:
            await self.service.start(self._count, front=front, web=web)
        except BaseException:
            await self.abandon()
            raise
        logger.info("listening on %s, for the clusters %s", " and ".join(self.addresses), ", ".join(self._clusters))

    async def abandon(self) -> None:
        """Give up a start that was not finished."""
        ports, self._ports = self._ports, None
        if ports is not None:
            await ports.close()
        if self._all is not None:
            await self._all.leave()
        await close_store(self._store, self.storage_failed, logger)

    @property
    def admins(self) -> dict[str, AdminApi]:
        """The admin APIs of the clusters that have one."""
        return {name: each.admin for name, each in self._each_of.items() if each.admin is not None}

    @property
    def addresses(self) -> list[str]:
        """The service URLs, without and with TLS."""
        return [url for url in (self.service.service_url, self.service.service_url_tls) if url]

    async def _listen(self) -> None:
        config, service = self.config, self.service
        host = reachable(config.bind_address, config.advertised_address)
        ports = Ports("brokerServicePort", config, self._runtime, service.limits)
        await ports.open(config.bind_address, config.broker_service_port, config.broker_service_port_tls, service.connection)
        self._ports = ports
        service.service_url, service.service_url_tls = ports.urls(host)

    async def close(self) -> None:
        """Stop listening, drain, close the store. Idempotent."""
        ports, self._ports = self._ports, None
        if ports is None:
            return
        await ports.close()
        await drain(self.service.close(), self.config.broker_shutdown_timeout_ms, logger)
        await close_store(self._store, self.storage_failed, logger)

    def _open_store(self) -> LogStore:
        if self.config.ledger_provider == "topic":
            return self._topic_store()
        if self._data_dir is None:
            return MemoryStore()
        return JournalStore(self._data_dir, max_state_bytes=self.config.max_store_state_bytes)

    def _topic_store(self) -> TopicStore:
        config = self.config
        cluster = self._clusters[config.ledger_cluster or ""]
        return TopicStore(
            cluster.service_url,
            cluster.settings(),
            ClientRuntime(),
            namespace=config.ledger_namespace,
            prefix=config.ledger_topic_prefix,
            lease_ms=config.ledger_lease_in_millis,
            admin_url=cluster.admin_url,
        )
