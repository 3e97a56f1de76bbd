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
    program = CHECKOUT / "tests/house/contracts.py"
    environment = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"}
    command = [sys.executable, program, "--no-cache"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The sources alone, to be broken."""
    return copied(tmp_path)


def copied(folder: Path) -> Path:
    shutil.copy(CHECKOUT / "pyproject.toml", folder)
    for room in ROOMS:
        shutil.copytree(CHECKOUT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_contracts_hold(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout


ROOMS_BREAK_A_CONTRACT = [
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
]
ROOMS_OF_THE_CLIENT_BREAK_ONE = [
    ("net", "import pulsar_txn.client.schema.base"),
    ("net", "from pulsar_txn.client.txn import enlist"),
    ("txn", "import pulsar_txn.client.schema.base"),
    ("schema", "import pulsar_txn.client.send.options"),
    ("send", "import pulsar_txn.client.receive.message"),
    ("receive", "import pulsar_txn.client.client"),
    ("loop", "import pulsar_txn.client.sync"),
]
ROOMS_INSIDE_THE_BROKER_BREAK_ONE = [
    ("broker/net", "import pulsar_txn.broker.topics.topic"),
    ("broker/net", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pulsar_txn.broker.broker"),
    ("broker/net", "import pulsar_txn.broker.txn.hosts"),
    ("broker/dispatch", "import pulsar_txn.broker.topics.subscription"),
    ("broker/commands", "import pulsar_txn.broker.broker"),
    ("broker/topics", "import pulsar_txn.broker.commands.session"),
]


def for_checkers_only(statement: str) -> str:
    return f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {statement}"


FORBIDDEN = [
    *((f"{room}/pulsar_txn/{room}", statement) for room, statement in ROOMS_BREAK_A_CONTRACT),
    *((f"client/pulsar_txn/client/{room}", statement) for room, statement in ROOMS_OF_THE_CLIENT_BREAK_ONE),
    *((f"client/pulsar_txn/client/{room}", for_checkers_only(statement)) for room, statement in ROOMS_OF_THE_CLIENT_BREAK_ONE),
    *((f"broker/pulsar_txn/{room}", statement) for room, statement in ROOMS_INSIDE_THE_BROKER_BREAK_ONE),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a house with all of them, each in a module of its own that nobody else imports."""
    house = copied(tmp_path_factory.mktemp("house"))
    for number, (folder, statement) in enumerate(FORBIDDEN):
        (house / folder / f"forbidden_{number}.py").write_text(statement + "\n", encoding="utf-8")
    done = lint(house)
    assert done.returncode == 1
    return done.stdout


@pytest.mark.parametrize(
    ("number", "folder"),
    [(number, folder) for number, (folder, _) in enumerate(FORBIDDEN)],
    ids=[f"{folder.partition('/pulsar_txn/')[2]}-{statement.splitlines()[-1].strip()}" for folder, statement in FORBIDDEN],
)
def test_a_contract_breaks_when(broken: str, number: int, folder: str) -> None:
    module = folder.partition("/pulsar_txn/")[2].replace("/", ".")
    assert f"pulsar_txn.{module}.forbidden_{number} -> " in broken
