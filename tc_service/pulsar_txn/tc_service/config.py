"""The configuration of a coordinator beside clusters: Pulsar's keys where Pulsar has one, and one group of keys per cluster.

A cluster has a name, which stands in `clusters`, and the keys `cluster.NAME.…`, which are those of Pulsar's client.conf.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from pulsar_txn.broker.serving import (
    BrokerConfig,
    ConfigError,
    Setting,
    authentication_of,
    build,
    fields_of,
    read_settings,
    refuse_unknown,
    tls_of,
    unknown_keys,
)
from pulsar_txn.client import TlsAuthentication, TokenAuthentication
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.client.inside import Secret, Settings, TlsFiles, optional_secret, parse_service_url, secret

from .cluster.participants import ParticipantRefused, validate_cluster_name
from .topic_ledger.store import check_topic_prefix

_SHIPPED: Final = "coordinator.conf"
_PREFIX: Final = "cluster."
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - it is refused, or named otherwise
_TOKEN: Final = frozenset({"token", "org.apache.pulsar.client.impl.auth.AuthenticationToken"})
_TLS: Final = frozenset({"tls", "org.apache.pulsar.client.impl.auth.AuthenticationTls"})
_LEDGERS: Final = ("journal", "topic")
_LEAST_LEASE_MS: Final = 500
_MAX_COORDINATORS: Final = 1 << 14
"""As many as an id of a transaction can name."""


@attrs.frozen(kw_only=True)
class CoordinatorConfig:
    """Every key that the service obeys, except those of the clusters."""

    # listening
    bind_address: str = "127.0.0.1"
    broker_service_port: int | None = 6653
    broker_service_port_tls: int | None = None
    web_service_port: int | None = None
    web_service_port_tls: int | None = None
    web_service_allowed_hosts: str = ""
    max_http_server_connections: int = 500
    advertised_address: str | None = None
    keep_alive_interval_seconds: int = 30
    broker_max_connections: int = 10_000
    broker_max_connections_per_ip: int = 500
    max_connections_per_role: int = 5_000
    incomplete_frame_timeout_seconds: int = 30
    max_concurrent_requests_per_connection: int = 1000
    max_concurrent_lookup_request: int = 50_000
    max_concurrent_request_size_in_mb: int = 64
    broker_shutdown_timeout_ms: int = 10_000

    # who clients are
    authentication_enabled: bool = False
    authentication_providers: str = ""
    authenticate_metrics_endpoint: bool = False
    token_secret_key: Secret | None = attrs.field(default=None, converter=optional_secret)
    token_public_key: str | None = None
    token_auth_claim: str = "sub"  # noqa: S105 - the name of a claim
    super_user_roles: str = ""
    tls_certificate_file_path: str | None = None
    tls_key_file_path: str | None = None
    tls_trust_certs_file_path: str | None = None
    tls_crl_file_path: str | None = None  # ours
    tls_require_trusted_client_cert_on_connect: bool = False
    tls_cert_refresh_check_duration_sec: int = 300
    broker_client_trust_certs_file_path: str | None = None

    # clusters
    clusters: str = ""

    # the front for unchanged clients
    front_service_port: int | None = None
    front_service_port_tls: int | None = None
    front_cluster: str = ""
    front_first_transaction: int = 1 << 40
    front_keeps_proxy_through_service_url: bool = False

    # storage
    storage_stall_timeout_in_seconds: int = 10
    max_store_state_bytes: int = 512 * 1024 * 1024
    ledger_provider: str = "journal"
    ledger_cluster: str | None = None
    ledger_namespace: str = "pulsar/system"
    ledger_topic_prefix: str = "pulsar-txn"
    ledger_lease_in_millis: int = 5000

    # transactions
    number_of_transaction_coordinators: int = 16
    max_active_transactions_per_coordinator: int = 10_000
    max_active_transactions_per_transactional_id: int = 256
    max_active_transactions_per_role: int = 5_000
    max_prepared_transactions_per_role: int = 1_000
    max_parked_transactions_per_coordinator: int = 10_000
    transaction_wait_warning_in_seconds: int = 3_600
    transactional_id_take_over_timeout_in_millis: int = 10_000
    max_participants_per_transaction: int = 10_000
    max_transaction_state_size_in_mb: int = 64
    max_transaction_timeout_in_seconds: int = 3_600
    transaction_check_after_in_seconds: int = 6
    transaction_check_interval_in_seconds: int = 30
    transaction_check_max: int = 15
    transaction_check_policy: str = "park"
    max_check_groups_per_connection: int = 4096
    max_check_group_members: int = 100_000
    transaction_client_lease_in_seconds: int = 10
    transaction_end_repeat_delay_in_seconds: int = 40
    transaction_outcome_retention_count: int = 1_048_576
    transaction_timeline_count: int = 10_000

    @property
    def has_front(self) -> bool:
        """True if there is a front for unchanged clients."""
        return self.front_service_port is not None or self.front_service_port_tls is not None

    @property
    def has_http(self) -> bool:
        """True if it answers over HTTP."""
        return self.web_service_port is not None or self.web_service_port_tls is not None

    def serving(self) -> BrokerConfig:
        """The same keys for the parts that the service shares with the broker."""
        shared = {field.name for field in attrs.fields(BrokerConfig)} & {
            field.name for field in attrs.fields(CoordinatorConfig)
        }
        return BrokerConfig(**{name: getattr(self, name) for name in shared})


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """Settings by which the brokers of one cluster are reached."""

    service_url: str = ""
    admin_url: str = ""
    auth_plugin: str = ""
    auth_params: Secret = attrs.field(default=Secret(""), converter=secret)
    tls_trust_certs_file_path: str | None = None
    tls_certificate_file_path: str | None = None
    tls_key_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_enable_hostname_verification: bool = True

    def settings(self) -> Settings:
        """Settings for the connections of the client. InvalidConfiguration."""
        tls = TlsFiles(
            trust_certs_file=self.tls_trust_certs_file_path,
            certificate_file=self.tls_certificate_file_path,
            key_file=self.tls_key_file_path,
            validate_hostname=self.tls_enable_hostname_verification,
            allow_insecure_connection=self.tls_allow_insecure_connection,
        )
        authentication = _authentication(self.auth_plugin, self.auth_params.reveal())
        settings = Settings(operation_timeout=5, connection_timeout=5, authentication=authentication, tls=tls)
        if self.admin_url and not self.admin_url.startswith(("http://", "https://")):
            raise InvalidConfiguration(f"adminUrl={self.admin_url} is no URL of an admin API", hint="write http://host:8080")
        if any(address.tls for address in parse_service_url(self.service_url)):
            settings.ssl_context()  # what is wrong with its files is said here
        return settings


def _authentication(plugin: str, params: str) -> TokenAuthentication | TlsAuthentication | None:
    """Authentication by `authPlugin` and `authParams` of Pulsar's client.conf. The parameters are never shown."""
    if not plugin:
        return None
    if plugin in _TLS:
        given = dict(each.partition(":")[::2] for each in params.split(",") if each)
        return TlsAuthentication(given.get("tlsCertFile"), given.get("tlsKeyFile"))
    if plugin not in _TOKEN:
        raise InvalidConfiguration("authPlugin is not known", hint="write token or tls; credentials belong into authParams")
    if params.startswith("file://"):
        return TokenAuthentication.from_file(params.removeprefix("file://"))
    token = params.removeprefix("token:")
    if not token:
        raise InvalidConfiguration("authPlugin=token has no token", hint="write authParams=file:///path/of/the/token")
    return TokenAuthentication(token)


@attrs.frozen
class LoadedCoordinator:
    """A configuration with its clusters, by name, and warnings."""

    config: CoordinatorConfig
    clusters: Mapping[str, ClusterConfig]
    warnings: tuple[str, ...]


FIELDS: Final[Mapping[str, attrs.Attribute[Any]]] = fields_of(CoordinatorConfig)
CLUSTER_FIELDS: Final[Mapping[str, attrs.Attribute[Any]]] = fields_of(ClusterConfig)


def shipped_conf() -> str:
    """The text of the `coordinator.conf` that comes with the package (in a checkout: `conf/coordinator.conf`)."""
    packaged = importlib.resources.files("pulsar_txn.tc_service") / "conf" / _SHIPPED
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[3] / "conf" / _SHIPPED).read_text(encoding="utf-8")


def load(path: Path | None, environ: Mapping[str, str], command_line: Mapping[str, str] | None = None) -> LoadedCoordinator:
    """Read a configuration; `path` None reads the shipped file.

    Raises ConfigError for a value that cannot be used, OSError when the file cannot be read.
    """
    text = shipped_conf() if path is None else path.read_text(encoding="utf-8")
    name = f"(shipped) {_SHIPPED}" if path is None else str(path)
    chosen, warnings = read_settings(text, name, environ, command_line or {}, _is_known)
    refuse_unknown([each for key, each in chosen.items() if not _is_known(key)], FIELDS)
    config, _ = build(CoordinatorConfig, [each for key, each in chosen.items() if key in FIELDS])
    _check(config)
    clusters = {each: _cluster(each, chosen) for each in _names(config, chosen)}
    config = _with_ledger(config, clusters)
    if config.has_front:
        _check_front(config, clusters)
    unknown = [each for key, each in chosen.items() if key not in FIELDS and not _is_of_cluster(key, clusters)]
    refuse_unknown(unknown, FIELDS)
    if unknown:
        warnings.append(unknown_keys(unknown, "the coordinator"))
    return LoadedCoordinator(config, clusters, tuple(warnings))


def _is_known(key: str) -> bool:
    return key in FIELDS or key.startswith(_PREFIX)


def _is_of_cluster(key: str, clusters: Mapping[str, ClusterConfig]) -> bool:
    name, _, rest = key.removeprefix(_PREFIX).rpartition(".")
    return key.startswith(_PREFIX) and name in clusters and rest in CLUSTER_FIELDS


def _check(config: CoordinatorConfig) -> None:
    if config.bind_address not in _LOOPBACK and not config.authentication_enabled:
        raise ConfigError(
            f"bindAddress={config.bind_address}: without authentication the coordinator listens on loopback only; "
            "write bindAddress=127.0.0.1, or authenticationEnabled=true with authenticationProviders"
        )
    if config.broker_service_port is None and config.broker_service_port_tls is None:
        raise ConfigError("there is no port: set brokerServicePort or brokerServicePortTls")
    authentication_of(config)  # what is wrong with its keys is said here, and so for TLS
    ports = (config.broker_service_port_tls, config.front_service_port_tls, config.web_service_port_tls)
    if any(port is not None for port in ports):
        tls_of(config)
    if config.transaction_client_lease_in_seconds < 1:
        raise ConfigError("transactionClientLeaseInSeconds: a number from 1 on is expected")
    if config.number_of_transaction_coordinators > _MAX_COORDINATORS:
        raise ConfigError(f"numberOfTransactionCoordinators: {_MAX_COORDINATORS} are the most")


def _check_front(config: CoordinatorConfig, clusters: Mapping[str, ClusterConfig]) -> None:
    known = ", ".join(clusters)
    if not config.front_cluster and len(clusters) > 1:
        raise ConfigError(f"frontCluster: say which cluster the clients of the front use, one of: {known}")
    if config.front_cluster and config.front_cluster not in clusters:
        raise ConfigError(f"frontCluster={config.front_cluster} is no cluster of this configuration; write one of: {known}")
    if not 1 <= config.front_first_transaction < 1 << 62:
        raise ConfigError("frontFirstTransaction: a number from 1 to 2^62 - 1 is expected, above all that the brokers gave out")


def _with_ledger(config: CoordinatorConfig, clusters: Mapping[str, ClusterConfig]) -> CoordinatorConfig:
    """The configuration with the cluster of the ledger, which need not be said where there is one."""
    if config.ledger_provider not in _LEDGERS:
        raise ConfigError(f"ledgerProvider={config.ledger_provider} is not known; write journal or topic")
    if config.ledger_provider == "journal":
        return config
    try:
        check_topic_prefix(config.ledger_namespace, config.ledger_topic_prefix)
    except ValueError as error:
        raise ConfigError(f"ledgerNamespace, ledgerTopicPrefix: {error}") from None
    if config.bind_address in _EVERYWHERE and not config.advertised_address:
        raise ConfigError(
            f"bindAddress={config.bind_address} with ledgerProvider=topic: other instances send clients here; say "
            "by which name they reach this one, with advertisedAddress=HOST"
        )
    if config.ledger_lease_in_millis < _LEAST_LEASE_MS:
        raise ConfigError(f"ledgerLeaseInMillis: a number from {_LEAST_LEASE_MS} on is expected")
    chosen = config.ledger_cluster or (next(iter(clusters)) if len(clusters) == 1 else "")
    if chosen not in clusters:
        known = ", ".join(clusters)
        raise ConfigError(f"ledgerCluster={chosen}: name the cluster whose topics keep the decisions, one of {known}")
    return attrs.evolve(config, ledger_cluster=chosen)


def _names(config: CoordinatorConfig, chosen: Mapping[str, Setting]) -> list[str]:
    names = [each.strip() for each in config.clusters.split(",") if each.strip()]
    if not names:
        raise ConfigError(
            "clusters is empty; name the clusters that transactions write to, for example clusters=east and "
            "cluster.east.serviceUrl=pulsar://host:6650"
        )
    for name in names:
        try:
            validate_cluster_name(name)
        except ParticipantRefused as error:
            raise ConfigError(f"{chosen['clusters'].origin}: {error}") from None
    return names


def _cluster(name: str, chosen: Mapping[str, Setting]) -> ClusterConfig:
    start = f"{_PREFIX}{name}."
    of_it = {key.removeprefix(start): each for key, each in chosen.items() if key.startswith(start)}
    known = [attrs.evolve(each, key=key) for key, each in of_it.items() if key in CLUSTER_FIELDS]
    cluster, _ = build(ClusterConfig, known)
    if not cluster.service_url:
        raise ConfigError(f"cluster {name}: say where its brokers are, with {start}serviceUrl=pulsar://host:6650")
    try:
        cluster.settings()
    except InvalidConfiguration as error:
        raise ConfigError(f"cluster {name}: {error}") from None
    return cluster
