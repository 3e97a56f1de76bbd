"""The recovery of a machine: the newest snapshot, then every entry after it (H5). Its skin reads, and decides when to pause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

from .envelope import Envelope
from .hosting import Host
from .protocols import LogDamaged, Snapshot


class Recovery:
    """The recovery of one host. A skin drives it step by step:

        for _ in recovery.restored(): pause
        while wanted := recovery.wanted(): recovery.fold(await read(*wanted))
        host.start()

    `stored`: the newest snapshot of each log that has one. Every step raises LogDamaged for bytes that cannot be right.
    """

    def __init__(self, host: Host[Any, Any], stored: Mapping[str, Snapshot]) -> None:
        self._host = host
        self._stored = stored
        self._logs = iter(host.machine.logs)
        self._covers: Mapping[str, Position] = {}
        self._log: str | None = None
        self._next: Position | None = None

    def restored(self) -> Iterator[None]:
        """Hand the newest snapshot to the machine, a slice with each step."""
        newest: Envelope | None = None
        slices: Sequence[bytes] = ()
        for log, snapshot in self._stored.items():
            try:
                envelope, parts = Envelope.read(snapshot.parts)
            except WireError as error:
                raise LogDamaged(self._host.places[log].log.name, snapshot.covers, str(error)) from error
            if newest is None or list(envelope.covers.values()) > list(newest.covers.values()):
                newest, slices = envelope, parts
        if newest is None:
            return
        for part in slices:
            yield
            self._host.machine.restore(part)
        self._host.skin.restore_extra(newest.extra)
        self._covers = newest.covers

    def wanted(self) -> tuple[str, Position] | None:
        """The log, and the position to read it from; None once all logs are folded."""
        while self._next is None:
            self._log = next(self._logs, None)
            if self._log is None:
                return None
            log, covered = self._host.places[self._log].log, self._covers.get(self._log)
            self._next = log.first if covered is None else log.next_position(covered)
        return self._log or "", self._next

    def fold(self, entries: Sequence[tuple[Position, bytes]]) -> None:
        """Apply the entries that were read; none of them: the log ends here."""
        host, name = self._host, self._log or ""
        log = host.places[name].log
        for position, data in entries:
            try:
                host.skin.fold(host.machine, name, position, data)
            except WireError as error:
                raise LogDamaged(log.name, position, f"not a record: {error}") from error
        self._next = log.next_position(entries[-1][0]) if entries else None
