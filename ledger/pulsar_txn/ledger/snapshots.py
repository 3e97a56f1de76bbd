"""Snapshots of a machine: their form, how a host takes one while requests go on (H7), and recovery from the newest one (H5).

A log's snapshot names one position. A machine with several logs needs one of each, and a topic keeps its deduplication
state beside its buffer's: both are in the `Envelope`. Stored are first the parts of the envelope, then the machine's slices,
each a part of its own. Version 1 was one part: the envelope, and the machine's state in one piece after it.

A host takes one snapshot at a time. It is fixed when it is asked for, and waits until everything it covers is durable. Then
its slices go to the store: with each commit group of the log as many as its slice of the turn allows. So a state of
any size is stored while the machine goes on, and at most two groups' worth of slices are in flight.

Recovery hands the newest snapshot to the machine, then every entry after it. The host's owner reads, and decides when to pause.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

import attrs

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.ledger.protocols import DiskFull, EntryTooLarge, LogDamaged, Snapshot, SnapshotWriter
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position

if TYPE_CHECKING:
    from pulsar_txn.ledger.hosting import Answer, HostedLog, Place


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


@attrs.frozen
class Ended:
    """A snapshot that is not under way any more. `covers` None: it could not be stored. `wanted_by`: who waits for it."""

    covers: Mapping[str, Position] | None
    wanted_by: Sequence[Answer]


class SnapshotTaker:
    """The snapshots of one host, one at a time. A host that failed calls `abandon`, and takes no more of them.

    `is_under_way`: there is something to do, `begin` when it `wants_moment`, then `advance`. `last_bytes`: how large the newest
    one was, as far as it is written.
    """

    __slots__ = ("_now", "_places", "_wanted", "is_under_way", "last_bytes")

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self.is_under_way = False
        self.last_bytes = 0
        self._now: _UnderWay | None = None
        self._wanted: tuple[str, list[Answer]] | None = None

    @property
    def wants_moment(self) -> bool:
        """True if the next snapshot is wanted, and none is under way: its moment is now."""
        return self._now is None and self._wanted is not None

    def want(self, log: str, stored: Answer | None) -> None:
        """Note that a snapshot in `log` is wanted. Those that are wanted before its moment are one."""
        if self._wanted is None:
            self._wanted = log, []
        if stored is not None:
            self._wanted[1].append(stored)
        self.is_under_way = True

    def begin(self, extra: bytes, slices: Iterator[bytes]) -> None:
        """Begin the one that is wanted, with the state of this moment."""
        if self._wanted is not None:
            log, wanted_by = self._wanted
            self._wanted = None
            covers = {name: place.applied for name, place in self._places.items()}
            self._now = _UnderWay(log, Envelope(covers, extra), slices, wanted_by)

    def advance(self, is_over: Callable[[], bool]) -> Ended | None:
        """Go on until the turn is used up; None: it goes on later. Raises LedgerError when the log has failed."""
        now, places = self._now, self._places
        if now is None or any(position > places[name].confirmed for name, position in now.covers.items()):
            return None
        covers: Mapping[str, Position] | None = now.covers
        try:
            if not now.write_some(places[now.log].log, is_over):
                return None
        except (DiskFull, EntryTooLarge) as error:
            _logger.warning("a snapshot of log %r was not stored; until the next one recovery reads more: %s", now.log, error)
            now.abandon()
            covers = None
        finally:
            self.last_bytes = now.written_bytes
        self._now = None
        self.is_under_way = self._wanted is not None
        return Ended(covers, () if covers is None else now.wanted_by)

    def abandon(self) -> None:
        """Drop everything: the machine is not to be believed any more."""
        self._now = self._wanted = None
        self.is_under_way = False


class _UnderWay:
    """One snapshot: what it covers, and the parts that are not written yet."""

    __slots__ = ("_parts", "_writer", "covers", "log", "wanted_by", "written_bytes")

    def __init__(self, log: str, envelope: Envelope, slices: Iterator[bytes], wanted_by: Sequence[Answer]) -> None:
        self.log = log
        self.covers = envelope.covers
        self.wanted_by = wanted_by
        self.written_bytes = 0
        self._parts: Iterator[bytes] = chain(envelope.parts(), slices)
        self._writer: SnapshotWriter | None = None

    def write_some(self, log: HostedLog, is_over: Callable[[], bool]) -> bool:
        """Write parts until the turn is used up; True when the last one was, and the snapshot is the newest."""
        writer = self._writer
        if writer is None:
            writer = self._writer = log.write_snapshot(self.covers[self.log])
        limit = self.written_bytes + _TURN_BYTES
        for part in self._parts:
            writer.write(part)
            self.written_bytes += len(part)
            if self.written_bytes >= limit or is_over():
                return False
        writer.finish()
        return True

    def abandon(self) -> None:
        """Give the room of what was written back."""
        if self._writer is not None:
            self._writer.abandon()


class Recovery:
    """The recovery of one host: what is to be read. The host's owner drives it step by step:

        for part in recovery.slices(): machine.restore(part)
        if recovery.extra is not None: host.restore_extra(recovery.extra)
        while wanted := recovery.wanted():
            entries = await read(*wanted)
            host.fold_all(wanted[0], entries)
            recovery.read(entries)
        host.start()

    `stored`: the newest snapshot of each log that has one. `slices` raises LogDamaged for bytes that cannot be right.
    """

    def __init__(self, places: Mapping[str, Place], stored: Mapping[str, Snapshot]) -> None:
        self.extra: bytes | None = None
        self._places = places
        self._stored = stored
        self._logs = iter(places)
        self._covers: Mapping[str, Position] = {}
        self._log: str | None = None
        self._next: Position | None = None

    def slices(self) -> Iterator[bytes]:
        """The machine's slices of the newest snapshot. What the host has stored beside them is `extra` then."""
        newest: Envelope | None = None
        slices: Sequence[bytes] = ()
        for log, snapshot in self._stored.items():
            try:
                envelope, parts = Envelope.read(snapshot.parts)
            except WireError as error:
                raise LogDamaged(self._places[log].log.name, snapshot.covers, str(error)) from error
            if newest is None or list(envelope.covers.values()) > list(newest.covers.values()):
                newest, slices = envelope, parts
        if newest is not None:
            self.extra, self._covers = newest.extra, newest.covers
            yield from slices

    def wanted(self) -> tuple[str, Position] | None:
        """The log, and the position to read it from; None once all logs are folded."""
        while self._next is None:
            self._log = next(self._logs, None)
            if self._log is None:
                return None
            log, covered = self._places[self._log].log, self._covers.get(self._log)
            self._next = log.first if covered is None else log.next_position(covered)
        return self._log or "", self._next

    def read(self, entries: Sequence[tuple[Position, bytes]]) -> None:
        """Take entries that were read and applied; none means that the log ends here."""
        log = self._places[self._log or ""].log
        self._next = log.next_position(entries[-1][0]) if entries else None
