"""The state of a pending-ack handle, and the only code that changes it: `PendingState.apply`.

Every message that a transaction holds, or that a settled ack still waits to see stored by the cursor, has exactly one
holder; `pending` is the union of them by entry, which is what the dispatcher asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from pulsar_txn.ledger.machine import FOLD
from pulsar_txn.rm_pending_ack.ack_sets import Bits, difference, intersection, joined, overlaps, reaches, union
from pulsar_txn.rm_pending_ack.held import KEY_BYTES, Coordinator, Held, Items, Keys, Lowest, Settled, bytes_of
from pulsar_txn.rm_pending_ack.records import NO_TXN, Op, Record, content_of
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.rm_pending_ack.transitions import ABORTED, COMMITTED, TRANSITIONS, Event, State
from pulsar_txn.wire.ids import EARLIEST, LATEST, Position, TxnAction, TxnId, full_ack_set

_END_READ: Final = {Op.COMMIT: Event.COMMIT_READ, Op.ABORT: Event.ABORT_READ}


class PendingState:
    """The fold over the redo log."""

    def __init__(self) -> None:
        self.coordinators: dict[int, Coordinator] = {}
        self.pending: dict[Position, Bits] = {}
        self.bytes = 0  # of what is held and settled, about
        self.lowest = Lowest()
        self.slot: Held | None = None
        self.settled: deque[Settled] = deque()
        self.settled_cumulative: AckItem | None = None
        self.sequence = 0
        self.last_committed = NO_TXN  # of those that acknowledged something
        self.applied = 0
        self.last: Position = EARLIEST
        self._holders: dict[Position, tuple[Held, ...]] = {}  # some may be over, or hold nothing there any more
        self._settling: set[TxnId] = set()

    def find(self, txn_id: TxnId) -> Held | None:
        """The open transaction, None when it is not open here."""
        coordinator = self.coordinators.get(txn_id[0])
        return None if coordinator is None else coordinator.open.get(txn_id[1])

    def state_of(self, txn_id: TxnId) -> State:
        """State of a transaction."""
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
                return State.COMMITTED if txn_id in self._settling else State.COVERED

    def open(self) -> Iterator[Held]:
        """All open transactions."""
        for coordinator in self.coordinators.values():
            yield from coordinator.open.values()

    def first_holder(self) -> TxnId | None:
        """The open transaction whose acks begin first in the topic; a cumulative ack begins at the cursor's place."""
        return next(self.lowest.upto(LATEST), None) if self.slot is None else self.slot.txn_id

    def holders(self, position: Position) -> list[Held]:
        """The open transactions that hold something of an entry individually."""
        return [held for held in self._holders.get(position, ()) if not held.over and position in held.items]

    def behind(self, cumulative: AckItem) -> Iterator[Held]:
        """The open transactions that hold individually what a cumulative item may cover."""
        for most, least in self.lowest.upto(cumulative[0]):
            yield self.coordinators[most].open[least]

    def held_part(self, item: AckItem) -> AckItem | None:
        """Part of an item that open transactions hold, None if none."""
        position, bits, batch_size = item
        parts: Bits = 0
        for held in self.holders(position):
            own, size = held.items[position]
            parts, batch_size = union(parts, intersection(own, bits)), max(batch_size, size)
        return None if parts == 0 else (position, parts, batch_size)

    def apply(self, log: str, position: Position, record: Record) -> None:
        """Change the state by one record of the log; the same live and in recovery."""
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
        """Record of a coordinator, made on first sight."""
        if (coordinator := self.coordinators.get(most)) is None:
            coordinator = self.coordinators[most] = Coordinator()
        return coordinator

    def hold(self, held: Held, items: Iterable[AckItem]) -> None:
        """Add items to what a transaction holds."""
        for place, bits, batch_size in items:
            if place not in held.items:
                self._holders[place] = (*self.holders(place), held) if place in self._holders else (held,)
            self.bytes += held.put(place, bits, batch_size)
            if place in self.pending:
                self.cover(place, bits)
            else:
                self.pending[place] = bits
        self.lowest.update(held)

    def cover(self, place: Position, bits: Bits) -> None:
        """Add to what is pending of an entry."""
        self.pending[place] = union(self.pending[place], bits) if place in self.pending else bits

    def settle(self, settled: Settled) -> None:
        """Keep decided acks until the cursor has stored them. Their items are in `pending` already."""
        self.sequence = settled.sequence
        self.settled.append(settled)
        self.bytes += settled.bytes
        if settled.txn_id != NO_TXN:
            self._settling.add(settled.txn_id)
        if settled.cumulative is not None:
            self.settled_cumulative = joined(self.settled_cumulative, settled.cumulative)

    # ---- snapshots

    def restored(self, applied: int, last: Position, last_committed: TxnId) -> None:
        """A slice was taken over: where the log is, as it says."""
        self.applied = applied
        self.last = last
        self.last_committed = last_committed

    def restore_open(
        self, txn_id: TxnId, first: Position, items: Iterable[AckItem], keys: Keys, cumulative: AckItem | None
    ) -> None:
        """Take over what a transaction holds, or more of it."""
        coordinator = self.coordinator(txn_id.most)
        held = coordinator.open.get(txn_id.least) or coordinator.begin(Held(txn_id, first))
        self.hold(held, items)
        for key, content in keys.items():
            self.bytes += held.note(key, content)
        if cumulative is not None:
            self._hold_up_to(held, cumulative)

    def restore_settled(self, at: Position, first: Position, txn_id: TxnId, items: Items, cumulative: AckItem | None) -> None:
        """Take over settled acks, or more of the last ones."""
        for position, (bits, _) in items.items():
            self.cover(position, bits)
        size = sum(bytes_of(bits) for bits, _ in items.values())
        if self.settled and self.settled[-1].at == at:
            self.settled[-1].continue_with(items, size)
            self.bytes += size
        else:
            self.settle(Settled(self.sequence + 1, at, first, txn_id, items, cumulative, size))

    # ---- records

    def _ack(self, position: Position, record: Record) -> None:
        txn_id = record.txn_id
        coordinator = self.coordinators.get(txn_id[0]) or self.coordinator(txn_id[0])
        if (held := coordinator.open.get(txn_id[1])) is not None:
            coordinator.open.changing(txn_id[1])
        elif TRANSITIONS[self.state_of(txn_id), Event.ACK_READ].act is FOLD:
            held = coordinator.begin(Held(txn_id, position))
        else:
            return
        if record.cumulative:
            self._hold_up_to(held, record.items[0])
        else:
            self.hold(held, record.items)
        if record.key is not None:
            self.bytes += held.note(record.key, content_of(record.items, cumulative=record.cumulative))

    def _hold_up_to(self, held: Held, item: AckItem) -> None:
        held.acknowledge_up_to(item)
        self.slot = held

    def _end(self, position: Position, record: Record) -> None:
        txn_id = record.txn_id
        act, to, _ = TRANSITIONS[self.state_of(txn_id), _END_READ[record.op]]
        coordinator = self.coordinators.get(txn_id.most) or self.coordinator(txn_id.most)
        if act is FOLD:
            held = coordinator.open.pop(txn_id.least)
            if held is not None and to is COMMITTED:
                self._commit(held, position)
            elif held is not None:
                self._release(held)
            coordinator.ended[txn_id.least] = TxnAction.ABORT if to is ABORTED else TxnAction.COMMIT
        for stale in coordinator.stale(record.low_watermark, txn_id.least):
            del coordinator.open[stale.txn_id.least]
            self._release(stale)
        coordinator.rise(record.low_watermark)
        coordinator.forget_ended()

    def _commit(self, held: Held, position: Position) -> None:
        self._over(held)
        if held.items or held.cumulative:
            self.last_committed = held.txn_id
            sequence, size = self.sequence + 1, held.bytes - KEY_BYTES * len(held.keys)
            self.settle(Settled(sequence, position, held.first, held.txn_id, held.items, held.cumulative, size))

    def _release(self, held: Held) -> None:
        self._over(held)
        self._uncover(held.items)

    def _over(self, held: Held) -> None:
        """A transaction has ended; what it held is settled or released by the caller."""
        held.end()
        self.bytes -= held.bytes
        self.lowest.update(held)
        if self.slot is held:
            self.slot = None

    def _uncover(self, items: Items) -> None:
        pending, holders = self.pending, self._holders
        for place, (bits, batch_size) in items.items():
            known = pending[place]
            if known == bits or (rest := difference(known, bits, batch_size)) == 0:
                del pending[place]
                holders.pop(place, None)
            else:
                pending[place] = rest

    def _plain_ack(self, position: Position, record: Record) -> None:
        cumulative = record.items[0] if record.cumulative else None
        taken: list[AckItem] = []
        touched = list(self.behind(cumulative)) if cumulative else self._holders_of(record.items)
        for held in touched:
            for item in held.behind(cumulative) if cumulative else list(_shared(held, record.items)):
                self._take(held, item)
                taken.append(item)
            self.lowest.update(held)
        if cumulative and self.slot and self.slot.cumulative and reaches(cumulative, self.slot.cumulative):
            self._drop_slot(self.slot)
        items: Items = {}
        for place, bits, batch_size in taken if cumulative else record.items:
            known, size = items.get(place, (0, 0))
            items[place] = (union(known, bits), max(size, batch_size))
            self.cover(place, bits)
        size = sum(bytes_of(bits) for bits, _ in items.values())
        self.settle(Settled(self.sequence + 1, position, position, NO_TXN, items, cumulative, size))

    def _holders_of(self, items: Iterable[AckItem]) -> list[Held]:
        return list({id(held): held for item in items for held in self.holders(item[0])}.values())

    def _take(self, held: Held, item: AckItem) -> None:
        """Move a part out of what a transaction holds. A whole entry divides into its indexes."""
        place, part, batch_size = item
        self._changing(held)
        if part is not None and self.pending[place] is None:
            self.pending[place] = full_ack_set(batch_size)
        rest = difference(held.items[place][0], part, batch_size)
        self.bytes -= held.leave(place, rest, batch_size)

    def _drop_slot(self, slot: Held) -> None:
        self._changing(slot)
        slot.leave_cumulative()
        self.slot = None

    def _changing(self, held: Held) -> None:
        self.coordinators[held.txn_id.most].open.changing(held.txn_id.least)

    def _stored(self, at: Position) -> None:
        while self.settled and self.settled[0].at <= at:
            self._forget(self.settled.popleft())
        self.settled_cumulative = None
        for settled in self.settled:
            self.settled_cumulative = joined(self.settled_cumulative, settled.cumulative)

    def _forget(self, settled: Settled) -> None:
        self._uncover(settled.items)
        self.bytes -= settled.bytes
        self._settling.discard(settled.txn_id)

    def _reset(self, mark_delete: Position) -> None:
        while self.settled:
            self._forget(self.settled.popleft())
        self.settled_cumulative = None
        passed = (mark_delete, None, 0)
        for held in list(self.behind(passed)):
            for place, bits, batch_size in held.behind(passed):
                self._take(held, (place, bits, batch_size))
                self._uncover({place: (bits, batch_size)})
            self.lowest.update(held)
        if self.slot and self.slot.cumulative and self.slot.cumulative[0] <= mark_delete:
            self._drop_slot(self.slot)

    # ---- for tests and simulation

    def check_invariants(self) -> None:
        """Raise AssertionError, the invariant's id first, when the state contradicts itself."""
        _one_holder(self)
        _index(self)
        _one_cumulative(self)
        _ends(self)


def _shared(held: Held, items: Iterable[AckItem]) -> Iterator[AckItem]:
    for place, bits, batch_size in items:
        if place in held.items:
            own, own_size = held.items[place]
            if (part := intersection(own, bits)) != 0:
                yield place, part, max(own_size, batch_size)


def _claim(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _one_holder(state: PendingState) -> None:
    seen: dict[Position, Bits] = {}
    holders = [held.individual() for held in state.open()] + [settled.individual() for settled in state.settled]
    for items in holders:
        for position, bits, _ in items:
            _claim(bits != 0, f"S12 an empty set is held at {position}")
            _claim(position not in seen or not overlaps(seen[position], bits), f"S12 {position} has two holders")
            seen[position] = union(seen[position], bits) if position in seen else bits
    _claim(seen == state.pending, f"S12 pending {state.pending} is not what is held, {seen}")


def _index(state: PendingState) -> None:
    """Check that the indexes beside the state say the same."""
    lowest = {held.txn_id: min(held.items) for held in state.open() if held.items}
    found = {held.txn_id: held.lowest() for held in state.behind((LATEST, None, 0))}
    _claim(found == lowest, f"S12 the earliest acks are {lowest}, not {found}")
    for held in state.open():
        for position in held.items:
            _claim(held in state.holders(position), f"S12 {held.txn_id} is not known to hold {position}")
    holders: list[Held | Settled] = [*state.open(), *state.settled]
    sizes = [each.bytes for each in holders]
    keys = [len(held.keys) for held in state.open()] + [0] * len(state.settled)
    counted = [
        KEY_BYTES * count + sum([bytes_of(bits) for bits, _ in each.items.values()])
        for each, count in zip(holders, keys, strict=True)
    ]
    _claim(sizes == counted and state.bytes == sum(counted), f"S12 {counted} bytes are held, not {sizes}")


def _one_cumulative(state: PendingState) -> None:
    slots = [held for held in state.open() if held.cumulative is not None]
    _claim(slots == ([] if state.slot is None else [state.slot]), f"S12 the cumulative slot is not the one of {slots}")
    for slot in slots:
        for held in state.open():
            behind = slot.cumulative is not None and held is not slot and bool(held.behind(slot.cumulative))
            _claim(not behind, f"S12 {held.txn_id} holds messages behind the cumulative ack of {slot.txn_id}")


def _ends(state: PendingState) -> None:
    for most, coordinator in state.coordinators.items():
        both = set(coordinator.open) & set(coordinator.ended)
        _claim(not both, f"S15 transactions {both} of coordinator {most} are open and ended")
        late = [least for least in coordinator.open if least <= coordinator.low_watermark]
        _claim(not late, f"S15 transactions {late} of coordinator {most} are open below the low watermark")
    order = [settled.at for settled in state.settled]
    _claim(order == sorted(order), f"S13 settled acks out of order: {order}")
    cumulative = None
    for settled in state.settled:
        cumulative = joined(cumulative, settled.cumulative)
    _claim(cumulative == state.settled_cumulative, "S13 the settled cumulative ack is not what was settled")
