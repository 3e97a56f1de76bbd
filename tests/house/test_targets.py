"""Servers are shared by a session and ended with it; what a machine lacks is a skip, or a failure where it is required."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import stock_install
import targets
from our_broker import OurBroker
from stock_container import docker_answers, settings
from stock_pulsar import StockPulsar

SLEEPER = ["sleep", "60"]


@pytest.fixture
def session_dir(tmp_path: Path) -> Path:
    (tmp_path / "owner").write_text(str(os.getpid()))
    return tmp_path


def sleeping(processes: list[subprocess.Popen[bytes]]) -> targets._Started:
    processes.append(subprocess.Popen(SLEEPER))
    return targets.Target("stock", "1", "pulsar://h:1", "http://h:2"), processes[-1].pid, None


def test_a_server_is_started_once_and_ended_with_the_session(session_dir: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    first = targets._shared("stock-1", session_dir, lambda name, folder: sleeping(processes))
    again = targets._shared("stock-1", session_dir, lambda name, folder: sleeping(processes))
    assert again == first
    assert len(processes) == 1
    targets.stop_all(session_dir)
    assert processes[0].wait(5) is not None


def test_a_server_is_ended_when_the_session_is_killed(session_dir: Path) -> None:
    owner = subprocess.Popen(SLEEPER)
    (session_dir / "owner").write_text(str(owner.pid))
    processes: list[subprocess.Popen[bytes]] = []
    targets._shared("stock-1", session_dir, lambda name, folder: sleeping(processes))
    owner.kill()
    owner.wait()
    assert processes[0].wait(10) is not None


def test_ending_a_server_that_ended_already_is_no_error(session_dir: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (session_dir / "x.json").write_text(json.dumps({"target": {}, "pid": ended.pid, "container": None}))
    targets.stop_all(session_dir)


def test_what_is_lacking_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_TXN_REQUIRE", "spark")
    with pytest.raises(pytest.skip.Exception, match="no mvn"):
        targets.lacking("pulsar", "no mvn")


def test_what_is_lacking_and_required_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_TXN_REQUIRE", "pulsar,spark")
    with pytest.raises(pytest.fail.Exception, match="no mvn"):
        targets.lacking("pulsar", "no mvn")


def test_a_cluster_from_outside_takes_the_place_of_the_stock_servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PULSAR_URL", "pulsar://cluster:6650")
    monkeypatch.setenv("PULSAR_ADMIN_URL", "http://cluster:8080")
    assert targets.stock_names() == ["outside"]
    outside = targets.target("outside", tmp_path)
    assert (outside.service_url, outside.admin_url) == ("pulsar://cluster:6650", "http://cluster:8080")


def test_the_stock_versions_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSAR_URL", raising=False)
    monkeypatch.setenv("PULSAR_TXN_STOCK", "4.2.4")
    assert targets.stock_names() == ["stock-4.2.4"]
    monkeypatch.delenv("PULSAR_TXN_STOCK")
    assert targets.stock_names() == ["stock-4.0.8", "stock-4.2.4"]


def test_the_summary_names_every_server_also_those_that_no_test_ran_on() -> None:
    line = targets.tests_by_server(["ours", "stock 4.2.4", "ours", "outside"])
    assert line == "tests by server: 2 on our broker, 0 on stock 4.0.8, 1 on stock 4.2.4, 1 on outside"


def test_a_test_is_counted_by_the_servers_among_its_fixtures(tmp_path: Path) -> None:
    assert targets.label_of(targets.Target("stock", "4.2.4", "", "")) == "stock 4.2.4"
    assert targets.label_of(OurBroker(data_dir=tmp_path)) == "ours"
    assert targets.label_of(StockPulsar("4.0.8", data_dir=tmp_path)) == "stock 4.0.8"
    assert targets.label_of("a topic") is None


def test_without_docker_no_engine_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not docker_answers()


def test_a_container_has_transactions_and_names_its_port_as_seen_from_outside() -> None:
    environment = settings(16650, 18080)
    assert environment["PULSAR_PREFIX_transactionCoordinatorEnabled"] == "true"
    assert environment["PULSAR_PREFIX_acknowledgmentAtBatchIndexLevelEnabled"] == "true"
    assert environment["brokerServicePort"] == "16650"
    assert environment["advertisedAddress"] == "127.0.0.1"


def test_a_machine_without_java_and_maven_is_told_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert stock_install.missing_tools() == "a stock Pulsar needs Java 17 or newer and Maven on this machine"
