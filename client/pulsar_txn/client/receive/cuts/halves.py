"""Samples of a partition whose transactions wait beside the topic until they are committed (`docs/adr/0042`, `0048`).

There the physical end of the topic says nothing of a transaction whose commit has not arrived. What it says is where the
last half is: once no half up to there waits any more, all of them are in the topic, and an end that is asked for after that is
after them.
"""

from __future__ import annotations

from pulsar_txn.client.receive.cuts.lane import Samples
from pulsar_txn.client.receive.entry_reader import Halves
from pulsar_txn.wire.ids import LATEST, Position


class SampledEnds:
    """Says which sample an end of the topic counts for."""

    def __init__(self) -> None:
        self._halves = Samples()
        self._settled = 0

    def begin(self) -> None:
        """A question for the end leaves. What is settled by now is in the topic."""
        self._settled = self._halves.reached

    def answered(self, number: int, halves: Halves | None) -> int:
        """The sample that the answer counts for: its own, unless transactions wait beside the topic."""
        if halves is None:
            return number
        self._halves.add(number, halves.last)
        self._halves.reach(LATEST if halves.first is None else _before(halves.first))
        return self._settled


def _before(position: Position) -> Position:
    return (position[0], position[1] - 1)
