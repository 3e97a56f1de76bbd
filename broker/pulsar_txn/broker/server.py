"""A broker that listens: `async with Standalone(...) as broker: broker.service_url`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Self

import attrs

from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LogStore

from .base import plugins
from .base.addresses import LOOPBACK, reachable
from .base.closing import close_store, drain
from .base.runtime import AsyncioRuntime, Runtime
from .base.settings import BrokerConfig, ConfigError
from .broker import Broker
from .net.authentication import authentication_of
from .net.ports import Ports
from .net.tls import tls_of

_logger = logging.getLogger(__name__)


class Standalone:
    """One broker in this process, listening on its binary ports. An async context manager; one start per object.

    `data_dir` None keeps everything in memory: nothing survives the end. Otherwise the folder is opened by the ledger
    provider of the configuration. `port` 0 takes a free one. `store`: a log store of the caller, who also closes it.
    Entering raises OSError (port in use, address not here), LedgerError (folder in use, newer format, damage, …),
    PluginError and ConfigError (keys of TLS and authentication). Leaving drains: clients are sent away and everything that
    was answered is durable.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        port: int | None = None,
        host: str | None = None,
        config: BrokerConfig | None = None,
        runtime: Runtime | None = None,
        store: LogStore | None = None,
    ) -> None:
        given = config or BrokerConfig()
        self.config = attrs.evolve(
            given,
            broker_service_port=given.broker_service_port if port is None and config is not None else port or 0,
            bind_address=given.bind_address if host is None else host,
        )
        self.broker: Broker
        self.storage_failed = asyncio.Event()
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._runtime = runtime or AsyncioRuntime()
        self._store = store
        self._owns_store = store is None
        self._ports: Ports | None = None

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for clients; `pulsar+ssl://…` where there is TLS only."""
        return self.broker.service_url or self.broker.service_url_tls

    @property
    def service_url_tls(self) -> str:
        """`pulsar+ssl://host:port` for clients; empty without `brokerServicePortTls`."""
        return self.broker.service_url_tls

    @property
    def port(self) -> int:
        """The port that it listens on; that of TLS where there is no other."""
        ports = self._ports
        port = None if ports is None else ports.plain if ports.plain is not None else ports.tls
        if port is None:
            raise RuntimeError("this broker does not listen; enter it with `async with`")
        return port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store, begin to fold the coordinators' logs, then listen."""
        check_security(self.config)
        store = self._store = self._store or self._open_store()
        if self._owns_store:
            await store.start()
        try:
            self.broker = Broker(self.config, store, self._runtime, lambda _: self.storage_failed.set())
            await self.broker.start()
            ports = Ports("brokerServicePort", self.config, self._runtime, self.broker.limits)
            await ports.open(
                self.config.bind_address,
                self.config.broker_service_port,
                self.config.broker_service_port_tls,
                self.broker.connection,
            )
        except BaseException:
            await self._close_store()
            raise
        self._ports = ports
        address = reachable(self.config.bind_address, self.config.advertised_address)
        self.broker.listens(*ports.urls(address))
        _logger.info("listening on %s", " and ".join(filter(None, (self.broker.service_url, self.broker.service_url_tls))))

    async def close(self) -> None:
        """Stop listening, drain, close the store. Idempotent."""
        ports, self._ports = self._ports, None
        if ports is None:
            return
        await ports.close()
        await drain(self.broker.close(), self.config.broker_shutdown_timeout_ms, _logger)
        await self._close_store()

    def _open_store(self) -> LogStore:
        if self._data_dir is None:
            _logger.warning("no data folder: everything is kept in memory, and nothing survives the end of this process")
            return MemoryStore()
        factory = plugins.resolve(plugins.LEDGERS, self.config.ledger_provider)
        store: Any = factory() if factory is MemoryStore else factory(self._data_dir)
        if hasattr(store, "max_state_bytes"):
            store.max_state_bytes = self.config.max_store_state_bytes
        opened: LogStore = store
        return opened

    async def _close_store(self) -> None:
        if self._owns_store and self._store is not None:
            await close_store(self._store, self.storage_failed, _logger)


def check_security(config: BrokerConfig) -> None:
    """Before any file is touched: whether the keys of ports, TLS and authentication go together. ConfigError.

    What they leave open to everybody is logged.
    """
    if config.broker_service_port is None and config.broker_service_port_tls is None:
        raise ConfigError("there is no port: set brokerServicePort or brokerServicePortTls")
    _check_functions(config)
    if config.broker_service_port_tls is not None or config.web_service_port_tls is not None:
        tls_of(config)
    if authentication_of(config).enabled:
        if not config.super_user_roles:
            _logger.warning("superUserRoles is empty: nobody may administrate this broker over HTTP")
        _logger.info("every role with valid credentials may write to and read from every topic: roles own transactions only")
    elif config.bind_address not in LOOPBACK:
        _logger.warning(
            "bindAddress=%s without authenticationEnabled: whoever reaches this broker may read, write and administrate",
            config.bind_address,
        )


def _check_functions(config: BrokerConfig) -> None:
    """A function is code that this machine runs. ConfigError where everybody could send some."""
    if not config.functions_worker_enabled or config.authentication_enabled or config.bind_address in LOOPBACK:
        return
    if not config.functions_worker_without_authentication_allowed:
        raise ConfigError(
            f"functionsWorkerEnabled=true with bindAddress={config.bind_address}: whoever reaches this port could run code on "
            "this machine; set bindAddress=127.0.0.1, or, if you want that, functionsWorkerWithoutAuthenticationAllowed=true"
        )
    _logger.warning("functions run code of everybody who reaches the HTTP port on %s", config.bind_address)
