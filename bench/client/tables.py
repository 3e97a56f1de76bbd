"""Cost of the account of what came: apart from the table of owners, and as rows of that table.

    .venv/bin/python bench/client/tables.py

Each message comes once and is acknowledged in a group of 100, as on Exclusive. The second way does only what the table would
need at least: a row when the entry comes, and none after it is acknowledged; whose turn it is would come on top. Prints CPU
per message, the two ways in turns, and memory per entry that is not acknowledged. ADR 67 has the figures.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

from pulsar_txn.client.state.effects import Effects
from pulsar_txn.client.state.owners import Owners
from pulsar_txn.client.state.rewinds import RewindTracker

ENTRIES: Final = [(7, number) for number in range(20_000)]
GROUP: Final = 100
ROUNDS: Final = 31


def came_apart(tracker: RewindTracker, positions: list[tuple[int, int]]) -> None:
    """Note entries in the account of today."""
    for position in positions:
        tracker.came(position, 1, 0.0)


def came_together(owners: Owners, positions: list[tuple[int, int]]) -> None:
    """Note entries as rows of the table of owners."""
    for position in positions:
        owners._put(position, ((owners.generation, 1), 0, ()))  # noqa: SLF001 - the least that a row costs


def apart() -> None:
    """Every entry comes and is acknowledged, in the account of today."""
    effects: Effects = []
    tracker = RewindTracker("measured", effects)
    for start in range(0, len(ENTRIES), GROUP):
        came_apart(tracker, ENTRIES[start : start + GROUP])
        tracker.acknowledged([(*position, None, 0) for position in ENTRIES[start : start + GROUP]])


def together() -> None:
    """Every entry comes and is acknowledged, as a row of the table of owners."""
    owners = Owners()
    for start in range(0, len(ENTRIES), GROUP):
        came_together(owners, ENTRIES[start : start + GROUP])
        for ledger_id, entry_id, _, _ in [(*position, None, 0) for position in ENTRIES[start : start + GROUP]]:
            owners._forget((ledger_id, entry_id))  # noqa: SLF001 - likewise


def cpu_us(way: Callable[[], None]) -> float:
    """Microseconds of CPU per message."""
    began = time.process_time()
    way()
    return (time.process_time() - began) / len(ENTRIES) * 1e6


def bytes_per_entry(fill: Callable[[], object]) -> float:
    """Bytes that one entry takes which is not acknowledged."""
    tracemalloc.start()
    filled = fill()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del filled
    return size / len(ENTRIES)


def filled_apart() -> RewindTracker:
    """The account of today, with all entries."""
    tracker = RewindTracker("measured", [])
    came_apart(tracker, ENTRIES)
    return tracker


def filled_together() -> Owners:
    """The table of owners, with a row for every entry."""
    owners = Owners()
    came_together(owners, ENTRIES)
    return owners


if __name__ == "__main__":
    turns = [(cpu_us(apart), cpu_us(together)) for _ in range(ROUNDS)]
    print("| | microseconds per message | bytes per entry |\n|---|---|---|")
    for name, column, fill in (("apart", 0, filled_apart), ("one table", 1, filled_together)):
        print(f"| {name} | {statistics.median(turn[column] for turn in turns):.2f} | {bytes_per_entry(fill):.0f} |")
