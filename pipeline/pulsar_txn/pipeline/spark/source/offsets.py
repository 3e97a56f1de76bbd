"""Offsets of the source: per topic partition the last entry included, as a dict that Spark keeps as JSON text.

    {"p": {"persistent://public/default/t-partition-0": [12, 345]}, "v": 1}

Spark compares the text: equal offsets must have their keys in the same order, so they are sorted. `[-1, -1]` stands
before the first entry. A range (start, end] has the same content for ever, because an end is always a message that is
visible under read committed, and everything up to it is decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from pulsar_txn.pipeline.spark.errors import OptionError

Place: TypeAlias = tuple[int, int]
Places: TypeAlias = dict[str, Place]

NOTHING: Final[Place] = (-1, -1)
VERSION: Final = 1


def to_offset(places: Mapping[str, Place]) -> dict[str, Any]:
    """Return what Spark is given."""
    return {"p": {topic: list(places[topic]) for topic in sorted(places)}, "v": VERSION}


def from_offset(offset: Mapping[str, Any]) -> Places:
    """The offsets that Spark gives back. OptionError for other text."""
    if not isinstance(offset, Mapping) or offset.get("v") != VERSION or not isinstance(offset.get("p"), Mapping):
        raise OptionError(f"not an offset of this source: {offset!r}; it looks like {to_offset({'topic': (12, 345)})}")
    return {topic: _place(topic, value) for topic, value in offset["p"].items()}


def _place(topic: str, value: Any) -> Place:
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(each) is int and -1 <= each < 1 << 63 for each in value)
    ):
        return (value[0], value[1])
    raise OptionError(f"the offset of {topic} is {value!r}; it should be [ledger id, entry id]")


def parse_user_offset(text: str) -> Places:
    """`startingOffsets` and `endingOffsets` as JSON: an offset of this source, or only its inner part."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise OptionError(f"neither earliest, latest nor JSON: {text!r} ({error})") from None
    return from_offset(given if isinstance(given, dict) and "v" in given else {"v": VERSION, "p": given})


def ranges(start: Mapping[str, Place], end: Mapping[str, Place]) -> list[tuple[str, Place, Place]]:
    """(topic partition, start, end) where there is something to read; a partition that is new starts before its first."""
    wanted = ((topic, start.get(topic, NOTHING), end[topic]) for topic in sorted(end))
    return [(topic, first, last) for topic, first, last in wanted if first < last]


def at_most(places: Mapping[str, Place], bound: Mapping[str, Place]) -> Places:
    """Each place, or the bound where that is lower; partitions without a bound are left out."""
    return {topic: min(place, bound[topic]) for topic, place in places.items() if topic in bound}


def at_least(places: Mapping[str, Place], bound: Mapping[str, Place]) -> Places:
    """Each place, or the bound where that is higher: offsets never go back."""
    return {topic: max(places.get(topic, NOTHING), bound.get(topic, NOTHING)) for topic in _keys(places, bound)}


def _keys(*several: Iterable[str]) -> list[str]:
    return sorted({topic for each in several for topic in each})
