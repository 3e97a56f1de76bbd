"""Prints docs/seeds.md: the rules that this project began with, and what shows that each of them holds.

python docs/seeds.py           writes the page
python docs/seeds.py --check   ends with 1 when the page is not what they say, or a row has neither test nor reason

The rules are in `docs/seed_rows.tsv`: id, rule, note. A test names those that it shows with `@pytest.mark.seed_rows("A01")`.
A note that begins with "replaced:" says which later decision stands in the place of the rule; "missing:" says what is not
there; "no rule:" marks a line that demands nothing, and does not count. The tests are read, not imported.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).resolve().parents[1]
ROWS: Final = ROOT / "docs" / "seed_rows.tsv"
PAGE: Final = ROOT / "docs" / "seeds.md"
MARKER: Final = "pytest.mark.seed_rows"
REPLACED: Final = "replaced:"
NO_RULE: Final = "no rule:"
MISSING: Final = "missing:"

_PARTS: Final = {
    "A": "RocketMQ: half messages and the check of a local transaction",
    "B": "A proposal for RocketMQ: idempotent producers and transactional ids",
    "C": "Kafka: the first design of transactional messages",
    "D": "Pulsar: transactions as PIP-31 and its talks describe them",
    "E": "Kafka: the coordinator of KIP-98",
}
_HEAD: Final = """\
# Where the rules come from

The design began with texts about transactions in Pulsar, Kafka and RocketMQ. {count} rules were drawn from them. This page says
of each one whether it holds here, and which test shows it; `docs/seeds.py` makes it from the tests.

* **holds**: the named tests show it on our broker, beside stock Pulsar, or on both.
* **replaced**: a later decision stands in its place. The sentence says which.
* **missing**: it is not there. The sentence says what is not.
* **no rule**: the line of the source demands nothing. It does not count.

A rule that names a technology holds only by a test that starts it.

{counts}
"""


@attrs.frozen
class Row:
    """One rule. `note`: what is to be said beside its tests, or instead of them."""

    id: str
    rule: str
    note: str


def rows() -> list[Row]:
    """The rules, in the order of the file. ValueError for a line without three columns, and for an id that is there twice."""
    found = [_row(line) for line in ROWS.read_text(encoding="utf-8").splitlines()[1:]]
    if len({row.id for row in found}) != len(found):
        raise ValueError(f"{ROWS.name}: an id is there twice")
    return found


def _row(line: str) -> Row:
    columns = line.split("\t")
    if len(columns) != 3:
        raise ValueError(f"{ROWS.name}: {line[:60]!r} has {len(columns)} columns and not 3")
    return Row(*columns)


def shown() -> dict[str, list[str]]:
    """The tests that show each rule, as `file::name`, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if MARKER in (text := path.read_text(encoding="utf-8")):
            for name, row_id in _marks(ast.parse(text)):
                found[row_id].append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == MARKER:
                    yield from ((node.name, ast.literal_eval(argument)) for argument in mark.args)


def state(row: Row, tests: Mapping[str, Sequence[str]]) -> str:
    """holds, replaced, missing or no rule. ValueError for a row with neither a test nor a reason."""
    if row.note.startswith(MISSING):
        return "missing"
    if row.note.startswith(REPLACED):
        return "replaced"
    if row.note.startswith(NO_RULE):
        if row.id in tests:
            raise ValueError(f"row {row.id} is no rule, and {tests[row.id][0]} shows it")
        return "no rule"
    if row.id not in tests:
        raise ValueError(f"row {row.id} has no test with {MARKER}, and no note that says why")
    return "holds"


def page(found: Sequence[Row], tests: Mapping[str, Sequence[str]]) -> str:
    """The page. ValueError for a row without test and reason, and for a marker that names no row."""
    unknown = sorted(tests.keys() - {row.id for row in found})
    if unknown:
        raise ValueError(f"tests name rows that are not there: {', '.join(unknown)}")
    states = [state(row, tests) for row in found]
    counts = ", ".join(f"{states.count(each)} {each}" for each in ("holds", "replaced", "missing"))
    rules = len(found) - states.count("no rule")
    lines = [_HEAD.format(count=rules, counts=f"Of {rules} rules: {counts}.")]
    part = ""
    for row, its_state in zip(found, states, strict=True):
        if row.id[0] != part:
            part = row.id[0]
            lines += [f"## {part}. {_PARTS[part]}\n", "| | rule | state | shown by |", "|---|---|---|---|"]
        lines.append(f"| {row.id} | {_cell(row.rule)} | {its_state} | {_evidence(row, tests)} |")
        following = found.index(row) + 1
        if following == len(found) or found[following].id[0] != part:
            lines.append("")
    return "\n".join(lines)


def _evidence(row: Row, tests: Mapping[str, Sequence[str]]) -> str:
    note = row.note.removeprefix(REPLACED).removeprefix(MISSING).removeprefix(NO_RULE).strip()
    names = [f"`{name}`" for name in tests.get(row.id, ())]
    return "<br>".join([*([_cell(note)] if note else []), *names])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it."""
    try:
        text = page(rows(), shown())
    except ValueError as error:
        sys.stderr.write(f"seeds: {error}\n")
        return 1
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write("seeds: docs/seeds.md is not what rows and tests say; run python docs/seeds.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
