"""A skin that keeps what its host asks of it, and a time that is set by hand."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_txn.ledger.by_hand import Skin
from pulsar_txn.ledger.machine import Effect


class HandTime:
    """The time of a test."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.now_ms = now_ms


class HandSkin(Skin):
    """Notes what its host asks for."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.effects: list[Effect] = []
        self.turns = 0
        self.owed = 0
        self.pieces = 10**9
        """How many pieces of long work fit into a turn."""

    def begin_turn(self) -> None:
        self.turns += 1

    def perform(self, effect: Effect) -> None:
        self.effects.append(effect)

    def owes(self) -> None:
        self.owed += 1

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def slice(self) -> Callable[[], bool]:
        left = self.pieces

        def is_over() -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        return is_over
