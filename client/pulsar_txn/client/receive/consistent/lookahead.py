"""Knowledge of one partition ahead of what was handed out: runs of entries, and how far samples of its end were passed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pulsar_txn.wire.ids import EARLIEST, Position, TxnId

RUN_MESSAGES: Final = 500
"""Messages of plain entries in one run, so that a cut can end between them."""

_SAMPLES: Final = 64


class SeenTransaction:
    """A transaction as far as it has been seen.

    `first`: the number that a sample must have at least to have been begun after the transaction was first seen. `last`: the
    number of its last run, by partition. `dropped`: a part of it is before the place where the reader began, so none of it is
    handed out.
    """

    __slots__ = ("complete", "dropped", "first", "last", "txn_id")

    def __init__(self, txn_id: TxnId, first: int) -> None:
        self.txn_id = txn_id
        self.first = first
        self.complete = False
        self.dropped = False
        self.last: dict[int, int] = {}

    def shown(self, index: int, run: int, *, dropped: bool) -> None:
        """A partition shows an entry of it, in this run; `dropped` is as the entry's."""
        self.dropped = self.dropped or dropped
        self.last[index] = run

    def is_complete(self) -> None:
        """All of it was shown."""
        self.complete = True


class Run:
    """Neighbouring entries of one transaction, or of none."""

    __slots__ = ("dropped", "last", "messages", "owner", "size")

    def __init__(self, owner: SeenTransaction | None, *, dropped: bool) -> None:
        self.owner = owner
        self.dropped = dropped
        self.last: Position = EARLIEST
        self.messages = 0
        self.size = 0

    @property
    def is_dropped(self) -> bool:
        """True if its messages are not handed out."""
        return self.dropped if self.owner is None else self.owner.dropped


class Samples:
    """Places that were the end of a partition when it was asked, each with the number of its sample.

    The newest sample of those that a place has reached counts. Of two samples the newer one with the smaller place makes
    the other one useless. In the middle some may be forgotten: then later ones count.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Position]] = []
        self.reached = 0

    def add(self, number: int, place: Position) -> None:
        """A sample has this place."""
        while self._waiting and self._waiting[-1][1] >= place:
            self._waiting.pop()
        self._waiting.append((number, place))
        if len(self._waiting) > _SAMPLES:
            del self._waiting[1:-1:2]

    def reach(self, place: Position) -> None:
        """All up to `place` has been read."""
        count = 0
        for number, sampled in self._waiting:
            if sampled > place:
                break
            self.reached = max(self.reached, number)
            count += 1
        del self._waiting[:count]


class PartitionLookahead:
    """One partition: its runs, in order, and the samples of its end."""

    def __init__(self, since: Position | None) -> None:
        self.since = since
        self.read: Position = EARLIEST
        self.taken: Position = EARLIEST
        """The last entry that was handed out."""
        self.ends = Samples()
        self.blocked_by: SeenTransaction | None = None
        self.begin = 0
        """The number of the first run that is here."""
        self._runs: list[Run] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self._runs) - self._gone

    @property
    def end(self) -> int:
        """The number of the run that comes next."""
        return self.begin + len(self)

    @property
    def is_blocked(self) -> bool:
        """True if its first run is known to wait for a transaction."""
        return self.blocked_by is not None and not self.blocked_by.complete

    def waits_for(self, transaction: SeenTransaction) -> None:
        """The first run cannot be handed out before this transaction is complete."""
        self.blocked_by = transaction

    def run(self, number: int) -> Run:
        """A run by its number."""
        return self._runs[number - self.begin + self._gone]

    def add(self, owner: SeenTransaction | None, position: Position, messages: int, size: int) -> bool:
        """An entry comes next; whether it begins a new run."""
        dropped = owner is None and self.since is not None and position <= self.since
        last = self._runs[-1] if len(self) else None
        fits = last is not None and last.owner is owner and last.dropped is dropped
        fresh = not fits or (owner is None and last is not None and last.messages >= RUN_MESSAGES)
        if fresh or last is None:
            last = Run(owner, dropped=dropped)
            self._runs.append(last)
        last.last = self.read = position
        last.messages += messages
        last.size += size
        return fresh

    def take(self, upto: int) -> Iterator[Run]:
        """Hand out the runs before number `upto`."""
        for number in range(self.begin, upto):
            run = self._runs[number - self.begin + self._gone]
            self.taken = run.last
            yield run
        self._gone += upto - self.begin
        self.begin = upto
        if self._gone > 1024 and 2 * self._gone > len(self._runs):
            del self._runs[: self._gone]
            self._gone = 0
