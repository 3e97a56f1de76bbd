"""A store of logs in the topics of one Pulsar cluster (protocol `LogStore`), shared by several instances.

Each log is led by one instance at a time: `open` returns when it is this one. The metadata is written by all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Self

import attrs

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import Runtime, Settings
from pulsar_txn.ledger.pressure import DEFAULT_HIGH_WATER_BYTES, Pressure
from pulsar_txn.ledger.protocols import LedgerError, Log, LogClosed, LogExists, LogNotFound, MetadataStore, VersionConflict
from pulsar_txn.tc_service.cluster.brokers import Brokers

from .candidate import Candidate, Surroundings
from .checks import check_namespace
from .log import TopicLog
from .metadata_records import Op
from .names import DEFAULT_NAMESPACE, DEFAULT_PREFIX, check_log_name, check_place, log_topic, metadata_topic
from .place import Place
from .shared_metadata import SharedMetadata

logger = logging.getLogger("pulsar_txn.tc_service")

DEFAULT_LEASE_MS: Final = 5000
_LOG: Final = "log:"
"""Keys of the metadata that are the store's own: which number a log has. Paths begin with a slash."""

_NUMBERS: Final = "log-numbers"


class TopicStore:
    """`start()`, then `open` logs, at the end `close()`. Also an async context manager.

    `settings` are those of a role that may produce and consume in `namespace`. `prefix` begins the names of all topics: two
    services in one namespace need two. `advertised` is the address that others are told of the leader; it may be set until a
    log is opened. `lease_ms`: a leader that writes nothing for so long is sent away by those who wait.
    """

    def __init__(
        self,
        service_url: str,
        settings: Settings,
        runtime: Runtime,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        prefix: str = DEFAULT_PREFIX,
        advertised: str = "",
        lease_ms: int = DEFAULT_LEASE_MS,
        admin_url: str = "",
        high_water_bytes: int = DEFAULT_HIGH_WATER_BYTES,
    ) -> None:
        check_place(namespace, prefix)
        self.advertised = advertised
        self.pressure = Pressure(high_water_bytes)
        self._lease_seconds = lease_ms / 1000
        keep_alive = min(settings.keep_alive_interval, max(1.0, self._lease_seconds))
        self._settings = attrs.evolve(settings, keep_alive_interval=keep_alive)
        self._brokers = Brokers("ledger", service_url, self._settings, runtime)
        self._namespace = namespace
        self._prefix = prefix
        self._admin_url = admin_url
        self._runtime = runtime
        self._around = Surroundings(self._brokers, self._lease_seconds, self.pressure)
        self._shared = SharedMetadata(self._brokers, metadata_topic(namespace, prefix))
        self.metadata: MetadataStore = self._shared
        self._opening: dict[str, Candidate] = {}
        self._logs: dict[str, TopicLog] = {}
        self._failure: LedgerError | None = None

    async def start(self) -> None:
        """Read the metadata. Waits 30 s for the cluster. Raises LogTopicRefused, LogDamaged, StoreTooNew."""
        self._check()
        await check_namespace(self._namespace, self._admin_url, self._settings)
        await self._shared.start()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- logs

    async def open(self, name: str, *, create: bool = True) -> TopicLog:
        """Open a log once this instance leads it: waits as long as another one does. If cancelled: nothing is left behind.

        Raises LogNotFound, LogExists, NameRefused, LogTopicRefused, LogDamaged, StoreTooNew, LogClosed.
        """
        self._check()
        if name in self._logs or name in self._opening:
            raise LogExists(f"log {name!r} is open already in this store, or waits for its lease; close that handle first")
        check_log_name(name)
        ledger_id = self._ledger_id(name)
        if ledger_id is None and not create:
            raise LogNotFound(f"there is no log {name!r}")
        if ledger_id is None:
            ledger_id = await self._create(name)
        while True:
            log = await self._lead(name, ledger_id)
            if log is not None:
                return log

    async def _lead(self, name: str, ledger_id: int) -> TopicLog | None:
        """The log, once we lead it; None when the lease was lost while it opened."""
        topic = log_topic(self._namespace, self._prefix, ledger_id, name)
        candidate = self._opening[name] = Candidate(self._around, name, ledger_id, topic)
        try:
            claimed = await candidate.claim(self.advertised)
        finally:
            del self._opening[name]
        if claimed.is_lost or self._failure is not None:
            await claimed.give_up()
            self._check()
            return None
        log = self._logs[name] = TopicLog(claimed, self._runtime, self._lease_seconds, self.pressure, self._forget)
        logger.info("log %r is led by this instance, in epoch %d", name, log.epoch)
        return log

    def leader_of(self, name: str) -> str | None:
        """The address of the instance that leads a log, as far as this one knows: it leads it, or waits for it."""
        if name in self._logs:
            return self.advertised
        candidate = self._opening.get(name)
        return None if candidate is None else candidate.leader

    def topic_of(self, name: str) -> str | None:
        """The topic that a log is in, or None when there is no such log."""
        ledger_id = self._ledger_id(name)
        return None if ledger_id is None else log_topic(self._namespace, self._prefix, ledger_id, name)

    def exists(self, name: str) -> bool:
        """True if there is a log of this name."""
        return self._ledger_id(name) is not None

    @property
    def log_count(self) -> int:
        """Return how many logs there are."""
        return len(self._shared.keys(_LOG))

    def names(self, prefix: str = "") -> list[str]:
        """Names of logs, sorted."""
        return sorted(key.removeprefix(_LOG) for key in self._shared.keys(_LOG + prefix))

    async def delete(self, name: str) -> None:
        """Delete a log. Its topic is empty then, and goes when the broker deletes inactive topics, or by hand."""
        self._check()
        topic = self.topic_of(name)
        if topic is None:
            return
        log = self._logs.pop(name, None)
        if log is not None:
            log.leave()
            await log.close()
        await self._shared.change(Op.DELETE, _LOG + name)
        try:
            await Place(self._brokers, topic).remove()
        except PulsarError as error:
            logger.warning("the topic %s of the deleted log %r is still there: %s", topic, name, error)

    def _ledger_id(self, name: str) -> int | None:
        stored = self._shared.lookup(_LOG + name)
        return None if stored is None else int(stored.data)

    async def _create(self, name: str) -> int:
        number = await self._shared.change(Op.INCREMENT, _NUMBERS)
        try:
            await self._shared.change(Op.PUT, _LOG + name, str(number).encode(), -1)
        except VersionConflict:  # another instance has made it at the same moment
            stored = self._ledger_id(name)
            if stored is None:
                raise
            return stored
        return number

    def _forget(self, log: Log) -> None:
        if self._logs.get(log.name) is log:
            del self._logs[log.name]

    # ---- the store

    def on_pressure(self, callback: Callable[[bool], None]) -> None:
        """Tell `callback` when bytes in flight pass the high-water mark, and when they are below the low one."""
        self.pressure.listen(callback)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended and not confirmed, over all logs."""
        return self.pressure.bytes

    @property
    def progress(self) -> object | None:
        """See `LogStore.progress`."""
        return self.pressure.released if self.pressure.bytes else None

    @property
    def disk_full(self) -> bool:
        """Brokers do not say it."""
        return False

    async def close(self) -> None:
        """Let everything become durable, give all leases to those who wait. Idempotent."""
        if self._failure is not None:
            return
        self._failure = LogClosed("the store was closed")
        for result in await asyncio.gather(*(log.close() for log in list(self._logs.values())), return_exceptions=True):
            if isinstance(result, Exception):
                logger.warning("a log was closed, and what was appended last may not be in it: %s", result)
        await self._shared.close()
        await self._brokers.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
