"""The reference has everything that is public, by names that can be imported, and every option says what it does."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from public_api import MODULES, names_of

from pulsar_txn import client
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.send.options import ProducerOptions

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted((CHECKOUT / "docs" / "reference").glob("*.md"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
ERRORS = {f"pulsar_txn.client.errors.{name}" for name in names_of("errors")}
NAMED = [name for page in PAGES for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def found(name: str) -> Any:
    """What a dotted name represents: a module, or something in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(found(module), last)


def page(name: str) -> str:
    return (CHECKOUT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")


def test_everything_that_the_package_exports_is_on_a_page() -> None:
    shown = {name.rpartition(".")[2] for name in NAMED}
    assert set(client.__all__) - shown - names_of("errors") == set()


@pytest.mark.parametrize("module", sorted({*MODULES} - {"encoded", "errors", "outbox"}))
def test_a_public_module_of_the_client_has_a_page_with_all_of_its_names(module: str) -> None:
    prefix = f"pulsar_txn.client.{module}."
    assert {name.removeprefix(prefix) for name in DIRECTIVE.findall(page(module)) if name.startswith(prefix)} == names_of(
        module
    )


@pytest.mark.parametrize("module", sorted({*MODULES} - {"encoded", "outbox"}))
def test_the_page_of_a_module_says_what_is_in_the_package_too(module: str) -> None:
    text = re.search(rf"Import from `pulsar_txn\.client\.{module}`\.([^#]*?)\n\n", page(module))
    assert text is not None
    both = names_of(module) & set(client.__all__)
    assert set(re.findall(r"`(\w+)`", text[1])) == both


def test_the_pages_name_everything_as_a_program_imports_it() -> None:
    roads = {f"pulsar_txn.client.{module}" for module in ("", *MODULES, "otel", "otel_metrics")}
    ours = {name for name in NAMED if name.startswith("pulsar_txn.client")}
    assert {
        name for name in ours if name not in roads and name.rpartition(".")[0] not in roads | {"pulsar_txn.client"}
    } == set()


def test_the_first_page_has_twenty_names_of_the_package() -> None:
    table = page("index").partition("| Page |")[0]
    names = re.findall(r"\[`(\w+)`\]\[([\w.]+)\]", table)
    assert len({name for name, _ in names}) == 20
    assert [name for name, _ in names if name not in client.__all__] == []
    assert [target for name, target in names if not target.endswith(f".{name}") or target not in {*NAMED, *ERRORS}] == []


@pytest.mark.parametrize(
    "module", ["compat", "compat.asyncio", "compat.schema", "client.otel", "pipeline.functions", "client.errors"]
)
def test_these_modules_are_on_a_page_as_a_whole(module: str) -> None:
    assert f"pulsar_txn.{module}" in NAMED


@pytest.mark.parametrize("name", NAMED)
def test_what_a_page_names_is_there(name: str) -> None:
    assert found(name) is not None


def test_nothing_is_on_two_pages() -> None:
    assert len(NAMED) == len(set(NAMED))


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    navigation = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8")
    first = (CHECKOUT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"reference/{page.name}" not in navigation] == []
    assert [page.name for page in PAGES if f"({page.name})" not in first] == ["index.md"]


@pytest.mark.parametrize("options", [ProducerOptions, ConsumerOptions])
def test_every_option_says_what_it_does(options: type[Any]) -> None:
    body = ast.parse(inspect.getsource(options)).body[0].body
    described = {
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
    assert {field.name for field in attrs.fields(options)} - described == set()
