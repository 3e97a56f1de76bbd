"""The list of tests that only `make soak` runs names, for each, who keeps its promise."""

from __future__ import annotations

import tomllib
from pathlib import Path

import promises
import repeats
from repeats import Repeats

BLOCK = Repeats("tests/a/test_b.py::test_c[*", ("tests/a/test_b.py::test_c[1]", "tests/a/test_d.py::test_e"))


def test_a_list_is_read_in_blocks() -> None:
    text = f"# why\n\n{BLOCK.pattern}\n    {BLOCK.keepers[0]}\n    {BLOCK.keepers[1]}\n"
    assert repeats.parsed(text) == [BLOCK]


def test_a_keeper_is_not_left_out_and_only_the_star_stands_for_anything() -> None:
    assert BLOCK.has("tests/a/test_b.py::test_c[2]")
    assert not BLOCK.has("tests/a/test_b.py::test_c[1]")
    assert not BLOCK.has("tests/a/test_b.py::test_cx")
    assert not Repeats("tests/a/test_b.py::test_c[1]", ()).has("tests/a/test_b.py::test_c1")


def test_a_keeper_that_did_not_run_is_named(tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    case = '<testcase classname="tests.a.{}" name="{}">{}</testcase>'
    cases = [case.format("test_b", "test_c[1]", ""), case.format("test_d", "test_e", "<skipped/>")]
    report.write_text(f"<testsuites>{''.join(cases)}</testsuites>", encoding="utf-8")
    (said,) = repeats.lost([BLOCK], repeats.ran(report))
    assert said.startswith("tests/a/test_d.py::test_e did not run")


def test_every_repeat_and_every_keeper_is_a_test_and_no_repeat_is_without_a_keeper() -> None:
    blocks = [block for each in repeats.stored().values() for block in each]
    there = promises.kept()
    assert [block.pattern for block in blocks if not block.keepers] == []
    named = [each for block in blocks for each in (block.pattern, *block.keepers)]
    assert [each for each in named if not any(repeats.matches(each.partition("[")[0], test) for test in there)] == []


def test_no_mutant_is_caught_by_a_test_that_is_left_out() -> None:
    """A mutant names a test in a folder of its room, or a file of them."""
    caught = []
    for path in (Path(__file__).parents[1] / "mutants").glob("*.toml"):
        for mutant in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            named = mutant["caught_by"]
            caught.append(f"tests/{named}" if "/" in named.partition("::")[0] else f"tests/{path.stem}/{named}")
    assert caught
    kept = [keeper.partition("[")[0] for blocks in repeats.stored().values() for block in blocks for keeper in block.keepers]
    assert [test for test in caught if repeats.is_repeat(test.partition("[")[0]) and test.partition("[")[0] not in kept] == []
