"""How the text of an option becomes a value, and how an error describes what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

DELIVERIES: Final = ("staged", "grouped", "auto")
COMPRESSIONS: Final = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


def text(value: str) -> str:
    """Any text."""
    return value


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def flag(value: str) -> bool:
    """`true` or `false`, in any case."""
    return {"true": True, "false": False}[value.strip().lower()]


def positive(value: str) -> int:
    """A whole number above 0."""
    number = int(value)
    if number <= 0:
        raise ValueError(value)
    return number


def whole(value: str) -> int:
    """A whole number, 0 or more."""
    number = int(value)
    if number < 0:
        raise ValueError(value)
    return number


def seconds(value: str) -> float:
    """A number of seconds above 0."""
    number = float(value)
    if not number > 0:
        raise ValueError(value)
    return number


def milliseconds(value: str) -> float:
    """Milliseconds, as seconds."""
    return positive(value) / 1000


def nanoseconds(value: str) -> float:
    """Nanoseconds, as seconds."""
    return positive(value) / 1e9


def compression(value: str) -> int:
    """The name of a compression, as Pulsar's number."""
    return COMPRESSIONS[value.strip().lower()]


def delivery(value: str) -> str:
    """How the rows of a sink get to their topics."""
    chosen = value.strip().lower()
    if chosen not in DELIVERIES:
        raise ValueError(value)
    return chosen


def pattern(value: str) -> str:
    """A regular expression."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(str(error)) from error
    return value


def schema(value: str) -> str:
    """Where the type of the column `value` comes from."""
    return {"topic": "topic", "bytes": "bytes"}[value.strip().lower()]


def mode(value: str) -> str:
    """What becomes of a value that does not fit, as Spark's `from_json` calls it."""
    return {"PERMISSIVE": "PERMISSIVE", "FAILFAST": "FAILFAST"}[value.strip().upper()]


def times(value: str) -> int | tuple[tuple[str, int], ...]:
    """Milliseconds since the epoch, or a JSON object of them by topic partition."""
    if not value.lstrip().startswith("{"):
        return whole(value)
    given = json.loads(value)
    if not all(isinstance(time_ms, int) and time_ms >= 0 for time_ms in given.values()):
        raise ValueError(value)
    return tuple(sorted(given.items()))


EXPECTED: Final[dict[Callable[[str], Any], str]] = {
    text: "a text",
    names: "names with commas between them",
    flag: "true or false",
    positive: "a whole number above 0",
    whole: "a whole number, 0 or more",
    seconds: "a number of seconds above 0",
    milliseconds: "a whole number of milliseconds above 0",
    nanoseconds: "a whole number of nanoseconds above 0",
    schema: "topic or bytes",
    mode: "FAILFAST or PERMISSIVE",
    pattern: "a regular expression",
    times: "milliseconds since the epoch, or a JSON object of them by topic partition",
    compression: f"one of {', '.join(COMPRESSIONS)}",
    delivery: f"one of {', '.join(DELIVERIES)}",
}
"""What an error says after "is not"."""
