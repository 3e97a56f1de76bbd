"""Snapshots in the journal: runs of one part each, and a record of the log that says which of them are the snapshot.

A part is a run of kind SNAPSHOT with a serial of its own; serials grow over the life of a log. The log's record names
the first serial and the number of parts of the newest finished snapshot, so an unfinished one is nothing but runs that
nobody names: after a crash they are not found, and their room is used again.
"""

from __future__ import annotations

import struct
from typing import Final

from pulsar_txn.ledger.journal.index import Usage
from pulsar_txn.ledger.protocols import Snapshot

_COVERS: Final = struct.Struct("<q")
_COVERS_INSIDE: Final = -(1 << 63)
SNAPSHOT_VALUE: Final = struct.Struct("<QIq")


class StoredSnapshot:
    """A snapshot of a log: its parts' serials, and where each of them is (-1: not durable, or not found).

    `covers` None: of format 1, where the one part begins with it. It goes from unfinished over finished (the log's record
    names it) to durable, when the one before is not needed any more.
    """

    __slots__ = ("count", "covers", "durable", "finished", "first", "places", "sizes")

    def __init__(self, first: int, count: int, covers: int | None, *, durable: bool = False) -> None:
        self.first = first
        self.count = count
        self.covers = covers
        self.finished = self.durable = durable
        self.places = [-1] * count
        self.sizes = [0] * count

    def has(self, serial: int) -> bool:
        """True if the part of this serial belongs to it."""
        return self.first <= serial < self.first + self.count

    def place(self, serial: int) -> int:
        """The place of the part, -1 when it is not known."""
        return self.places[serial - self.first]

    def put(self, usage: Usage, ledger_id: int, serial: int, place: int, size: int) -> None:
        """The part is at `place` from now on."""
        at = serial - self.first
        if self.places[at] >= 0:
            usage.remove_part(self.places[at], ledger_id, self.sizes[at])
        self.places[at], self.sizes[at] = place, size
        usage.add_part(place, ledger_id, size)

    def free(self, usage: Usage, ledger_id: int) -> None:
        """None of its parts is needed any more."""
        for place, size in zip(self.places, self.sizes, strict=True):
            if place >= 0:
                usage.remove_part(place, ledger_id, size)
        self.places, self.sizes, self.count = [], [], 0

    def value(self) -> bytes:
        """Return what the log's record says of it."""
        return SNAPSHOT_VALUE.pack(self.first, self.count, _COVERS_INSIDE if self.covers is None else self.covers)

    @classmethod
    def decode(cls, data: bytes) -> StoredSnapshot | None:
        """The inverse of `value`, its parts not found yet; None: there was no snapshot."""
        first, count, covers = SNAPSHOT_VALUE.unpack(data)
        return cls(first, count, None if covers == _COVERS_INSIDE else covers, durable=True) if first else None


NO_SNAPSHOT: Final = SNAPSHOT_VALUE.pack(0, 0, 0)


def stored_snapshot(ledger_id: int, stored: StoredSnapshot, parts: list[bytes]) -> Snapshot:
    """Return what is given out of a stored snapshot and its parts."""
    if stored.covers is None:
        covers = int(_COVERS.unpack_from(parts[0])[0])
        return Snapshot((ledger_id, covers), (parts[0][_COVERS.size :],))
    return Snapshot((ledger_id, stored.covers), tuple(parts))
