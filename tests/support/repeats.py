"""Keep the list of tests that repeat a promise: `make test` leaves them out, and `make soak` runs them.

`tests/repeats.txt` has blocks: a pattern of test ids, in which `*` stands for anything, and below it, indented, the tests that
keep its promise in `make test`. A keeper may be a pattern, too. What a block names as a keeper it does not leave out, so that
its pattern may be that of all cases of a test, and its keepers the sample.

    python tests/support/repeats.py REPORT.xml     names the keepers that did not run (pytest --junitxml), and ends with 1
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import attrs
from durations import cases_of

STORED = Path(__file__).resolve().parents[1] / "repeats.txt"


@attrs.frozen
class Repeats:
    """A block of the list."""

    pattern: str
    keepers: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file that the pattern is of."""
        return self.pattern.partition("::")[0]

    def has(self, test: str) -> bool:
        """True if the test, by its id, repeats what another one shows."""
        return matches(self.pattern, test) and not any(matches(keeper, test) for keeper in self.keepers)


def matches(pattern: str, test: str) -> bool:
    """True if the id of a test is of this form, in which `*` stands for anything."""
    return _expression(pattern).fullmatch(test) is not None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))))


def parsed(text: str) -> list[Repeats]:
    """The blocks of a list."""
    blocks: list[Repeats] = []
    for line in text.splitlines():
        if line.startswith("tests/"):
            blocks.append(Repeats(line.strip(), ()))
        elif line.startswith(" "):
            blocks[-1] = attrs.evolve(blocks[-1], keepers=(*blocks[-1].keepers, line.strip()))
    return blocks


@cache
def stored() -> dict[str, list[Repeats]]:
    """The blocks of the stored list by file."""
    found: dict[str, list[Repeats]] = {}
    for block in parsed(STORED.read_text(encoding="utf-8")):
        found.setdefault(block.file, []).append(block)
    return found


def is_repeat(test: str) -> bool:
    """True if `make test` leaves this test out, by its id."""
    return any(block.has(test) for block in stored().get(test.partition("::")[0], ()))


def ran(report: Path) -> set[str]:
    """Ids of the tests of a run that were not skipped, with and without their parameters."""
    found = set()
    for file, classes, case in cases_of(report):
        if case.find("skipped") is None:
            test = "::".join([file, *classes, case.get("name", "")])
            found |= {test, test.partition("[")[0]}
    return found


def lost(blocks: list[Repeats], ran_tests: set[str]) -> list[str]:
    """The keepers that did not run, each as a sentence."""
    return [
        f"{keeper} did not run, and keeps the promise of {block.pattern}: name another keeper in tests/repeats.txt"
        for block in blocks
        for keeper in block.keepers
        if not any(matches(keeper, test) for test in ran_tests)
    ]


def main(arguments: list[str]) -> int:
    """Compare a run with the stored list; the exit code."""
    said = lost(parsed(STORED.read_text(encoding="utf-8")), ran(Path(arguments[0])))
    print(*said, sep="\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
