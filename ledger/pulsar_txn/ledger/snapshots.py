"""Snapshots of a machine: their form, how a host takes one while requests go on (H7), and recovery from the newest one (H5).

A log's snapshot names one position. A machine with several logs needs one of each, and a topic keeps its deduplication
state beside its buffer's: both are in the `Envelope`. Stored are first the parts of the envelope, then the machine's slices,
each a part of its own. Version 1 was one part: the envelope, and the machine's state in one piece after it.

A host takes one snapshot at a time. It is fixed when it is asked for, and waits until everything it covers is durable. Then
its slices go to the store: with each commit group of the log as many as its skin's slice of the turn allows. So a state of
any size is stored while the machine goes on, and at most two groups' worth of slices are in flight.

Recovery hands the newest snapshot to the machine, then folds every entry after it. The skin reads, and decides when to pause.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import attrs

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge, LedgerError, LogDamaged, Snapshot, SnapshotWriter
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.ledger.hosting import Host


_HEAD = struct.Struct(">4sBHI")  # magic, version, number of logs, length of the host's part
_PLACE = struct.Struct(">Hqq")  # length of the name, ledger, entry
_MAGIC = b"PTSN"
_VERSION = 2


@attrs.frozen
class Envelope:
    """`covers`: by log name, the last entry whose effects the machine's slices hold; `extra`: what the host remembers."""

    covers: Mapping[str, Position]
    extra: bytes

    def parts(self) -> Iterator[bytes]:
        """The parts to store in front of the machine's slices."""
        fields = [_HEAD.pack(_MAGIC, _VERSION, len(self.covers), len(self.extra))]
        for name, (ledger_id, entry_id) in self.covers.items():
            encoded = name.encode()
            fields += [_PLACE.pack(len(encoded), ledger_id, entry_id), encoded]
        data = b"".join([*fields, self.extra])
        return (data[at : at + SLICE_BYTES] for at in range(0, len(data), SLICE_BYTES))

    @classmethod
    def read(cls, parts: Sequence[bytes]) -> tuple[Envelope, tuple[bytes, ...]]:
        """The envelope and the machine's slices. Raises WireError for anything else, a newer version included."""
        first = parts[0] if parts else b""
        try:
            magic, version, logs, extra_size = _HEAD.unpack_from(first)
            if magic != _MAGIC or not 1 <= version <= _VERSION:
                raise WireError(f"a snapshot begins with {_MAGIC!r} and version 1 to {_VERSION}, not {magic!r} and {version}")
            at = _HEAD.size
            covers: dict[str, Position] = {}
            for _ in range(logs):
                size, ledger_id, entry_id = _PLACE.unpack_from(first, at)
                at += _PLACE.size
                covers[first[at : at + size].decode()] = (ledger_id, entry_id)
                at += size
        except (struct.error, UnicodeDecodeError) as error:
            raise WireError(f"a snapshot that ends too early: {error}") from error
        size = at + extra_size
        data, slices = bytes(first[:size]), tuple(parts[1:])
        if version == 1:
            slices = (b"".join(parts)[size:],)
        while len(data) < size and slices:
            data, slices = data + slices[0], slices[1:]
        if len(data) != size:
            raise WireError(f"a snapshot whose envelope has {len(data)} bytes, not {size}")
        return cls(covers, data[at:]), slices


_logger = logging.getLogger(__name__)

_TURN_BYTES: Final = 1 << 18


class SnapshotTaker:
    """Takes the snapshots of `host`. A host that failed calls `abandon`, and takes no more of them.

    `is_under_way`: `advance` has something to do. `last_bytes`: how large the newest one was, as far as it is written.
    """

    __slots__ = ("_again", "_host", "_now", "is_under_way", "last_bytes")

    def __init__(self, host: Host[Any, Any]) -> None:
        self._host = host
        self.is_under_way = False
        self.last_bytes = 0
        self._now: _UnderWay | None = None
        self._again: tuple[str, list[Callable[[], None]]] | None = None

    def take(self, log: str, stored: Callable[[], None] | None) -> None:
        """A snapshot of this moment in `log`, or of a later one when one is under way; `stored` is called at its end."""
        callbacks = [] if stored is None else [stored]
        if self._now is None:
            self._begin(log, callbacks)
        elif self._again is None:
            self._again = log, callbacks
        else:
            self._again[1].extend(callbacks)

    def advance(self) -> None:
        """Go on with the snapshot under way, as far as one turn allows."""
        now, host = self._now, self._host
        if now is None or not host.is_durable(now.covers):
            return
        try:
            done = now.write_some(host)
        except (DiskFull, EntryTooLarge) as error:
            _logger.warning("a snapshot of log %r was not stored; until the next one recovery reads more: %s", now.log, error)
            now.abandon()
            done = True
        except LedgerError as error:
            host.fail(error)
            return
        self.last_bytes = now.written_bytes
        if done:
            self._now = None
            self.is_under_way = False
            again, self._again = self._again, None
            if again is not None:
                self._begin(*again)

    def abandon(self) -> None:
        """Drop everything: the machine is not to be believed any more."""
        self._now = self._again = None
        self.is_under_way = False

    def _begin(self, log: str, callbacks: list[Callable[[], None]]) -> None:
        self._now = _UnderWay(self._host, log, callbacks)
        self.is_under_way = True
        self.advance()


class _UnderWay:
    """One snapshot: what it covers, and the parts that are not written yet."""

    __slots__ = ("_callbacks", "_parts", "_writer", "covers", "log", "written_bytes")

    def __init__(self, host: Host[Any, Any], log: str, callbacks: list[Callable[[], None]]) -> None:
        self.log = log
        self.covers: Mapping[str, Position] = host.applied()
        self.written_bytes = 0
        envelope = Envelope(self.covers, host.skin.snapshot_extra())
        self._parts: Iterator[bytes] = chain(envelope.parts(), host.machine.snapshot())
        self._callbacks = callbacks
        self._writer: SnapshotWriter | None = None

    def write_some(self, host: Host[Any, Any]) -> bool:
        """Write parts until the turn is used up; True when the last one was, and the snapshot is the newest."""
        writer = self._writer
        if writer is None:
            writer = self._writer = host.places[self.log].log.write_snapshot(self.covers[self.log])
        is_over, limit = host.skin.slice(), self.written_bytes + _TURN_BYTES
        for part in self._parts:
            writer.write(part)
            self.written_bytes += len(part)
            if self.written_bytes >= limit or is_over():
                return False
        writer.finish()
        host.trim(self.covers)
        for stored in self._callbacks:
            stored()
        return True

    def abandon(self) -> None:
        """Give the room of what was written back."""
        if self._writer is not None:
            self._writer.abandon()


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
