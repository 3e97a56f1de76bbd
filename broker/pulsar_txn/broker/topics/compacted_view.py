"""The compacted copy of a topic, and a topic's log as a reader of the copy sees it."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import Final, Protocol

from pulsar_txn.broker.base.slices import LoopBudget
from pulsar_txn.ledger.protocols import LedgerError, Log
from pulsar_txn.wire.ids import Position

_PLACE: Final = struct.Struct(">qq")


def pack_entry(position: Position, entry: bytes) -> list[bytes]:
    """The bytes of one entry of the copy: where it stood in the topic, and the entry."""
    return [_PLACE.pack(*position), entry]


class CompactedView:
    """One complete copy: entries in the order of the topic, found by their positions there; 32 bytes of memory each."""

    def __init__(self, log: Log, horizon: Position, *, loaded: bool = False) -> None:
        self.horizon = horizon
        self.name = log.name
        self._log = log
        self._loaded = loaded
        self._places = array("q")  # ledger and entry in the topic, ledger and entry in the copy

    def __len__(self) -> int:
        return len(self._places) // 4

    def note(self, position: Position, stored_at: Position) -> None:
        """An entry was copied."""
        self._places.extend((*position, *stored_at))

    async def load(self, budget: LoopBudget) -> None:
        """Learn what is in the copy. Raises LedgerError. If cancelled: it is not loaded."""
        if self._loaded:
            return
        places = array("q")
        start = self._log.first
        while start is not None:
            await budget.pause()
            entries = await self._log.read(start, max_entries=256)
            for stored_at, data in entries:
                places.extend((*_PLACE.unpack_from(data), *stored_at))
            start = self._log.next_position(entries[-1][0]) if entries else None
        self._places, self._loaded = places, True

    @property
    def last(self) -> Position | None:
        """The last position that is in the copy."""
        return self._position(len(self) - 1) if len(self) else None

    def at_or_after(self, position: Position) -> Position | None:
        """The first position from this one on that is in the copy."""
        found = self._index(position)
        return self._position(found) if found < len(self) else None

    async def read(self, start: Position, max_entries: int, max_bytes: int) -> list[tuple[Position, bytes]]:
        """Entries from `start` on. An empty list means the end. Raises LedgerError."""
        found = self._index(start)
        if found == len(self):
            return []
        ledger_id, entry_id = self._places[4 * found + 2 : 4 * found + 4]
        stored = await self._log.read((ledger_id, entry_id), max_entries=max_entries, max_bytes=max_bytes)
        return [(_PLACE.unpack_from(data), data[_PLACE.size :]) for _, data in stored]

    async def close(self) -> None:
        """Release the log."""
        await self._log.close()

    def _index(self, position: Position) -> int:
        return bisect_left(range(len(self)), position, key=self._position)

    def _position(self, index: int) -> Position:
        ledger_id, entry_id = self._places[4 * index : 4 * index + 2]
        return ledger_id, entry_id


class Copies(Protocol):
    """The entries with the newest copies."""

    view: CompactedView | None


class CompactedSource:
    """Source that a dispatcher reads: up to the horizon the copy, after it the topic's log. Without a copy: the log."""

    def __init__(self, log: Log, copies: Copies) -> None:
        self._log = log
        self._copies = copies

    def next_position(self, position: Position) -> Position:
        """The position to be read after this one."""
        view = self._copies.view
        if view is None or position >= view.horizon:
            return self._log.next_position(position)
        found = view.at_or_after((position[0], position[1] + 1))
        return self._log.next_position(view.horizon) if found is None else found

    def read_cached(self, position: Position) -> bytes | None:
        """An entry that is at hand; those of the copy never are."""
        view = self._copies.view
        return None if view is not None and position <= view.horizon else self._log.read_cached(position)

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Entries from `start` on, as `Log.read`. Raises LedgerError."""
        while True:
            view = self._copies.view
            if view is None or start > view.horizon:
                return await self._log.read(start, max_entries=max_entries, max_bytes=max_bytes)
            try:
                found = await view.read(start, max_entries, max_bytes)
            except LedgerError:
                if view is self._copies.view:
                    raise
                continue  # a newer copy took its place meanwhile
            if found:
                return found
            start = self._log.next_position(view.horizon)
