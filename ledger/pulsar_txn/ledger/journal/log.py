"""A log of the journal: appends join the open group, reads come from the tail in memory or from a segment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.handles import BaseCursor, BaseLog, SnapshotParts
from pulsar_txn.ledger.journal.frame import CURSOR_GONE, DATA, SNAPSHOT, Run, crc_seed, encode_record, entry_crc
from pulsar_txn.ledger.journal.state import LogState, StoredSnapshot, stored_snapshot
from pulsar_txn.ledger.limits import check_name
from pulsar_txn.ledger.protocols import Buffer, DiskFull, EntryTooLarge, LogDamaged, ReadFailed, Snapshot
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.ledger.journal.store import JournalStore
    from pulsar_txn.ledger.journal.writer import JournalGroup

CACHED_ENTRY_BYTES: Final = 64 << 10
"""Entries of several buffers are joined for the tail cache up to this size; larger ones are read back."""


_FETCH_LOOKS: Final = 100
_FETCH_PAUSE_SECONDS: Final = 0.001


def _joined(data: Buffer | Sequence[Buffer]) -> tuple[bytes, list[memoryview] | None]:
    """An entry as bytes that are kept in memory; one that is too large for that stays in its pieces."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data), None
    if sum(map(len, data)) <= CACHED_ENTRY_BYTES:
        return b"".join(data), None
    return b"", [memoryview(piece).cast("B") for piece in data]


class JournalLog(BaseLog):
    """The exclusive handle of one log."""

    def __init__(self, store: JournalStore, state: LogState) -> None:
        self.store = store
        super().__init__(store, state.name, state.ledger_id, state.epoch, state.first_entry, state.next_entry)
        self.state = state
        self.tail: dict[int, bytes] = {}
        self._seed = crc_seed(state.ledger_id, DATA)
        self._run: Run | None = None
        self._run_group: CommitGroup | None = None
        for cursor in state.cursors.values():
            self.cursors[cursor.name] = BaseCursor(self, cursor.name, cursor.state, cursor.cursor_id)

    def append(self, data: Buffer | Sequence[Buffer], *, reserve: bool = False) -> Position:
        """Append one entry; its position at once. Raises EntryTooLarge, DiskFull, LogClosed, StorageFailed."""
        pieces: list[memoryview] | None = None
        if type(data) is bytes:
            size = len(data)
        else:
            data, pieces = _joined(data)
            size = sum(map(len, pieces)) if pieces else len(data)
        if self.closed is not None:
            raise self.closed
        store = self.store
        group = store.writer.open_group
        if size + group.bytes > store.group_bytes or store.segment_files.scarce:
            group = self._make_room(size, reserve=reserve)
        entry = self.next_entry
        start = (self._seed ^ entry ^ (entry >> 32)) & 0xFFFFFFFF
        if pieces is not None:  # before anything moves: one of them may be no buffer
            for piece in pieces:
                start = crc32c(piece, start)
        self.next_entry = entry + 1
        run = self._run
        if run is None or self._run_group is not group:
            self._run = run = Run(self, self.ledger_id, entry)
            self._run_group = group
            group.runs.append(run)
            group.logs[self] = None
            if not store.writer.awake:
                store.writer.wake()
        if pieces is None:
            run.data.append(data)
            run.crcs.append(crc32c(data, start))
            self.tail[entry] = data
        else:
            run.data.extend(pieces)
            run.crcs.append(start)
        run.lengths.append(size)
        run.bytes += size
        run.count += 1
        group.bytes += size
        pressure = store.pressure
        pressure.bytes += size
        if pressure.bytes > pressure.high_bytes and not pressure.high:
            pressure.enter(0)
        return (self.ledger_id, entry)

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Confirmed entries from `start` on. Raises LogDamaged, ReadFailed, LogClosed. If cancelled: nothing changed."""
        self.check_open()
        entry = max(self.entry_of(start), self.first_entry)
        upto, ledger_id, tail = self.confirmed_entry, self.ledger_id, self.tail
        found: list[tuple[Position, bytes]] = []
        while entry <= upto and len(found) < max(1, max_entries):
            data = tail.get(entry)
            if data is None:
                left = max(1, max_entries) - len(found)
                if found and max_bytes <= 0:
                    break
                try:
                    pieces = await self._stored(entry, upto, left, max_bytes)
                except (LogDamaged, ReadFailed):
                    if found:
                        return found  # the good ones first; the next read says what is wrong
                    raise
                if not pieces:  # trimmed while it was being fetched
                    if found:
                        return found
                    entry = max(entry, self.first_entry)
            else:
                pieces = [data]
            for piece in pieces:
                max_bytes -= len(piece)
                if found and max_bytes < 0:
                    return found
                found.append(((ledger_id, entry), piece))
                entry += 1
        return found

    async def _stored(self, entry: int, upto: int, max_entries: int, max_bytes: int) -> list[bytes]:
        """Entries from the disk; none when they were trimmed meanwhile.

        What is not in memory is fetched while the loop does other things. Where that takes long the loop waits after all.
        """
        reader, state = self.store.reader, self.state
        pieces = reader.cached_entries(state, entry, upto, max_entries, max_bytes)
        for _ in range(_FETCH_LOOKS):
            if pieces is not None:
                return pieces
            await asyncio.sleep(_FETCH_PAUSE_SECONDS)
            self.check_open()
            if entry < self.first_entry:
                return []
            pieces = reader.cached_entries(state, entry, upto, max_entries, max_bytes)
        return reader.entries(state, entry, upto, max_entries, max_bytes) if pieces is None else pieces

    def read_cached(self, position: Position) -> bytes | None:
        """The entry if it is in the tail, else None."""
        entry = position[1]
        if position[0] != self.ledger_id or not self.first_entry <= entry <= self.confirmed_entry:
            return None
        return self.tail.get(entry)

    def trim(self, before: Position) -> None:
        """Forget entries before `before`, at most those appended so far; their segments are recycled later."""
        self.check_open()
        entry = min(self.entry_of(before), self.next_entry)
        if entry <= self.first_entry:
            return
        group = self.change()
        self.first_entry = self.state.first_entry = entry
        group.confirmed.append(partial(self.store.reclaimer.trimmed, self.state, entry))

    def begin_snapshot(self, covers: Position) -> JournalSnapshot:
        """Parts join the open groups as they come."""
        return JournalSnapshot(self, covers)

    async def latest_snapshot(self) -> Snapshot | None:
        """The newest durable snapshot, read part by part. Raises LogDamaged, ReadFailed. If cancelled: nothing changed."""
        self.check_open()
        while (stored := self.state.durable_snapshot()) is not None:
            parts: list[bytes] = []
            for serial in range(stored.first, stored.first + stored.count):
                parts.append(self.store.reader.part(self.state, stored, serial))
                await asyncio.sleep(0)
                self.check_open()
                if self.state.durable_snapshot() is not stored:  # replaced meanwhile, and perhaps overwritten
                    break
            else:
                return stored_snapshot(self.ledger_id, stored, parts)
        return None

    async def open_cursor(self, name: str, *, initial: Position | None = None) -> BaseCursor:
        """A durable cursor of this log; an existing one is returned as it is. If cancelled: it may exist."""
        self.check_open()
        if name not in self.cursors:
            check_name("cursor", name)
            self.store.state.check_cursor(name)
            entry = self.first_entry - 1 if initial is None else max(-1, min(self.entry_of(initial), self.next_entry - 1))
            stored = self.store.state.create_cursor(self.state, name, CursorState(entry, tally=self.store.state.tally))
            self.cursors[name] = BaseCursor(self, name, stored.state, stored.cursor_id)
            record = stored.base(END)[0]
            self.store.join(len(record)).records.append(record)
            self.change()
        cursor = self.cursors[name]
        await self.wait_durable()
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor; returns when that is durable."""
        self.check_open()
        cursor = self.cursors.pop(name, None)
        if cursor is not None:
            self.store.state.remove_cursor(cursor.cursor_id)
            record = encode_record(CURSOR_GONE, cursor.cursor_id)
            self.store.join(len(record)).records.append(record)
            self.change()
        await self.wait_durable()

    async def close(self) -> None:
        """Wait until everything is durable, then release the handle. Idempotent."""
        if self.closed is None:
            await self.wait_durable()
            self.release()
            self.store.forget(self)

    async def wait_durable(self) -> None:
        """Wait for the last group of the store."""
        group = self.store.writer.last_group()
        if group is not None:
            await group.waiter()

    def readable_bytes(self) -> int:
        """Bytes of confirmed entries; where a part of a segment is trimmed, what the average entry there says."""
        entries = self.confirmed_entry - self.first_entry + 1
        return self.store.state.usage.log_bytes(self.ledger_id, entries) if entries > 0 else 0

    def bytes_in_flight(self) -> int:
        """Bytes of the entries not confirmed yet, as far as they are in the tail."""
        return sum(len(self.tail.get(entry, b"")) for entry in range(self.confirmed_entry + 1, self.next_entry))

    def _make_room(self, size: int, *, reserve: bool) -> JournalGroup:
        """The slow path of `append`: limits, a full disk, a full group."""
        store = self.store
        if size > store.max_entry_bytes:
            raise EntryTooLarge(f"entry of {size} bytes; the limit is {store.max_entry_bytes}")
        if store.segment_files.scarce and not (reserve and store.has_reserve(size)):
            raise DiskFull(f"no room for the journal in {store.folder}; new data is refused until there is")
        return store.join(0, size)

    def change(self) -> JournalGroup:
        """This log's record, and what else the caller adds, go with the open group."""
        self.store.touch(self.state)
        self.join()
        return self.store.writer.open_group


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
