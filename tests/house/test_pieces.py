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


def test_a_test_of_a_model_is_not_left_out_for_the_version_in_its_name() -> None:
    test = "tests/client/test_delivery_machine.py::test_nothing_is_lost[stock 4.0.8-0]"
    assert not pieces.is_sampled(test, ["4.0.8"], needs_stock=False)
    assert pieces.is_sampled(test, ["4.0.8"], needs_stock=True)
    assert not pieces.is_sampled(test, ["4.0.7"], needs_stock=True)
    assert not pieces.is_sampled("tests/conformance/test_x.py::test_y[stock-4.0.8]", ["4.0.8"], needs_stock=True)


def test_what_goes_further_in_soak_is_run_there() -> None:
    """`make soak` runs what has the marker `soak`: the larger numbers of a file need one of these markers to be reached."""
    sized = re.compile(r'^[A-Z]+ = .*"PULSAR_TXN_SOAK"', re.MULTILINE)
    larger = [path for path in TESTS.glob("*/test_*.py") if sized.search(path.read_text(encoding="utf-8"))]
    assert len(larger) >= 3
    assert [path.name for path in larger if "@pytest.mark.deeper" not in path.read_text(encoding="utf-8")] == []
