"""Logs in memory, with a crash model: `crash()` keeps what was confirmed and nothing else.

What handles show lives in the handles; what is *durable* lives in `_Durable`, reached only by confirmation. So a
crash is: take the durable part, and forget everything else. For unit tests and simulation; nothing touches a disk.

Handles call nobody above them: what they change is data of the open group, and the store carries that out in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

from pulsar_txn.ledger.confirming import confirm, fail
from pulsar_txn.ledger.cursor_changes import apply_changes, decode_base, encode_base
from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.handles import BaseCursor, BaseLog, OpenLogs, SnapshotParts
from pulsar_txn.ledger.limits import DEFAULT_HIGH_WATER_BYTES, MAX_VALUE_BYTES, Pressure, Tally, check_name
from pulsar_txn.ledger.metadata import MetadataTree, TreeStore
from pulsar_txn.ledger.protocols import (
    Buffer,
    DiskFull,
    EntryTooLarge,
    LedgerError,
    LogClosed,
    LogExists,
    LogNotFound,
    MetadataStore,
    Snapshot,
    StorageFailed,
    Versioned,
)
from pulsar_txn.ledger.turn import Turn
from pulsar_txn.wire.ids import Position

DEFAULT_MAX_ENTRY_BYTES = (5 << 20) + (256 << 10)


class _DurableLog:
    """Log as a crash leaves it."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.epoch = 0
        self.first_entry = 0
        self.next_entry = 0
        self.entries: dict[int, bytes] = {}
        self.snapshot: Snapshot | None = None
        self.cursors: dict[str, CursorState] = {}

    def append(self, entry: int, data: bytes) -> None:
        self.entries[entry] = data
        self.next_entry = entry + 1

    def trim(self, before: int) -> None:
        for entry in range(self.first_entry, before):
            self.entries.pop(entry, None)
        self.first_entry = max(self.first_entry, before)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def put_cursor(self, name: str, state: CursorState | None) -> None:
        if state is None:
            self.cursors.pop(name, None)
        else:
            self.cursors[name] = state


class _Durable:
    """Content of the store as a crash leaves it."""

    def __init__(self) -> None:
        self.logs: dict[str, _DurableLog] = {}
        self.values: dict[str, Versioned] = {}
        self.counters: dict[str, int] = {}
        self.next_ledger_id = 0

    def write(self, values: Mapping[str, Versioned | None], counters: Mapping[str, int]) -> None:
        for path, value in values.items():
            if value is None:
                self.values.pop(path, None)
            else:
                self.values[path] = value
        self.counters.update(counters)


class _MemoryGroup(CommitGroup):
    """A group with what it changes of the durable part once it is confirmed."""

    __slots__ = ("counters", "entries", "snapshots", "states", "trims", "values")

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[tuple[_DurableLog, int, bytes]] = []
        self.trims: dict[_DurableLog, int] = {}
        self.snapshots: dict[_DurableLog, Snapshot] = {}
        self.states: dict[tuple[_DurableLog, str], CursorState | None] = {}
        self.values: dict[str, Versioned | None] = {}
        self.counters: dict[str, int] = {}

    def append(self, log: _DurableLog, entry: int, data: bytes) -> None:
        """One more entry."""
        self.entries.append((log, entry, data))

    def trim(self, log: _DurableLog, before: int) -> None:
        """Entries before this one are gone."""
        self.trims[log] = before

    def put_snapshot(self, log: _DurableLog, snapshot: Snapshot) -> None:
        """The newest snapshot."""
        self.snapshots[log] = snapshot

    def put_cursor(self, log: _DurableLog, name: str, state: CursorState | None) -> None:
        """A new cursor; None: it is deleted."""
        self.states[log, name] = state

    def put_value(self, path: str, value: Versioned | None) -> None:
        """A value of the metadata; None: it is deleted."""
        self.values[path] = value

    def put_counter(self, path: str, value: int) -> None:
        """The number of a counter."""
        self.counters[path] = value

    def carry_out(self, durable: _Durable) -> None:
        """Bring everything to the durable part."""
        for log, entry, data in self.entries:
            log.append(entry, data)
        for log, before in self.trims.items():
            log.trim(before)
        for log, snapshot in self.snapshots.items():
            log.put_snapshot(snapshot)
        for (log, name), state in self.states.items():
            log.put_cursor(name, state)
        durable.write(self.values, self.counters)
        for cursor, _, changes in self.tickets:
            stored = cursor.log.durable.cursors.get(cursor.name)  # type: ignore[attr-defined] # cursors here are of MemoryLogs
            if stored is not None:
                apply_changes(stored, changes)


class _MemoryGroups:
    """The open group of a store, and what bounds it (implements `ledger.groups.Groups`).

    `is_wanted`: somebody waits for it although nothing is confirmed by itself.
    """

    def __init__(self, turn: Turn, max_entry_bytes: int, high_water_bytes: int) -> None:
        self.max_entry_bytes = max_entry_bytes
        self.max_value_bytes = MAX_VALUE_BYTES
        self.disk_full = False
        self.pressure = Pressure(high_water_bytes)
        self.tally = Tally()
        self.open_group: _MemoryGroup = _MemoryGroup()
        self.is_wanted = False
        self.ended: LedgerError | None = None
        self._turn = turn

    def check(self) -> None:
        """Raise what ended the store, if it has ended."""
        if self.ended is not None:
            raise self.ended

    def end(self, error: LedgerError) -> None:
        """Nothing is confirmed any more."""
        self.ended = error

    def wake(self) -> None:
        """Something joined the open group."""
        self._turn.ask()

    def count(self, size: int) -> None:
        """Count `size` bytes that joined the open group and are no entries."""
        self.open_group.grew(size)
        self.pressure.enter(size)

    def refuse_appends(self, *, full: bool) -> None:
        """The disk is full from now on, or has room."""
        self.disk_full = full

    def take(self) -> _MemoryGroup:
        """The open group, sealed; the next one is open."""
        group, self.open_group = self.open_group, _MemoryGroup()
        self.is_wanted = False
        group.seal()
        return group

    async def settle(self) -> None:
        """Wait until everything so far is durable, whether that is confirmed by itself or not."""
        waiter = self.open_group.waiter()
        self.is_wanted = True
        self._turn.ask()
        await waiter

    async def wait_confirmed(self) -> None:
        """Wait until everything so far is confirmed."""
        if self.open_group:
            waiter = self.open_group.waiter()
            self._turn.ask()
            await waiter


class MemoryStore:
    """Protocol `LogStore` in memory.

    With `auto_confirm` (the default) everything called in a loop turn is confirmed in the next one. Without it,
    nothing is confirmed until `confirm()` is called, so `flush()` waits for that; calls that promise durability of
    their own (`open`, `open_cursor`, `delete*`, `close`, metadata writes) confirm themselves and all that came before.
    """

    def __init__(
        self,
        *,
        auto_confirm: bool = True,
        max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
        high_water_bytes: int = DEFAULT_HIGH_WATER_BYTES,
    ) -> None:
        self.auto_confirm = auto_confirm
        self._turn = Turn(self._take_turn)
        self._groups = _MemoryGroups(self._turn, max_entry_bytes, high_water_bytes)
        self.pressure = self._groups.pressure
        self.metadata: MetadataStore = _MemoryMetadata(self._groups, MetadataTree())
        self._durable = _Durable()
        self._open_logs: OpenLogs[MemoryLog] = OpenLogs()

    async def start(self) -> None:
        """Nothing to open."""
        self._groups.check()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self, name: str, *, create: bool = True) -> MemoryLog:
        """Open a log exclusively. Raises LogNotFound, LogExists, LogClosed, NameRefused."""
        self._groups.check()
        if name in self._open_logs.by_name:
            raise LogExists(f"log {name!r} is open already in this store; close that handle first")
        durable = self._durable.logs.get(name)
        if durable is None:
            if not create:
                raise LogNotFound(f"there is no log {name!r}")
            check_name("log", name)
            durable = self._durable.logs[name] = _DurableLog(self._durable.next_ledger_id)
            self._durable.next_ledger_id += 1
        durable.epoch += 1
        log = MemoryLog(self._groups, self._open_logs, name, durable)
        self._open_logs.add(log)
        try:
            await self._groups.settle()
        except BaseException:  # nobody has the handle, so nobody could close it
            log.release()
            self._open_logs.forget(log)
            raise
        return log

    def exists(self, name: str) -> bool:
        """True if there is a log of this name."""
        return name in self._durable.logs

    @property
    def log_count(self) -> int:
        """Return how many logs there are."""
        return len(self._durable.logs)

    def names(self, prefix: str = "") -> list[str]:
        """Names of logs, sorted."""
        return sorted(name for name in self._durable.logs if name.startswith(prefix))

    async def delete(self, name: str) -> None:
        """Delete a log with its cursors and snapshots; an open handle is closed."""
        self._groups.check()
        log = self._open_logs.by_name.get(name)
        if log is not None:
            log.release()
            self._open_logs.forget(log)
        await self._groups.settle()
        self._durable.logs.pop(name, None)

    def on_pressure(self, callback: Callable[[bool], None]) -> None:
        """Tell `callback` when bytes in flight pass the high-water mark, and when they are below the low one."""
        self.pressure.listen(callback)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended and not confirmed."""
        return self.pressure.bytes

    @property
    def progress(self) -> object | None:
        """See `LogStore.progress`."""
        return self.pressure.released if self.pressure.bytes else None

    async def close(self) -> None:
        """Confirm everything and close all handles. Idempotent."""
        if self._groups.ended is None:
            self.confirm()
            for log in self._open_logs.take_all():
                log.release()
            self._groups.end(LogClosed("the store was closed"))

    def confirm(self) -> None:
        """Make everything called so far durable, now."""
        if self._groups.open_group and self._groups.ended is None:
            group = self._groups.take()
            group.carry_out(self._durable)
            confirm(group)
            self.pressure.leave(group.bytes)

    def _take_turn(self) -> None:
        self._turn.begun()
        if self.auto_confirm or self._groups.is_wanted:
            self.confirm()

    def crash(self) -> MemoryStore:
        """A new store with what was confirmed; this one and its handles are unusable from now on."""
        successor = MemoryStore(
            auto_confirm=self.auto_confirm,
            max_entry_bytes=self._groups.max_entry_bytes,
            high_water_bytes=self.pressure.high_bytes,
        )
        durable = successor._durable = self._durable
        successor.metadata = _MemoryMetadata(successor._groups, MetadataTree(durable.values, durable.counters))
        self._durable = _Durable()
        self._stop(LogClosed("the store crashed"), tell=False)
        return successor

    def fail(self, error: LedgerError | None = None) -> None:
        """Behave as if a write had failed: nothing in flight is confirmed, listeners hear of it, the store is dead."""
        self._stop(error or StorageFailed("the memory store was told to fail"), tell=True)

    @property
    def disk_full(self) -> bool:
        """Set by tests: appends without `reserve` raise DiskFull."""
        return self._groups.disk_full

    @disk_full.setter
    def disk_full(self, full: bool) -> None:
        self._groups.refuse_appends(full=full)

    @property
    def open_group(self) -> CommitGroup:
        """The group that joins now."""
        return self._groups.open_group

    def wake(self) -> None:
        """Confirm in the next loop turn, when that is wanted."""
        self._turn.ask()

    def _stop(self, error: LedgerError, *, tell: bool) -> None:
        self._groups.end(error)
        fail(self._groups.take(), error)
        for log in self._open_logs.take_all():
            if tell:
                log.fail(error)
            else:
                log.end(error)


class _MemoryMetadata(TreeStore):
    """Metadata that a crash leaves as far as it was confirmed."""

    def __init__(self, groups: _MemoryGroups, tree: MetadataTree) -> None:
        super().__init__(tree)
        self._groups = groups

    async def write(self, path: str, value: Versioned | None) -> None:
        self._groups.check()
        self._groups.open_group.put_value(path, value)
        await self._groups.settle()

    async def write_counter(self, path: str, value: int) -> None:
        self._groups.check()
        self._groups.open_group.put_counter(path, value)
        await self._groups.settle()


class MemoryLog(BaseLog):
    """One log in memory; entries are bytes objects shared between the live and the durable part."""

    def __init__(self, groups: _MemoryGroups, open_logs: OpenLogs[MemoryLog], name: str, durable: _DurableLog) -> None:
        self._groups = groups
        self._open_logs = open_logs
        super().__init__(groups, name, durable.ledger_id, durable.epoch, durable.first_entry, durable.next_entry)
        self.durable = durable
        self._entries = dict(durable.entries)
        for cursor_name, state in durable.cursors.items():
            self.cursors[cursor_name] = BaseCursor(self, cursor_name, decode_base(encode_base(state, END)[0])[0])

    def append(self, data: Buffer | Sequence[Buffer], *, reserve: bool = False) -> Position:
        """Append one entry; its position at once. Raises EntryTooLarge, DiskFull, LogClosed."""
        self.check_open()
        entry_bytes = b"".join(data) if isinstance(data, list | tuple) else bytes(data)  # type: ignore[arg-type] # a Buffer
        if len(entry_bytes) > self._groups.max_entry_bytes:
            raise EntryTooLarge(f"entry of {len(entry_bytes)} bytes; the limit is {self._groups.max_entry_bytes}")
        if self._groups.disk_full and not reserve:
            raise DiskFull("the disk is full; new data is refused until there is room")
        entry, self.next_entry = self.next_entry, self.next_entry + 1
        self._entries[entry] = entry_bytes
        self.change().append(self.durable, entry, entry_bytes)
        self._groups.count(len(entry_bytes))
        return (self.ledger_id, entry)

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Confirmed entries from `start` on."""
        self.check_open()
        found: list[tuple[Position, bytes]] = []
        for entry in range(max(self.entry_of(start), self.first_entry), self.confirmed_entry + 1):
            data = self._entries[entry]
            max_bytes -= len(data)
            if found and (len(found) >= max_entries or max_bytes < 0):
                break
            found.append(((self.ledger_id, entry), data))
        return found

    def read_cached(self, position: Position) -> bytes | None:
        """The entry, if it is confirmed."""
        entry = self.entry_of(position)
        return self._entries.get(entry) if entry <= self.confirmed_entry else None

    def trim(self, before: Position) -> None:
        """Forget entries before `before`, at most those appended so far."""
        self.check_open()
        entry = min(self.entry_of(before), self.next_entry)
        if entry <= self.first_entry:
            return
        for old in range(self.first_entry, entry):
            self._entries.pop(old, None)
        self.first_entry = entry
        self.change().trim(self.durable, entry)

    def begin_snapshot(self, covers: Position) -> MemorySnapshot:
        """A snapshot that is kept when it is finished."""
        return MemorySnapshot(self, covers)

    async def latest_snapshot(self) -> Snapshot | None:
        """The newest durable snapshot."""
        self.check_open()
        return self.durable.snapshot

    async def open_cursor(self, name: str, *, initial: Position | None = None) -> BaseCursor:
        """A durable cursor of this log; an existing one is returned as it is. If cancelled: it may exist."""
        self.check_open()
        if name not in self.cursors:
            check_name("cursor", name)
            entry = self.first_entry - 1 if initial is None else max(-1, min(self.entry_of(initial), self.next_entry - 1))
            self.cursors[name] = BaseCursor(self, name, CursorState(entry))
            self.change().put_cursor(self.durable, name, CursorState(entry))
            await self._groups.settle()
        return self.cursors[name]

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor; returns when that is durable."""
        self.check_open()
        if self.cursors.pop(name, None) is not None:
            self.change().put_cursor(self.durable, name, None)
            await self._groups.settle()

    async def close(self) -> None:
        """Confirm everything, then release the handle. Idempotent."""
        if self.closed is None:
            await self._groups.settle()
            self.release()
            self._open_logs.forget(self)

    async def wait_durable(self) -> None:
        """Wait for the open group."""
        await self._groups.wait_confirmed()
        self.check_open()

    def readable_bytes(self) -> int:
        """Bytes of readable entries."""
        return sum(len(self._entries[entry]) for entry in range(self.first_entry, self.confirmed_entry + 1))

    def bytes_in_flight(self) -> int:
        """Bytes appended and not confirmed."""
        return sum(len(self._entries[entry]) for entry in range(self.confirmed_entry + 1, self.next_entry))

    def change(self) -> _MemoryGroup:
        """The open group, which this log has joined."""
        self.join()
        return self._groups.open_group

    def check_part(self, size: int) -> None:
        """EntryTooLarge for a part of a snapshot that no entry could be."""
        if size > self._groups.max_entry_bytes:
            raise EntryTooLarge(f"snapshot part of {size} bytes; the limit is {self._groups.max_entry_bytes}")


class MemorySnapshot(SnapshotParts):
    """The parts of a snapshot; they become durable as one with its end."""

    def __init__(self, log: MemoryLog, covers: Position) -> None:
        super().__init__(log, covers)
        self._log = log
        self._parts: list[bytes] = []

    def keep(self, part: bytes) -> None:
        """Remember it."""
        self._log.check_part(len(part))
        self._parts.append(part)
        self._log.join()

    def kept(self) -> None:
        """Durable with the open group."""
        self._log.change().put_snapshot(self._log.durable, Snapshot(self.covers, tuple(self._parts)))

    def dropped(self) -> None:
        """Forget the parts."""
        self._parts.clear()
