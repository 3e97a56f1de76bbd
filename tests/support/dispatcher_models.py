"""Models of the other side of a delivery: the dispatchers of stock 4.0.8, stock 4.2.4 and ours, as small as they may be.

`OrderedDispatcher` has one consumer that gets everything in order (Exclusive, Failover):

* ours goes back at once when it is asked to deliver again, and when a transaction with acknowledgements aborts.
* 4.0.8 goes back as well, but a read that is under way ends later: what it brings is of the old consumer epoch, and the
  dispatcher goes on behind it. What lies between is passed over.
* 4.2.4 drops what such a read brings, and goes on behind it as well.

`SharedDispatcher` brings whole entries again: all messages of an entry that are not acknowledged and not pending, whoever works
on them; after an abort by itself.

Entries are numbers; `sizes` says how many messages an entry has, 0 for one that is not a batch.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

OURS, OLD, NEW = "ours", "stock 4.0.8", "stock 4.2.4"


def whole(size: int) -> int:
    """All messages of an entry."""
    return (1 << (size or 1)) - 1


class Dispatcher:
    """State that both have: what is stored, acknowledged, and pending in a transaction."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.published = 0
        self.unacked: dict[int, int] = {}
        self.pending: dict[object, dict[int, int]] = {}
        self.permits = 0
        self.to_client: deque[tuple[Any, ...]] = deque()
        """Frames on their way: entries (number, messages that are not acknowledged, consumer epoch), and answers."""

    def publish(self) -> None:
        """Store the next entry."""
        self.unacked[self.published] = whole(self.sizes[self.published])
        self.published += 1

    def live(self, entry: int) -> int:
        """The messages of an entry that may be delivered."""
        bits = self.unacked.get(entry, 0)
        for acked in self.pending.values():
            bits &= ~acked.get(entry, 0)
        return bits

    def ack(self, ids: Any, *, cumulative: bool) -> None:
        """ACK outside of transactions."""
        for _, entry, left, _ in ids:
            if cumulative:
                for earlier in [each for each in self.unacked if each < entry]:
                    del self.unacked[earlier]
            self._settle(entry, ~(left or 0))

    def _settle(self, entry: int, done: int) -> None:
        rest = self.unacked.get(entry, 0) & ~done
        if rest:
            self.unacked[entry] = rest
        else:
            self.unacked.pop(entry, None)

    def ack_in(self, txn: object, ids: Any) -> bool:
        """ACK in a transaction; False for a conflict."""
        wanted = {entry: whole(size) & ~(left or 0) for _, entry, left, size in ids}
        if any(bits & ~self.live(entry) for entry, bits in wanted.items()):
            return False
        acked = self.pending.setdefault(txn, {})
        for entry, bits in wanted.items():
            acked[entry] = acked.get(entry, 0) | bits
        return True

    def commit(self, txn: object) -> None:
        """End a transaction."""
        for entry, bits in self.pending.pop(txn, {}).items():
            self._settle(entry, bits)

    def abort(self, txn: object) -> dict[int, int]:
        """End a transaction; what it had."""
        return self.pending.pop(txn, {})

    def _send(self, entry: int, epoch: int) -> None:
        bits = self.live(entry)
        if bits:
            self.permits -= self.sizes[entry] or 1
            self.to_client.append((entry, bits, epoch))


class OrderedDispatcher(Dispatcher):
    """One consumer gets everything, in order."""

    def __init__(self, kind: str, sizes: list[int], rnd: random.Random) -> None:
        super().__init__(sizes)
        self.kind = kind
        self.epoch = 0
        self._rnd = rnd
        self._next = 0
        self._read: tuple[int, int, int] | None = None
        """First entry, the one behind the last, and the epoch in which it began."""

    @property
    def is_reading(self) -> bool:
        """True if a read is under way."""
        return self._read is not None

    def step(self) -> bool:
        """Begin a read or end one; False when there is nothing to do."""
        if self._read is None:
            if self.permits <= 0 or self._next >= self.published:
                return False
            self._read = (self._next, min(self.published, self._next + self._rnd.randint(1, 5)), self.epoch)
            if self.kind != OURS:
                return True
        first, end, epoch = self._read
        self._read, self._next = None, end
        for entry in range(first, end) if self.kind != NEW or epoch == self.epoch else ():
            self._send(entry, epoch)
        return True

    def redeliver(self, epoch: int) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        self.epoch = epoch
        self._next = min(self.unacked, default=self.published)

    def abort(self, txn: object) -> dict[int, int]:
        """End a transaction, and go back without a word."""
        had = super().abort(txn)
        if had:
            self._next = min(self.unacked, default=self.published)
        return had

    def subscribe(self, epoch: int) -> None:
        """A consumer has come, and nothing is on its way to it."""
        self.to_client.clear()
        self.permits, self._read = 0, None
        self.redeliver(epoch)


class SharedDispatcher(Dispatcher):
    """Entries go to whom they go; here to one consumer."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self._waiting: deque[int] = deque()

    def publish(self) -> None:
        """Store the next entry."""
        self._waiting.append(self.published)
        super().publish()

    def step(self) -> bool:
        """Deliver the next entry; False when there is nothing to do."""
        if self.permits <= 0 or not self._waiting:
            return False
        self._send(self._waiting.popleft(), 0)
        return True

    @property
    def is_reading(self) -> bool:
        """True if a read is under way."""
        return False

    def subscribe(self, _epoch: int) -> None:
        """A consumer has come, and nothing is on its way to it."""
        self.to_client.clear()
        self.permits, self._waiting = 0, deque(entry for entry in range(self.published) if self.live(entry))

    def redeliver_these(self, entries: list[int]) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES of some entries: whole ones."""
        self._waiting.extend(entry for entry in entries if self.live(entry))

    def abort(self, txn: object) -> dict[int, int]:
        """End a transaction: its entries come again, with all that is not acknowledged."""
        had = super().abort(txn)
        self.redeliver_these(sorted(had))
        return had
