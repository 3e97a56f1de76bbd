"""The house is laid out as docs/architecture.md says, and stays so."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
ROOMS = ("wire", "ledger", "tc", "rm_producer", "rm_pending_ack", "broker", "client", "tc_service", "compat", "pipeline")


def pyproject() -> dict:
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_what_it_knows_and_what_it_must_never_know(room: str) -> None:
    tree = ast.parse((CHECKOUT / room / "pulsar_txn" / room / "__init__.py").read_text(encoding="utf-8"))
    text = ast.get_docstring(tree) or ""
    title, _, paragraph = text.partition("\n\n")
    assert title.rstrip().endswith(".")
    assert "never" in paragraph or "never" in title
    assert len(text) > 150


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_typed_and_its_namespace_is_shared(room: str) -> None:
    assert (CHECKOUT / room / "pulsar_txn" / room / "py.typed").is_file()
    names = {child.name for child in (CHECKOUT / room / "pulsar_txn").iterdir()} - {"__pycache__"}
    assert names == {room} | ({"__init__.py", "py.typed"} if room == "client" else set())


def test_every_room_is_in_the_wheel_in_editable_installs_under_mypy_and_under_the_layer_contracts() -> None:
    tool = pyproject()["tool"]
    wheel = tool["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"{room}/pulsar_txn" for room in ROOMS} <= set(wheel)
    assert set(tool["hatch"]["build"]["targets"]["wheel"]["dev-mode-dirs"]) == set(ROOMS)
    assert set(ROOMS) <= set(tool["mypy"]["files"])
    assert {f"pulsar_txn.{room}" for room in ROOMS} <= set(tool["importlinter"]["root_packages"])


@pytest.mark.parametrize(
    "name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "constraints.txt", ".ci/run"]
)
def test_the_house_has(name: str) -> None:
    assert (CHECKOUT / name).stat().st_size > 0


@pytest.mark.parametrize("folder", ["conf", "tests", "bench", "docs", "examples"])
def test_the_house_has_the_folder(folder: str) -> None:
    assert any((CHECKOUT / folder).iterdir())


def test_the_constraints_are_plain_pins_of_everything_that_the_extras_name() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if line.count("==") != 1 or set(line) & set(" @/;")] == []
    pinned = {normal(line.partition("==")[0]) for line in pins}
    project = pyproject()["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    names = {normal(distribution_of(each)) for each in asked} - {"pulsar-txn"}
    assert names <= pinned


def distribution_of(requirement: str) -> str:
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), len(requirement))
    return requirement[:end]


def normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def test_names_of_test_files_are_unique_and_no_folder_of_tests_is_a_package() -> None:
    tests = CHECKOUT / "tests"
    names = Counter(path.name for path in tests.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
    assert [path for path in tests.rglob("test_*.py") if path.with_name("__init__.py").exists()] == []
