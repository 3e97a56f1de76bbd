"""The page of differences is made of what the stories showed, and of all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import differences_page
import pytest
from differences import DIFFERENCES
from rows import ROWS

WHOLE_ROW = {"rows": [1], "story": "test_a.py::test_a_b[x]", "outcome": "passed", "reason": "", "observed": []}


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    """Results in which row 1 passes everywhere, and then these lines."""
    path = folder / "results.jsonl"
    everywhere = [WHOLE_ROW | {"server": server} for server in differences_page.SERVERS]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*everywhere, *lines]), encoding="utf-8")
    return path


def row_of(path: Path, number: int) -> str:
    page = differences_page.page(differences_page.read([path]))
    return next(line for line in page.splitlines() if line.startswith(f"| {number} |"))


def test_a_row_whose_stories_all_pass_passes(tmp_path: Path) -> None:
    assert row_of(written(tmp_path), 1).endswith("| passes | passes | passes |")


def test_a_row_with_a_story_that_fails_says_which_and_where(tmp_path: Path) -> None:
    broken = WHOLE_ROW | {"story": "test_a.py::test_other[y]", "server": "stock 4.0.8", "outcome": "failed"}
    assert row_of(written(tmp_path, broken), 1).endswith("| passes | **fails**: test\\_other | passes |")


def test_of_a_story_that_was_run_again_the_last_run_counts(tmp_path: Path) -> None:
    broken = WHOLE_ROW | {"story": "test_a.py::test_other[y]", "server": "ours", "outcome": "failed"}
    assert row_of(written(tmp_path, broken, broken | {"outcome": "passed"}), 1).endswith("| passes | passes | passes |")


def test_a_row_without_a_run_says_so(tmp_path: Path) -> None:
    assert row_of(written(tmp_path), 2).endswith("| not run | not run | not run |")


def test_a_row_that_does_not_apply_gives_its_reason(tmp_path: Path) -> None:
    without = {"outcome": "skipped", "reason": "Skipped: not applicable: there is no such thing", "server": "ours"}
    path = written(tmp_path, WHOLE_ROW | without | {"rows": [2]} | {"story": "test_a.py::test_other"})
    assert row_of(path, 2).endswith("| does not apply | not run | not run |")
    assert "* Row 2, ours: there is no such thing\n" in differences_page.page(differences_page.read([path]))


def test_what_was_seen_is_on_the_page_and_not_what_was_expected(tmp_path: Path) -> None:
    (row, name), difference = next(iter(DIFFERENCES.items()))
    line = WHOLE_ROW | {"rows": [row], "server": "stock 4.2.4", "story": "test_a.py::test_b"}
    path = written(tmp_path, line | {"observed": [[row, name, difference.stock_4_2[0]]]})
    page = differences_page.page(differences_page.read([path]))
    section = page.partition(f"### Row {row}: {name}\n\n")[2].partition("\n\n")[0]
    assert section.splitlines()[:2] == ["* ours: not met", "* stock 4.0.8: not met"]
    assert difference.stock_4_2[0] in section.splitlines()[2]


def test_no_page_is_made_when_a_server_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(WHOLE_ROW | {"server": "ours"}) + "\n", encoding="utf-8")
    with pytest.raises(differences_page.IncompleteError, match=r"stock 4\.0\.8, stock 4\.2\.4"):
        differences_page.read([path])


def test_no_page_is_made_when_the_server_of_a_story_did_not_start_unless_it_did_in_the_end(tmp_path: Path) -> None:
    unserved = WHOLE_ROW | {"story": "test_a.py::test_other[y]", "server": "", "outcome": "failed"}
    with pytest.raises(differences_page.IncompleteError, match=r"no server started for test_a\.py::test_other\[y\]"):
        differences_page.read([written(tmp_path, unserved)])
    again = written(tmp_path, unserved, unserved | {"server": "ours", "outcome": "passed"})
    assert row_of(again, 1).endswith("| passes | passes | passes |")


def test_no_page_is_made_when_a_story_could_not_run(tmp_path: Path) -> None:
    lacking = WHOLE_ROW | {"outcome": "skipped", "reason": "Skipped: Java is missing", "server": "ours"}
    with pytest.raises(differences_page.IncompleteError, match="Java is missing"):
        differences_page.read([written(tmp_path, lacking)])


def test_the_page_names_every_row_and_every_difference_and_nothing_fails() -> None:
    """The page in docs is that of the rows and differences there are; `.ci/run` compares it with the results themselves."""
    page = differences_page.PAGE.read_text(encoding="utf-8")
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == set(ROWS)
    titles = {f"Row {each.row}: {each.name}" for each in DIFFERENCES.values()}
    assert set(re.findall(r"^### (.+)$", page, re.MULTILINE)) == titles
    assert [each.source for each in DIFFERENCES.values() if f"\nSource: {each.source}.\n" not in page] == []
    assert "**fails**" not in page
    assert "not run" not in page
    assert "not met" not in page
