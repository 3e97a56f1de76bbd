"""Count of the entries between two positions of a topic partition, whose ledgers the admin API lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pulsar_txn.pipeline.spark.source.offsets import Place


@attrs.frozen
class Ledgers:
    """The ledgers of a topic partition at a moment."""

    sizes: tuple[tuple[int, int], ...]
    """Of each ledger its id and the number of its entries, the oldest ledger first."""
    entries: int
    """How many entries are there: those of the first ledgers may be gone."""
    last: Place
    """The last entry that is stored."""

    @classmethod
    def read(cls, stats: Mapping[str, Any]) -> Ledgers:
        """From Pulsar's `internalStats` of a topic. ValueError, KeyError for something else."""
        last = place(stats["lastConfirmedEntry"])
        sizes = {int(each["ledgerId"]): int(each["entries"]) for each in stats.get("ledgers", ())}
        if last[0] >= 0:  # the list has no entries yet for the ledger that is being written
            sizes[last[0]] = max(sizes.get(last[0], 0), last[1] + 1)
        return cls(tuple(sorted(sizes.items())), int(stats["numberOfEntries"]), last)

    def between(self, after: Place, upto: Place) -> int:
        """Return how many entries are there after one position, up to and with another."""
        return max(0, min(self._number(upto) - self._number(after), self.entries))

    def following(self, position: Place) -> Place:
        """The position that comes after another; at the end of a ledger that of the next one's first entry."""
        ledger_id, entry_id = position
        if entry_id + 1 < dict(self.sizes).get(ledger_id, 0):
            return ledger_id, entry_id + 1
        later = next((each for each, size in self.sizes if each > ledger_id and size), None)
        return (ledger_id, entry_id + 1) if later is None else (later, 0)

    def _number(self, position: Place) -> int:
        """Return how many entries there are up to a position, counted from the first entry of the first ledger."""
        ledger_id, entry_id = position
        before = sum(size for each, size in self.sizes if each < ledger_id)
        return before + min(entry_id + 1, dict(self.sizes).get(ledger_id, 0))


def place(text: str) -> Place:
    """A position as the admin API writes it, `ledger:entry`. ValueError."""
    ledger_id, _, entry_id = text.partition(":")
    return int(ledger_id), int(entry_id)
