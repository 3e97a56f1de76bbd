"""Models of the other side of a delivery: the dispatchers of stock 4.0.8, stock 4.2.4 and ours, as small as they may be.

`OrderedDispatcher` has one consumer that gets everything in order (Exclusive, Failover). A read of a stock broker has three
moments: it begins at the cursor; it lands, which moves the cursor behind what it brings; and it is handled, which sends that. A
broker that is asked to deliver again, or whose transaction aborts, puts the cursor back and begins a read at once, however many
are under way. One that lands later moves the cursor forward again, over what nobody has sent:

* ours has no read under way: it sends what it reads.
* 4.0.8 sends what an earlier read brings; in the old consumer epoch, if it was asked by the consumer.
* 4.2.4 drops what a read brings after another one has begun.

`SharedDispatcher` brings whole entries again: all messages of an entry that are not acknowledged and not pending, whoever works
on them. It does so when it is asked for an entry that the consumer has, and after an abort by itself. What waits to come again
comes first. With keys (Key_Shared) nothing is sent while something before it with the same key waits.

Seen in the byte code of both versions: `PersistentDispatcherSingleActiveConsumer.internalRedeliverUnacknowledgedMessages` and
`readEntriesComplete`, `OpReadEntry.updateReadPosition`, `Consumer.redeliverUnacknowledgedMessages`.

Entries are numbers; `sizes` says how many messages an entry has, 0 for one that is not a batch. An entry of size `MARKER` is
never delivered, and leaves a hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

OURS, OLD, NEW = "ours", "stock 4.0.8", "stock 4.2.4"
SHARED, KEY_SHARED = "Shared", "Key_Shared"
KINDS = (OURS, OLD, NEW, SHARED, KEY_SHARED)
MARKER = -1


def whole(size: int) -> int:
    """All messages of an entry."""
    return (1 << (size or 1)) - 1


class Dispatcher:
    """State that all have: what is stored, acknowledged, and pending in a transaction."""

    def __init__(self, kind: str, sizes: list[int]) -> None:
        self.kind = kind
        self.sizes = sizes
        self.published = 0
        self.unacked: dict[int, int] = {}
        self.pending: dict[int, dict[int, int]] = {}
        self.permits = 0
        self.sent = 0
        """Messages that were sent, for comparisons."""
        self.to_client: deque[tuple[Any, ...]] = deque()
        """Frames on their way: entries (number, messages that are not acknowledged, consumer epoch), and answers."""

    def publish(self) -> None:
        """Store the next entry, and the markers that follow it."""
        while True:
            if self.sizes[self.published] != MARKER:
                self.unacked[self.published] = whole(self.sizes[self.published])
            self.published += 1
            if self.published == len(self.sizes) or self.sizes[self.published] != MARKER:
                return

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
            self.settle(entry, ~(left or 0))

    def settle(self, entry: int, done: int) -> None:
        """Messages of an entry are acknowledged for good."""
        rest = self.unacked.get(entry, 0) & ~done
        if rest:
            self.unacked[entry] = rest
        else:
            self.unacked.pop(entry, None)

    def ack_in(self, txn: int, ids: Any) -> bool:
        """ACK in a transaction; False for a conflict. Ours knows a request that it has taken before by its key."""
        wanted = {entry: whole(size) & ~(left or 0) for _, entry, left, size in ids}
        acked = self.pending.setdefault(txn, {})
        if any(bits & ~self.live(entry) for entry, bits in wanted.items()):
            return self.kind == OURS and all(acked.get(entry, 0) & bits == bits for entry, bits in wanted.items())
        for entry, bits in wanted.items():
            acked[entry] = acked.get(entry, 0) | bits
        return True

    def commit(self, txn: int) -> None:
        """End a transaction."""
        for entry, bits in self.pending.pop(txn, {}).items():
            self.settle(entry, bits)

    def abort(self, txn: int) -> dict[int, int]:
        """End a transaction; what it had."""
        return self.pending.pop(txn, {})

    def seek(self, entry: int) -> None:
        """Move the subscription to an entry: what is before it is acknowledged, and nothing else is."""
        self.unacked = {each: whole(self.sizes[each]) for each in range(entry, self.published) if self.sizes[each] != MARKER}

    def leave(self) -> None:
        """The consumer is gone, with what was on its way to it, and the reads for it are over."""
        self.to_client.clear()
        self.permits = 0

    def _send(self, entry: int, epoch: int) -> None:
        bits = self.live(entry)
        if bits:
            self.permits -= self.sizes[entry] or 1
            self.sent += bits.bit_count()
            self.to_client.append((entry, bits, epoch))


class Read:
    """One read: its first entry, the most that it brings, and when it began. `end` is known once it has landed."""

    def __init__(self, first: int, limit: int, epoch: int, number: int) -> None:
        self.first = first
        self.limit = limit
        self.epoch = epoch
        self.number = number
        self.end: int | None = None


class OrderedDispatcher(Dispatcher):
    """One consumer gets everything, in order. `limit` is the most entries that one read brings."""

    def __init__(self, kind: str, sizes: list[int], limit: int) -> None:
        super().__init__(kind, sizes)
        self.epoch = 0
        self.limit = limit
        self.reads: list[Read] = []
        self._next = 0
        self._is_reading = False
        """As the broker believes: it begins no read then by itself."""
        self._number = 0

    def moves(self) -> Iterable[tuple[str, int]]:
        """Everything that may happen next by itself."""
        if self._may_begin():
            yield ("begin", 0)
        for index, read in enumerate(self.reads):
            if read.end is None:
                yield ("land", index)
        landed = next((index for index, read in enumerate(self.reads) if read.end is not None), None)
        if landed is not None:
            yield ("handle", landed)

    def move(self, move: tuple[str, int]) -> None:
        """Let it happen."""
        match move:
            case ("begin", _):
                self._begin()
            case ("land", index):
                read = self.reads.pop(index)
                read.end = self._next = min(self.published, read.first + read.limit)
                self.reads.append(read)  # what has landed is handled in that order
            case ("handle", index):
                self._handle(self.reads.pop(index))

    def _may_begin(self) -> bool:
        return not self._is_reading and self.permits > 0 and self._next < self.published

    def _begin(self) -> None:
        self._number += 1
        read = Read(self._next, min(self.limit, self.permits), self.epoch, self._number)
        if self.kind == OURS:
            self._next = min(self.published, read.first + read.limit)
            for entry in range(read.first, self._next):
                self._send(entry, read.epoch)
            return
        self.reads.append(read)
        self._is_reading = True

    def _handle(self, read: Read) -> None:
        assert read.end is not None
        if self.kind == NEW and read.number != self._number:
            return
        self._is_reading = False
        for entry in range(read.first, read.end):
            self._send(entry, read.epoch)

    def _go_back(self) -> None:
        self._is_reading = False
        self._next = min(self.unacked, default=self.published)
        if self._may_begin():
            self._begin()

    def redeliver(self, epoch: int) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        self.epoch = max(epoch, self.epoch)
        self._go_back()

    def abort(self, txn: int) -> dict[int, int]:
        """End a transaction, and go back without a word."""
        had = super().abort(txn)
        if had:
            self._go_back()
        return had

    def leave(self) -> None:
        """The consumer is gone, with what was on its way to it, and the reads for it are over."""
        super().leave()
        self.reads.clear()

    def subscribe(self, epoch: int) -> None:
        """A consumer has come."""
        self.epoch = epoch
        self._go_back()


class SharedDispatcher(Dispatcher):
    """Entries go to whom they go; here to one consumer. `keys` of the entries are those of Key_Shared."""

    def __init__(self, sizes: list[int], keys: list[int] | None = None) -> None:
        super().__init__(OLD, sizes)
        self.keys = keys
        self._next = 0
        self._again: set[int] = set()
        self._given: set[int] = set()
        """Entries that the consumer has."""

    @property
    def reads(self) -> list[Read]:
        """Reads under way: what they bring is sent at once here."""
        return []

    def moves(self) -> Iterable[tuple[str, int]]:
        """Everything that may happen next by itself."""
        if self.permits > 0:
            again = next((entry for entry in sorted(self._again) if self._may_go(entry)), None)
            if again is not None:
                yield ("again", again)
            elif self._next < self.published and self._may_go(self._next):
                yield ("next", self._next)

    def _may_go(self, entry: int) -> bool:
        return self.keys is None or not any(each < entry and self.keys[each] == self.keys[entry] for each in self._again)

    def move(self, move: tuple[str, int]) -> None:
        """Let it happen."""
        what, entry = move
        if what == "again":
            self._again.discard(entry)
        else:
            self._next += 1
        if self.live(entry):
            self._given.add(entry)
        self._send(entry, 0)

    def settle(self, entry: int, done: int) -> None:
        """Messages of an entry are acknowledged for good."""
        super().settle(entry, done)
        if entry not in self.unacked:
            self._given.discard(entry)
            self._again.discard(entry)

    def redeliver_these(self, entries: Iterable[int]) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES of some entries: whole ones, of those that the consumer has."""
        for entry in entries:
            if entry in self._given:
                self._given.discard(entry)
                self._again.add(entry)

    def redeliver(self, _epoch: int) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES of all."""
        self.redeliver_these(list(self._given))

    def ack_in(self, txn: int, ids: Any) -> bool:
        """ACK in a transaction. The dispatcher forgets entries that are no batch, also in a conflict."""
        is_taken = super().ack_in(txn, ids)
        for _, entry, _, size in ids:
            if not size:
                self._given.discard(entry)
        return is_taken

    def abort(self, txn: int) -> dict[int, int]:
        """End a transaction: its entries come again, with all that is not acknowledged."""
        had = super().abort(txn)
        self._again.update(had)
        return had

    def subscribe(self, _epoch: int) -> None:
        """A consumer has come after the only one had left: the subscription begins anew."""
        self._next = min(self.unacked, default=self.published)
        self._again.clear()
        self._given.clear()
