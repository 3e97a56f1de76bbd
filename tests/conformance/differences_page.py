"""Makes docs/differences.md of what the stories of the conformance suite showed.

python tests/conformance/differences_page.py RESULTS…           writes the page
python tests/conformance/differences_page.py --check RESULTS…   ends with 1 when the page is not what the results say

RESULTS are files of lines of JSON, one per story and server, written with PULSAR_TXN_CONFORMANCE (see conftest.py); of a
story that was run again on the same server the last line counts. The same results make the same text.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from differences import DIFFERENCES, Difference
from rows import NOT_APPLICABLE, ROWS, Row

SERVERS: Final = ("ours", "stock 4.0.8", "stock 4.2.4")
PAGE: Final = Path(__file__).parents[2] / "docs" / "differences.md"

_HEAD: Final = """\
# Differences

This page compares our broker with stock Apache Pulsar. The conformance suite, `tests/conformance`, tests what Pulsar's own
tests of transactions test, row by row. `make conformance` makes this page from the results of its last run; do not edit
it by hand.

A row *passes* when all its stories get the expected result, the same on every server. It *differs* when a server behaves
differently in a way that was listed before: the link leads to the difference and to its source.
"""


@attrs.frozen
class Result:
    """What one story showed on one server."""

    rows: tuple[int, ...]
    story: str
    server: str
    outcome: str
    reason: str
    observed: tuple[tuple[int, str, str], ...]


class IncompleteError(Exception):
    """The results lack a server, or a story that could not run because something was missing."""


def read(paths: Iterable[Path]) -> list[Result]:
    """The last result of each story on each server. Raises IncompleteError."""
    last: dict[tuple[str, str], Result] = {}
    without_server: set[str] = set()
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            result = _result(json.loads(line))
            if not result.server:
                without_server.add(result.story)
                continue
            without_server.discard(result.story)
            last[result.story, result.server] = result
    if without_server:
        raise IncompleteError(f"no server started for {', '.join(sorted(without_server))}")
    found = list(last.values())
    if missing := set(SERVERS) - {result.server for result in found}:
        raise IncompleteError(f"no story ran on {', '.join(sorted(missing))}")
    for result in found:
        if result.outcome == "skipped" and NOT_APPLICABLE not in result.reason:
            raise IncompleteError(f"{result.story} was skipped on {result.server}: {result.reason}")
    return found


def _result(line: dict[str, Any]) -> Result:
    observed = tuple((row, name, actual) for row, name, actual in line["observed"])
    return Result(tuple(line["rows"]), line["story"], line["server"], line["outcome"], line["reason"], observed)


def page(results: Sequence[Result]) -> str:
    """The text of the page."""
    shown = [row for row in ROWS.values() if row.is_asked]
    lines = [_HEAD, "| row | what it asks | ours | stock 4.0.8 | stock 4.2.4 |", "|---|---|---|---|---|"]
    lines += [_line(row, results) for row in shown]
    lines += ["", "## What differs", ""]
    for each in sorted(DIFFERENCES.values(), key=lambda each: (each.row, each.name)):
        lines += _section(each, results)
    if remarks := list(_remarks(results)):
        lines += ["## Where a row does not apply", "", *remarks, ""]
    lines += [
        "## Rows without a story",
        "",
        "What these tests of Pulsar look at is inside of its own code.",
        "",
        "| row | what it asks | why no story |",
        "|---|---|---|",
        *(f"| {row.number} | {row.asks} | {row.reason} |" for row in ROWS.values() if not row.is_asked),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row, results: Sequence[Result]) -> str:
    cells = " | ".join(_cell(row, server, [each for each in results if row.number in each.rows]) for server in SERVERS)
    return f"| {row.number} | {row.asks} | {cells} |"


def _cell(row: Row, server: str, results: Sequence[Result]) -> str:
    mine = [result for result in results if result.server == server]
    if not mine:
        return "not run"
    if failed := sorted({_name(result) for result in mine if result.outcome == "failed"}):
        return f"**fails**: {', '.join(failed)}"
    if all(result.outcome == "skipped" for result in mine):
        return "does not apply"
    links = [
        f"[differs](#{_anchor(each)})" for each in DIFFERENCES.values() if each.row == row.number and _differs(each, server)
    ]
    return ", ".join(links) or "passes"


def _differs(each: Difference, server: str) -> bool:
    return each.on(server) != each.ours


def _section(each: Difference, results: Sequence[Result]) -> Iterator[str]:
    yield f"### {_title(each)}"
    yield ""
    yield from (f"* {server}: {_seen(each, server, results)}" for server in SERVERS)
    yield ""
    yield f"Source: {each.source}."
    yield ""


def _seen(each: Difference, server: str, results: Sequence[Result]) -> str:
    seen = {
        actual
        for result in results
        if result.server == server
        for row, name, actual in result.observed
        if (row, name) == (each.row, each.name)
    }
    if not seen:
        return "not met"
    # Where timing decides, one run sees one of the values, and the next run another one.
    return " or ".join(sorted(seen | set(each.on(server))))


def _remarks(results: Sequence[Result]) -> Iterator[str]:
    skipped = [result for result in results if result.outcome == "skipped"]
    found = {(row, result.server, result.reason.partition(NOT_APPLICABLE)[2]) for result in skipped for row in result.rows}
    yield from (f"* Row {row}, {server}: {reason}" for row, server, reason in sorted(found))


def _title(each: Difference) -> str:
    return f"Row {each.row}: {each.name}"


def _anchor(each: Difference) -> str:
    """As mkdocs and GitHub make it of the title."""
    kept = "".join(letter for letter in _title(each).lower() if letter.isalnum() or letter in "_- ")
    return kept.replace(" ", "-")


def _name(result: Result) -> str:
    return result.story.partition("::")[2].partition("[")[0].replace("_", "\\_")


def main(arguments: list[str]) -> int:
    """Write the page or check it; the exit code."""
    check = arguments[:1] == ["--check"]
    try:
        text = page(read(map(Path, arguments[check:])))
    except (IncompleteError, FileNotFoundError) as error:
        sys.stderr.write(f"no page can be made of these results: {error}\n")
        return 1
    current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if check and current != text:
        changes = difflib.unified_diff(current.splitlines(), text.splitlines(), "the page", "the results", n=0, lineterm="")
        sys.stderr.write("\n".join([f"{PAGE} is not what the results say: run make conformance", *changes]) + "\n")
        return 1
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
