"""Keep the durations of the test files: `tests/durations.txt` has the seconds of each file that takes two or more.

    python tests/support/durations.py REPORT.xml           compares a run (pytest --junitxml) with what is stored
    python tests/support/durations.py REPORT.xml --store   stores the run

Machines differ in speed, so shares are compared and not seconds. A file grows when its share of the whole run is more than
three times the stored one, and that is 30 s or more of this run: from one run to the next a share was seen to double. A file
without an entry counts with two seconds. A run that leaves out many tests has other shares and is not compared. Ends with 1
when a file grew.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

STORED = Path(__file__).resolve().parents[1] / "durations.txt"
LEAST_SECONDS = 2.0
GROWTH = 3.0
ALLOWANCE_SECONDS = 30.0
COMPARABLE = 0.8
"""The part of the stored files that a run must have, to be compared."""


def cases_of(report: Path) -> Iterator[tuple[str, list[str], ET.Element]]:
    """The tests of a run (pytest --junitxml): file, names of classes, and the element of each."""
    for case in ET.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        files = [at for at, part in enumerate(parts) if part.startswith("test_")]
        if files:
            yield "/".join(parts[: files[0] + 1]) + ".py", parts[files[0] + 1 :], case


def measured(report: Path) -> Counter[str]:
    """Seconds of set-up, call and tear-down of each test file, as `tests/room/test_file.py`."""
    found: Counter[str] = Counter()
    for file, _, case in cases_of(report):
        found[file] += float(case.get("time", "0"))  # type: ignore[assignment] # seconds
    return found


def stored(path: Path = STORED) -> dict[str, float]:
    """Seconds by file, as they were stored."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: float(seconds) for seconds, name in pairs}


def grown(now: dict[str, float], before: dict[str, float]) -> list[str]:
    """Files that take a larger part of the run than before, each as a sentence."""
    whole, whole_before = sum(now.values()), sum(before.values())
    if not whole_before or len(before.keys() & now.keys()) < COMPARABLE * len(before):
        return []
    said = []
    for name, seconds in sorted(now.items(), key=lambda pair: -pair[1]):
        expected = before.get(name, LEAST_SECONDS) / whole_before * whole
        if seconds > GROWTH * expected and seconds - expected >= ALLOWANCE_SECONDS:
            said.append(
                f"{name}: {seconds:.0f} s of {whole:.0f}, about {expected:.0f} were expected: make it cheaper, let `make soak` "
                "repeat what it repeats, or store the new durations (tests/support/durations.py)"
            )
    return said


def store(now: dict[str, float], path: Path = STORED) -> None:
    """Write the files that take so much that it matters, largest first."""
    lines = [
        "# Seconds of each test file (set-up, call and tear-down, all workers together) in the last run that was stored.",
        "# Written by tests/support/durations.py; .ci/run fails when a file takes three times its part of the whole.",
    ]
    lines += [
        f"{seconds:7.1f} {name}" for name, seconds in sorted(now.items(), key=lambda pair: -pair[1]) if seconds >= LEAST_SECONDS
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Compare or store; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reports", type=Path, nargs="+", help="files of pytest --junitxml; their tests count together")
    parser.add_argument("--store", action="store_true", help="store the run")
    chosen = parser.parse_args(arguments)
    now: Counter[str] = Counter()
    for report in chosen.reports:
        now.update(measured(report))
    if chosen.store:
        store(now)
        return 0
    said = grown(now, stored())
    print(*said, sep="\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
