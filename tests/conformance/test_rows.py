"""The suite says the truth about itself: every story names its rows, and every row that can be shown has a story."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from differences import DIFFERENCES
from rows import ROWS, Mark

HERE = Path(__file__).parent
STORIES = sorted(path for path in HERE.glob("test_*.py") if path.stem not in ("test_rows", "test_differences_page"))
SOURCE = re.compile(r"docs/stock-pulsar\.md: |apache/pulsar#\d+|\.md,? (section|defect) \d|§")


def claims(tree: ast.AST) -> list[int]:
    """The numbers in every `row(…)` below this node."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [arg.value for call in calls if call.func.id == "row" for arg in call.args if isinstance(arg, ast.Constant)]


def stories(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Each story's name, and the rows in its decorators and in the lists of parameters that they name."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    assigned = [(each.targets[0], each) for each in body if isinstance(each, ast.Assign)]
    lists = {name.id: claims(each) for name, each in assigned if isinstance(name, ast.Name)}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            names = [part.id for each in node.decorator_list for part in ast.walk(each) if isinstance(part, ast.Name)]
            own = [number for each in node.decorator_list for number in claims(each)]
            yield node.name, own + [number for name in names for number in lists.get(name, ())]


def test_the_table_has_each_row_once_and_reasons_where_they_belong() -> None:
    assert list(ROWS) == list(range(129))
    assert [row.number for row in ROWS.values() if bool(row.reason) is not (row.mark is Mark.INTERNAL)] == []


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_every_story_names_rows_that_can_be_shown(path: Path) -> None:
    for story, claimed in stories(path):
        assert claimed, f"{story} names no row"
        assert [number for number in claimed if not ROWS[number].is_asked] == [], story


def test_every_row_that_can_be_shown_has_a_story() -> None:
    told = {number for path in STORIES for _, claimed in stories(path) for number in claimed}
    assert [row.number for row in ROWS.values() if row.is_asked and row.number not in told] == []


def test_every_difference_belongs_to_a_row_that_can_be_shown_and_has_a_source() -> None:
    assert [key for key, each in DIFFERENCES.items() if not ROWS[each.row].is_asked] == []
    assert [key for key, each in DIFFERENCES.items() if not SOURCE.search(each.source)] == []
    assert [key for key, each in DIFFERENCES.items() if each.ours == each.stock_4_0 == each.stock_4_2] == []
    assert [key for key, each in DIFFERENCES.items() if not (each.ours and each.stock_4_0 and each.stock_4_2)] == []
