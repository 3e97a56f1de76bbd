"""Messages that transactions hold: per transaction, per coordinator, and by the earliest message.

A handle may hold a million messages. So questions are answered by what they touch: a transaction knows its earliest message
(a heap), all transactions lie in the order of theirs (a sorted list), and a coordinator knows its smallest open id (a heap).
Heaps keep what is gone until it comes up.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias, overload

from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.rm_pending_ack.ack_sets import Bits, joined, union, up_to
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.wire.ids import AckKey, Position, TxnAction, TxnId

Items: TypeAlias = dict[Position, tuple[Bits, int]]
"""By entry: what of it, and how many messages it has (0: not known, or no batch)."""

Keys: TypeAlias = dict[AckKey, bytes]
"""The requests that were taken, by key, and what each named (`records.content_of`)."""

HeldImage: TypeAlias = tuple[TxnId, Position, Items, AckItem | None, Keys]

_FORGOTTEN_PER_END: Final = 16

MANY: Final = 1000
"""More items than this are not made at once."""

ITEM_BYTES: Final = 500
"""Approximate bytes of one entry in memory, without the bits of its batch."""

KEY_BYTES: Final = 300
"""Approximate bytes of the key of one request in memory."""


def bytes_of(bits: Bits) -> int:
    """Memory of one entry, in bytes, about."""
    return ITEM_BYTES if bits is None else ITEM_BYTES + (bits.bit_length() >> 3)


class Held:
    """Messages of an open transaction. `first`: the log position of its first record. `over`: it holds nothing any more."""

    __slots__ = ("_order", "bytes", "cumulative", "first", "items", "keys", "over", "txn_id")

    def __init__(self, txn_id: TxnId, first: Position) -> None:
        self.txn_id = txn_id
        self.first = first
        self.items: Items = {}
        self.cumulative: AckItem | None = None
        self.keys: Keys = {}
        self.bytes = 0
        self.over = False
        self._order: list[Position] = []

    def individual(self) -> tuple[AckItem, ...]:
        """The individual acks as items."""
        return tuple([(position, bits, batch_size) for position, (bits, batch_size) in self.items.items()])

    def ending(self) -> Sequence[AckItem]:
        """The individual acks as items, for when it ends."""
        return self.individual() if len(self.items) <= MANY else ManyItems(self.items)

    def image(self) -> HeldImage:
        """All of it as it is now."""
        return self.txn_id, self.first, self.items.copy(), self.cumulative, self.keys.copy()

    def note(self, key: AckKey, content: bytes) -> int:
        """Remember a request that was taken; returns how many bytes that takes."""
        more = 0 if key in self.keys else KEY_BYTES
        self.keys[key] = content
        self.bytes += more
        return more

    def put(self, position: Position, bits: Bits, batch_size: int) -> int:
        """Hold more; returns how many bytes that takes."""
        own = self.items.get(position)
        if own is None:
            heappush(self._order, position)
            before = 0
        else:
            before = bytes_of(own[0])
            bits, batch_size = union(own[0], bits), max(own[1], batch_size)
        self.items[position] = (bits, batch_size)
        more = (ITEM_BYTES if bits is None else bytes_of(bits)) - before
        self.bytes += more
        return more

    def leave(self, position: Position, rest: Bits, batch_size: int) -> int:
        """Hold only `rest` of an entry, 0 for nothing; returns how many bytes that frees."""
        freed = bytes_of(self.items[position][0])
        if rest == 0:
            del self.items[position]
        else:
            self.items[position] = (rest, batch_size)
            freed -= bytes_of(rest)
        self.bytes -= freed
        return freed

    def acknowledge_up_to(self, item: AckItem) -> None:
        """Hold everything up to an item."""
        self.cumulative = joined(self.cumulative, item)

    def leave_cumulative(self) -> None:
        """Hold no more than the individual acks."""
        self.cumulative = None

    def end(self) -> None:
        """The transaction has ended."""
        self.over = True

    def lowest(self) -> Position | None:
        """The earliest entry that is held individually."""
        order, items = self._order, self.items
        while order and order[0] not in items:
            heappop(order)
        if len(order) > 2 * len(items) + 64:
            self._order = order = list(items)
            heapify(order)
        return order[0] if order else None

    def behind(self, cumulative: AckItem) -> list[AckItem]:
        """Individual acks that a cumulative item covers, in order."""
        place, _, place_size = cumulative
        found: list[AckItem] = []
        seen: list[Position] = []
        while (position := self.lowest()) is not None and position <= place:
            heappop(self._order)
            if seen and seen[-1] == position:
                continue
            seen.append(position)
            bits, batch_size = self.items[position]
            if (part := up_to(cumulative, position, bits)) != 0:
                found.append((position, part, max(batch_size, place_size) if position == place else batch_size))
        for position in seen:  # they are held as before
            heappush(self._order, position)
        return found


class ManyItems(Sequence[AckItem]):
    """The acks of a transaction that has ended, as items, which are made while they are walked: there may be very many."""

    __slots__ = ("_items",)

    def __init__(self, items: Items) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[AckItem]:
        return ((position, bits, batch_size) for position, (bits, batch_size) in self._items.items())

    @overload
    def __getitem__(self, index: int) -> AckItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[AckItem]: ...
    def __getitem__(self, index: int | slice) -> AckItem | Sequence[AckItem]:
        return list(self)[index]


class Settled:
    """Acks that are decided and may not be in the cursor's durable state yet. Nothing of it changes once it is complete.

    `sequence` is the number of their MoveCursor, counted from the start in every life. `at` is the position of the record that
    settled them, `first` the oldest position that a replay needs for them.
    """

    __slots__ = ("at", "bytes", "cumulative", "first", "items", "sequence", "txn_id")

    def __init__(
        self, sequence: int, at: Position, first: Position, txn_id: TxnId, items: Items, cumulative: AckItem | None, size: int
    ) -> None:
        self.sequence = sequence
        self.at = at
        self.first = first
        self.txn_id = txn_id
        self.items = items
        self.cumulative = cumulative
        self.bytes = size

    def continue_with(self, items: Items, size: int) -> None:
        """Take the next individual acks of a snapshot that has them in several slices."""
        self.items.update(items)
        self.bytes += size

    def individual(self) -> tuple[AckItem, ...]:
        """The individual acks as items."""
        return tuple([(position, bits, batch_size) for position, (bits, batch_size) in self.items.items()])


class Coordinator:
    """Transactions of one coordinator. `ended` holds ids above the low watermark (older ones may linger)."""

    __slots__ = ("_ids", "ended", "low_watermark", "open")

    def __init__(self) -> None:
        self.low_watermark = -1
        self.open: OrderedMap[int, Held] = OrderedMap(Held.image)
        self.ended: OrderedMap[int, TxnAction] = OrderedMap()
        self._ids: list[int] = []

    def begin(self, held: Held) -> Held:
        """A transaction is open from now on."""
        self.open[held.txn_id.least] = held
        heappush(self._ids, held.txn_id.least)
        return held

    def rise(self, low_watermark: int) -> None:
        """A low watermark was read. It never falls."""
        self.low_watermark = max(self.low_watermark, low_watermark)

    def stale(self, low_watermark: int, ending: int) -> list[Held]:
        """Open transactions that a new low watermark declares over, without the one that is ending; smallest id first."""
        ids, found = self._ids, self.open
        while ids and ids[0] not in found:
            heappop(ids)
        if low_watermark <= self.low_watermark or not ids or ids[0] > low_watermark:
            return []
        reached, places = set(), [0]
        while places:
            place = places.pop()
            if place < len(ids) and ids[place] <= low_watermark:
                reached.add(ids[place])
                places += (2 * place + 1, 2 * place + 2)
        return [found[least] for least in sorted(reached) if least != ending and least in found]

    def forget_ended(self) -> None:
        """Drop ids at or below the low watermark, oldest end first, up to the first that is above it.

        Some with each end: after the end of one that was open for long, a hundred thousand may be below the low watermark.
        """
        for _ in range(_FORGOTTEN_PER_END):
            oldest = self.ended.first()
            if oldest is None or oldest[0] > self.low_watermark:
                return
            del self.ended[oldest[0]]


class Lowest:
    """Open transactions in the order of their earliest individual ack."""

    __slots__ = ("_order", "_places")

    def __init__(self) -> None:
        self._order: list[tuple[Position, TxnId]] = []
        self._places: dict[TxnId, Position] = {}

    def update(self, held: Held) -> None:
        """A transaction holds something else than before."""
        lowest, known = None if held.over else held.lowest(), self._places.get(held.txn_id)
        if lowest == known:
            return
        if known is not None:
            del self._order[bisect_left(self._order, (known, held.txn_id))]
            del self._places[held.txn_id]
        if lowest is not None:
            insort(self._order, (lowest, held.txn_id))
            self._places[held.txn_id] = lowest

    def upto(self, position: Position) -> Iterator[TxnId]:
        """The transactions that hold something at or before a position; nothing may change meanwhile."""
        for lowest, txn_id in self._order:
            if lowest > position:
                return
            yield txn_id
