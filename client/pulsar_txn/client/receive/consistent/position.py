"""Position of a consistent reader: a place in every partition, as text that a program can keep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

import attrs

from pulsar_txn.client._validation import refused
from pulsar_txn.client.errors import InvalidConfiguration
from pulsar_txn.wire.ids import EARLIEST, Position

_VERSION = 1


@attrs.frozen
class PartitionPlace:
    """Place up to which one partition has been handed out.

    `after`: the last entry that was; EARLIEST for none. `begin`: an earlier entry, when a message in chunks began there and
    ends after `after`; reading begins with it. `since`: the end of the partition when a reader began at the end of its topics.
    What was written up to there, and whatever belongs to a transaction of it, is not handed out.
    """

    after: Position = EARLIEST
    begin: Position | None = None
    since: Position | None = None


@attrs.frozen
class CutPosition:
    """A consistent place in all topics of a reader: every transaction is before it in all partitions, or after it in all.

    `text()` is for a file, a database row or a message property; `CutPosition.parse` reads it.
    """

    places: Mapping[str, PartitionPlace]
    """By the full name of the topic partition."""

    def text(self) -> str:
        """As JSON in one line; `parse` is the inverse."""
        return json.dumps({"version": _VERSION, "places": {name: _packed(place) for name, place in self.places.items()}})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text()` has written. InvalidConfiguration, a ValueError, for anything else."""
        if not isinstance(text, str):
            raise refused("text", text, "what CutPosition.text() has returned")
        try:
            read = json.loads(text)
            if read["version"] != _VERSION:
                raise InvalidConfiguration(
                    f"this position has version {read['version']}, and {_VERSION} is known here", hint="update pulsar-txn"
                )
            return cls({str(name): _unpacked(packed) for name, packed in read["places"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            if isinstance(error, InvalidConfiguration):
                raise
            raise InvalidConfiguration(f"this is no position of a consistent reader: {error!r}") from error


def _packed(place: PartitionPlace) -> dict[str, list[int]]:
    found = {"after": place.after, "begin": place.begin, "since": place.since}
    return {name: list(position) for name, position in found.items() if position is not None}


def _unpacked(packed: Any) -> PartitionPlace:
    if not packed.keys() <= {"after", "begin", "since"}:
        raise ValueError(f"unknown fields in {packed}")
    begin, since = (_position(packed[name]) if name in packed else None for name in ("begin", "since"))
    return PartitionPlace(_position(packed["after"]), begin, since)


def _position(given: Any) -> Position:
    ledger_id, entry_id = given
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in (ledger_id, entry_id)):
        raise ValueError(f"{given} is no position")
    return (ledger_id, entry_id)
