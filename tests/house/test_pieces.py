"""Tests that share something expensive run in one worker."""

from __future__ import annotations

import re
from pathlib import Path

import pieces

TESTS = Path(__file__).parents[1]


def test_every_file_whose_tests_take_sparks_session_is_in_the_piece_that_shares_it() -> None:
    takes = re.compile(r"^(async )?def [^\n]*\bspark: Any", re.MULTILINE)
    found = {path for path in TESTS.glob("*/test_*.py") if takes.search(path.read_text(encoding="utf-8"))}
    assert {str(path.relative_to(TESTS.parent)) for path in found} == set(pieces.SPARK_SESSION)


def test_every_long_piece_is_there() -> None:
    gone = [piece for piece in pieces.LONG if not any(TESTS.parent.glob(piece + "*"))]
    assert gone == []
