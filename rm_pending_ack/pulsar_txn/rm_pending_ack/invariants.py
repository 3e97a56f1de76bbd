"""What always holds of a pending-ack state; for tests and simulation."""

from __future__ import annotations

from pulsar_txn.rm_pending_ack.ack_sets import Bits, joined, overlaps, union
from pulsar_txn.rm_pending_ack.state import PendingState
from pulsar_txn.wire.ids import Position


def check_invariants(state: PendingState) -> None:
    """Raise AssertionError, the invariant's id first, when the state contradicts itself."""
    _one_holder(state)
    _one_cumulative(state)
    _ends(state)


def _claim(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _one_holder(state: PendingState) -> None:
    seen: dict[Position, Bits] = {}
    holders = [held.individual() for held in state.open()] + [settled.items for settled in state.settled]
    for items in holders:
        for position, bits, _ in items:
            _claim(bits != 0, f"S12 an empty set is held at {position}")
            _claim(position not in seen or not overlaps(seen[position], bits), f"S12 {position} has two holders")
            seen[position] = union(seen[position], bits) if position in seen else bits
    _claim(seen == state.pending, f"S12 pending {state.pending} is not what is held, {seen}")


def _one_cumulative(state: PendingState) -> None:
    slots = [held for held in state.open() if held.cumulative is not None]
    _claim(slots == ([] if state.slot is None else [state.slot]), f"S12 the cumulative slot is not the one of {slots}")
    for slot in slots:
        for held in state.open():
            behind = slot.cumulative is not None and held is not slot and any(held.behind(slot.cumulative))
            _claim(not behind, f"S12 {held.txn_id} holds messages behind the cumulative ack of {slot.txn_id}")


def _ends(state: PendingState) -> None:
    for most, coordinator in state.coordinators.items():
        both = {least for least in coordinator.open if least in coordinator.ended}
        _claim(not both, f"S15 transactions {both} of coordinator {most} are open and ended")
        late = [least for least in coordinator.open if least <= coordinator.low_watermark]
        _claim(not late, f"S15 transactions {late} of coordinator {most} are open below the low watermark")
    order = [settled.at for settled in state.settled]
    _claim(order == sorted(order), f"S13 settled acks out of order: {order}")
    cumulative = None
    for settled in state.settled:
        cumulative = joined(cumulative, settled.cumulative)
    _claim(cumulative == state.settled_cumulative, "S13 the settled cumulative ack is not what was settled")
