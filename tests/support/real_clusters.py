"""Two stock clusters and a coordinator beside them: `east` of two brokers, which checks who connects, and `west`, one server.

Programs have the role `app`, which may produce and consume; the coordinator is a superuser. The official client judges.
"""

from __future__ import annotations

import itertools
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any, Final

import pulsar as official
from our_coordinator import OurCoordinator
from stock_cluster import StockCluster
from stock_pulsar import StockPulsar

from pulsar_txn.client import AsyncClient, AsyncCoordinator, TokenAuthentication
from pulsar_txn.client.inside import Settings, TlsFiles

WEST_VERSION: Final = "4.2.4"
READ_MS: Final = 30_000
LEDGER_LEASE_MS: Final = 3000
_ends = itertools.count()


class Side:
    """One of the clusters, as programs see it. `name`: that of the coordinator's configuration."""

    def __init__(self, name: str, service_url: str, cluster: StockCluster | None = None) -> None:
        self.name = name
        self.service_url = service_url
        self._cluster = cluster

    def client(self, coordinator: AsyncCoordinator | str | None = None, **options: Any) -> AsyncClient:
        """A client of ours; not connected yet."""
        if coordinator is not None:
            options |= {"coordinator": coordinator, "cluster": self.name}
        return AsyncClient(self.service_url, max_backoff=1.0, **self.credentials(), **options)

    def credentials(self, role: str = "app") -> dict[str, Any]:
        """Options of our clients."""
        if self._cluster is None:
            return {}
        authentication = TokenAuthentication(self._cluster.token(role))
        return {"authentication": authentication, "tls_trust_certs_file": self._cluster.authority}

    def settings(self) -> Settings:
        """What connections without a client need."""
        given = self.credentials()
        return Settings(
            authentication=given.get("authentication"), tls=TlsFiles(trust_certs_file=given.get("tls_trust_certs_file"))
        )

    def official(self) -> official.Client:
        """A client of the official package."""
        options: dict[str, Any] = {"logger": official.ConsoleLogger(official.LoggerLevel.Error)}
        if self._cluster is not None:
            options["authentication"] = official.AuthenticationToken(self._cluster.token("app"))
            options["tls_trust_certs_file_path"] = self._cluster.authority
            options["tls_validate_hostname"] = True
        return official.Client(self.service_url, **options)

    def read(self, *topics: str) -> list[bytes]:
        """What a new reader of the official client sees in topics or partitions, one after the other."""
        client = self.official()
        try:
            return [data for topic in topics for data in _read(client, topic)]
        finally:
            client.close()

    def left(self, topic: str, subscription: str, kind: official.ConsumerType) -> list[bytes]:
        """What an official consumer gets of a subscription that has no other one, before a message that is sent now."""
        client = self.official()
        last = b"end %d" % next(_ends)
        try:
            consumer = client.subscribe(topic, subscription, consumer_type=kind)
            client.create_producer(topic).send(last)
            found = []
            while (data := bytes(consumer.receive(READ_MS).data())) != last:
                found.append(data)
            return [each for each in found if not each.startswith(b"end ")]
        finally:
            client.close()


class RealClusters:
    """Both, running."""

    def __init__(self, east: StockCluster, west: StockPulsar) -> None:
        self.east_cluster = east
        self.west_server = west
        self.east = Side("east", east.service_url, east)
        self.west = Side("west", west.service_url)

    def coordinator(self, *, conf: Mapping[str, str] | None = None, **options: Any) -> OurCoordinator:
        """A coordinator beside both, not started; see `OurCoordinator`."""
        return OurCoordinator(
            {"east": self.east.service_url, "west": self.west.service_url},
            conf={**self.east_keys(), "transactionClientLeaseInSeconds": "5", **(conf or {})},
            **options,
        )

    def instances(self, count: int, *, conf: Mapping[str, str] | None = None) -> list[OurCoordinator]:
        """Coordinators with one log, in topics of the east: one of them leads each coordinator. Not started."""
        place = {"ledgerProvider": "topic", "ledgerCluster": "east", "ledgerTopicPrefix": f"log-{uuid.uuid4().hex[:10]}"}
        shared = {**place, "ledgerLeaseInMillis": str(LEDGER_LEASE_MS), **(conf or {})}
        return [self.coordinator(conf=shared) for _ in range(count)]

    def east_keys(self) -> dict[str, str]:
        """How the coordinator is let in."""
        secrets = self.east_cluster.secrets
        assert secrets is not None
        return {
            "cluster.east.authPlugin": "token",
            "cluster.east.authParams": secrets.token_file("coordinator").as_uri(),
            "cluster.east.tlsTrustCertsFilePath": str(secrets.authority),
        }

    def create(self, cluster: str, topic: str, partitions: int) -> None:
        """Make a partitioned topic in one of them."""
        if cluster == self.east.name:
            self.east_cluster.create(topic, partitions)
        else:
            url = f"{self.west_server.admin_url}/admin/v2/{topic.replace('://', '/')}/partitions"
            body, headers = str(partitions).encode(), {"Content-Type": "application/json"}
            urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=30).close()

    def all_up(self) -> None:
        """Every server of both runs again."""
        self.east_cluster.up()
        if not self.west_server.is_alive:
            self.west_server.start()

    def places(self) -> dict[str, dict[str, str]]:
        """Where programs find both, and how they are let in."""
        east = {"url": self.east.service_url, "token": self.east_cluster.token("app"), "authority": self.east_cluster.authority}
        return {"east": east, "west": {"url": self.west.service_url}}

    def spread(self, topic: str, partitions: int) -> list[str]:
        """Make a partitioned topic in the east of which each broker serves some; the names of its partitions."""
        self.east_cluster.create(topic, partitions)
        names = partitions_of(topic, partitions)
        owners = {self.east_cluster.owner(each) for each in names}
        if len(owners) == 1:
            (there,) = owners
            self.east_cluster.move(names[0], "br2" if there == "br1" else "br1")
        return names


def new_topic() -> str:
    """A full name that nobody has used."""
    return f"persistent://public/default/real-{uuid.uuid4().hex[:10]}"


def partitions_of(topic: str, count: int) -> list[str]:
    """The names of partitions."""
    return [f"{topic}-partition-{number}" for number in range(count)]


def _read(client: official.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, official.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(bytes(reader.read_next(READ_MS).data()))
    reader.close()
    return found
