"""Only a test on a stock server gets a second chance, and Hypothesis has no deadline in CI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import settings

CHECKOUT = Path(__file__).parents[2]
SUPPORT = CHECKOUT / "tests" / "support"

CONFTEST = """
import reruns

def pytest_collection_modifyitems(config, items):
    reruns.allow_on_stock(config, items)
"""
FAILS_AT_FIRST = """
import pathlib
import pytest

def fails_the_first_time(name):
    note = pathlib.Path(__file__).with_name(name)
    try:
        assert note.exists()
    finally:
        note.touch()

def test_on_ours():
    fails_the_first_time("ours")

@pytest.mark.stock
def test_on_stock():
    fails_the_first_time("stock")

@pytest.mark.stock
@pytest.mark.flaky(reruns=0)
def test_on_stock_that_must_not_be_run_again():
    fails_the_first_time("once")
"""


def test_a_failure_on_ours_is_a_failure_and_one_on_stock_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {SUPPORT}\nmarkers = stock: on a stock server\n", "utf-8")
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_twice.py").write_text(FAILS_AT_FIRST, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "test_twice.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False).stdout
    failed = {line.split("::")[1].split()[0] for line in said.splitlines() if line.startswith("FAILED ")}
    assert failed == {"test_on_ours", "test_on_stock_that_must_not_be_run_again"}, said
    assert "2 failed, 1 passed, 1 rerun" in said


def test_ci_asks_for_no_other_reruns_and_for_the_profile_without_deadlines() -> None:
    script = (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8")
    assert "--reruns" not in script
    assert "--hypothesis-profile=unhurried" in script


def test_the_profile_of_ci_has_no_deadline_and_draws_other_examples_each_time() -> None:
    profile = settings.get_profile("unhurried")
    assert profile.deadline is None
    assert not profile.derandomize
    assert settings.get_profile("default").deadline is not None
