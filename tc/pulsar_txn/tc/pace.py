"""Pace at which a coordinator asks for a snapshot: no state, only the pace of one life."""

from __future__ import annotations

from typing import Final

from pulsar_txn.ledger.machine import Step, WriteSnapshot
from pulsar_txn.tc.records import Record

_OBJECTS_PER_RECORD: Final = 1
"""The log grows by as many records as the state has objects before all of them are written again; so a record costs at most one
object more, and a recovery reads at most about twice the state."""


class SnapshotPace:
    """Counts records since the snapshot that this machine started from.

    A snapshot is asked for in rounds of `every` records. A round is passed over until enough records were applied for the
    objects that there are to write: so each record pays for one object, however large the state is.

    `applied`: records since the start; `left`: records to the end of the round. The caller of `apply` counts both, since
    that happens five times in a transaction.
    """

    __slots__ = ("_at_snapshot", "applied", "every", "left")

    def __init__(self, every: int) -> None:
        self.every = self.left = every
        self.applied = 0
        self._at_snapshot = 0

    def taken(self) -> None:
        """Count from here: a snapshot was taken."""
        self._at_snapshot = self.applied

    @property
    def is_overdue(self) -> bool:
        """True if a whole round was applied since the start."""
        return self.applied >= self.every

    def ends_round(self, step: Step[Record]) -> bool:
        """True if a record of `step` completes a round."""
        return len(step.records) + len(step.trailing) >= self.left

    def pays_for(self, step: Step[Record], objects: int) -> bool:
        """True if enough records were written, those of `step` included, for a snapshot of so many objects."""
        since = self.applied + len(step.records) + len(step.trailing) - self._at_snapshot
        return since * _OBJECTS_PER_RECORD >= objects

    @staticmethod
    def asking(step: Step[Record], log: str) -> Step[Record]:
        """`step` with WriteSnapshot as its last effect."""
        return Step(step.records, (*step.effects, WriteSnapshot(log)), step.trailing)
