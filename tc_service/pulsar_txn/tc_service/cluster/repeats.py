"""Ends that are told once more, when no send of their transaction can be under way any longer. Without IO.

A broker refuses a late send of an ended transaction by the low watermark of its end. It keeps that mark in memory only: after
the topic was moved, a late send is stored, and holds the topic back for everybody. The same end once more, after the longest
time that a client tries to send, cures that.

A repeat carries no low watermark. Its own would abort what is below it in the same lane: a transaction that was committed long
ago, which a late message has opened again, would be hidden from every later reader.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from pulsar_txn.ledger.machine import TellParticipant

NO_WATERMARK: Final = -1
_AT_ONCE: Final = 256
"""After a restart very many may be due: more would hold the loop."""


class Repeats:
    """The ends of the last `delay_ms`, in their order. Of more than `most` the oldest are due early."""

    __slots__ = ("_delay_ms", "_ends", "_most")

    def __init__(self, delay_ms: int, most: int = 200_000) -> None:
        self._delay_ms = delay_ms
        self._most = most
        self._ends: deque[tuple[int, TellParticipant]] = deque()

    def __len__(self) -> int:
        """Ends that are to be told once more."""
        return len(self._ends)

    def add(self, effect: TellParticipant, now_ms: int) -> None:
        """A participant holds this outcome since now. On a subscription as well: brokers store late acknowledgements."""
        ends, due_ms = self._ends, now_ms + self._delay_ms
        if ends and ends[-1][0] > due_ms:
            due_ms = ends[-1][0]
        ends.append((due_ms, TellParticipant(effect.txn_id, effect.participant, effect.action, NO_WATERMARK)))

    def add_due(self, effect: TellParticipant, due_ms: int) -> None:
        """The same, due at another time; not before those that are here already."""
        again = TellParticipant(effect.txn_id, effect.participant, effect.action, NO_WATERMARK)
        self._ends.append((max(due_ms, self._ends[-1][0] if self._ends else 0), again))

    def due(self, now_ms: int) -> list[TellParticipant]:
        """Those whose time has come, not too many at once; each is given once."""
        found: list[TellParticipant] = []
        while len(found) < _AT_ONCE and self._ends and (self._ends[0][0] <= now_ms or len(self._ends) > self._most):
            found.append(self._ends.popleft()[1])
        return found

    @property
    def next_ms(self) -> int | None:
        """When `due` is worth a call; None when nothing waits."""
        return self._ends[0][0] if self._ends else None
