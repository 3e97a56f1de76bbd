"""What stories share, and the record of what they showed.

With PULSAR_TXN_CONFORMANCE set to a path, every story appends a line of JSON to it: its rows, the server, the outcome, and
what it saw where servers differ. `differences_page.py` makes docs/differences.md of these lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers
import targets
from differences import Observed, allowed
from targets import Target

_SEEN = pytest.StashKey[list[tuple[int, str, str]]]()


@pytest.fixture(scope="session")
def pulsar(pulsar: Target) -> Target:
    """The server, known by its version also when it is one outside, with several coordinators."""
    known = servers.identified(pulsar)
    servers.grow_coordinators(known)
    return known


@pytest.fixture
def observed(request: pytest.FixtureRequest) -> Observed:
    """Say what was seen where servers differ: `observed(pulsar, row, name, actual)`. Fails when the table expects otherwise."""
    seen = request.node.stash.setdefault(_SEEN, [])

    def note(server: object, row: int, name: str, actual: str) -> None:
        seen.append((row, name, actual))
        assert actual in allowed(server, row, name), f"row {row}, {name}: {actual}"

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: pytest.TestReport = yield
    results = os.environ.get("PULSAR_TXN_CONFORMANCE")
    if results and (report.when == "call" or (report.when == "setup" and not report.passed)):
        line = _line(item, report)
        if line["rows"]:
            with Path(results).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return report


def _line(item: pytest.Item, report: pytest.TestReport) -> dict[str, object]:
    labels = [targets.label_of(value) for value in getattr(item, "funcargs", {}).values()]
    return {
        "rows": sorted({number for mark in item.iter_markers("conformance") for number in mark.args}),
        "story": item.nodeid.removeprefix("tests/conformance/"),
        "server": next((label for label in labels if label), ""),
        "outcome": report.outcome,
        "reason": report.longrepr[2] if isinstance(report.longrepr, tuple) else "",
        "observed": item.stash.get(_SEEN, []),
    }
