"""The keys of a coordinator beside clusters: what is read, and what is refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from pulsar_txn.broker.serving import BrokerConfig, ConfigError
from pulsar_txn.client import TlsAuthentication, TokenAuthentication
from pulsar_txn.tc_service.config import CLUSTER_FIELDS, FIELDS, CoordinatorConfig, load, shipped_conf

EAST = {"clusters": "east", "cluster.east.serviceUrl": "pulsar://b1:6650,b2:6650"}


def loaded(**more: str) -> Any:
    return load(None, {}, EAST | more)


def test_the_shipped_file_has_every_key_at_its_default_and_shows_every_key_of_a_cluster() -> None:
    text = shipped_conf()
    assert all(f"\n{key}=" in text for key in FIELDS)
    assert all(f"\n#cluster.east.{key}=" in text for key in CLUSTER_FIELDS)
    assert loaded().config == CoordinatorConfig(clusters="east")
    assert loaded().warnings == ()


def test_keys_that_the_broker_has_mean_the_same_and_have_its_defaults_except_the_ports() -> None:
    ours, brokers = CoordinatorConfig(), BrokerConfig()
    shared = {field.name for field in attrs.fields(CoordinatorConfig)} & {field.name for field in attrs.fields(BrokerConfig)}
    assert {name for name in shared if getattr(ours, name) != getattr(brokers, name)} == {
        "broker_service_port",
        "web_service_port",
    }
    assert CoordinatorConfig(keep_alive_interval_seconds=7).serving().keep_alive_interval_seconds == 7


def test_clusters_have_keys_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.conf"
    file.write_text(
        "clusters=east, west\ncluster.east.serviceUrl=pulsar://e:6650\ncluster.west.serviceUrl=pulsar://w:6650\n"
        "cluster.west.authPlugin=token\ncluster.west.authParams=token:secret\n"
    )
    found = load(file, {"PULSAR_PREFIX_cluster.east.authPlugin": "tls"})
    assert list(found.clusters) == ["east", "west"]
    assert isinstance(found.clusters["east"].settings().authentication, TlsAuthentication)
    west = found.clusters["west"].settings().authentication
    assert isinstance(west, TokenAuthentication)
    assert west.data() == b"secret"
    assert "token:secret" not in repr(found)


@pytest.mark.parametrize(("written", "checked"), [({}, True), ({"tlsEnableHostnameVerification": "false"}, False)])
def test_the_name_in_a_clusters_certificate_is_checked_unless_a_key_says_no(written: dict[str, str], checked: bool) -> None:
    more = {f"cluster.east.{key}": value for key, value in written.items()}
    found = loaded(**more | {"cluster.east.serviceUrl": "pulsar+ssl://b1:6651"})
    assert found.clusters["east"].settings().ssl_context().check_hostname is checked


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("clusters", "", "clusters is empty; name the clusters"),
        ("clusters", "ea|st", "not allowed"),
        ("clusters", "east,west", r"cluster west: say where its brokers are, with cluster\.west\.serviceUrl="),
        ("cluster.east.serviceUrl", "http://b1:8080", "cluster east: "),
        ("cluster.east.adminUrl", "b1:8080", "no URL of an admin API"),
        ("cluster.east.authPlugin", "kerberos", "cluster east: authPlugin is not known"),
        ("cluster.east.authPlugin", "token", "has no token"),
        ("cluster.east.tlsAllowInsecureConnection", "maybe", "true or false"),
        ("bindAddress", "0.0.0.0", "without authentication the coordinator listens on loopback only"),
        ("numberOfTransactionCoordinators", "0", "from 1 on"),
        ("numberOfTransactionCoordinators", "16385", "16384 are the most"),
        ("keepAliveIntervalSeconds", "soon", "a whole number is expected"),
        ("ledgerProvider", "memory", "ledgerProvider=memory is not known; write journal or topic"),
        ("ledgerCluster", "north", "ledgerCluster=north: name the cluster whose topics keep the decisions, one of east"),
        ("ledgerNamespace", "public", "write tenant/namespace"),
        ("ledgerTopicPrefix", "a/b", "cannot begin the name of a topic"),
        ("ledgerLeaseInMillis", "100", "ledgerLeaseInMillis: a number from 500 on"),
        ("frontFirstTransaction", "0", r"frontFirstTransaction: a number from 1 to 2\^62"),
        ("frontCluster", "north", "frontCluster=north is no cluster of this configuration; write one of: east"),
        ("frontServicePortTls", "6653", "tlsCertificateFilePath"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(key: str, value: str, sentence: str) -> None:
    needed = {"frontServicePort": "0"} if key.startswith("front") else {}
    needed |= {"ledgerProvider": "topic"} if key.startswith("ledger") else {}
    with pytest.raises(ConfigError, match=sentence):
        loaded(**needed | {key: value})


def test_the_front_of_several_clusters_says_which_it_is_for() -> None:
    west = {"clusters": "east,west", "cluster.west.serviceUrl": "pulsar://w:6650", "frontServicePort": "6652"}
    with pytest.raises(ConfigError, match="frontCluster: say which cluster the clients of the front use, one of: east, west"):
        loaded(**west)
    assert loaded(**west, frontCluster="west").config.has_front
    assert not loaded().config.has_front


def test_keys_that_have_no_effect_are_named(tmp_path: Path) -> None:
    file = tmp_path / "coordinator.conf"
    keys = ("clusters=east", "cluster.east.serviceUrl=pulsar://east:6650", "cluster.east.webUrl=x")
    file.write_text("\n".join([*keys, "cluster.north.serviceUrl=y", "managedLedgerCursorBackloggedThreshold=1"]))
    found = load(file, {})
    (warning,) = [each for each in found.warnings if "no effect" in each]
    assert all(
        key in warning for key in ("cluster.east.webUrl", "cluster.north.serviceUrl", "managedLedgerCursorBackloggedThreshold")
    )


def test_an_instance_that_others_send_clients_to_says_how_it_is_reached() -> None:
    shared = {"ledgerProvider": "topic", "bindAddress": "0.0.0.0", "authenticationEnabled": "true"}
    shared |= {"authenticationProviders": "token", "tokenSecretKey": "data:;base64," + "c2VjcmV0" * 8}
    with pytest.raises(ConfigError, match=r"other instances send clients here.*advertisedAddress=HOST"):
        loaded(**shared)
    assert loaded(**shared, advertisedAddress="one.example").config.ledger_cluster == "east"
