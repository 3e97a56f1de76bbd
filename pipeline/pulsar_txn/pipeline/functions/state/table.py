"""The state of one owner in memory, without IO: what is committed, what is changed, and which part of the topic is garbage.

The topic holds one record for each change of a key; the last record of a key counts. The table knows the order of the last
records: the key with the oldest one comes first. When less than half of the topic is of
use, each write also copies some of the oldest keys to the end. Everything before the oldest last record is garbage, so the
topic has at most about three times as many records as there are keys, whatever the broker compacts.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic, TypeAlias, TypeVar

P = TypeVar("P")
"""A position in the topic."""
Value: TypeAlias = int | bytes
"""A counter, or what `put_state` was given."""

SLACK: Final = 1000
"""Records that are never worth cleaning."""
COPIES: Final = 16
"""Keys that a write copies at least when it cleans."""
MARK_EVERY: Final = 1000
"""While the topic is read, one position is remembered for this number of records."""


class Table(Generic[P]):
    """Counters and values by key. Changes are seen at once, and are kept or dropped together."""

    def __init__(self) -> None:
        self._live: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        """Committed values with the number of their last record, in the order of these numbers."""
        self._changed: dict[str, Value | None] = {}
        self._copied: list[str] = []
        self._count = 0
        """Records of the topic so far."""
        self._marks: deque[tuple[int, P]] = deque()
        """(n, position): the first n records are at or before that position."""
        self._given = 0
        """The number of records that `garbage` has answered."""

    def __len__(self) -> int:
        return len(self._live)

    @property
    def records(self) -> int:
        """Records of the topic that are not garbage at its beginning."""
        return self._count - self._first_needed()

    def get(self, key: str) -> Value | None:
        """The value of a key as the current call sees it."""
        if key in self._changed:
            return self._changed[key]
        found = self._live.get(key)
        return None if found is None else found[0]

    def set(self, key: str, value: Value | None) -> None:
        """Change a key until `keep` or `drop`; None deletes it."""
        self._changed[key] = value

    def committed(self) -> Iterator[tuple[str, Value]]:
        """All committed keys with their values, the oldest first."""
        return ((key, found[0]) for key, found in self._live.items())

    def load(self, key: str | None, value: Value | None, position: P) -> None:
        """One record that was read from the topic; no key: one that holds no state."""
        if key is not None:
            self._settle(key, value)
        self._count += 1
        if self._count % MARK_EVERY == 0:
            self.mark(self._count, position)

    def to_write(self) -> list[tuple[str, Value | None]]:
        """The records that make the changes durable, and copies of old ones when the topic has too much garbage."""
        needed = 2 * len(self._live) + SLACK
        if self.records > needed and self._changed:
            most = 2 * len(self._changed) + COPIES
            self._copied = [key for key in islice(self._live, most) if key not in self._changed]
        else:
            self._copied = []
        return [*((key, self._live[key][0]) for key in self._copied), *self._changed.items()]

    def keep(self, extra: int = 0) -> int:
        """Keep what `to_write` gave, which is committed, and `extra` records that hold no state.

        Returns the number of records so far.
        """
        for key in self._copied:
            self._settle(key, self._live[key][0])
            self._count += 1
        for key, value in self._changed.items():
            self._settle(key, value)
            self._count += 1
        self._count += extra
        self.drop()
        return self._count

    def mark(self, number: int, position: P) -> None:
        """The first `number` records of the topic are at or before this position."""
        self._marks.append((number, position))

    def drop(self) -> None:
        """Forget the changes."""
        self._changed, self._copied = {}, []

    def garbage(self, least: int) -> P | None:
        """A position up to which everything is garbage, when that is `least` more records than at the last answer."""
        first, found = self._first_needed(), None
        if first - self._given < least:
            return None
        while self._marks and self._marks[0][0] <= first:
            self._given, found = self._marks.popleft()
        return found

    def _first_needed(self) -> int:
        """The number of the oldest record that is of use."""
        for _, number in self._live.values():
            return number
        return self._count

    def _settle(self, key: str, value: Value | None) -> None:
        self._live.pop(key, None)
        if value is not None:
            self._live[key] = (value, self._count)
