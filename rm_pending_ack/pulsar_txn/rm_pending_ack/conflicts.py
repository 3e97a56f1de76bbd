"""Conflicts of acks: those that a subscription cannot take are refused before anything is written.

An acknowledgement names exactly the messages that its consumer was given and that are not settled. That its own transaction
holds one of them is a conflict as well: the program worked on two copies of it. Only a request that says by its key that it
is sent again is none (`is_repeat`).

Raises Refusal with TransactionConflict where a message is acknowledged or held already, NotAllowedError where the request
itself makes no sense. Nothing here changes state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from pulsar_txn.rm_pending_ack.ack_sets import Bits, overlaps, reaches, union, up_to
from pulsar_txn.rm_pending_ack.held import Held
from pulsar_txn.rm_pending_ack.records import content_of
from pulsar_txn.rm_pending_ack.requests import AckItem, CursorView
from pulsar_txn.rm_pending_ack.state import PendingState
from pulsar_txn.wire.errors import Refusal, ServerError
from pulsar_txn.wire.ids import AckKey, Position, full_ack_set


def well_formed(item: AckItem) -> AckItem:
    """The item without bits beyond its batch. Refuses one that names no message."""
    position, bits, batch_size = item
    if bits is None:
        return item
    kept = bits & full_ack_set(batch_size) if batch_size > 0 else 0
    if not kept:
        raise Refusal(
            ServerError.NotAllowedError,
            f"the ack of {_name(position)} names no message of its batch of {batch_size}; send batch_size with an ack_set",
        )
    return item if kept == bits else (position, kept, batch_size)


def merged(items: Iterable[AckItem]) -> tuple[AckItem, ...]:
    """The items of one request with each entry once: a request is one set of messages."""
    entries: dict[Position, tuple[Bits, int]] = {}
    for item in items:
        position, bits, batch_size = item
        if position in entries:
            others, size = entries[position]
            entries[position] = (union(others, bits), max(size, batch_size))
        else:
            entries[position] = (bits, batch_size)
    return tuple((position, bits, batch_size) for position, (bits, batch_size) in entries.items())


def is_repeat(own: Held | None, key: AckKey | None, items: Iterable[AckItem], *, cumulative: bool) -> bool:
    """True if the transaction has taken this request: with an equal key and equal items. Refuses a key of other items."""
    if own is None or key is None or (taken := own.keys.get(key)) is None:
        return False
    if taken != content_of(items, cumulative=cumulative):
        _conflict(f"transaction {own.txn_id} has taken an acknowledgement of other messages with the key {key[0]:x}:{key[1]}")
    return True


def check_individual(state: PendingState, cursor: CursorView, item: AckItem) -> None:
    """Refuse an individual ack that names a message which is acknowledged, or held by a transaction, its own or another.

    A whole entry names all its messages: one of them that is acknowledged already refuses it.
    """
    position, bits, _ = item
    if cursor.is_deleted(position):
        _acknowledged(position)
    if (left := cursor.ack_set(position)) is not None and (bits is None or bits & ~left):
        _acknowledged(position)
    held = state.pending.get(position, 0)
    if held != 0 and overlaps(held, bits):
        _conflict(f"{_name(position)} is in pending ack status: a transaction holds it, or its commit is on the way")
    if state.settled_cumulative is not None and up_to(state.settled_cumulative, position, bits) != 0:
        _acknowledged(position)
    slot = state.slot
    if slot is None or slot.cumulative is None:
        return
    if up_to(slot.cumulative, position, bits) != 0:
        _conflict(f"{_name(position)} lies at or before the cumulative ack that transaction {slot.txn_id} holds")


def check_cumulative(state: PendingState, cursor: CursorView, own: Held | None, item: AckItem) -> None:
    """Refuse a cumulative ack that covers nothing new, or anything that another transaction holds.

    It may cover messages that its own transaction holds individually, but not end with one: that one would be named twice.
    """
    if _covered(state, cursor, item):
        _acknowledged(item[0])
    slot = state.slot
    if slot is not None and slot is not own:
        _conflict(f"transaction {slot.txn_id} holds a cumulative ack on this subscription")
    if own is not None and own.cumulative is not None and reaches(own.cumulative, item):
        _conflict(f"{_name(item[0])} lies at or before the cumulative ack that its own transaction holds")
    if own is not None and item[0] in own.items and overlaps(own.items[item[0]][0], _last_of(item)):
        _conflict(f"{_name(item[0])} is in pending ack status: its own transaction holds it")
    for held in state.behind(item):
        if held is not own and covers_some(held, item):
            _conflict(f"transaction {held.txn_id} holds messages at or before {_name(item[0])}")


def _last_of(cumulative: AckItem) -> Bits:
    """The last message that a cumulative item covers; the whole entry where its size is not known."""
    _, bits, batch_size = cumulative
    if bits is not None:
        return 1 << bits.bit_length() - 1
    return 1 << batch_size - 1 if batch_size > 0 else None


def covers_some(held: Held, cumulative: AckItem) -> bool:
    """True if a cumulative item covers something that a transaction holds individually."""
    lowest = held.lowest()
    return lowest is not None and up_to(cumulative, lowest, held.items[lowest][0]) != 0


def _covered(state: PendingState, cursor: CursorView, item: AckItem) -> bool:
    position, bits, _ = item
    mark_delete = cursor.mark_delete
    if position <= mark_delete or (state.settled_cumulative is not None and reaches(state.settled_cumulative, item)):
        return True
    if bits is None or mark_delete != (position[0], position[1] - 1):
        return False
    # The entry directly after mark-delete: nothing is new when its indexes up to here are acknowledged as well.
    left = cursor.ack_set(position)
    return left is not None and not bits & left


def _acknowledged(position: Position) -> NoReturn:
    _conflict(f"{_name(position)} was acknowledged before")


def _conflict(message: str) -> NoReturn:
    raise Refusal(ServerError.TransactionConflict, message)


def _name(position: Position) -> str:
    return f"{position[0]}:{position[1]}"
