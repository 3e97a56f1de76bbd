"""Samples of a partition whose transactions wait beside the topic until they are committed (`docs/adr/0042`, `0048`).

There the physical end of the topic says nothing of a transaction whose commit has not arrived. What it says is where the
last half is: once no half up to there waits any more, all of them are in the topic, and an end that is asked for after that is
after them.
"""

from __future__ import annotations

from pulsar_txn.client.receive.consistent.lookahead import Samples
from pulsar_txn.client.receive.entry_reader import HalfMessageEnds
from pulsar_txn.wire.ids import LATEST, Position


class SampledEnds:
    """Samples for which the ends of such a topic count."""

    def __init__(self) -> None:
        self._half_samples = Samples()
        self._complete_sample = 0

    def begin(self) -> None:
        """A question for the end leaves. Half messages that are decided by now are in the topic."""
        self._complete_sample = self._half_samples.reached

    def answered(self, number: int, half_messages: HalfMessageEnds | None) -> int:
        """The sample that the answer counts for: its own, unless transactions wait beside the topic."""
        if half_messages is None:
            return number
        self._half_samples.add(number, half_messages.last)
        self._half_samples.reach(LATEST if half_messages.first is None else _before(half_messages.first))
        return self._complete_sample


def _before(position: Position) -> Position:
    return (position[0], position[1] - 1)
