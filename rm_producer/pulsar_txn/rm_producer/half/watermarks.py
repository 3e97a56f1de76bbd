"""The low watermarks of coordinators at one topic, and the open transactions that they pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pulsar_txn.ledger.swept_heap import SweptHeap
from pulsar_txn.wire.ids import TxnId

_SIGNED_LIMIT: Final = 1 << 63
_AT_ONCE: Final = 256
"""Transactions that are ended in one step, because many may be passed at once."""


class Watermarks:
    """`of`: the highest watermark of each coordinator, which is state. The heaps follow from what is open."""

    def __init__(self, is_open: Callable[[TxnId], bool]) -> None:
        self.of: dict[int, int] = {}
        self._is_open = is_open
        self._leasts: dict[int, SweptHeap[TxnId]] = {}

    def has_passed(self, txn_id: TxnId) -> bool:
        """True if the coordinator says that the transaction is over."""
        return txn_id.least <= self.of.get(txn_id.most, -1)

    def rise(self, most: int, low_watermark: int) -> None:
        """A watermark was read. It never falls."""
        if self.of.get(most, -1) < low_watermark < _SIGNED_LIMIT:
            self.of[most] = low_watermark

    def opened(self, txn_id: TxnId) -> None:
        """A transaction is open here."""
        leasts = self._leasts.get(txn_id.most)
        if leasts is None:
            leasts = self._leasts[txn_id.most] = SweptHeap(self._is_open)
        leasts.add(txn_id)

    def left(self, txn_id: TxnId, still_open: int) -> None:
        """Removes the watermark; returns how many others became due."""
        if still_open:
            self._leasts[txn_id.most].lost(still_open)
        else:
            self._leasts.clear()

    def passed(self, most: int, low_watermark: int) -> list[TxnId]:
        """Open transactions that a watermark passes, the oldest first, and not more than are quick to end."""
        leasts = self._leasts.get(most)
        if leasts is None:
            return []
        return list(dict.fromkeys(leasts.smallest(_AT_ONCE, lambda txn_id: txn_id.least <= low_watermark)))

    def stale(self) -> list[TxnId]:
        """Some of the open transactions of one coordinator that its known watermark has passed."""
        return next(filter(None, (self.passed(most, low) for most, low in self.of.items())), [])

    def is_any_stale(self) -> bool:
        """True if there are such."""
        of = self.of
        firsts = ((most, leasts.first()) for most, leasts in self._leasts.items())
        return any(first is not None and first.least <= of.get(most, -1) for most, first in firsts)

    def found(self) -> frozenset[TxnId]:
        """Transactions that would be found, for invariants."""
        return frozenset(txn_id for leasts in self._leasts.values() for txn_id in leasts)
