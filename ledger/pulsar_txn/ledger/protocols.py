"""Protocols of the ledger room: logs, cursors, snapshots, the metadata store, back-pressure, and copies of a running store.

The order rule that all else rests on: **appends, cursor changes, snapshots and trims of one log become durable in the
order in which they were called.** In the journal that holds across all logs of the store as well; do not rely on it
across logs (BookKeeper does not give it).

Memory may run ahead of the disk: `append` returns the position at once, the confirmation comes later, in order,
through the listener. Code that lets something leave the process waits for the confirmation.
All methods are called from one event loop; providers call listeners on that loop, never from inside `append`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias, runtime_checkable

import attrs

from pulsar_txn.wire.ids import Position

Buffer: TypeAlias = bytes | bytearray | memoryview

SNAPSHOT_PART_BYTES: Final = 256 << 10
"""A good size for a part of a snapshot: written and checked in well below a millisecond."""

#                LedgerError tree
# LedgerError(Exception)
# ├── StorageFailed      a write or sync failed: every log of the store is closed, the process ends with code 74
# ├── LogDamaged         bytes that should be there are not, or are wrong: names log and position; never served
# ├── ReadFailed         bytes could not be read just now, which proves nothing: retriable
# ├── LogClosed          used after close, or after a failure
# ├── LeaseLost          another process may lead the log now: the log is closed, everything is read anew
# ├── LogExists / LogNotFound
# ├── EntryTooLarge      refused before it joins a group
# │   └── StateTooLarge  the store keeps so many logs, cursors and values already: refused before anything has moved
# ├── NameRefused        a name that cannot be kept: refused before anything has moved, never to be repeated
# ├── DiskFull           retriable: new data is refused, trims, acks and ends go on from a reserve
# ├── StoreInUse / StoreTooNew / StoreReadOnly / StoreUnsupported     a sentence each, at open
# └── VersionConflict    compare-and-set of the metadata store found another version


class LedgerError(Exception):
    """Whatever a ledger provider raises."""


class StorageFailed(LedgerError):  # noqa: N818 - named by what happened
    """A write or a sync failed. Nothing more is confirmed; state in memory is to be thrown away and recovered."""


RESTORE_LOG: Final = "restore it from a copy, or delete this log: `pulsar-txn salvage` and the page Backup and salvage say how"
"""The advice for damage of one log."""


def _at(position: Position | None) -> str:
    return "" if position is None else f" at {position}"


class LogDamaged(LedgerError):  # noqa: N818 - named by what happened
    """Stored bytes do not fit their checksum, or entries are missing. Never served, never skipped."""

    def __init__(self, log: str, position: Position | None, detail: str, advice: str = RESTORE_LOG) -> None:
        super().__init__(f"log {log!r} is damaged{_at(position)}: {detail}; {advice}")
        self.log = log
        self.position = position
        self.detail = detail


class ReadFailed(LedgerError):  # noqa: N818 - named by what happened
    """Stored bytes cannot be read at the moment: no descriptor, no memory, an error of the disk. Retriable.

    It proves no damage. The log stays open where it is open, and the next read tries again.
    """

    def __init__(self, log: str, position: Position | None, detail: str) -> None:
        text = f"log {log!r} cannot be read{_at(position)}: {detail}"
        super().__init__(f"{text}; try again, and look at the disk if that goes on")
        self.log = log
        self.position = position
        self.detail = detail


class LogClosed(LedgerError):  # noqa: N818 - named by what happened
    """The log was closed, or failed, before this call."""


class LeaseLost(LedgerError):  # noqa: N818 - named by what happened
    """Another process leads the log now, or may: the log is closed, and nothing of its state is believed.

    `open` waits for the lease again. It is no failure of the store.
    """


class LogExists(LedgerError):  # noqa: N818 - named by what happened
    """A log of this name is open already in this store."""


class LogNotFound(LedgerError):  # noqa: N818 - named by what happened
    """No log of this name, and `create=False`."""


class EntryTooLarge(LedgerError):  # noqa: N818 - named by what happened
    """The entry is above the store's limit; nothing was appended."""


class StateTooLarge(EntryTooLarge):
    """The state of the store is as large as it may be; what takes more of it is refused until something was deleted."""


class NameRefused(LedgerError):  # noqa: N818 - named by what happened
    """The name of a log or cursor, or a metadata path, is too long or no text of UTF-8; nothing was changed."""


class DiskFull(LedgerError):  # noqa: N818 - named by what happened
    """No room for new data. Retriable: service resumes without a restart once there is room."""


class StoreInUse(LedgerError):  # noqa: N818 - named by what happened
    """Another process holds the store."""


class StoreTooNew(LedgerError):  # noqa: N818 - named by what happened
    """The store was written by a newer version."""


class StoreReadOnly(LedgerError):  # noqa: N818 - named by what happened
    """The folder cannot be written."""


class StoreUnsupported(LedgerError):  # noqa: N818 - named by what happened
    """The place cannot hold a store (a network file system, for instance)."""


class VersionConflict(LedgerError):  # noqa: N818 - named by what happened
    """Compare-and-set found another version of the key."""


@attrs.frozen
class Snapshot:
    """A machine's stored state, in the parts it was written in: all effects of entries up to and including `covers`."""

    covers: Position
    parts: tuple[bytes, ...]

    @classmethod
    def of(cls, covers: Position, data: bytes) -> Snapshot:
        """A snapshot of bytes that are all there, cut into parts of `SNAPSHOT_PART_BYTES`."""
        cuts = range(0, max(1, len(data)), SNAPSHOT_PART_BYTES)
        return cls(covers, tuple(data[cut : cut + SNAPSHOT_PART_BYTES] for cut in cuts))

    @property
    def data(self) -> bytes:
        """The parts joined, for states that are small."""
        return b"".join(self.parts)


class SnapshotWriter(Protocol):
    """A snapshot on its way into a log. The one before it stays the newest until this one is finished and durable.

    Parts become durable in the order of the calls. The caller bounds what is in flight: `await log.flush()` after every
    few parts. A process that ends before `finish` is durable leaves nothing.
    """

    def write(self, part: Buffer) -> None:
        """The next part, of any size an entry may have. Raises EntryTooLarge, DiskFull, LogClosed, StorageFailed.

        After an error the snapshot is as it was before the call: the part may be written again, or all abandoned.
        ValueError after `finish` or `abandon`, or when a later `write_snapshot` took its place.
        """

    def finish(self) -> None:
        """All parts were written: once durable it is the newest snapshot. ValueError while `covers` is not confirmed."""

    def abandon(self) -> None:
        """Give it up; the room of its parts is used again. Idempotent, and nothing after `finish`."""


@attrs.frozen
class LogStats:
    """A log at a moment: entries and bytes that can be read, positions, bytes appended but not confirmed."""

    name: str
    entries: int
    bytes: int
    first: Position | None
    last_appended: Position
    last_confirmed: Position
    bytes_in_flight: int


class LogListener(Protocol):
    """Called on the loop by the provider, at most once per log and commit group."""

    def log_confirmed(self, position: Position) -> None:
        """Everything of this log up to `position` is durable, also cursor changes and snapshots called before it."""

    def log_failed(self, error: LedgerError) -> None:
        """The log is closed; nothing that was not confirmed is to be believed."""


class Log(Protocol):
    """An exclusive handle of one append-only log."""

    @property
    def name(self) -> str:
        """The name it was opened by."""

    @property
    def epoch(self) -> int:
        """Grows with every open of this log; an older handle is fenced."""

    @property
    def first(self) -> Position | None:
        """The first readable entry, None when the log is empty."""

    @property
    def last_appended(self) -> Position:
        """The entry appended last, confirmed or not; `(ledger_id, -1)` on a log that never had one."""

    @property
    def last_confirmed(self) -> Position:
        """The last durable entry; readers see nothing after it. `(ledger_id, -1)` if absent."""

    def listen(self, listener: LogListener) -> None:
        """Set the listener (one per log; the last call wins)."""

    def append(self, data: Buffer | Sequence[Buffer], *, reserve: bool = False) -> Position:
        """Append one entry (several buffers are one entry, without a join) and return its position at once.

        `reserve=True` marks records that must go on when the disk is full (transaction ends, markers, acks).
        Buffers must not change until the entry is confirmed. Raises EntryTooLarge, DiskFull, LogClosed.
        """

    async def read(self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
        """Confirmed entries from `start` on (the next existing one if it was trimmed), at least one if there is any.

        Checks each entry's checksum: raises LogDamaged with the position, or ReadFailed. An empty list means the end.
        If cancelled: nothing changed.
        """

    def read_cached(self, position: Position) -> bytes | None:
        """The entry if it is at hand without waiting, else None. For tails: the dispatcher asks here first."""

    def entries_between(self, after: Position, upto: Position) -> int:
        """Return how many readable entries lie in the half-open range (after, upto]."""

    def next_position(self, position: Position) -> Position:
        """The position of the entry after `position` (existing or the one to be appended next)."""

    def trim(self, before: Position) -> None:
        """Entries before `before` are not needed any more. In bounded slices; order as for appends; never blocks."""

    def write_snapshot(self, covers: Position) -> SnapshotWriter:
        """Begin a snapshot of any size, in parts. One is written at a time: an unfinished one before it is abandoned."""

    def put_snapshot(self, snapshot: Snapshot) -> None:
        """A whole snapshot at once, for states of a few parts; the newest one wins. Errors as of `SnapshotWriter`."""

    async def latest_snapshot(self) -> Snapshot | None:
        """The newest finished and durable snapshot, or None. Read part by part, the loop runs on. Raises LogDamaged."""

    async def open_cursor(self, name: str, *, initial: Position | None = None) -> Cursor:
        """A durable cursor of this log, created at `initial` mark-delete (default: before the first entry).

        Raises NameRefused, and EntryTooLarge where no more names fit; nothing was changed then.
        """

    def cursor_names(self) -> list[str]:
        """Names of the durable cursors, sorted."""

    async def delete_cursor(self, name: str) -> None:
        """Delete a durable cursor; returns when that is durable. Unknown names are no error."""

    def stats(self) -> LogStats:
        """The log at this moment."""

    async def flush(self) -> None:
        """Wait until everything called so far on this log is durable. Raises what made the log fail."""

    async def close(self) -> None:
        """Flush, then release the handle. Idempotent."""


@runtime_checkable
class LeasedLog(Protocol):
    """Log of a `SharedLogStore`, with what it has besides: whether another process may have taken it over meanwhile."""

    @property
    def fresh(self) -> bool:
        """True if nobody else can lead the log at this moment. False for a process that was stopped past its lease."""

    def refresh(self) -> Position:
        """Append a record that means nothing; once its position is confirmed, this process led until then.

        A successor makes the log fail with LeaseLost instead. Raises as `Log.append`.
        """


class Cursor(Protocol):
    """Durable acknowledgement state of one subscription: changes are appended, with a base from time to time.

    State in memory changes at once; `ticket` numbers grow by change, and `confirmed_ticket` says what is durable.
    Positions are entries; an ack set has bit i set while batch index i is not acknowledged.
    """

    @property
    def name(self) -> str:
        """The subscription's name."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""

    @property
    def properties(self) -> dict[str, str]:
        """Return what the owner stored with the cursor."""

    @property
    def ticket(self) -> int:
        """Number of the last change."""

    @property
    def confirmed_ticket(self) -> int:
        """Number of the last durable change."""

    def is_deleted(self, position: Position) -> bool:
        """True if the whole entry is acknowledged."""

    def ack_set(self, position: Position) -> int | None:
        """The entry's ack set when a part of its batch is acknowledged, else None."""

    def deleted_ranges(self, limit: int | None = None) -> list[tuple[Position, Position]]:
        """Acknowledged ranges after mark_delete, both ends inclusive, ascending; the first `limit` of them.

        Without a limit as many as the log has holes: not for every call.
        """

    def ack_sets(self) -> dict[Position, int]:
        """All partly acknowledged batch entries."""

    def mark_delete_to(self, position: Position) -> int:
        """Acknowledge everything up to `position`; returns the ticket. Never moves back."""

    def delete(self, positions: Iterable[Position]) -> int:
        """Acknowledge whole entries; contiguous ones raise mark_delete. Returns the ticket."""

    def delete_indexes(self, position: Position, acked: int, batch_size: int) -> int:
        """Acknowledge batch indexes (bit i of `acked` set: index i); the entry is deleted when all are. Returns the ticket.

        Raises EntryTooLarge for a batch of a size that no batch has.
        """

    def reset(self, mark_delete: Position) -> int:
        """Seek: forget everything after `mark_delete` and move there, back or forth. Returns the ticket."""

    def put_properties(self, properties: dict[str, str]) -> int:
        """Replace the properties; returns the ticket. Raises EntryTooLarge, NameRefused (no text of UTF-8)."""

    def backlog(self) -> int:
        """Readable entries not acknowledged; costs nothing however many holes there are."""

    def state_bytes(self) -> int:
        """Return what the acknowledgements after mark_delete take in memory, about; at no cost."""

    def state_full(self) -> bool:
        """True if the store keeps as much state as it may: acknowledgements that take more of it are to be refused.

        The owner asks before it accepts them. What was accepted is never refused here.
        """


@attrs.frozen
class Versioned:
    """A metadata value and its version (0 for the first; grows by one with each write)."""

    data: bytes
    version: int


class MetadataStore(Protocol):
    """Versioned keys with compare-and-set, children, counters, watch; paths are Pulsar's own (`/managed-ledgers/…`).

    The one place for topics, partition counts, subscriptions, schemas, topic and producer epochs.
    """

    async def get(self, path: str) -> Versioned | None:
        """The value, or None."""

    async def put(self, path: str, data: bytes, *, expected_version: int | None = None) -> int:
        """Write; returns the new version once durable. `expected_version` None: any, -1: must not exist.

        Raises VersionConflict, EntryTooLarge, NameRefused.
        """

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        """Delete, once durable. Unknown paths are no error unless a version is expected."""

    async def children(self, path: str) -> list[str]:
        """Names of the direct children, sorted."""

    async def increment(self, path: str) -> int:
        """A durable counter: returns 0, 1, 2, … and never the same twice. Raises EntryTooLarge, NameRefused."""

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """Paths below `prefix` that changed, as they change."""


class LogStore(Protocol):
    """A provider of logs: one folder, one cluster, or memory. Also an async context manager."""

    metadata: MetadataStore

    async def start(self) -> None:
        """Open or create. Raises StoreInUse, StoreTooNew, StoreReadOnly, StoreUnsupported, LogDamaged, StorageFailed."""

    async def open(self, name: str, *, create: bool = True) -> Log:
        """Open a log exclusively, with a new epoch.

        Raises LogNotFound, LogExists (open already here), LogDamaged, ReadFailed; NameRefused, and EntryTooLarge where
        no more names fit, before anything has changed. If cancelled: the log may exist, and is not open.
        """

    def exists(self, name: str) -> bool:
        """True if there is a log of this name."""

    @property
    def log_count(self) -> int:
        """Return how many logs there are."""

    def names(self, prefix: str = "") -> list[str]:
        """Names of logs, sorted."""

    async def delete(self, name: str) -> None:
        """Delete a log with its cursors and snapshots; returns when that is durable. Unknown names are no error."""

    def on_pressure(self, callback: Callable[[bool], None]) -> None:
        """`callback(True)` when the bytes in flight pass the high-water mark, `callback(False)` below the low one.

        The broker stops reading the sockets that fill it.
        """

    @property
    def bytes_in_flight(self) -> int:
        """Bytes appended and not confirmed, over all logs."""

    @property
    def progress(self) -> object | None:
        """A value that is another one after each confirmation; None while nothing waits for one. Tells a store that hangs."""

    @property
    def disk_full(self) -> bool:
        """True if new data is refused with DiskFull until there is room."""

    async def close(self) -> None:
        """Flush and close everything. Idempotent."""

    async def __aenter__(self) -> LogStore:
        """`start()`."""

    async def __aexit__(self, *exc: object) -> None:
        """`close()`."""


@runtime_checkable
class SharedLogStore(LogStore, Protocol):
    """A store that several processes have at once. Each log is led by one of them; its metadata are those of all.

    `open` returns once this process leads the log (a `LeasedLog`), however long another one does. If cancelled: nothing of
    the wait is left. A log whose lease is lost fails with LeaseLost.
    """

    advertised: str
    """Address of this process for clients; set before the first `open`. Successors and waiting instances read it."""

    def leader_of(self, name: str) -> str | None:
        """Return what the leader of a log advertised, as far as this process has read; None when nobody is known."""


@attrs.frozen
class Cut:
    """End of a copy of a journal: after byte `offset` of a segment; a `full` one is copied whole, with its index.

    Everything before it is durable, and nothing of it is ever written again while it is held. `uuid` is the store's, in hex.
    """

    uuid: str
    segment: int
    offset: int
    full: bool


class Leases(Protocol):
    """Holds by name."""

    def renew(self, name: str, lease_seconds: float) -> bool:
        """A new lease; False when the hold is over: what was copied may not be whole."""

    def end(self, name: str) -> bool:
        """The copy was made; False when the hold was over before."""


@runtime_checkable
class Holdable(Protocol):
    """A store whose segments can be held for a copy."""

    holds: Leases

    async def hold(self, lease_seconds: float) -> tuple[str, Cut]:
        """Keep the segments; the name of the hold, and where the copy ends. Raises StorageFailed, LogClosed."""
