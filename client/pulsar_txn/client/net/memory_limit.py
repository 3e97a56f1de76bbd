"""The bound on the bytes that all producers of one client have in flight."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet


class Bounded(Protocol):
    """A producer's own bounds, as the limit of its client sees them."""

    full: bool
    """True if a message has to wait."""

    def look(self) -> None:
        """See whether there is room again."""
        ...


class MemoryLimit:
    """The bound on the bytes without a receipt of all producers of a client (PIP-74).

    Once it is reached there is room again when an eighth is free, so that producers that wait are not woken for every
    receipt. One message always fits into what is empty.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.full = False
        self._budgets: WeakSet[Bounded] = WeakSet()

    def add(self, producer: Bounded) -> None:
        """One more producer."""
        self._budgets.add(producer)

    def take(self, size: int) -> None:
        """Bytes were queued."""
        self.used += size
        if self.used >= self.limit and not self.full:
            self.full = True
            for producer in self._budgets:
                producer.full = True

    def give_back(self, size: int) -> None:
        """Bytes have their receipt, or failed."""
        self.used -= size
        if self.full and self.used <= self.limit - self.limit // 8:
            self.full = False
            for producer in list(self._budgets):
                producer.look()
