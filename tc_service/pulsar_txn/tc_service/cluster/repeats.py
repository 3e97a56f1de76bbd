"""Ends that are told once more, when no send of their transaction can be under way any longer. Without IO.

A broker refuses a late send of an ended transaction by the low watermark of its end. It keeps that mark in memory only: after
the topic was moved, a late send is stored, and holds the topic back for everybody. The same end once more, after the longest
time that a client tries to send, cures that.

Nothing of a transaction can be late when its client has an answer to every copy of everything that it sent in it, and says so
with the commit. Such an end is not repeated, if its topic was quiet: nothing failed there, and no other broker took it over,
from one delay before the end to one delay after it.

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
_LOOKED_AT_ONCE: Final = 4096
_MOST_TOPICS: Final = 10_000


class Repeats:
    """The ends of the last `delay_ms`, in their order. Of more than `most` the oldest are due early.

    `spared`: ends that were not repeated, because nothing can have come late.
    """

    __slots__ = ("_delay_ms", "_ends", "_most", "_none_before_ms", "_troubled_ms", "spared")

    def __init__(self, delay_ms: int, most: int = 200_000) -> None:
        self._delay_ms = delay_ms
        self._most = most
        self._ends: deque[tuple[int, TellParticipant, bool]] = deque()
        self._troubled_ms: dict[str, int] = {}
        """When a topic was not quiet last, the newest at the end."""
        self._none_before_ms = -1
        """Up to here any topic may have been troubled."""
        self.spared = 0

    def __len__(self) -> int:
        """Ends that are to be told once more."""
        return len(self._ends)

    def troubled(self, topic: str, now_ms: int) -> None:
        """An attempt has failed there, or its owner was looked up."""
        self._troubled_ms.pop(topic, None)
        self._troubled_ms[topic] = now_ms
        if len(self._troubled_ms) > _MOST_TOPICS:
            oldest = next(iter(self._troubled_ms))
            self._none_before_ms = self._troubled_ms.pop(oldest)

    def add(self, effect: TellParticipant, now_ms: int, *, all_answered: bool = False) -> None:
        """A participant holds this outcome since now. On a subscription as well: brokers store late acknowledgements.

        `all_answered`: nothing of the transaction can come late.
        """
        ends, due_ms = self._ends, now_ms + self._delay_ms
        if ends and ends[-1][0] > due_ms:
            due_ms = ends[-1][0]
        again = TellParticipant(effect.txn_id, effect.participant, effect.action, NO_WATERMARK)
        ends.append((due_ms, again, all_answered))

    def add_due(self, effect: TellParticipant, due_ms: int) -> None:
        """The same, due at another time; not before those that are here already."""
        again = TellParticipant(effect.txn_id, effect.participant, effect.action, NO_WATERMARK)
        self._ends.append((max(due_ms, self._ends[-1][0] if self._ends else 0), again, False))

    def due(self, now_ms: int) -> list[TellParticipant]:
        """Those whose time has come, not too many at once; each is given once."""
        found: list[TellParticipant] = []
        ends = self._ends
        for _ in range(_LOOKED_AT_ONCE):
            if len(found) == _AT_ONCE or not ends or (ends[0][0] > now_ms and len(ends) <= self._most):
                break
            due_ms, effect, all_answered = ends.popleft()
            if all_answered and self._was_quiet(effect.participant.topic, due_ms - 2 * self._delay_ms):
                self.spared += 1
            else:
                found.append(effect)
        return found

    def _was_quiet(self, topic: str, since_ms: int) -> bool:
        return max(self._troubled_ms.get(topic, -1), self._none_before_ms) < since_ms

    @property
    def next_ms(self) -> int | None:
        """Return when `due` is worth a call; None when nothing waits."""
        return self._ends[0][0] if self._ends else None
