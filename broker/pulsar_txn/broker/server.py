"""A broker that listens: `async with Standalone(...) as broker: broker.service_url`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Self

import attrs

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import LogStore

from .base import plugins
from .base.addresses import reachable
from .base.closing import close_store, drain
from .base.runtime import AsyncioRuntime, Listener, Runtime
from .base.settings import BrokerConfig
from .broker import Broker

_logger = logging.getLogger(__name__)


class Standalone:
    """One broker in this process, listening on one port. An async context manager; one start per object.

    `data_dir` None keeps everything in memory: nothing survives the end. Otherwise the folder is opened by the ledger
    provider of the configuration. `port` 0 takes a free one. `store`: a log store of the caller, who also closes it.
    Entering raises OSError (port in use, address not here), LedgerError (folder in use, newer format, damage, …) and
    PluginError. Leaving drains: clients are sent away and everything that was answered is durable.
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
        self._listener: Listener | None = None

    @property
    def service_url(self) -> str:
        """`pulsar://host:port` for clients."""
        return self.broker.service_url

    @property
    def port(self) -> int:
        """The port that it listens on."""
        if self._listener is None:
            raise RuntimeError("this broker does not listen; enter it with `async with`")
        return self._listener.port

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the store, begin to fold the coordinators' logs, then listen."""
        store = self._store = self._store or self._open_store()
        if self._owns_store:
            await store.start()
        try:
            self.broker = Broker(self.config, store, self._runtime)
            self.broker.on_storage_failed = lambda _: self.storage_failed.set()
            await self.broker.start()
            self._listener = await self._runtime.listen(
                self.config.bind_address, self.config.broker_service_port, self.broker.connection
            )
        except BaseException:
            await self._close_store()
            raise
        address = reachable(self.config.bind_address, self.config.advertised_address)
        self.broker.service_url = f"pulsar://{address}:{self._listener.port}"
        _logger.info("listening on %s", self.broker.service_url)

    async def close(self) -> None:
        """Stop listening, drain, close the store. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        await listener.close()
        await drain(self.broker.close(), self.config.broker_shutdown_timeout_ms, _logger)
        await self._close_store()

    def _open_store(self) -> LogStore:
        if self._data_dir is None:
            _logger.warning("no data folder: everything is kept in memory, and nothing survives the end of this process")
            return MemoryStore()
        factory = plugins.resolve(plugins.LEDGERS, self.config.ledger_provider)
        store: Any = factory() if factory is MemoryStore else factory(self._data_dir)
        if isinstance(store, JournalStore):
            store.max_state_bytes = self.config.max_store_state_bytes
        opened: LogStore = store
        return opened

    async def _close_store(self) -> None:
        if self._owns_store and self._store is not None:
            await close_store(self._store, self.storage_failed, _logger)
