"""`make quick` runs the tests with its marker, and needs neither the broker's libraries nor Spark nor Java."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

from pieces import has_quick_tests

CHECKOUT = Path(__file__).parents[2]


def commands() -> list[str]:
    """What `make quick` runs in a checkout without `.venv`, whatever the make that runs these tests was given."""
    command = ["make", "--dry-run", "--always-make", "quick", "VENV=/nonexistent"]
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "ARGS")}
    made = subprocess.run(command, cwd=CHECKOUT, env=alone, capture_output=True, text=True, timeout=60, check=True)
    return made.stdout.splitlines()


def test_it_runs_what_has_its_marker() -> None:
    (tests,) = [line for line in commands() if "-m pytest" in line]
    assert '-m "quick and not stock and not slow"' in tests
    assert tests.split()[-1] == "tests"


def test_folders_and_files_of_it_are_told_without_importing_them() -> None:
    folders = {path.name for path in (CHECKOUT / "tests").iterdir() if path.is_dir() and has_quick_tests(path, CHECKOUT)}
    assert folders >= {"wire", "tc", "rm_producer", "rm_pending_ack", "client", "house"}
    assert not folders & {"broker", "spark", "tc_service", "conformance"}
    client = [path for path in (CHECKOUT / "tests" / "client").glob("test_*.py") if has_quick_tests(path, CHECKOUT)]
    assert 15 < len(client) < 30


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
