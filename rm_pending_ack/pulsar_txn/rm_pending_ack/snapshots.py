"""The snapshot of a handle: its whole state in slices, so that `restore` and a replay of the log from the start are equal.

A slice is a PendingAckSnapshot with a part of the elements, and names version and place like every other. What a transaction
holds, or a commit settled, and does not fit into one element goes on in the next one of the same transaction, or of the
same place in the log. Version 1 was one slice with everything in it.

The order of transactions and of ended ids is part of the state (it decides what is forgotten first) and is kept.
Numbers of moves are not: they live as long as one handle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from pulsar_txn.ledger.machine import SLICE_BYTES
from pulsar_txn.rm_pending_ack import records_pb2 as pb
from pulsar_txn.rm_pending_ack.ack_sets import Bits
from pulsar_txn.rm_pending_ack.held import HeldImage, Items, Settled
from pulsar_txn.rm_pending_ack.records import NO_TXN, get_item, get_items, put_item
from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.rm_pending_ack.state import PendingState
from pulsar_txn.wire.errors import WireError
from pulsar_txn.wire.ids import Position, TxnAction, TxnId

SNAPSHOT_VERSION: Final = 2
"""Version of what this code writes; a newer one is refused."""

_ITEMS_PER_SLICE: Final = 512
"""So many take about two milliseconds, however small they are."""

_ITEMS_PER_ELEMENT: Final = 128

_Walk: TypeAlias = tuple[int, int, Iterator[list[tuple[int, HeldImage]]], Iterator[list[tuple[int, TxnAction]]]]
"""Of one coordinator at the moment of a snapshot: id, low watermark, what is open, and what has ended."""


class _Slices:
    """Collects elements into slices. `put` says how many items came, and gives the slice when it is full."""

    def __init__(self, state: PendingState) -> None:
        self._applied = state.applied
        self._last = state.last
        self._last_committed = state.last_committed
        self._count = 0
        self.part = self._fresh()

    def _fresh(self) -> pb.PendingAckSnapshot:
        part = pb.PendingAckSnapshot(format_version=SNAPSHOT_VERSION, applied=self._applied, last=_stored(self._last))
        if self._last_committed != NO_TXN:
            part.last_committed_most_bits, part.last_committed_least_bits = self._last_committed
        return part

    def coordinator(self, most: int, low_watermark: int) -> pb.PendingAckSnapshot.Coordinator:
        """The element of a coordinator in the present slice."""
        coordinators = self.part.coordinators
        if coordinators and coordinators[-1].most_bits == most:
            return coordinators[-1]
        return coordinators.add(most_bits=most, low_watermark=low_watermark)

    def put(self, items: int) -> Iterator[bytes]:
        """Count; the slice, if that makes it full."""
        self._count += items
        if self._count >= _ITEMS_PER_SLICE or (self._count and self.part.ByteSize() >= SLICE_BYTES):
            yield self.last()

    def last(self) -> bytes:
        """The present slice; a fresh one begins."""
        data = self.part.SerializeToString()
        self.part, self._count = self._fresh(), 0
        return data


def write_slices(state: PendingState) -> Iterator[bytes]:
    """The state after the last applied record; what is applied after this call does not show."""
    walks = [
        (most, known.low_watermark, known.open.moment().groups(), known.ended.moment().groups())
        for most, known in state.coordinators.items()
    ]
    return _write(_Slices(state), walks, tuple(state.settled))


def _write(slices: _Slices, walks: Sequence[_Walk], settled: Sequence[Settled]) -> Iterator[bytes]:
    for most, low_watermark, opened, ended in walks:
        slices.coordinator(most, low_watermark)
        for group in opened:
            for _, image in group:
                yield from _write_held(slices, low_watermark, image)
        for endings in ended:
            target = slices.coordinator(most, low_watermark)
            target.ended_least_bits.extend([least for least, _ in endings])
            target.ended_action.extend([action for _, action in endings])
            yield from slices.put(len(endings))
    for each in settled:
        yield from _write_settled(slices, each)
    yield slices.last()


def _write_held(slices: _Slices, low_watermark: int, image: HeldImage) -> Iterator[bytes]:
    (most, least), first, items, cumulative, keys = image
    left, keys_left = iter(items.items()), iter(keys.items())
    while True:
        some, some_keys = list(islice(left, _ITEMS_PER_ELEMENT)), list(islice(keys_left, _ITEMS_PER_ELEMENT))
        target = slices.coordinator(most, low_watermark).open.add(least_bits=least, first=_stored(first))
        _put(target, some, cumulative)
        for (acker, number), content in some_keys:
            target.keys.add(acker=acker, number=number, content=content)
        cumulative = None
        yield from slices.put(len(some) + len(some_keys) + 1)
        if len(some) < _ITEMS_PER_ELEMENT and len(some_keys) < _ITEMS_PER_ELEMENT:
            return


def _write_settled(slices: _Slices, settled: Settled) -> Iterator[bytes]:
    cumulative, left = settled.cumulative, iter(settled.items.items())
    while True:
        some = list(islice(left, _ITEMS_PER_ELEMENT))
        target = slices.part.settled.add(at=_stored(settled.at), first=_stored(settled.first))
        if settled.txn_id != NO_TXN:
            target.most_bits, target.least_bits = settled.txn_id
        _put(target, some, cumulative)
        cumulative = None
        yield from slices.put(len(some) + 1)
        if len(some) < _ITEMS_PER_ELEMENT:
            return


def _put(target: Any, some: Iterable[tuple[Position, tuple[Bits, int]]], cumulative: AckItem | None) -> None:
    """Individual acks, and the cumulative one if there is one, into an element of a slice (two messages of one shape)."""
    for position, (bits, batch_size) in some:
        put_item(target.individual.add(), (position, bits, batch_size))
    if cumulative is not None:
        put_item(target.cumulative, cumulative)


def read_slice(state: PendingState, data: bytes) -> None:
    """Fill a fresh state with the next slice. Raises WireError: not a snapshot, or of a newer version."""
    snapshot = pb.PendingAckSnapshot()
    try:
        snapshot.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"not a pending-ack snapshot: {error}") from error
    if not snapshot.IsInitialized():
        raise WireError("not a pending-ack snapshot: required fields are missing")
    if snapshot.format_version > SNAPSHOT_VERSION:
        raise WireError(
            f"a pending-ack snapshot of version {snapshot.format_version}; this version reads up to {SNAPSHOT_VERSION}"
        )
    for source in snapshot.coordinators:
        _get_coordinator(state, source)
    for settled in snapshot.settled:
        _get_settled(state, settled)
    last_committed = state.last_committed
    if snapshot.HasField("last_committed_least_bits"):
        last_committed = TxnId(snapshot.last_committed_most_bits, snapshot.last_committed_least_bits)
    state.restored(snapshot.applied, _position(snapshot.last), last_committed)


def _get_coordinator(state: PendingState, source: pb.PendingAckSnapshot.Coordinator) -> None:
    coordinator = state.coordinator(source.most_bits)
    coordinator.rise(source.low_watermark)
    if len(source.ended_least_bits) != len(source.ended_action):
        text = f"{len(source.ended_least_bits)} ended transactions and {len(source.ended_action)} outcomes"
        raise WireError(f"a pending-ack snapshot with {text}")
    for least, action in zip(source.ended_least_bits, source.ended_action, strict=True):
        coordinator.ended[least] = _action(least, action)
    for entry in source.open:
        txn_id, keys = TxnId(source.most_bits, entry.least_bits), {(key.acker, key.number): key.content for key in entry.keys}
        cumulative = get_item(entry.cumulative) if entry.HasField("cumulative") else None
        state.restore_open(txn_id, _position(entry.first), get_items(entry.individual), keys, cumulative)


def _action(least: int, action: int) -> TxnAction:
    try:
        return TxnAction(action)
    except ValueError as error:
        raise WireError(
            f"a pending-ack snapshot in which transaction {least} ended with the unknown action {action}"
        ) from error


def _get_settled(state: PendingState, source: pb.PendingAckSnapshot.Settled) -> None:
    txn_id = TxnId(source.most_bits, source.least_bits) if source.HasField("least_bits") else NO_TXN
    items: Items = {position: (bits, batch_size) for position, bits, batch_size in get_items(source.individual)}
    cumulative = get_item(source.cumulative) if source.HasField("cumulative") else None
    state.restore_settled(_position(source.at), _position(source.first), txn_id, items, cumulative)


def _stored(position: Position) -> pb.LogPosition:
    return pb.LogPosition(ledger_id=position[0], entry_id=position[1])


def _position(place: pb.LogPosition) -> Position:
    return (place.ledger_id, place.entry_id)
