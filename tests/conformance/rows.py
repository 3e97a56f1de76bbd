"""The rows of the conformance suite, read from rows.md, and the mark by which a story names the rows that it shows."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Final, NoReturn

import attrs
import pytest

NOT_APPLICABLE: Final = "not applicable: "

_TABLE: Final = Path(__file__).with_name("rows.md")


class Mark(Enum):
    """Where a row shows."""

    YES = "yes"
    CLIENT = "client"
    STATS = "stats"
    INTERNAL = "internal"


@attrs.frozen
class Row:
    """One row: the section and the tests of Pulsar that it comes from, and what it asks. `reason` of internal rows only."""

    number: int
    section: str
    name: str
    asks: str
    mark: Mark
    reason: str

    @property
    def is_asked(self) -> bool:
        """Whether a story has to show it."""
        return self.mark is not Mark.INTERNAL


def row(*numbers: int) -> pytest.MarkDecorator:
    """The mark of a story, or of one parameter of it, that shows these rows."""
    return pytest.mark.conformance(*numbers)


def not_applicable(reason: str) -> NoReturn:
    """End this story: what its row asks makes no sense on this server. The page of differences repeats the reason."""
    pytest.skip(NOT_APPLICABLE + reason)


def _read() -> dict[int, Row]:
    found = {}
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if not re.match(r"\| \d", line):
            continue
        number, section, name, asks, mark, reason = (cell.strip() for cell in line[1:-1].split("|"))
        found[int(number)] = Row(int(number), section, name, asks, Mark(mark), reason)
    return found


ROWS: Final = _read()
"""Every row by its number."""
