"""Invariants of a pending-ack state; for tests and simulation."""

from __future__ import annotations

from pulsar_txn.rm_pending_ack.ack_sets import Bits, joined, overlaps, union
from pulsar_txn.rm_pending_ack.held import KEY_BYTES, Held, Settled, bytes_of
from pulsar_txn.rm_pending_ack.state import PendingState
from pulsar_txn.wire.ids import LATEST, Position


def check_invariants(state: PendingState) -> None:
    """Raise AssertionError, the invariant's id first, when the state contradicts itself."""
    _one_holder(state)
    _index(state)
    _one_cumulative(state)
    _ends(state)


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
