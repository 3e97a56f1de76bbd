"""The wheel and the sdist are complete: what is installed from them, far from the checkout, works."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from our_broker import OurBroker
from samples import samples_of

CHECKOUT = Path(__file__).parents[2]
ROOMS = ("wire", "ledger", "tc", "rm_producer", "rm_pending_ack", "broker", "client", "tc_service", "compat", "pipeline")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel made from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, CHECKOUT, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (only,) = built.glob("*.whl")
    return only


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (only,) = built.glob("*.tar.gz")
    return only


def empty_environment(folder: Path) -> Path:
    """The Python of a new virtual environment. It has no pip of its own: ours works on it, which saves half the time."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    return folder / "venv" / "bin" / "python"


def pip(python: Path, command: str, *arguments: str | Path) -> str:
    options = ["--python", python, "--disable-pip-version-check"]
    return run(sys.executable, "-m", "pip", *options, command, *arguments, cwd=python.parent)


def install(python: Path, what: str) -> None:
    pip(python, "install", "-q", "--no-compile", "-c", CHECKOUT / "constraints.txt", what)


def test_the_wheel_has_every_room_its_types_the_shipped_configuration_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"pulsar_txn/{room}/py.typed" for room in ROOMS} <= set(names)
    assert "pyspark_pulsar_txn/__init__.py" in names
    assert "pulsar_txn/broker/conf/standalone.conf" in names
    assert {"pulsar_txn/__init__.py", "pulsar_txn/py.typed"} <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pulsar_txn", "pyspark_pulsar_txn"}


def test_the_wheel_asks_for_the_dependencies_of_the_client_alone_unless_an_extra_is_named(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        asked = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
    bare = {re.split(r"[\s<>=!~;\[]", each)[0].lower() for each in asked if "extra ==" not in each}
    assert bare
    assert not bare & {"aiohttp", "click", "pyspark", "prometheus-client", "pandas", "uvloop"}


def test_the_sdist_has_sources_tests_and_licence_and_nothing_that_was_made(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "Makefile"} <= names
    assert {f"{room}/pulsar_txn/{room}/__init__.py" for room in ROOMS} <= names
    assert "tests/house/test_distribution.py" in names
    assert [
        name for name in names if name.startswith((".cache", ".venv", "site/", "demo-report")) or "__pycache__" in name
    ] == []


def test_the_readme_runs_from_the_installed_wheel(
    wheel: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("ran on", "ours")
    python = empty_environment(tmp_path)
    install(python, f"{wheel}[broker]")
    assert "standalone" in run(python.with_name("pulsar-txn"), "--help", cwd=tmp_path)
    with OurBroker(python=str(python)) as broker:
        for sample in samples_of(CHECKOUT / "README.md"):
            if sample.runs:
                printed = sample.run(broker.service_url, python=str(python), cwd=tmp_path)
                assert "COMMITTED" in printed


def test_a_bare_install_of_the_sdist_is_the_client_without_the_dependencies_of_the_broker(sdist: Path, tmp_path: Path) -> None:
    python = empty_environment(tmp_path)
    install(python, str(sdist))
    where = run(python, "-c", "import pulsar_txn.client as c; print(c.__file__, c.Client.__name__)", cwd=tmp_path)
    assert str(tmp_path) in where
    installed = pip(python, "list", "--format=freeze").lower()
    assert [
        name for name in ("aiohttp", "click", "pyspark", "prometheus-client", "pandas", "uvloop") if f"{name}==" in installed
    ] == []
