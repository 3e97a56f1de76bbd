"""Snapshots in the journal: runs of one part each, and a record of the log that says which of them are the snapshot.

A part is a run of kind SNAPSHOT with a serial of its own; serials grow over the life of a log. The log's record names
the first serial and the number of parts of the newest finished snapshot, so an unfinished one is nothing but runs that
nobody names: after a crash they are not found, and their room is used again.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

from pulsar_txn.ledger.handles import SnapshotParts
from pulsar_txn.ledger.journal.frame import SNAPSHOT, Run, crc_seed, entry_crc
from pulsar_txn.ledger.journal.index import Usage
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge, Snapshot
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.ledger.journal.log import JournalLog

_COVERS: Final = struct.Struct("<q")
_COVERS_INSIDE: Final = -(1 << 63)
SNAPSHOT_VALUE: Final = struct.Struct("<QIq")


class StoredSnapshot:
    """A snapshot of a log: its parts' serials, and where each of them lies (-1: not durable, or not found).

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
        """Whether the part of this serial belongs to it."""
        return self.first <= serial < self.first + self.count

    def place(self, serial: int) -> int:
        """Where the part lies, -1 when that is not known."""
        return self.places[serial - self.first]

    def put(self, usage: Usage, ledger_id: int, serial: int, place: int, size: int) -> None:
        """The part lies at `place` from now on."""
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
        """What the log's record says of it."""
        return SNAPSHOT_VALUE.pack(self.first, self.count, _COVERS_INSIDE if self.covers is None else self.covers)

    @classmethod
    def decode(cls, data: bytes) -> StoredSnapshot | None:
        """The inverse of `value`, its parts not found yet; None: there was no snapshot."""
        first, count, covers = SNAPSHOT_VALUE.unpack(data)
        return cls(first, count, None if covers == _COVERS_INSIDE else covers, durable=True) if first else None


NO_SNAPSHOT: Final = SNAPSHOT_VALUE.pack(0, 0, 0)


def stored_snapshot(ledger_id: int, stored: StoredSnapshot, parts: list[bytes]) -> Snapshot:
    """What is given out of a stored snapshot and its parts."""
    if stored.covers is None:
        covers = int(_COVERS.unpack_from(parts[0])[0])
        return Snapshot((ledger_id, covers), (parts[0][_COVERS.size :],))
    return Snapshot((ledger_id, stored.covers), tuple(parts))


class JournalSnapshot(SnapshotParts):
    """A snapshot that is being written into the journal."""

    def __init__(self, log: JournalLog, covers: Position) -> None:
        super().__init__(log, covers)
        self._log = log
        self._stored = StoredSnapshot(log.state.next_serial, 0, max(-1, log.entry_of(covers)))
        log.state.snapshots.append(self._stored)

    def keep(self, part: bytes) -> None:
        """One more run in the open group; nothing has moved when this raises."""
        log, state = self._log, self._log.state
        store = log.store
        if len(part) > store.max_entry_bytes:
            raise EntryTooLarge(
                f"snapshot part of {len(part)} bytes; the limit is {store.max_entry_bytes}: write smaller parts"
            )
        if store.segment_files.scarce and not store.has_reserve(len(part)):
            raise DiskFull(f"no room for a snapshot in {store.folder}; it can be written again when there is")
        group = store.join(len(part))
        run = Run(state, state.ledger_id, state.next_serial, SNAPSHOT)
        run.data, run.lengths, run.bytes, run.count = [part], [len(part)], len(part), 1
        run.crcs = [entry_crc(crc_seed(state.ledger_id, SNAPSHOT), state.next_serial, part)]
        state.next_serial += 1
        self._stored.count += 1
        self._stored.places.append(-1)
        self._stored.sizes.append(0)
        group.runs.append(run)
        log.join()

    def kept(self) -> None:
        """The log's record names it; once that is durable, the one before is not needed."""
        self._stored.finished = True
        group = self._log.change()
        group.confirmed.append(partial(self._log.store.reclaimer.finished, self._log.state, self._stored))

    def dropped(self) -> None:
        """Its parts may go."""
        self._log.store.reclaimer.abandoned(self._log.state, self._stored)
