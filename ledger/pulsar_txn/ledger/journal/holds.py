"""Holds: while somebody copies the folder of a running store, its full segments keep their names and what they hold.

Segments that nobody needs any more are recycled only after the last hold has ended. A hold has a lease, so that a copier
that died keeps nothing for ever, and it is dropped when the disk is full. The copier renews the hold once more at the
end: only if that succeeds, nothing was recycled meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

import attrs

from pulsar_txn.ledger.journal.segments import SegmentFiles
from pulsar_txn.ledger.protocols import LedgerError


@attrs.frozen
class Cut:
    """End of a copy of a journal: after byte `offset` of a segment; a `full` one is copied whole, with its index.

    Everything before it is durable, and nothing of it is ever written again while it is held. `uuid` is the store's, in hex.
    """

    uuid: str
    segment: int
    offset: int
    full: bool


MAX_HOLDS: Final = 16
"""Copies that may be made at the same time."""


class TooManyHolds(LedgerError):  # noqa: N818 - named by what happened
    """As many copies as may be are being made already; nothing was held for this one."""


class Holds:
    """The holds of one store, by name."""

    def __init__(self, segment_files: SegmentFiles) -> None:
        self._segment_files = segment_files
        self._leases: dict[str, asyncio.TimerHandle] = {}

    def begin(self, lease_seconds: float) -> str:
        """A new hold; its name. Raises TooManyHolds."""
        if not self._segment_files.held:
            self._forget_all()  # those of before were dropped: their holders must not learn of this one
        if len(self._leases) >= MAX_HOLDS:
            raise TooManyHolds(f"{MAX_HOLDS} copies of this folder are being made; wait until one is finished")
        name = secrets.token_hex(8)
        self._segment_files.hold()
        self._lease(name, lease_seconds)
        return name

    def renew(self, name: str, lease_seconds: float) -> bool:
        """A new lease; False when the hold is over."""
        if name not in self._leases or not self._segment_files.held:
            return False
        self._leases.pop(name).cancel()
        self._lease(name, lease_seconds)
        return True

    def end(self, name: str) -> bool:
        """The copy was made; False when the hold was over before."""
        lease = self._leases.pop(name, None)
        if lease is None:
            return False
        lease.cancel()
        held = self._segment_files.held
        if held and not self._leases:
            self._segment_files.let_go()
        return held

    def close(self) -> None:
        """The store is closed."""
        self._forget_all()

    def _lease(self, name: str, seconds: float) -> None:
        self._leases[name] = asyncio.get_running_loop().call_later(seconds, self.end, name)

    def _forget_all(self) -> None:
        for lease in self._leases.values():
            lease.cancel()
        self._leases.clear()
