"""The file of durations: what counts as growth, and what a report says."""

from __future__ import annotations

from pathlib import Path

import durations

BEFORE = {"tests/a/test_one.py": 100.0, "tests/a/test_two.py": 20.0, "tests/b/test_three.py": 80.0}
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_one" name="test_x" time="1.5"/>
<testcase classname="tests.a.test_one.TestClass" name="test_y" time="2.5"/>
<testcase classname="tests.b.test_three" name="test_z[1]" time="0.25"/>
</testsuite></testsuites>"""


def test_a_report_counts_by_file(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert durations.measured(report) == {"tests/a/test_one.py": 4.0, "tests/b/test_three.py": 0.25}


def test_a_slower_machine_is_no_growth() -> None:
    assert durations.grown({name: 3 * seconds for name, seconds in BEFORE.items()}, BEFORE) == []


def test_a_file_that_takes_far_more_than_its_part_is_named() -> None:
    (said,) = durations.grown(BEFORE | {"tests/a/test_two.py": 120.0}, BEFORE)
    assert said.startswith("tests/a/test_two.py: 120 s of 300, about 30 were expected")


def test_a_new_file_counts_with_two_seconds_and_a_small_one_is_no_growth() -> None:
    assert durations.grown(BEFORE | {"tests/a/test_new.py": 9.0}, BEFORE) == []
    (said,) = durations.grown(BEFORE | {"tests/a/test_new.py": 60.0}, BEFORE)
    assert said.startswith("tests/a/test_new.py: 60 s")


def test_a_run_of_some_files_is_not_compared() -> None:
    assert durations.grown({"tests/a/test_one.py": 400.0}, BEFORE) == []


def test_what_is_stored_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "durations.txt"
    durations.store(BEFORE | {"tests/a/test_quick.py": 0.4}, path)
    assert durations.stored(path) == BEFORE


def test_the_stored_files_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    assert [name for name in durations.stored() if not (root / name).exists()] == []
