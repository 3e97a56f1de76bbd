"""With a Docker engine the stock servers of the tests run in containers, behind the same fixture. Here the engine is a fake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import stock_container
import stock_install
import targets
from fake_engine import FakeEngine
from stock_pulsar import StartError


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        yield engine


@pytest.fixture
def client_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `docker` program of a machine that may have none: it writes down what it is asked."""
    program, asked = tmp_path / "bin" / "docker", tmp_path / "asked"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return asked


def test_one_fixture_takes_a_container_where_java_and_maven_are_missing(
    engine: FakeEngine, client_program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stock_install, "missing_tools", lambda: "no Java here")
    monkeypatch.setattr(stock_container, "is_ready", lambda *_: bool(engine.started))
    (tmp_path / "owner").write_text(str(os.getpid()))
    target = targets.target("stock-4.0.8", tmp_path)
    again = targets.target("stock-4.0.8", tmp_path)
    assert target == again
    assert (target.kind, target.version) == ("stock", "4.0.8")
    (asked,) = engine.created
    assert asked["Image"] == "apachepulsar/pulsar:4.0.8"
    assert asked["Cmd"][:2] == ["bash", "-c"]
    assert "bin/pulsar standalone" in asked["Cmd"][2]
    assert "PULSAR_PREFIX_transactionCoordinatorEnabled=true" in asked["Env"]
    port = target.service_url.rpartition(":")[2]
    assert f"brokerServicePort={port}" in asked["Env"]
    assert asked["HostConfig"]["PortBindings"][f"{port}/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": port}]
    container = json.loads((tmp_path / "stock-4.0.8.json").read_text())["container"]
    assert container in engine.started
    targets.stop_all(tmp_path)
    assert f"rm -f {container}" in client_program.read_text()


def test_a_container_is_removed_when_the_session_is_killed(client_program: Path, tmp_path: Path) -> None:
    owner = subprocess.Popen(["sleep", "60"])
    (tmp_path / "owner").write_text(str(owner.pid))
    server = targets.Target("stock", "1", "pulsar://h:1", "http://h:2")
    targets._shared("stock-1", tmp_path, lambda *_: (server, None, "c0ffee"))
    guard = targets._kept[-1]
    assert isinstance(guard, subprocess.Popen)
    owner.kill()
    owner.wait()
    guard.wait(10)
    assert "rm -f c0ffee" in client_program.read_text()


def test_a_container_that_does_not_get_ready_is_removed_and_said(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock_container, "is_ready", lambda *_: False)
    with pytest.raises(StartError, match=r"container of Pulsar 4\.2\.4 was not ready after -0 s"):
        stock_container.ContainerPulsar("4.2.4").start(timeout=-0.1)
    assert engine.removed == engine.started


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker program, with or without an engine, on this machine")
def test_the_real_docker_program_finds_the_engine(engine: FakeEngine) -> None:
    assert stock_container.docker_answers()
