"""A docstring begins with the noun that it defines or with an imperative verb."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["broker", "client", "compat", "ledger", "pipeline", "rm_pending_ack", "rm_producer", "tc", "tc_service", "wire"]
RIDDLES = re.compile(r"(What|Which|Who|Whom|Whose|How|Whether|When|Where|Why|It|They|Nobody|Somebody)\b")


@pytest.mark.parametrize("folder", ROOMS)
def test_no_docstring_begins_with_a_pronoun_or_a_question(folder: str) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented) and (text := ast.get_docstring(node)) and RIDDLES.match(text)
    ]
    assert found == []


def test_there_is_something_to_read() -> None:
    assert all(any((ROOT / folder).rglob("*.py")) for folder in ROOMS)
