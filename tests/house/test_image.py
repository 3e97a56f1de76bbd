"""The image and compose.yaml: what they name exists, and their commands are commands of this package.

`tests/tc_service/test_compose.py` runs the services of compose.yaml, without an engine.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import stock_install
import yaml

from pulsar_txn.broker.cli.group import group
from pulsar_txn.tc_service.config import load

CHECKOUT = Path(__file__).parents[2]
DOCKER = CHECKOUT / "docker"


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: each name and what follows it, on one line."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def last(name: str) -> str:
    return [rest for each, rest in instructions() if each == name][-1]


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def check_command(words: list[str]) -> None:
    """The words are a command line of `pulsar-txn`. Parsed, not run."""
    name, *arguments = words
    with click.Context(group) as context:
        command = group.get_command(context, name)
    assert command is not None, name
    command.make_context(name, arguments)


def test_the_base_is_pinned_and_small() -> None:
    ((_, version),) = [each for each in instructions() if each[0] == "ARG"]
    assert re.fullmatch(r"PYTHON=3\.\d+\.\d+", version)
    for name, rest in instructions():
        if name == "FROM":
            assert rest.split(" AS ")[0] == "python:${PYTHON}-slim-bookworm"


def test_it_runs_without_root_and_its_folder_for_data_has_that_owner() -> None:
    stage = instructions()[max(i for i, (name, _) in enumerate(instructions()) if name == "FROM") :]
    names = [name for name, _ in stage]
    assert last("USER") == "10001:10001"
    assert any(name == "RUN" and "-o 10001 -g 10001" in rest and rest.endswith("/data") for name, rest in stage)
    assert "RUN" not in names[names.index("USER") :]
    assert json.loads(last("VOLUME")) == ["/data"]


def test_its_commands_are_in_exec_form_and_are_commands_of_this_package() -> None:
    (entry,) = json.loads(last("ENTRYPOINT"))
    check_command(json.loads(last("CMD")))
    health = last("HEALTHCHECK").partition("CMD ")[2]
    program, *words = json.loads(health)
    assert program == entry == "pulsar-txn"
    check_command(words)
    usage = [line[4:] for line in (DOCKER / "Dockerfile").read_text().splitlines() if line.startswith("#   docker run")]
    for line in usage:
        words = shlex.split(line)
        check_command(words[words.index("pulsar-txn") + 1 :] or json.loads(last("CMD")))
    assert len(usage) == 2


def test_it_is_built_from_the_wheel_and_the_constraints_and_nothing_else_of_the_checkout() -> None:
    (sent,) = [rest.split() for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    assert sent == ["constraints.txt", "dist/pulsar_txn-*.whl", "./"]
    assert (DOCKER / "Dockerfile.dockerignore").read_text().split() == ["*", "!constraints.txt", "!dist/pulsar_txn-*.whl"]
    make = (CHECKOUT / "Makefile").read_text()
    assert "build --wheel --no-isolation --outdir dist" in make
    assert "docker build -t pulsar-txn -f docker/Dockerfile ." in make


def test_the_services_of_compose_fit_together() -> None:
    services, volumes = compose()["services"], compose()["volumes"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in volumes or (DOCKER / source).is_file(), volume
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port
    images = {service["image"] for service in services.values()}
    assert images == {"pulsar-txn", f"apachepulsar/pulsar:{stock_install.VERSIONS[0]}"}


def test_the_coordinator_of_compose_is_configured_for_the_broker_beside_it(tmp_path: Path) -> None:
    services = compose()["services"]
    check_command(services["coordinator"]["command"])
    (tmp_path / "coordinator.jwt").write_text("a.b.c")
    (tmp_path / "secret.key").write_bytes(b"k" * 32)
    text = (DOCKER / "coordinator.conf").read_text().replace("/keys/", f"{tmp_path}/")
    (tmp_path / "conf").write_text(text)
    loaded = load(tmp_path / "conf", {})
    assert loaded.warnings == ()
    broker = services["pulsar"]["environment"]
    assert loaded.clusters["main"].service_url == "pulsar://pulsar:6650"
    assert "coordinator" in broker["PULSAR_PREFIX_superUserRoles"].split(",")
    assert "subject $$role" in services["keys"]["command"][-1]
    assert broker["PULSAR_PREFIX_tokenSecretKey"] == "file:///keys/secret.key"
    assert loaded.config.authentication_enabled


@pytest.mark.parametrize("key", ["transactionCoordinatorEnabled", "acknowledgmentAtBatchIndexLevelEnabled"])
def test_the_broker_of_compose_has(key: str) -> None:
    assert compose()["services"]["pulsar"]["environment"][f"PULSAR_PREFIX_{key}"] == "true"
