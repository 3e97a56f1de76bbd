"""Ends that are decided and still have to be carried out: after a recovery, and where one Step would tell too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator


class UnfinishedEnds:
    """Numbers of transactions, in the order in which they are carried out. No state: recovery finds them again.

    `waiting` may hold some that are not ending any more; while it is empty, nothing is left to carry out.
    """

    __slots__ = ("_ending", "waiting")

    def __init__(self, ending: Collection[int]) -> None:
        self._ending = ending
        self.waiting: deque[int] = deque()

    def find(self) -> None:
        """Begin with all that are ending now."""
        self.waiting = deque(sorted(self._ending))

    def add(self, least: int) -> None:
        """Carry this one out later. It is passed over when its decision was thrown away: then it is not ending."""
        self.waiting.append(least)

    def put_back(self, leasts: Iterable[int]) -> None:
        """Begin with these, in their order."""
        self.waiting.extendleft(reversed(list(leasts)))

    def take(self, count: int) -> Iterator[int]:
        """The next ones, `count` at most."""
        for _ in range(min(len(self.waiting), count)):
            yield self.waiting.popleft()

    def __bool__(self) -> bool:
        """True if something is left to carry out."""
        while self.waiting and self.waiting[0] not in self._ending:
            self.waiting.popleft()
        return bool(self.waiting)
