"""Keep the inventory of promises: `tests/promises.txt` has each test by its file, as a sentence.

`python tests/support/promises.py` adds the tests that are new. It never takes one out: a test that is gone was moved or
dropped, and `tests/promises_moved.txt` says so, one line each:

    tests/old.py::test_name -> tests/new.py::test_name
    tests/old.py::test_name dropped: the reason

With `--check` it names the promises that no test keeps, and ends with 1.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "tests" / "promises.txt"
MOVED = ROOT / "tests" / "promises_moved.txt"


def kept(root: Path = ROOT) -> set[str]:
    """Every test of the tree, as `file::name`; suites of promises that rooms ship count by their classes' own files."""
    files = [
        *root.glob("tests/**/test_*.py"),
        *root.glob("*/pulsar_txn/**/testing/*.py"),
        *root.glob("*/pulsar_txn/**/testing.py"),
    ]
    return {
        f"{path.relative_to(root)}::{name}"
        for path in files
        for name in _tests_of(ast.parse(path.read_text(encoding="utf-8")).body)
    }


def _tests_of(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests_of(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield prefix + node.name


def written(text: str) -> set[str]:
    """The tests that an inventory names."""
    found, path = set(), ""
    for line in text.splitlines():
        if line.startswith("tests/") or line.endswith(".py"):
            path = line
        elif line.strip():
            found.add(f"{path}::{_name(line.strip())}")
    return found


def page(promises: Iterable[str]) -> str:
    """The inventory of these tests."""
    lines, before = [], None
    for promise in sorted(promises):
        path, _, name = promise.partition("::")
        if path != before:
            lines += ["", path] if lines else [path]
            before = path
        lines.append("  " + _sentence(name))
    return "\n".join(lines) + "\n"


def _sentence(name: str) -> str:
    owner, colons, last = name.rpartition("::")
    return owner + colons + last.removeprefix("test_").replace("_", " ")


def _name(sentence: str) -> str:
    owner, colons, last = sentence.rpartition("::")
    return owner + colons + "test_" + last.replace(" ", "_")


def broken(promises: set[str], moved: str, tests: set[str]) -> list[str]:
    """The promises that no test keeps, and the lines of `moved` that say nothing; each as a sentence."""
    wrong, excused = [], set()
    for line in filter(None, map(str.strip, moved.splitlines())):
        old, arrow, new = line.partition(" -> ")
        if not arrow:
            old, _, reason = line.partition(" dropped: ")
            if not reason:
                wrong.append(f"{line}: it is neither moved (->) nor dropped with a reason (dropped: …)")
        elif new not in tests:
            wrong.append(f"{old}: it is said to be {new}, which there is not")
        excused.add(old)
    return [*(f"{each}: no test keeps this promise any more" for each in sorted(promises - tests - excused)), *wrong]


def main(arguments: list[str]) -> int:
    """Add what is new to the inventory, or check it."""
    promises, tests = written(INVENTORY.read_text()) if INVENTORY.exists() else set(), kept()
    if arguments == ["--check"]:
        found = broken(promises, MOVED.read_text() if MOVED.exists() else "", tests)
        sys.stdout.write("".join(each + "\n" for each in found))
        return bool(found)
    INVENTORY.write_text(page(promises | tests))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
