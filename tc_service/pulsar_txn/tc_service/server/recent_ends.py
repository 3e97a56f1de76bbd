"""Transactions of a coordinator that ended in the last seconds, with their participants: so that a restart repeats their ends.

The driver repeats each end once, in memory (`cluster.ends`). When the process dies before that, the next one, or the
instance that leads then, finds these ends here: from the records of the log, and from what was stored beside its snapshot.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import TxnId

_FORMAT: Final = 1
_MOST_PARTICIPANTS: Final = 4096
"""Of one coordinator: writing so many beside a snapshot takes a few milliseconds. The oldest are dropped."""


class End(NamedTuple):
    """A transaction that ended. `participants`: topics with their cluster, and subscriptions there."""

    at_ms: int
    txn_id: TxnId
    is_commit: bool
    participants: tuple[tuple[str, str | None], ...]


class RecentEnds:
    """The ends of the last `delay_ms`, by the times of the log. 0: none are kept."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self._ends: deque[End] = deque()
        self._participants = 0

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, end: End) -> None:
        """This transaction has ended last."""
        if not self._delay_ms or not end.participants:
            return
        self._ends.append(end)
        self._participants += len(end.participants)
        until_ms = end.at_ms - self._delay_ms
        while self._ends[0].at_ms <= until_ms or (self._participants > _MOST_PARTICIPANTS and len(self._ends) > 1):
            self._participants -= len(self._ends.popleft().participants)

    def not_repeated(self) -> Iterator[tuple[End, int]]:
        """Those that may not have been repeated before the log ended, and when each is due: after the time of the log."""
        return ((end, end.at_ms + self._delay_ms) for end in list(self._ends))

    def stored(self) -> bytes:
        """All of them as bytes."""
        ends = [[end.at_ms, *end.txn_id, end.is_commit, end.participants] for end in self._ends]
        return json.dumps({"format": _FORMAT, "ends": ends}, separators=(",", ":")).encode()

    def restore(self, data: bytes) -> None:
        """The inverse of `stored`; snapshots of older versions have nothing. WireError."""
        if not data:
            return
        found = json.loads(data)
        if found["format"] > _FORMAT:
            raise WireError(f"ends beside a snapshot in format {found['format']}; this version reads up to {_FORMAT}")
        for at_ms, most, least, is_commit, participants in found["ends"]:
            names = tuple((topic, subscription) for topic, subscription in participants)
            self.add(End(at_ms, TxnId(most, least), is_commit, names))
