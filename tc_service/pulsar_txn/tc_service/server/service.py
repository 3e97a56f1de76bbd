"""The coordinators of a service with their clients: everything of it but its sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pulsar_txn.broker.serving import (
    LOOK_SECONDS,
    WAITS_SECONDS,
    BrokerConfig,
    Clients,
    Clock,
    Connection,
    CoordinatorHost,
    Coordinators,
    Limits,
    LongWaits,
    Repeating,
    Runtime,
    ServingByLane,
    StorageWatch,
    TakeOvers,
    TransactionalIds,
    Turn,
    authentication_of,
    check_options,
    coordinator_log_name,
)
from pulsar_txn.ledger.protocols import LedgerError, LogStore, SharedLogStore, StorageFailed
from pulsar_txn.tc import FencingCoordinator, LaneIds, PulsarIds, TransactionCoordinator
from pulsar_txn.tc_service.cluster.admin import AdminApi
from pulsar_txn.tc_service.cluster.participants import decode
from pulsar_txn.tc_service.config import CoordinatorConfig
from pulsar_txn.wire.ids import Participant

from .clusters import Clusters, count_now
from .commands import Session, Sessions
from .incarnations import FirstCommits, LedCoordinators, LogIncarnations
from .leaders import NO_ADDRESS, Address, Leaders
from .timelines import ServiceTimelines

logger = logging.getLogger("pulsar_txn.tc_service")

_RENEWALS_PER_LEASE: Final = 4
_LOOK_SECONDS: Final = 5.0
"""Between two looks whether another instance has added coordinators."""
_STALE_SECONDS: Final = 1.0
"""An instance that is cut off from its log at two such looks sends clients away, to look for another one."""
_SHARED_SNAPSHOT_EVERY: Final = 2_000
"""Records that a successor has to apply at most, about: 25,000 of each coordinator would take it seconds."""
_HANDOVER_SECONDS: Final = 0.5
"""Seconds that an ending instance waits for its answers while another one could lead: clients repeat the rest there."""


class CoordinatorService:
    """`start()`, then `connection()` for each client, at the end `close()`.

    `store` is started by the caller, and closed by it after `close()`; `clusters` are closed here.

    `admins`: the admin APIs of the clusters that have one. `storage_failure` is set when the store failed: nothing is confirmed
    any more, and the process should end with code 74; then the event `storage_failed` is set. The event `changed` is set
    whenever this instance begins or ceases to lead a coordinator.
    """

    ends_groups = FencingCoordinator.ends_groups
    checks = FencingCoordinator.checks

    def __init__(
        self,
        config: CoordinatorConfig,
        store: LogStore,
        clusters: Clusters,
        runtime: Runtime,
        *,
        admins: Mapping[str, AdminApi] | None = None,
        storage_failed: asyncio.Event | None = None,
        changed: asyncio.Event | None = None,
    ) -> None:
        self.config: BrokerConfig = config.serving()
        self.clusters = clusters
        self.turn = Turn(runtime, Clock(runtime))
        self.limits = Limits(self.config, runtime.descriptors())
        self.service_url = ""
        self.service_url_tls = ""
        self.trusted_by_client = config.broker_client_trust_certs_file_path
        self.authentication = authentication_of(config)
        self.storage_failure: Exception | None = None
        self._storage_has_failed = storage_failed or asyncio.Event()
        self._has_changed = changed or asyncio.Event()
        self._clients = Clients(self.config, self.turn)
        self._repeating = Repeating(runtime)
        self.storage_watch = StorageWatch(store, runtime, config.storage_stall_timeout_in_seconds)
        self._store = store
        self._lease_seconds = config.transaction_client_lease_in_seconds
        self.connections = self._clients.connections
        self.sessions = Sessions()
        self.transactional_ids: TransactionalIds | None = TransactionalIds(store.metadata)
        front = (config.front_cluster or clusters.names[0]) if config.has_front else None
        self.incarnations = LogIncarnations(
            clusters.claims, runtime, clusters, front=front, first_of_front=config.front_first_transaction
        )
        self.first_commits = FirstCommits(admins or {}, self.incarnations)
        self.timelines = ServiceTimelines(
            clusters,
            self.turn,
            self.first_commits,
            most=config.transaction_timeline_count,
            repeat_delay_ms=config.transaction_end_repeat_delay_in_seconds * 1000,
        )
        self._serving = ServingByLane()
        self.coordinators = Coordinators(
            store,
            self.turn,
            _LeasingCoordinators(
                self._serving,
                self.sessions,
                "tc",
                self.incarnations,
                self.timelines.lanes,
                self.turn,
                partial(_make_coordinator, config),
            ),
            self._changed,
            serving=self._serving,
            max_check_groups=(config.max_check_groups_per_connection, config.max_check_group_members),
        )
        wait_seconds = config.transactional_id_take_over_timeout_in_millis / 1000
        self.take_overs: TakeOvers | None = TakeOvers(self.coordinators, wait_seconds)
        has_decided = store.exists(front_log_name(0))  # what it has decided is told, whether there still is a front or not
        self.front_coordinators = self._of_front(config) if config.has_front or has_decided else None
        self._stale: set[int] = set()
        self._shared = store if isinstance(store, SharedLogStore) else None
        self.leaders = Leaders(self, is_shared=self._shared is not None)

    def _of_front(self, config: CoordinatorConfig) -> Coordinators:
        """Coordinators for unchanged clients, which want the coordinator's number alone in `most`; see `tc.ids`."""
        make = partial(_make_front_coordinator, config)
        kind = LedCoordinators("front", self.incarnations, self.timelines.front, self.turn, make)
        return Coordinators(self._store, self.turn, kind, self._front_changed)

    def cluster_and_participant(self, participant: Participant) -> tuple[str, Participant]:
        """A participant as its cluster knows it, and that cluster."""
        return decode(participant)

    async def start(self, coordinators: int, *, front: Address = NO_ADDRESS, web: Address = NO_ADDRESS) -> None:
        """Begin to open so many coordinators. It listens already: other instances lead clients to it.

        `front`, `web`: where its front and its HTTP side listen, for other instances.
        """
        if self._shared is not None:
            self._shared.advertised = self.leaders.here.with_front_and_web(front=front, web=web).advertised
            self._repeating.every(_LOOK_SECONDS, self._grow)
            self._repeating.every(_STALE_SECONDS, self._part_with_clients)
        self._store.on_pressure(self._clients.pressure)
        self.incarnations.start()
        for each in self._all:
            each.grow(coordinators)
        self.turn.meter.start()
        self._clients.start(self._repeating)
        self._repeating.every(self._lease_seconds / _RENEWALS_PER_LEASE, self._renew)
        self._repeating.every(LOOK_SECONDS, self.storage_watch.look)
        waits = LongWaits(self.turn, lambda: self.coordinators, self.config.transaction_wait_warning_in_seconds * 1000)
        self._repeating.every(WAITS_SECONDS, waits.look)

    def connection(self) -> Connection:
        """A protocol for a new client."""
        connection = Connection(self)
        connection.serve(Session(self, connection))
        return connection

    @property
    def under_pressure(self) -> bool:
        """True if the store has too much in flight, so that no client is read."""
        return self._clients.under_pressure

    async def close(self) -> None:
        """Drain: what was taken is answered, everything is durable, leases are given back, clients are sent away."""
        hurry_at = self.turn.runtime.monotonic() + _HANDOVER_SECONDS
        is_alone = self._shared is None
        await self._clients.drain(lambda: self._is_busy() and (is_alone or self.turn.runtime.monotonic() < hurry_at))
        self.turn.meter.stop()
        self.coordinators.bound.stop()
        self.clusters.close()
        await self._repeating.close()
        for each in self._all:
            await each.close()
        await self.incarnations.close()
        await self.first_commits.close()
        self._clients.close()
        await self.clusters.leave()

    def _changed(self, tc_id: int, error: Exception | None, message: str) -> None:
        self._front_changed(tc_id, error, message)
        if error is not None and self._shared is not None:
            self._send_away(tc_id)
        self._has_changed.set()

    def _front_changed(self, _tc_id: int, error: Exception | None, _message: str) -> None:
        if isinstance(error, StorageFailed):
            self._storage_failed(error)

    def _send_away(self, tc_id: int) -> None:
        """Clients that are not served here any more have to show elsewhere that they live."""
        for session in [each for each in self.sessions if tc_id in each.coordinators]:
            if session.transactions.bound is not None:
                self.coordinators.bound.release(session.transactions.bound)
            session.connection.close()

    async def _part_with_clients(self) -> None:
        before = self._stale
        self._stale = {tc_id for tc_id in self.coordinators.here if self.coordinators.is_elsewhere(tc_id)}
        for tc_id in before & self._stale:
            self._send_away(tc_id)

    async def _grow(self) -> None:
        try:
            count = await count_now(self._store.metadata)
            for each in self._all:
                each.grow(count)
        except LedgerError as error:
            logger.warning("the number of coordinators could not be read (%s); it stays as it is until the next attempt", error)

    async def _renew(self) -> None:
        self.sessions.renew(self._serving)
        await self.incarnations.reserve_ahead()

    def _is_busy(self) -> bool:
        return self.storage_failure is None and (self._clients.is_busy or any(each.is_busy for each in self._all))

    @property
    def _all(self) -> list[Coordinators]:
        return [each for each in (self.coordinators, self.front_coordinators) if each is not None]

    def _storage_failed(self, error: Exception) -> None:
        if self.storage_failure is None:
            logger.critical("storage failed, this coordinator must end: %s", error)
            self.storage_failure = error
            self._storage_has_failed.set()


class _LeasingCoordinators(LedCoordinators):
    """Coordinators whose clients hold leases."""

    def __init__(self, serving: Mapping[int, CoordinatorHost], sessions: Sessions, *led: Any) -> None:
        super().__init__(*led)
        self._serving = serving
        self._sessions = sessions

    def before_due(self) -> None:
        """This process may have been stopped for longer than a lease: whoever is connected was not away."""
        self._sessions.renew(self._serving)


def front_log_name(tc_id: int) -> str:
    """The name of the log of a coordinator for unchanged clients."""
    return f"{coordinator_log_name(tc_id)}_front"


def _make_coordinator(config: CoordinatorConfig, tc_id: int) -> FencingCoordinator:
    return FencingCoordinator(
        tc_id,
        ids=LaneIds(lease_ms=config.transaction_client_lease_in_seconds * 1000),
        has_incarnations=True,
        max_active_of_id=config.max_active_transactions_per_transactional_id,
        **check_options(config),
        **_limits(config),
    )


def _make_front_coordinator(config: CoordinatorConfig, tc_id: int) -> TransactionCoordinator:
    ids = PulsarIds(first_least=config.front_first_transaction)
    limits = _limits(config) | {"max_timeout_ms": 2**63 - 1}  # the brokers' own coordinators take any timeout
    return TransactionCoordinator(tc_id, ids=ids, has_incarnations=True, **limits)


def _limits(config: CoordinatorConfig) -> dict[str, Any]:
    longest = config.max_transaction_timeout_in_seconds
    often = {"snapshot_every": _SHARED_SNAPSHOT_EVERY} if config.ledger_provider == "topic" else {}
    return {
        **often,
        "max_active": config.max_active_transactions_per_coordinator,
        "max_participants": config.max_participants_per_transaction,
        "max_state_bytes": config.max_transaction_state_size_in_mb << 20,
        "max_timeout_ms": longest * 1000 if longest else 2**63 - 1,
        "outcome_retention_count": config.transaction_outcome_retention_count,
    }
