"""Offsets of the source: for each topic partition the last entry included, as a dict that Spark keeps as JSON text.

    {"p": {"persistent://public/default/t-partition-0": [12, 345]}, "v": 1}

Spark compares the text: equal offsets must have their keys in the same order, so they are sorted. `[-1, -1]` stands
before the first entry. A range (start, end] has the same content for ever, because an end is always a message that is
visible under read committed, and everything up to it is decided.

`places_at` finds the offsets of a time: the place before the first message that was published then or later. `Ledgers` counts
the entries between two positions of a topic partition, by the ledgers that the admin API lists.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import attrs

from pulsar_txn.client import AsyncClient
from pulsar_txn.pipeline.spark.errors import OptionError

Place: TypeAlias = tuple[int, int]
Places: TypeAlias = dict[str, Place]

NOTHING: Final[Place] = (-1, -1)
VERSION: Final = 1


def to_offset(places: Mapping[str, Place]) -> dict[str, Any]:
    """Encode positions as an offset of Spark."""
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


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS: Final = 30.0

Times = int | tuple[tuple[str, int], ...]


async def places_at(client: AsyncClient, times: Times, ends: Mapping[str, Place]) -> Places:
    """The place before each partition's first message of that time or later; its end when there is none.

    Partitions that `times` does not name are left out. OptionError for names of other topics. Use it on the client's loop.
    """
    wanted = dict.fromkeys(ends, times) if isinstance(times, int) else dict(times)
    if unknown := sorted(set(wanted) - set(ends)):
        raise OptionError(f"a time is given for {', '.join(unknown)}; this query reads {', '.join(sorted(ends))}")
    found = await asyncio.gather(*(_place_at_time(client, topic, time_ms, ends[topic]) for topic, time_ms in wanted.items()))
    return dict(zip(wanted, found, strict=True))


async def _place_at_time(client: AsyncClient, topic: str, time_ms: int, end: Place) -> Place:
    start = _EPOCH + timedelta(milliseconds=time_ms)
    async with await client.create_reader(topic, start, receiver_queue_size=1) as reader:
        if not await reader.has_message_available():
            return end
        while True:
            message = await reader.read_next(_SECONDS)
            ledger_id, entry_id = message.message_id.position
            if message.publish_time_ms >= time_ms or (ledger_id, entry_id) >= end:
                return min((ledger_id, entry_id - 1), end) if message.publish_time_ms >= time_ms else end


@attrs.frozen
class Ledgers:
    """The ledgers of a topic partition at a moment."""

    sizes: tuple[tuple[int, int], ...]
    """Of each ledger its id and the number of its entries, the oldest ledger first."""
    entries: int
    """Number of entries; those of the first ledgers may be gone."""
    last: Place
    """The last entry that is stored."""

    @classmethod
    def read(cls, stats: Mapping[str, Any]) -> Ledgers:
        """Read ledgers from Pulsar's `internalStats` of a topic. ValueError, KeyError for something else."""
        last = place(stats["lastConfirmedEntry"])
        sizes = {int(each["ledgerId"]): int(each["entries"]) for each in stats.get("ledgers", ())}
        if last[0] >= 0:  # the list has no entries yet for the ledger that is being written
            sizes[last[0]] = max(sizes.get(last[0], 0), last[1] + 1)
        return cls(tuple(sorted(sizes.items())), int(stats["numberOfEntries"]), last)

    def between(self, after: Place, upto: Place) -> int:
        """Number of entries after one position, up to and with another."""
        return max(0, min(self._number(upto) - self._number(after), self.entries))

    def following(self, position: Place) -> Place:
        """The position that comes after another; at the end of a ledger that of the next one's first entry."""
        ledger_id, entry_id = position
        if entry_id + 1 < dict(self.sizes).get(ledger_id, 0):
            return ledger_id, entry_id + 1
        later = next((each for each, size in self.sizes if each > ledger_id and size), None)
        return (ledger_id, entry_id + 1) if later is None else (later, 0)

    def _number(self, position: Place) -> int:
        """Number of entries up to a position, counted from the first entry of the first ledger."""
        ledger_id, entry_id = position
        before = sum(size for each, size in self.sizes if each < ledger_id)
        return before + min(entry_id + 1, dict(self.sizes).get(ledger_id, 0))


def place(text: str) -> Place:
    """A position as the admin API writes it, `ledger:entry`. ValueError."""
    ledger_id, _, entry_id = text.partition(":")
    return int(ledger_id), int(entry_id)
