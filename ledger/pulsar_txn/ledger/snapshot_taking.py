"""A host takes the snapshots of its machine slice by slice, one snapshot at a time, while requests go on (H7).

A snapshot is fixed when it is asked for, and waits until everything it covers is durable. Then its slices go to the store:
with each commit group of the log as many as its skin's slice of the turn allows. So a state of any size is stored while the
machine goes on, and at most two groups' worth of slices are in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pulsar_txn.wire.ids import Position

from .envelope import Envelope
from .protocols import DiskFull, EntryTooLarge, LedgerError, SnapshotWriter

if TYPE_CHECKING:
    from .hosting import Host

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
            _logger.warning("a snapshot of log %r could not be stored; the next one is tried: %s", now.log, error)
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
