"""A docstring begins with the noun that it defines or with an imperative verb."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["broker", "client", "compat", "ledger", "pipeline", "rm_pending_ack", "rm_producer", "tc", "tc_service", "wire"]
RIDDLES = re.compile(r"(What|Which|Who|Whom|Whose|How|Whether|When|Where|Why|It|They|Nobody|Somebody)\b")


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Those of modules, classes and functions, and the strings behind fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
            for field, text in itertools.pairwise(node.body):
                if isinstance(field, (ast.Assign, ast.AnnAssign)) and isinstance(text, ast.Expr):
                    value = text.value.value if isinstance(text.value, ast.Constant) else ""
                    yield value if isinstance(value, str) else ""


@pytest.mark.parametrize("folder", ROOMS)
def test_no_docstring_begins_with_a_pronoun_or_a_question(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if RIDDLES.match(text)
    ]
    assert found == []


def test_strings_behind_fields_are_read() -> None:
    assert "What." in list(docstrings(ast.parse('class A:\n    a: int\n    """What."""\n')))


def test_there_is_something_to_read() -> None:
    assert all(any((ROOT / folder).rglob("*.py")) for folder in ROOMS)
