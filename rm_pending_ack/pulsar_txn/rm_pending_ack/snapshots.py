"""The snapshot of a handle: its whole state, so that `restore` and a replay of the log from the start are equal.

The order of transactions and of ended ids is part of the state (it decides what is forgotten first) and is kept.
Numbers of moves are not: they live as long as one handle.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from pulsar_txn.rm_pending_ack import records_pb2 as pb
from pulsar_txn.rm_pending_ack.records import NO_TXN, get_item, get_items, put_item, put_items
from pulsar_txn.rm_pending_ack.state import Held, PendingState, Settled
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

SNAPSHOT_VERSION: Final = 1
"""Version of what this code writes; a newer one is refused."""


def encode_snapshot(state: PendingState) -> bytes:
    """The whole state as a PendingAckSnapshot."""
    snapshot = pb.PendingAckSnapshot(format_version=SNAPSHOT_VERSION, applied=state.applied, last=_place(state.last))
    for most, coordinator in state.coordinators.items():
        target = snapshot.coordinators.add(most_bits=most, low_watermark=coordinator.low_watermark)
        target.ended_least_bits.extend(coordinator.ended)
        target.ended_action.extend(coordinator.ended.values())
        for held in coordinator.open.values():
            _put_held(target.open.add(least_bits=held.txn_id.least, first=_place(held.first)), held)
    for settled in state.settled:
        _put_settled(snapshot.settled.add(at=_place(settled.at), first=_place(settled.first)), settled)
    return snapshot.SerializeToString()


def decode_snapshot(data: bytes) -> PendingState:
    """The state of a snapshot. Raises WireError: not a snapshot, or of a newer version."""
    snapshot = pb.PendingAckSnapshot()
    try:
        snapshot.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"not a pending-ack snapshot: {error}") from error
    if not snapshot.IsInitialized():
        raise WireError("not a pending-ack snapshot: required fields are missing")
    if snapshot.format_version > SNAPSHOT_VERSION:
        raise WireError(f"a pending-ack snapshot of version {snapshot.format_version}; this version reads {SNAPSHOT_VERSION}")
    state = PendingState()
    for source in snapshot.coordinators:
        _get_coordinator(state, source)
    for settled in snapshot.settled:
        _get_settled(state, settled)
    state.applied = snapshot.applied
    state.last = _position(snapshot.last)
    return state


def _put_held(target: pb.PendingAckSnapshot.Held, held: Held) -> None:
    put_items(target.individual, held.individual())
    if held.cumulative is not None:
        put_item(target.cumulative, held.cumulative)


def _put_settled(target: pb.PendingAckSnapshot.Settled, settled: Settled) -> None:
    if settled.txn_id != NO_TXN:
        target.most_bits, target.least_bits = settled.txn_id
    put_items(target.individual, settled.items)
    if settled.cumulative is not None:
        put_item(target.cumulative, settled.cumulative)


def _get_coordinator(state: PendingState, source: pb.PendingAckSnapshot.Coordinator) -> None:
    coordinator = state.coordinator(source.most_bits)
    coordinator.low_watermark = source.low_watermark
    actions = map(TxnAction, source.ended_action)
    for least, action in zip(source.ended_least_bits, actions, strict=True):
        coordinator.ended[least] = action
    for entry in source.open:
        held = coordinator.open[entry.least_bits] = Held(TxnId(source.most_bits, entry.least_bits), _position(entry.first))
        state.hold(held, get_items(entry.individual))
        if entry.HasField("cumulative"):
            held.cumulative = get_item(entry.cumulative)
            state.slot = held


def _get_settled(state: PendingState, source: pb.PendingAckSnapshot.Settled) -> None:
    txn_id = TxnId(source.most_bits, source.least_bits) if source.HasField("least_bits") else NO_TXN
    items = get_items(source.individual)
    cumulative = get_item(source.cumulative) if source.HasField("cumulative") else None
    state.cover(items)
    state.settle(Settled(state.sequence + 1, _position(source.at), _position(source.first), txn_id, items, cumulative))


def _place(position: Position) -> pb.LogPosition:
    return pb.LogPosition(ledger_id=position[0], entry_id=position[1])


def _position(place: pb.LogPosition) -> Position:
    return (place.ledger_id, place.entry_id)
