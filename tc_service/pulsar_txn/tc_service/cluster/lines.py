"""The ends that wait at each topic, and which of them may be tried now. Without IO.

While a topic takes ends, several are under way to it side by side. After a failure one of them alone is tried, after a pause;
the others wait for what comes of it. So a topic or broker that does not answer costs one attempt at a time, however many ends
wait there, and every other topic goes on.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from .rules import RULES, Answer, pause_ms, raises_alarm

T = TypeVar("T")


class Line(Generic[T]):
    """The ends of one topic. `waiting`: those that are not under way. `failures`: attempts in a row that failed."""

    __slots__ = ("_flying", "_rests_until_ms", "_width", "failures", "waiting")

    def __init__(self, width: int) -> None:
        self._width = width
        self.waiting: deque[T] = deque()
        self._flying = 0
        self._rests_until_ms = 0
        self.failures = 0

    def __len__(self) -> int:
        """Ends that wait or are under way."""
        return len(self.waiting) + self._flying

    def add(self, end: T) -> None:
        """Another one, tried after those before it."""
        self.waiting.append(end)

    def start(self, end: T) -> bool:
        """As `add`, but whether it may be tried at once: then it is under way."""
        if self.waiting or self.failures or self._flying >= self._width:
            self.waiting.append(end)
            return False
        self._flying += 1
        return True

    def take(self, now_ms: int) -> list[T]:
        """Those to try now; each is reported to `answered`."""
        width = 1 if self.failures else self._width
        if not self.waiting or now_ms < self._rests_until_ms:
            return []
        count = min(len(self.waiting), width - self._flying)
        found = [self.waiting.popleft() for _ in range(count)]
        self._flying += len(found)
        return found

    @property
    def rests_until_ms(self) -> int | None:
        """Return when `take` is worth a call, if nothing is under way and something waits; None otherwise."""
        return self._rests_until_ms if self.waiting and not self._flying else None

    def answered(self, end: T, answer: Answer, now_ms: int) -> bool:
        """Note what came of an attempt; True if an alarm is due. An end that failed is the next one to be tried."""
        self._flying -= 1
        if answer is Answer.OK:
            self.failures = self._rests_until_ms = 0
            return False
        if RULES[answer].done:
            self.failures = 0
            self._rests_until_ms = 0
            return raises_alarm(answer, 1)
        self.waiting.appendleft(end)
        if now_ms < self._rests_until_ms:  # begun beside one that has failed: the same failure
            return False
        self.failures += 1
        self._rests_until_ms = now_ms + pause_ms(answer, self.failures)
        return raises_alarm(answer, self.failures)
