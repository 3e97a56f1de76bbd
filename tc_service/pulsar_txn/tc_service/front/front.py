"""The front as a part of a service: its ports, what its clients share, and its coordinators."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from pulsar_txn.broker.serving import (
    Authentication,
    BrokerConfig,
    Coordinators,
    Limits,
    Ports,
    Runtime,
    TakeOvers,
    TransactionalIds,
    Turn,
    reachable,
)
from pulsar_txn.client.inside import Runtime as ClientRuntime
from pulsar_txn.tc import TransactionCoordinator
from pulsar_txn.tc_service.cluster.participants import decode
from pulsar_txn.tc_service.config import ClusterConfig, CoordinatorConfig
from pulsar_txn.tc_service.server.clusters import Clusters
from pulsar_txn.tc_service.server.leaders import Leaders
from pulsar_txn.tc_service.server.service import CoordinatorService
from pulsar_txn.tc_service.server.session import Services, Session
from pulsar_txn.wire.ids import Participant

from .brokers import FrontBrokers
from .connection import FrontConnection


@attrs.define
class FrontServices:
    """Services that the commands of an unchanged client ask of the server; implements `server.session.Services`."""

    coordinators: Coordinators
    config: BrokerConfig
    turn: Turn
    clusters: Clusters
    authentication: Authentication
    limits: Limits
    is_shared: bool = False
    leaders: Leaders = attrs.field(init=False)
    transactional_ids: TransactionalIds | None = None
    take_overs: TakeOvers | None = None
    service_url: str = ""
    service_url_tls: str = ""
    sessions: set[Session] = attrs.field(factory=set)
    ends_groups: bool = TransactionCoordinator.ends_groups
    checks: bool = False  # nobody there could be asked

    def __attrs_post_init__(self) -> None:
        self.leaders = Leaders(self, is_shared=self.is_shared, of_fronts=True)

    def place(self, participant: Participant) -> tuple[str, Participant]:
        """See `server.session.Services`."""
        return decode(participant)


class ClientsFront:
    """The front of a service that was started: `start()`, and `close()` before the service is closed.

    The service looks after its connections as after all others, and sends them away when it ends.
    """

    def __init__(
        self,
        service: CoordinatorService,
        config: CoordinatorConfig,
        clusters: Mapping[str, ClusterConfig],
        runtime: Runtime,
        client_runtime: ClientRuntime,
    ) -> None:
        name = config.front_cluster or next(iter(clusters))
        coordinators = service.front_coordinators
        assert coordinators is not None  # noqa: S101 - the same configuration has made them
        self.brokers = FrontBrokers(name, clusters[name], client_runtime)
        self.services: Services = FrontServices(
            coordinators,
            service.config,
            service.turn,
            service.clusters.seen_from(name),
            service.authentication,
            service.limits,
            service.leaders.is_shared,
        )
        self.config = service.config
        self.turn = service.turn
        self.limits = service.limits
        self.connections = service.connections
        self.keeps_proxy_through = config.front_keeps_proxy_through_service_url
        self._service = service
        self._keys = config
        self._ports = Ports("frontServicePort", config, runtime, service.limits)

    @property
    def under_pressure(self) -> bool:
        """True if the store has too much in flight, so that no client is read."""
        return self._service.under_pressure

    @property
    def addresses(self) -> list[str]:
        """The service URLs for clients, without and with TLS."""
        return [url for url in (self.services.service_url, self.services.service_url_tls) if url]

    def connection(self) -> FrontConnection:
        """A protocol for a new client."""
        return FrontConnection(self)

    async def start(self) -> None:
        """Listen, before the service leads a coordinator: other instances lead clients here then. Raises CannotListen."""
        keys, services, ports = self._keys, self.services, self._ports
        await ports.open(keys.bind_address, keys.front_service_port, keys.front_service_port_tls, self.connection)
        services.service_url, services.service_url_tls = ports.urls(reachable(keys.bind_address, keys.advertised_address))
        self._service.front_url, self._service.front_url_tls = self.services.service_url, self.services.service_url_tls

    async def close(self) -> None:
        """Accept nobody more. Idempotent."""
        await self._ports.close()
