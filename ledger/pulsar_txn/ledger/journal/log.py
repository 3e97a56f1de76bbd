"""A log of the journal: appends join the open group, reads come from the tail in memory or from a segment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import attrs
from crc32c import crc32c

from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.handles import BaseCursor, BaseLog, OpenLogs, SnapshotParts
from pulsar_txn.ledger.journal.frame import CURSOR_GONE, DATA, SNAPSHOT, Run, crc_seed, encode_record, entry_crc
from pulsar_txn.ledger.journal.reclaim import Reclaimer
from pulsar_txn.ledger.journal.segments import RunReader, SegmentFiles
from pulsar_txn.ledger.journal.state import JournalState, LogState, stored_snapshot
from pulsar_txn.ledger.journal.writer import Finished, JournalGroup, JournalWriter, Trimmed
from pulsar_txn.ledger.limits import check_name
from pulsar_txn.ledger.protocols import Buffer, DiskFull, EntryTooLarge, LogDamaged, ReadFailed, Snapshot
from pulsar_txn.wire.ids import Position

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


@attrs.frozen
class Parts:
    """The parts of a journal, as far as its logs need them."""

    state: JournalState
    writer: JournalWriter
    reader: RunReader
    reclaimer: Reclaimer
    segment_files: SegmentFiles
    open_logs: OpenLogs[JournalLog]
    max_entry_bytes: int

    def has_reserve(self, size: int) -> bool:
        """True if a record that must go on may still use what is left of the reserve."""
        files, writer = self.segment_files, self.writer
        room = writer.room + files.ready_count * files.segment_bytes
        return room - 2 * (writer.pressure.bytes + size) > files.segment_bytes // 4


class JournalLog(BaseLog):
    """The exclusive handle of one log."""

    def __init__(self, parts: Parts, state: LogState) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._segment_files = parts.segment_files
        super().__init__(parts.writer, state.name, state.ledger_id, state.epoch, state.first_entry, state.next_entry)
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
        writer = self._writer
        group = writer.open_group
        if size + group.bytes > writer.group_bytes or self._segment_files.scarce:
            group = self._make_room(size, reserve=reserve)
        entry = self.next_entry
        start = (self._seed ^ entry ^ (entry >> 32)) & 0xFFFFFFFF
        if pieces is not None:  # before anything moves: one of them may be no buffer
            for piece in pieces:
                start = crc32c(piece, start)
        self.next_entry = entry + 1
        run = self._run
        if run is None or self._run_group is not group:
            self._run = run = group.begin_run(self, self.ledger_id, entry)
            self._run_group = group
            if not writer.turn.asked:
                writer.turn.ask()
        if pieces is None:
            run.data.append(data)
            run.crcs.append(crc32c(data, start))
            self.tail[entry] = data
        else:
            run.data.extend(pieces)
            run.crcs.append(start)
        run.lengths.append(size)  # not by a method of the run: appends are many, and a call is a twentieth of one
        run.bytes += size
        run.count += 1
        group.bytes += size
        pressure = writer.pressure
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
        reader, state = self._parts.reader, self.state
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
        self.first_entry = entry
        self.state.trim(entry)
        group.change(Trimmed(self.state, entry))

    def begin_snapshot(self, covers: Position) -> JournalSnapshot:
        """Parts join the open groups as they come."""
        return JournalSnapshot(self, self._parts, covers)

    async def latest_snapshot(self) -> Snapshot | None:
        """The newest durable snapshot, read part by part. Raises LogDamaged, ReadFailed. If cancelled: nothing changed."""
        self.check_open()
        while (stored := self.state.durable_snapshot()) is not None:
            parts: list[bytes] = []
            for serial in range(stored.first, stored.first + stored.count):
                parts.append(self._parts.reader.part(self.state, stored, serial))
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
            state = self._parts.state
            state.check_cursor(name)
            entry = self.first_entry - 1 if initial is None else max(-1, min(self.entry_of(initial), self.next_entry - 1))
            stored = state.create_cursor(self.state, name, CursorState(entry, tally=state.tally))
            self.cursors[name] = BaseCursor(self, name, stored.state, stored.cursor_id)
            record = stored.base(END)[0]
            self._writer.join(len(record)).add_record(record)
            self.change()
        cursor = self.cursors[name]
        await self.wait_durable()
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor; returns when that is durable."""
        self.check_open()
        cursor = self.cursors.pop(name, None)
        if cursor is not None:
            self._parts.state.remove_cursor(cursor.cursor_id)
            record = encode_record(CURSOR_GONE, cursor.cursor_id)
            self._writer.join(len(record)).add_record(record)
            self.change()
        await self.wait_durable()

    async def close(self) -> None:
        """Wait until everything is durable, then release the handle. Idempotent."""
        if self.closed is None:
            await self.wait_durable()
            self.release()
            self._parts.open_logs.forget(self)

    async def wait_durable(self) -> None:
        """Wait for the last group of the store."""
        await self._writer.wait_durable()

    def readable_bytes(self) -> int:
        """Bytes of confirmed entries; where a part of a segment is trimmed, what the average entry there says."""
        entries = self.confirmed_entry - self.first_entry + 1
        return self._parts.state.usage.log_bytes(self.ledger_id, entries) if entries > 0 else 0

    def bytes_in_flight(self) -> int:
        """Bytes of the entries not confirmed yet, as far as they are in the tail."""
        return sum(len(self.tail.get(entry, b"")) for entry in range(self.confirmed_entry + 1, self.next_entry))

    def _make_room(self, size: int, *, reserve: bool) -> JournalGroup:
        """The slow path of `append`: limits, a full disk, a full group."""
        parts, files = self._parts, self._segment_files
        if size > parts.max_entry_bytes:
            raise EntryTooLarge(f"entry of {size} bytes; the limit is {parts.max_entry_bytes}")
        if files.scarce and not (reserve and parts.has_reserve(size)):
            raise DiskFull(f"no room for the journal in {files.folder}; new data is refused until there is")
        return self._writer.join(0, size)

    def uncache(self, first: int, count: int) -> None:
        """Entries leave the tail, and are read from the disk from now on."""
        pop = self.tail.pop
        for entry in range(first, first + count):
            pop(entry, None)

    def change(self) -> JournalGroup:
        """This log's record, and what else the caller adds, go with the open group."""
        self._writer.touch(self.state)
        self.join()
        return self._writer.open_group


class JournalSnapshot(SnapshotParts):
    """A snapshot that is being written into the journal."""

    def __init__(self, log: JournalLog, parts: Parts, covers: Position) -> None:
        super().__init__(log, covers)
        self._log = log
        self._parts = parts
        self._stored = log.state.begin_snapshot(max(-1, log.entry_of(covers)))

    def keep(self, part: bytes) -> None:
        """One more run in the open group; nothing has moved when this raises."""
        parts, state, size = self._parts, self._log.state, len(part)
        if size > parts.max_entry_bytes:
            raise EntryTooLarge(f"snapshot part of {size} bytes; the limit is {parts.max_entry_bytes}: write smaller parts")
        if parts.segment_files.scarce and not parts.has_reserve(size):
            folder = parts.segment_files.folder
            raise DiskFull(f"no room for a snapshot in {folder}; it can be written again when there is")
        group = parts.writer.join(size)
        serial = state.add_part(self._stored)
        run = Run(state, state.ledger_id, serial, SNAPSHOT)
        run.add_all([part], [size], [entry_crc(crc_seed(state.ledger_id, SNAPSHOT), serial, part)])
        group.add_run(run)
        self._log.join()

    def kept(self) -> None:
        """The log's record names it; once that is durable, the one before is not needed."""
        self._stored.finish()
        self._log.change().change(Finished(self._log.state, self._stored))

    def dropped(self) -> None:
        """Its parts may go."""
        self._parts.reclaimer.abandon(self._log.state, self._stored)
