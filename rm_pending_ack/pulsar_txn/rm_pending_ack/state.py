"""The state of a pending-ack handle, and the only code that changes it: `PendingState.apply`.

Every message that a transaction holds, or that a settled ack still waits to see stored by the cursor, has exactly one
holder; `pending` is the union of them by entry, which is what the dispatcher asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from pulsar_txn.ledger.ordered import OrderedMap
from pulsar_txn.rm_pending_ack.ack_sets import Bits, difference, intersection, joined, reaches, union, up_to
from pulsar_txn.rm_pending_ack.records import NO_TXN, Op, Record
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.rm_pending_ack.transitions import State
from pulsar_txn.wire.ids import EARLIEST, Position, TxnAction, TxnId, full_ack_set

_FORGOTTEN_PER_END: Final = 16


class Held:
    """What an open transaction holds. `first`: the log position of its first record."""

    __slots__ = ("cumulative", "first", "items", "txn_id")

    def __init__(self, txn_id: TxnId, first: Position) -> None:
        self.txn_id = txn_id
        self.first = first
        self.items: dict[Position, tuple[Bits, int]] = {}
        self.cumulative: AckItem | None = None

    def individual(self) -> tuple[AckItem, ...]:
        """The individual acks as items."""
        return tuple((position, bits, batch_size) for position, (bits, batch_size) in self.items.items())

    def behind(self, cumulative: AckItem) -> Iterator[AckItem]:
        """What of its individual acks a cumulative item covers."""
        place, _, place_size = cumulative
        for position, (bits, batch_size) in self.items.items():
            if (part := up_to(cumulative, position, bits)) != 0:
                yield position, part, max(batch_size, place_size) if position == place else batch_size


class Coordinator:
    """What is known of one coordinator's transactions. `ended` holds ids above the low watermark (older ones may linger)."""

    __slots__ = ("ended", "low_watermark", "open")

    def __init__(self) -> None:
        self.low_watermark = -1
        self.open: dict[int, Held] = {}
        self.ended: OrderedMap[int, TxnAction] = OrderedMap()

    def stale(self, low_watermark: int, ending: int) -> list[Held]:
        """Open transactions that a new low watermark declares over, without the one that is ending."""
        if low_watermark <= self.low_watermark or not self.open or min(self.open) > low_watermark:
            return []
        return [held for least, held in self.open.items() if least <= low_watermark and least != ending]

    def forget_ended(self) -> None:
        """Drop ids at or below the low watermark, oldest end first, up to the first that is above it.

        Some with each end: after the end of one that was open for long, a hundred thousand may be below the low watermark.
        """
        for _ in range(_FORGOTTEN_PER_END):
            oldest = self.ended.first()
            if oldest is None or oldest[0] > self.low_watermark:
                return
            del self.ended[oldest[0]]


class Settled(NamedTuple):
    """Acks that are decided and may not be in the cursor's durable state yet.

    `sequence` is the number of their MoveCursor, counted anew in every life. `at` is the position of the record that
    settled them, `first` the oldest position that a replay needs for them.
    """

    sequence: int
    at: Position
    first: Position
    txn_id: TxnId
    items: tuple[AckItem, ...]
    cumulative: AckItem | None


class PendingState:
    """The fold over the redo log."""

    def __init__(self) -> None:
        self.coordinators: dict[int, Coordinator] = {}
        self.pending: dict[Position, Bits] = {}
        self.slot: Held | None = None
        self.settled: deque[Settled] = deque()
        self.settled_cumulative: AckItem | None = None
        self.sequence = 0
        self.applied = 0
        self.last: Position = EARLIEST

    def find(self, txn_id: TxnId) -> Held | None:
        """The open transaction, None when it is not open here."""
        coordinator = self.coordinators.get(txn_id[0])
        return None if coordinator is None else coordinator.open.get(txn_id[1])

    def state_of(self, txn_id: TxnId) -> State:
        """What is known of a transaction."""
        coordinator = self.coordinators.get(txn_id.most)
        if coordinator is None:
            return State.UNKNOWN
        if txn_id.least in coordinator.open:
            return State.OPEN
        if txn_id.least <= coordinator.low_watermark:
            return State.PAST
        match coordinator.ended.get(txn_id.least):
            case None:
                return State.UNKNOWN
            case TxnAction.ABORT:
                return State.ABORTED
            case _:
                waits = any(settled.txn_id == txn_id for settled in self.settled)
                return State.COMMITTED if waits else State.COVERED

    def open(self) -> Iterator[Held]:
        """All open transactions."""
        for coordinator in self.coordinators.values():
            yield from coordinator.open.values()

    def held_part(self, item: AckItem) -> AckItem | None:
        """What of an item open transactions hold, None if nothing."""
        position, _, batch_size = item
        parts: Bits = 0
        for held in self.open():
            for _, part, size in _shared(held, (item,)):
                parts, batch_size = union(parts, part), max(batch_size, size)
        return None if parts == 0 else (position, parts, batch_size)

    def apply(self, position: Position, record: Record) -> None:
        """Change the state by one record of the log."""
        op = record.op
        if op is Op.ACK:
            self._ack(position, record)
        elif op is Op.COMMIT or op is Op.ABORT:
            self._end(position, record)
        elif op is Op.PLAIN_ACK:
            self._plain_ack(position, record)
        elif op is Op.CURSOR_STORED:
            self._stored(record.items[0][0])
        else:
            self._reset(record.items[0][0])
        self.applied += 1
        self.last = position

    def coordinator(self, most: int) -> Coordinator:
        """What is known of a coordinator, made on first sight."""
        if (coordinator := self.coordinators.get(most)) is None:
            coordinator = self.coordinators[most] = Coordinator()
        return coordinator

    def hold(self, held: Held, items: Iterable[AckItem]) -> None:
        """Add items to what a transaction holds."""
        for place, bits, batch_size in items:
            own = held.items.get(place)
            held.items[place] = (bits, batch_size) if own is None else (union(own[0], bits), max(own[1], batch_size))
        self.cover(items)

    def cover(self, items: Iterable[AckItem]) -> None:
        """Add items to what is pending by entry."""
        for place, bits, _ in items:
            self.pending[place] = union(self.pending[place], bits) if place in self.pending else bits

    def settle(self, settled: Settled) -> None:
        """Keep decided acks until the cursor has stored them. Their items are in `pending` already."""
        self.sequence = settled.sequence
        self.settled.append(settled)
        self.settled_cumulative = joined(self.settled_cumulative, settled.cumulative)

    def _ack(self, position: Position, record: Record) -> None:
        txn_id = record.txn_id
        open_here = self.coordinator(txn_id[0]).open
        if (held := open_here.get(txn_id[1])) is None:
            held = open_here[txn_id[1]] = Held(txn_id, position)
        if record.cumulative:
            held.cumulative = joined(held.cumulative, record.items[0])
            self.slot = held
        else:
            self.hold(held, record.items)

    def _end(self, position: Position, record: Record) -> None:
        txn_id = record.txn_id
        coordinator = self.coordinator(txn_id.most)
        held = coordinator.open.pop(txn_id.least, None)
        if held is not None:
            if record.op is Op.COMMIT:
                self._commit(held, position)
            else:
                self._release(held)
        coordinator.ended[txn_id.least] = TxnAction.COMMIT if record.op is Op.COMMIT else TxnAction.ABORT
        for stale in coordinator.stale(record.low_watermark, txn_id.least):
            self._release(coordinator.open.pop(stale.txn_id.least))
        coordinator.low_watermark = max(coordinator.low_watermark, record.low_watermark)
        coordinator.forget_ended()

    def _commit(self, held: Held, position: Position) -> None:
        if self.slot is held:
            self.slot = None
        if held.items or held.cumulative:
            self.settle(Settled(self.sequence + 1, position, held.first, held.txn_id, held.individual(), held.cumulative))

    def _release(self, held: Held) -> None:
        if self.slot is held:
            self.slot = None
        self._uncover(held.individual())

    def _uncover(self, items: Iterable[AckItem]) -> None:
        for place, bits, batch_size in items:
            rest = difference(self.pending[place], bits, batch_size)
            if rest == 0:
                del self.pending[place]
            else:
                self.pending[place] = rest

    def _plain_ack(self, position: Position, record: Record) -> None:
        cumulative = record.items[0] if record.cumulative else None
        taken: list[AckItem] = []
        for held in self.open():
            found = held.behind(cumulative) if cumulative else _shared(held, record.items)
            for item in list(found):
                self._take(held, item)
                taken.append(item)
        if cumulative and self.slot and self.slot.cumulative and reaches(cumulative, self.slot.cumulative):
            self.slot.cumulative = None
            self.slot = None
        items = tuple(taken) if cumulative else record.items
        self.cover(items)
        self.settle(Settled(self.sequence + 1, position, position, NO_TXN, items, cumulative))

    def _take(self, held: Held, item: AckItem) -> None:
        """Move a part out of what a transaction holds. A whole entry divides into its indexes."""
        place, part, batch_size = item
        if part is not None and self.pending[place] is None:
            self.pending[place] = full_ack_set(batch_size)
        rest = difference(held.items[place][0], part, batch_size)
        if rest == 0:
            del held.items[place]
        else:
            held.items[place] = (rest, batch_size)

    def _stored(self, at: Position) -> None:
        while self.settled and self.settled[0].at <= at:
            self._uncover(self.settled.popleft().items)
        self.settled_cumulative = None
        for settled in self.settled:
            self.settled_cumulative = joined(self.settled_cumulative, settled.cumulative)

    def _reset(self, mark_delete: Position) -> None:
        for settled in self.settled:
            self._uncover(settled.items)
        self.settled.clear()
        self.settled_cumulative = None
        for held in self.open():
            passed = [item for item in held.individual() if item[0] <= mark_delete]
            self._uncover(passed)
            for item in passed:
                del held.items[item[0]]
        if self.slot and self.slot.cumulative and self.slot.cumulative[0] <= mark_delete:
            self.slot.cumulative = None
            self.slot = None


def _shared(held: Held, items: Iterable[AckItem]) -> Iterator[AckItem]:
    for place, bits, batch_size in items:
        if place in held.items:
            own, own_size = held.items[place]
            if (part := intersection(own, bits)) != 0:
                yield place, part, max(own_size, batch_size)
