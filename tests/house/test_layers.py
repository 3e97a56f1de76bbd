"""The import contracts of pyproject.toml hold, and break when somebody imports what he may not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
ROOMS = ("wire", "ledger", "tc", "rm_producer", "rm_pending_ack", "broker", "client", "tc_service", "compat", "pipeline")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder / room) for room in ROOMS)
    program = Path(sys.executable).with_name("lint-imports")
    environment = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"}
    return subprocess.run([program, "--no-cache"], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The sources alone, to be broken."""
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    for room in ROOMS:
        shutil.copytree(CHECKOUT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_contracts_hold(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("wire", "import pulsar_txn.ledger"),
        ("wire", "import socket"),
        ("ledger", "import pulsar_txn.wire.frames"),
        ("ledger", "import pulsar_txn.tc"),
        ("tc", "import pulsar_txn.rm_producer"),
        ("tc", "import time"),
        ("tc", "import pulsar_txn.wire.frames"),
        ("rm_producer", "import asyncio"),
        ("rm_producer", "import os"),
        ("rm_pending_ack", "import pulsar_txn.tc"),
        ("rm_pending_ack", "import threading"),
        ("rm_pending_ack", "import random"),
        ("broker", "import pulsar_txn.client"),
        ("client", "import pulsar_txn.broker"),
        ("client", "import pulsar_txn.ledger"),
        ("pipeline", "import pulsar_txn.broker"),
        ("pipeline", "import pulsar_txn.wire"),
        ("client", "import pyspark"),
        ("client", "import pulsar_txn.compat"),
        ("compat", "import pulsar_txn.broker"),
        ("broker", "import kazoo"),
        ("broker", "import pulsar_txn.tc_service"),
        ("client", "import pulsar_txn.tc_service"),
        ("tc_service", "import pulsar_txn.rm_producer"),
        ("tc_service", "import pulsar_txn.pipeline"),
        ("tc_service", "import pulsar_txn.broker.net.connection"),
        ("tc_service", "import pulsar_txn.client.net.pool"),
    ],
)
def test_a_contract_breaks_when(house: Path, room: str, statement: str) -> None:
    (house / room / "pulsar_txn" / room / "forbidden.py").write_text(statement + "\n", encoding="utf-8")
    done = lint(house)
    assert done.returncode == 1
    assert f"pulsar_txn.{room}.forbidden" in done.stdout


@pytest.mark.parametrize(
    ("room", "statement"),
    [
        ("net", "import pulsar_txn.client.schema.base"),
        ("net", "from pulsar_txn.client.txn import enlist"),
        ("txn", "import pulsar_txn.client.schema.base"),
        ("schema", "import pulsar_txn.client.send.options"),
        ("send", "import pulsar_txn.client.receive.message"),
        ("receive", "import pulsar_txn.client.client"),
        ("loop", "import pulsar_txn.client.sync"),
    ],
)
@pytest.mark.parametrize("for_checkers", [False, True])
def test_a_room_of_the_client_breaks_a_contract_when_it_imports_upwards(
    house: Path, room: str, statement: str, for_checkers: bool
) -> None:
    if for_checkers:
        statement = f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {statement}"
    (house / "client" / "pulsar_txn" / "client" / room / "forbidden.py").write_text(statement + "\n", encoding="utf-8")
    done = lint(house)
    assert done.returncode == 1
    assert f"pulsar_txn.client.{room}.forbidden" in done.stdout


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("broker/net", "import pulsar_txn.broker.topics.topic"),
        ("broker/net", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pulsar_txn.broker.broker"),
        ("broker/net", "import pulsar_txn.broker.txn.host"),
        ("broker/dispatch", "import pulsar_txn.broker.topics.subscription"),
        ("broker/commands", "import pulsar_txn.broker.broker"),
        ("broker/topics", "import pulsar_txn.broker.commands.services"),
    ],
)
def test_a_room_inside_the_broker_never_imports_upwards(house: Path, module: str, statement: str) -> None:
    (house / "broker" / "pulsar_txn" / module / "forbidden.py").write_text(statement + "\n", encoding="utf-8")
    done = lint(house)
    assert done.returncode == 1
    assert f"pulsar_txn.{module.replace('/', '.')}.forbidden" in done.stdout
