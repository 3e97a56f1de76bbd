"""`make quick` names files that exist, and needs neither the broker's libraries nor Spark nor Java."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def commands() -> list[str]:
    """What `make quick` runs in a checkout without `.venv`."""
    command = ["make", "--dry-run", "--always-make", "quick", "VENV=/nonexistent"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def test_every_file_that_it_runs_is_there() -> None:
    (tests,) = [line.split() for line in commands() if "-m pytest" in line]
    named = [word for word in tests if word.startswith("tests/")]
    assert len(named) > 15
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_it_checks_style_and_types_of_every_room_that_needs_no_extra() -> None:
    said = "\n".join(commands())
    assert "ruff check ." in said
    assert "ruff format --check ." in said
    (mypy,) = [line.split() for line in commands() if "bin/mypy" in line]
    assert {"wire", "ledger", "tc", "rm_producer", "rm_pending_ack", "client", "compat"} <= set(mypy)
    assert "--cache-dir" in mypy  # modules that are missing here are not missing in the whole environment


def test_its_environment_is_the_client_and_the_tools_alone() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    heavy = ("pyspark", "pyarrow", "pandas", "aiohttp", "cryptography", "fastavro", "pydantic", "grpcio", "uvloop", "pulsar-")
    asked = [*project["dependencies"], *project["optional-dependencies"]["quick"]]
    assert [each for each in asked if each.startswith(heavy)] == []
