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

from pulsar_txn import client
from pulsar_txn.client import errors
from pulsar_txn.client.receive.options import ConsumerOptions
from pulsar_txn.client.send.options import ProducerOptions

CHECKOUT = Path(__file__).parents[2]
PAGES = sorted((CHECKOUT / "docs" / "reference").glob("*.md"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
NAMED = [name for page in PAGES for name in DIRECTIVE.findall(page.read_text(encoding="utf-8"))]


def found(name: str) -> Any:
    """What a dotted name represents: a module, or something in one."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(found(module), last)


def test_everything_that_the_client_exports_is_on_a_page() -> None:
    pages = {name.removeprefix("pulsar_txn.client.") for name in NAMED}
    whole = {name for name in client.__all__ if vars(errors).get(name) is getattr(client, name)}
    assert "errors" in pages
    assert set(client.__all__) - whole - pages == set()


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
