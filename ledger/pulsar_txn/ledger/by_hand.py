"""A host that is driven by hand: what is durable, what fails and when it crashes, the caller says. For tests and simulations.

`HandLog` is a log in memory. `hosted` recovers a machine from such logs; its `Skin` is the caller's. The public suites of the
machines are built on both, so they check a plug-in with the same `hosting.Host` that serves it in a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pulsar_txn.wire.ids import Position

from .hosting import Host, Registration, Skin, Time
from .machine import Machine
from .protocols import Buffer, DiskFull, LedgerError, LogListener, Snapshot
from .recovery import Recovery

RequestT = TypeVar("RequestT")
RecordT = TypeVar("RecordT")


class HandLog:
    """A log in memory. Entries are durable once `confirm` says so, and stay in `entries` when they are trimmed.

    `stored`: the newest snapshot. `room`: how many more entries the disk has room for, None: no end of them.
    `on_append` is called with the position and the bytes of each entry.
    """

    def __init__(
        self,
        name: str = "log",
        ledger_id: int = 0,
        entries: Iterable[tuple[Position, bytes]] = (),
        *,
        stored: Snapshot | None = None,
        trimmed: Position = (-1, -1),
        on_append: Callable[[Position, bytes], None] | None = None,
    ) -> None:
        self.name = name
        self.entries = list(entries)
        self.stored = stored
        self.trimmed = trimmed
        self.room: int | None = None
        self.last_appended: Position = self.entries[-1][0] if self.entries else (ledger_id, -1)
        self.last_confirmed = self.last_appended
        self._ledger_id = ledger_id
        self._on_append = on_append
        self._listener: LogListener | None = None

    @property
    def first(self) -> Position | None:
        """The first readable entry, None when the log is empty."""
        return next((position for position, _ in self.entries if self.trimmed <= position <= self.last_confirmed), None)

    def listen(self, listener: LogListener) -> None:
        """Set the listener."""
        self._listener = listener

    def append(self, data: bytes, *, reserve: bool = False) -> Position:
        """Append one entry. Raises DiskFull when there is no room, `reserve` or not."""
        if self.room is not None:
            if not self.room:
                raise DiskFull("the disk is full")
            self.room -= 1
        ledger_id, entry_id = self.last_appended
        position = self.last_appended = (self._ledger_id, entry_id + 1 if ledger_id == self._ledger_id else 0)
        self.entries.append((position, data))
        if self._on_append is not None:
            self._on_append(position, data)
        return position

    def read(self, start: Position) -> list[tuple[Position, bytes]]:
        """All durable entries from `start` on."""
        return [entry for entry in self.entries if max(start, self.trimmed) <= entry[0] <= self.last_confirmed]

    def next_position(self, position: Position) -> Position:
        """The position after `position`."""
        return (position[0], position[1] + 1)

    def trim(self, before: Position) -> None:
        """Entries before `before` cannot be read any more."""
        self.trimmed = max(self.trimmed, before)

    def write_snapshot(self, covers: Position) -> HandSnapshot:
        """Begin a snapshot; it is the newest one when it is finished."""
        return HandSnapshot(self, covers)

    def confirm(self, upto: Position | None = None) -> None:
        """Everything up to a position is durable (None: everything that was appended)."""
        self.last_confirmed = max(self.last_confirmed, self.last_appended if upto is None else upto)
        if self._listener is not None:
            self._listener.log_confirmed(self.last_confirmed)

    def fail(self, error: LedgerError) -> None:
        """The log fails."""
        if self._listener is not None:
            self._listener.log_failed(error)


class HandSnapshot:
    """A snapshot on its way into a `HandLog`."""

    def __init__(self, log: HandLog, covers: Position) -> None:
        self._log = log
        self._covers = covers
        self._parts: list[bytes] = []

    def write(self, part: Buffer) -> None:
        """The next part."""
        self._parts.append(bytes(part))

    def finish(self) -> None:
        """It is the newest one. ValueError when what it covers is not durable."""
        if self._covers > self._log.last_confirmed:
            raise ValueError(f"a snapshot covers {self._covers}, which is not confirmed yet")
        self._log.stored = Snapshot(self._covers, tuple(self._parts))

    def abandon(self) -> None:
        """Nothing is stored."""
        self._parts.clear()


def hosted(
    machine: Machine[RequestT, RecordT],
    logs: Mapping[str, HandLog],
    skin: Skin,
    time: Time,
    *,
    registration: Registration | None = None,
    verified: Callable[[Any, bool], RequestT] | None = None,
    start: bool = True,
) -> Host[RequestT, RecordT]:
    """A host of a fresh machine, recovered from its logs. `start` False: the caller calls `Host.start`."""
    host = Host(machine, logs, skin, time, registration=registration, verified=verified)
    recovery = Recovery(host, {name: log.stored for name, log in logs.items() if log.stored is not None})
    for _ in recovery.restored():
        pass
    while (wanted := recovery.wanted()) is not None:
        name, position = wanted
        recovery.fold(logs[name].read(position))
    if start:
        host.start()
    return host
