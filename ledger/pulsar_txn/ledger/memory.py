"""Logs in memory, with a crash model: `crash()` keeps what was confirmed and nothing else.

What handles show lives in the handles; what is *durable* lives in `_Durable`, reached only by confirmation. So a
crash is: take the durable part, and forget everything else. For unit tests and simulation; nothing touches a disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

from pulsar_txn.ledger.confirming import confirm, fail
from pulsar_txn.ledger.cursor_changes import apply_changes, decode_base, encode_base
from pulsar_txn.ledger.cursor_state import END, CursorState
from pulsar_txn.ledger.groups import CommitGroup
from pulsar_txn.ledger.handles import BaseCursor, BaseLog, SnapshotParts
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

    def append(self, first: int, entries: list[bytes]) -> None:
        self.entries.update(zip(range(first, first + len(entries)), entries, strict=True))
        self.next_entry = first + len(entries)

    def trim(self, before: int) -> None:
        for entry in range(self.first_entry, before):
            self.entries.pop(entry, None)
        self.first_entry = max(self.first_entry, before)

    def put_snapshot(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


class _Durable:
    """Content of the store as a crash leaves it."""

    def __init__(self) -> None:
        self.logs: dict[str, _DurableLog] = {}
        self.values: dict[str, Versioned] = {}
        self.counters: dict[str, int] = {}
        self.next_ledger_id = 0

    def write(self, path: str, value: Versioned | None) -> None:
        if value is None:
            self.values.pop(path, None)
        else:
            self.values[path] = value


class _MemoryGroup(CommitGroup):
    """A group whose effects on the durable part are calls, made in order when it is confirmed."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def __bool__(self) -> bool:
        return bool(self.calls) or super().__bool__()

    def call(self, function: Callable[..., Any], *arguments: object) -> None:
        """Call `function` with the durable part when the group is confirmed."""
        self.calls.append((function, arguments))

    def carry_out(self) -> None:
        """Bring everything to the durable part."""
        for function, arguments in self.calls:
            function(*arguments)
        for cursor, _, data in self.tickets:
            state = cursor.log.durable.cursors.get(cursor.name)  # type: ignore[attr-defined] # cursors here are of MemoryLogs
            if state is not None:
                apply_changes(state, data)


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
        self.max_entry_bytes = max_entry_bytes
        self.disk_full = False
        """Set by tests: appends without `reserve` raise DiskFull."""
        self.max_value_bytes = MAX_VALUE_BYTES
        self.pressure = Pressure(high_water_bytes)
        self.tally = Tally()
        self.open_group: _MemoryGroup = _MemoryGroup()
        self.metadata: MetadataStore = _MemoryMetadata(self, MetadataTree())
        self._durable = _Durable()
        self._logs: dict[str, MemoryLog] = {}
        self._failure: LedgerError | None = None
        self._awake = False

    async def start(self) -> None:
        """Nothing to open."""
        self._check()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self, name: str, *, create: bool = True) -> MemoryLog:
        """Open a log exclusively. Raises LogNotFound, LogExists, LogClosed, NameRefused."""
        self._check()
        if name in self._logs:
            raise LogExists(f"log {name!r} is open already in this store; close that handle first")
        durable = self._durable.logs.get(name)
        if durable is None:
            if not create:
                raise LogNotFound(f"there is no log {name!r}")
            check_name("log", name)
            durable = self._durable.logs[name] = _DurableLog(self._durable.next_ledger_id)
            self._durable.next_ledger_id += 1
        durable.epoch += 1
        self._logs[name] = log = MemoryLog(self, name, durable)
        try:
            await self.settle()
        except BaseException:  # nobody has the handle, so nobody could close it
            log.release()
            self._logs.pop(name, None)
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
        self._check()
        log = self._logs.pop(name, None)
        if log is not None:
            log.release()
        await self.settle()
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
        if self._failure is None:
            self.confirm()
            for log in list(self._logs.values()):
                log.release()
            self._logs.clear()
            self._failure = LogClosed("the store was closed")

    def confirm(self) -> None:
        """Make everything called so far durable, now."""
        self._awake = False
        group = self.open_group
        if not group or self._failure is not None:
            return
        group.seal()
        self.open_group = _MemoryGroup()
        group.carry_out()
        confirm(group)
        self.pressure.leave(group.bytes)

    def crash(self) -> MemoryStore:
        """A new store with what was confirmed; this one and its handles are unusable from now on."""
        successor = MemoryStore(
            auto_confirm=self.auto_confirm, max_entry_bytes=self.max_entry_bytes, high_water_bytes=self.pressure.high_bytes
        )
        durable = successor._durable = self._durable
        successor.metadata = _MemoryMetadata(successor, MetadataTree(durable.values, durable.counters))
        self._durable = _Durable()
        self._stop(LogClosed("the store crashed"), tell=False)
        return successor

    def fail(self, error: LedgerError | None = None) -> None:
        """Behave as if a write had failed: nothing in flight is confirmed, listeners hear of it, the store is dead."""
        self._stop(error or StorageFailed("the memory store was told to fail"), tell=True)

    def wake(self) -> None:
        """Confirm in the next loop turn, when that is wanted."""
        if self.auto_confirm and not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self.confirm)

    async def settle(self) -> None:
        """Wait until everything so far is durable; without `auto_confirm`, make it so."""
        waiter = self.open_group.waiter()
        if self.auto_confirm:
            self.wake()
        else:
            self.confirm()
        await waiter

    async def wait_confirmed(self) -> None:
        """Wait until everything so far is confirmed."""
        if self.open_group:
            waiter = self.open_group.waiter()
            self.wake()
            await waiter

    def count(self, size: int) -> None:
        """Count `size` bytes that joined the open group and are no entries."""
        self.open_group.grew(size)
        self.pressure.enter(size)

    def forget(self, log: MemoryLog) -> None:
        """The handle was closed."""
        if self._logs.get(log.name) is log:
            del self._logs[log.name]

    def _stop(self, error: LedgerError, *, tell: bool) -> None:
        group, self.open_group = self.open_group, _MemoryGroup()
        logs = list(self._logs.values())
        self._logs.clear()
        self._failure = error
        fail(group, error)
        for log in logs:
            if tell:
                log.fail(error)
            else:
                log.end(error)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def write_value(self, path: str, value: Versioned | None) -> None:
        """Write a value, or that it is gone."""
        self._check()
        self.open_group.call(self._durable.write, path, value)
        await self.settle()

    async def write_counter(self, path: str, value: int) -> None:
        """Write the next number of a counter."""
        self._check()
        self.open_group.call(self._durable.counters.__setitem__, path, value)
        await self.settle()


class _MemoryMetadata(TreeStore):
    """Metadata that a crash leaves as far as it was confirmed."""

    def __init__(self, store: MemoryStore, tree: MetadataTree) -> None:
        super().__init__(tree)
        self._store = store

    async def write(self, path: str, value: Versioned | None) -> None:
        await self._store.write_value(path, value)

    async def write_counter(self, path: str, value: int) -> None:
        await self._store.write_counter(path, value)


class MemoryLog(BaseLog):
    """One log in memory; entries are bytes objects shared between the live and the durable part."""

    def __init__(self, store: MemoryStore, name: str, durable: _DurableLog) -> None:
        self.store = store
        super().__init__(store, name, durable.ledger_id, durable.epoch, durable.first_entry, durable.next_entry)
        self.durable = durable
        self._entries = dict(durable.entries)
        for cursor_name, state in durable.cursors.items():
            self.cursors[cursor_name] = BaseCursor(self, cursor_name, decode_base(encode_base(state, END)[0])[0])

    def append(self, data: Buffer | Sequence[Buffer], *, reserve: bool = False) -> Position:
        """Append one entry; its position at once. Raises EntryTooLarge, DiskFull, LogClosed."""
        self.check_open()
        entry_bytes = b"".join(data) if isinstance(data, list | tuple) else bytes(data)  # type: ignore[arg-type] # a Buffer
        if len(entry_bytes) > self.store.max_entry_bytes:
            raise EntryTooLarge(f"entry of {len(entry_bytes)} bytes; the limit is {self.store.max_entry_bytes}")
        if self.store.disk_full and not reserve:
            raise DiskFull("the disk is full; new data is refused until there is room")
        entry, self.next_entry = self.next_entry, self.next_entry + 1
        self._entries[entry] = entry_bytes
        self.change(self.durable.append, entry, [entry_bytes])
        self.store.count(len(entry_bytes))
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
        self.change(self.durable.trim, entry)

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
            self.change(self.durable.cursors.__setitem__, name, CursorState(entry))
            await self.store.settle()
        return self.cursors[name]

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor; returns when that is durable."""
        self.check_open()
        if self.cursors.pop(name, None) is not None:
            self.change(self.durable.cursors.pop, name)
            await self.store.settle()

    async def close(self) -> None:
        """Confirm everything, then release the handle. Idempotent."""
        if self.closed is None:
            await self.store.settle()
            self.release()
            self.store.forget(self)

    async def wait_durable(self) -> None:
        """Wait for the open group."""
        await self.store.wait_confirmed()
        self.check_open()

    def readable_bytes(self) -> int:
        """Bytes of readable entries."""
        return sum(len(self._entries[entry]) for entry in range(self.first_entry, self.confirmed_entry + 1))

    def bytes_in_flight(self) -> int:
        """Bytes appended and not confirmed."""
        return sum(len(self._entries[entry]) for entry in range(self.confirmed_entry + 1, self.next_entry))

    def change(self, function: Callable[..., Any], *arguments: object) -> None:
        """Call `function` with the durable part once the open group is confirmed."""
        self.join()
        self.store.open_group.call(function, *arguments)


class MemorySnapshot(SnapshotParts):
    """The parts of a snapshot; they become durable as one with its end."""

    def __init__(self, log: MemoryLog, covers: Position) -> None:
        super().__init__(log, covers)
        self._log = log
        self._parts: list[bytes] = []

    def keep(self, part: bytes) -> None:
        """Remember it."""
        store = self._log.store
        if len(part) > store.max_entry_bytes:
            raise EntryTooLarge(f"snapshot part of {len(part)} bytes; the limit is {store.max_entry_bytes}")
        self._parts.append(part)
        self._log.join()

    def kept(self) -> None:
        """Durable with the open group."""
        self._log.change(self._log.durable.put_snapshot, Snapshot(self.covers, tuple(self._parts)))

    def dropped(self) -> None:
        """Forget the parts."""
        self._parts.clear()
