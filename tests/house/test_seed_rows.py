"""The page of the seeds is made from the tests: what makes it fails when a rule is shown by nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seeds() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seeds", CHECKOUT / "docs" / "seeds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_rows_and_tests_say(seeds: ModuleType) -> None:
    assert seeds.main(["--check"]) == 0


def test_a_rule_that_no_test_shows_needs_a_reason(seeds: ModuleType) -> None:
    row = seeds.Row("A01", "A rule.", "")
    with pytest.raises(ValueError, match="row A01 has no test"):
        seeds.page([row], {})
    assert "| holds | `tests/a.py::test_b` |" in seeds.page([row], {"A01": ["tests/a.py::test_b"]})


def test_a_line_that_demands_nothing_does_not_count_and_no_test_shows_it(seeds: ModuleType) -> None:
    history = seeds.Row("A02", "It was begun in 2018.", "no rule: history")
    text = seeds.page([seeds.Row("A01", "A rule.", ""), history], {"A01": ["t"]})
    assert "Of 1 rules: 1 holds, 0 replaced, 0 missing." in text
    assert "| no rule | history |" in text
    with pytest.raises(ValueError, match="row A02 is no rule"):
        seeds.page([history], {"A02": ["t"]})


def test_a_marker_that_names_no_rule_is_found(seeds: ModuleType) -> None:
    with pytest.raises(ValueError, match="rows that are not there: Z99"):
        seeds.page([seeds.Row("A01", "A rule.", "missing: all of it")], {"Z99": ["tests/a.py::test_b"]})


def test_a_row_that_is_missing_stays_missing_when_a_test_names_it(seeds: ModuleType) -> None:
    row = seeds.Row("A01", "A rule.", "missing: the half of it")
    assert "| missing | the half of it<br>`t` |" in seeds.page([row], {"A01": ["t"]})
