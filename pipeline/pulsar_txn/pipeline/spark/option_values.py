"""Values of options, made of their texts, and errors that say what was expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from pulsar_txn.client.inside import Secret

DELIVERIES: Final = ("staged", "grouped", "auto")
MODES: Final = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
PRIMITIVE_SCHEMAS: Final = {
    "string": 1,
    "boolean": 5,
    "int8": 6,
    "int16": 7,
    "int32": 8,
    "int64": 9,
    "float": 10,
    "double": 11,
    "date": 12,
    "time": 13,
    "timestamp": 14,
    "instant": 16,
    "local_date": 17,
    "local_time": 18,
    "local_date_time": 19,
}
"""Pulsar's names of the kinds without a definition, and their numbers."""
SCHEMAS: Final = ("bytes", "topic", "json", "avro", *PRIMITIVE_SCHEMAS)
_SCHEMA_ALIASES: Final = {"binary": "bytes", "bool": "boolean", "localdate": "local_date", "localtime": "local_time"} | {
    "localdatetime": "local_date_time"
}
COMPRESSIONS: Final = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}


def secret(value: str) -> Secret:
    """Any text, which is shown to nobody."""
    return Secret(value)


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


END_OF_TIME_MS: Final = 253_402_300_800_000
"""The year 10000, in milliseconds: the calendars of Spark's text forms and of Python end before it."""
BEGIN_OF_TIME_MS: Final = -62_135_596_800_000
"""The year 1, in milliseconds: Python's calendar begins with it."""


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
    """Return how the rows of a sink get to their topics."""
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
    """The source of the type of the column `value`: `bytes`, `topic`, a kind of schema, or the text of a definition."""
    short = value.strip()
    if short.startswith("{"):
        json.loads(short)
        return short
    short = _SCHEMA_ALIASES.get(short.lower(), short.lower())
    if short not in SCHEMAS:
        raise ValueError(value)
    return short


def part_schema(value: str) -> str:
    """The same, without `topic`."""
    found = schema(value)
    if found == "topic":
        raise ValueError(value)
    return found


def schema_type(value: str) -> str:
    """Return how the values of a definition are written."""
    return {"JSON": "json", "AVRO": "avro"}[value.strip().upper()]


def key_value_encoding(value: str) -> str:
    """Return where the keys of pairs are, in Pulsar's words."""
    return {"INLINE": "INLINE", "SEPARATED": "SEPARATED"}[value.strip().upper()]


def mode(value: str) -> str:
    """Return what becomes of a value that does not fit, as Spark's `from_json` calls it."""
    return {each: each for each in MODES}[value.strip().upper()]


def times(value: str) -> int | tuple[tuple[str, int], ...]:
    """Milliseconds since the epoch, or a JSON object of them by topic partition."""
    if not value.lstrip().startswith("{"):
        return _time(whole(value))
    return tuple(sorted((topic, _time(time_ms)) for topic, time_ms in json.loads(value).items()))


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value < END_OF_TIME_MS:
        raise ValueError(value)
    return value


EXPECTED: Final[dict[Callable[[str], Any], str]] = {
    secret: "a text",
    text: "a text",
    names: "names with commas between them",
    flag: "true or false",
    positive: "a whole number above 0",
    whole: "a whole number, 0 or more",
    seconds: "a number of seconds above 0",
    milliseconds: "a whole number of milliseconds above 0",
    nanoseconds: "a whole number of nanoseconds above 0",
    schema: f"one of {', '.join(SCHEMAS)}, or an Avro definition in JSON",
    part_schema: f"one of {', '.join(each for each in SCHEMAS if each != 'topic')}, or an Avro definition in JSON",
    schema_type: "JSON or AVRO",
    key_value_encoding: "INLINE or SEPARATED",
    mode: f"one of {', '.join(MODES)}",
    pattern: "a regular expression",
    times: "a time from 1970 to 9999: milliseconds (not micro- or nanoseconds) since the epoch, or a JSON object of them by "
    "topic partition",
    compression: f"one of {', '.join(COMPRESSIONS)}",
    delivery: f"one of {', '.join(DELIVERIES)}",
}
"""What an error says after "is not"."""
