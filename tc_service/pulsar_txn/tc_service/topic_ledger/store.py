"""A store of logs in the topics of one Pulsar cluster (protocol `LogStore`), shared by several instances.

Each log is led by one instance at a time: `open` returns when it is this one. The metadata is written by all of them. The names
of the topics are made here. A namespace whose policies would lose a log is refused, with what to change; no policy is ever
changed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import attrs

from pulsar_txn.client.errors import PulsarError
from pulsar_txn.client.inside import Runtime, Settings
from pulsar_txn.ledger.handles import OpenLogs
from pulsar_txn.ledger.limits import DEFAULT_HIGH_WATER_BYTES, Pressure, check_name
from pulsar_txn.ledger.protocols import (
    LedgerError,
    LogClosed,
    LogExists,
    LogNotFound,
    MetadataStore,
    NameRefused,
    VersionConflict,
)
from pulsar_txn.tc_service.cluster.admin import AdminRefused, AdminUnreachable, open_admin
from pulsar_txn.tc_service.cluster.brokers import Brokers

from .candidate import Candidate, StoreContext
from .log import TopicLog
from .metadata import Op, SharedMetadata
from .topic import LogSubscription, LogTopicRefused

logger = logging.getLogger("pulsar_txn.tc_service")

DEFAULT_NAMESPACE: Final = "pulsar/system"
"""Brokers never expire, evict or delete what is in it."""

DEFAULT_PREFIX: Final = "pulsar-txn"
MAX_LOG_NAME_BYTES: Final = 512

_PART: Final = re.compile(r"[-=:.\w]+", re.ASCII)

DEFAULT_LEASE_MS: Final = 5000
_LOG: Final = "log:"
"""Keys of the metadata that are the store's own: which number a log has. Paths begin with a slash."""

_NUMBERS: Final = "log-numbers"


def check_log_name(name: str) -> None:
    """NameRefused for a name that no topic can have."""
    check_name("log", name)
    size = len(name.encode())
    if not 0 < size <= MAX_LOG_NAME_BYTES:
        raise NameRefused(f"log {name[:60]!r}… has {size} bytes; in a topic, names have 1 to {MAX_LOG_NAME_BYTES}")


def check_topic_prefix(namespace: str, prefix: str) -> None:
    """ValueError for what is no `tenant/namespace`, or no beginning of a topic's name."""
    parts = namespace.split("/")
    if len(parts) != 2 or not all(map(_PART.fullmatch, parts)):
        raise ValueError(f"{namespace!r} is no namespace; write tenant/namespace")
    if not _PART.fullmatch(prefix):
        raise ValueError(f"{prefix!r} cannot begin the name of a topic; use letters, digits, '-' and '_'")


def metadata_topic(namespace: str, prefix: str) -> str:
    """The topic of the metadata of a store."""
    return f"persistent://{namespace}/{prefix}-metadata"


def log_topic(namespace: str, prefix: str, ledger_id: int, name: str) -> str:
    """The topic of a log. A log that was deleted and made again has another number, and another topic."""
    readable = quote(name.rpartition("/")[2], safe="").replace("%", "=")[-100:]
    return f"persistent://{namespace}/{prefix}-log-{ledger_id}-{readable}"


async def check_namespace(namespace: str, admin_url: str, settings: Settings) -> None:
    """LogTopicRefused for a namespace that would lose what is in it; a warning where that cannot be found out.

    Brokers keep what is in `pulsar/system`, whatever its policies are.
    """
    if namespace == DEFAULT_NAMESPACE:
        return
    if not admin_url:
        logger.warning(
            "the policies of namespace %s cannot be read without adminUrl: set it, or make sure that the namespace has no"
            " message TTL, no eviction of its backlog, and no expiry of subscriptions and inactive topics, as %s has none",
            namespace, DEFAULT_NAMESPACE,
        )  # fmt: skip
        return
    try:
        async with open_admin(admin_url, settings) as admin:
            policies = await admin.get(f"/admin/v2/namespaces/{namespace}")
    except AdminUnreachable as error:
        logger.warning("the policies of namespace %s cannot be read: %s; check adminUrl", namespace, error)
        return
    except AdminRefused as error:
        raise LogTopicRefused(f"the namespace {namespace} cannot be used for logs: {error}") from None
    found = list(dangers(namespace, policies))
    if found:
        raise LogTopicRefused(f"the namespace {namespace} would lose logs: {'; '.join(found)}; or use {DEFAULT_NAMESPACE}")


def dangers(namespace: str, policies: Mapping[str, Any]) -> Iterator[str]:
    """Settings of the cluster that would lose a log, each with its remedy."""
    if policies.get("message_ttl_in_seconds"):
        yield f"messages expire; pulsar-admin namespaces remove-message-ttl {namespace}"
    for kind, quota in (policies.get("backlog_quota_map") or {}).items():
        if quota.get("policy") == "consumer_backlog_eviction":
            yield f"its backlog is evicted; pulsar-admin namespaces remove-backlog-quota --type {kind} {namespace}"
    if policies.get("subscription_expiration_time_minutes"):
        yield f"subscriptions expire; pulsar-admin namespaces set-subscription-expiration-time --time 0 {namespace}"
    inactive = policies.get("inactive_topic_policies") or {}
    if inactive.get("deleteWhileInactive"):
        yield f"inactive topics are deleted; pulsar-admin namespaces remove-inactive-topic-policies {namespace}"
    if policies.get("schema_validation_enforced"):
        yield f"messages need a schema; pulsar-admin namespaces set-schema-validation-enforce --disable {namespace}"
    if policies.get("encryption_required"):
        yield f"messages must be encrypted; pulsar-admin namespaces set-encryption-required --disable {namespace}"
    if len(policies.get("replication_clusters") or ()) > 1:
        yield "it is replicated to other clusters, whose messages would come in between"


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
        check_topic_prefix(namespace, prefix)
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
        self._context = StoreContext(self._brokers, self._lease_seconds, self.pressure)
        self._shared = SharedMetadata(self._brokers, metadata_topic(namespace, prefix))
        self.metadata: MetadataStore = self._shared
        self._opening: dict[str, Candidate] = {}
        self._open_logs: OpenLogs[TopicLog] = OpenLogs()
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
        if name in self._open_logs.by_name or name in self._opening:
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
        candidate = self._opening[name] = Candidate(self._context, name, ledger_id, topic)
        try:
            claimed = await candidate.claim(self.advertised)
        finally:
            del self._opening[name]
        if claimed.is_lost or self._failure is not None:
            await claimed.give_up()
            self._check()
            return None
        log = TopicLog(claimed, self._runtime, self._lease_seconds, self.pressure, self._open_logs)
        self._open_logs.add(log)
        logger.info("log %r is led by this instance, in epoch %d", name, log.epoch)
        return log

    def leader_of(self, name: str) -> str | None:
        """The address of the instance that leads a log, as far as this one knows: it leads it, or waits for it."""
        if name in self._open_logs.by_name:
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
        """Number of logs."""
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
        log = self._open_logs.by_name.get(name)
        if log is not None:
            log.leave()
            await log.close()
        await self._shared.change(Op.DELETE, _LOG + name)
        try:
            await LogSubscription(self._brokers, topic).remove()
        except PulsarError as error:
            logger.warning("the topic %s of the deleted log %r was not removed (%s); delete it by hand", topic, name, error)

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
        closing = [log.close() for log in self._open_logs.by_name.values()]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, Exception):
                logger.warning("a log was closed, and its last, unconfirmed records may be missing: %s", result)
        await self._shared.close()
        await self._brokers.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
