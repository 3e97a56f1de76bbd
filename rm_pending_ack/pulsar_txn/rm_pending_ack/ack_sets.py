"""The algebra of what an acknowledgement covers: batch indexes of one entry as Python ints, and everything up to a place.

`Bits` is a set of batch indexes of one entry, bit i for index i; None is the whole entry, of which the handle may not
even know how many messages it holds. The empty set is 0 and never stored. None is not the same as all indexes of a
batch: it stays a value of its own, so that "nothing left of the set" can never be read as "no set" (the defect by which
stock Pulsar lets a batch be acknowledged twice once all of it is pending). All functions are pure.

A cumulative item `(position, bits, batch_size)` covers every entry before `position`, and `bits` of the entry there.
"""

from __future__ import annotations

from typing import TypeAlias

from pulsar_txn.rm_pending_ack.requests import AckItem
from pulsar_txn.wire.ids import Position, full_ack_set

Bits: TypeAlias = int | None
"""Batch indexes of one entry; None is the whole entry, 0 is nothing."""


def overlaps(left: Bits, right: Bits) -> bool:
    """True if two non-empty sets share a message."""
    return left is None or right is None or left & right != 0


def union(left: Bits, right: Bits) -> Bits:
    """Union of two sets."""
    return None if left is None or right is None else left | right


def intersection(left: Bits, right: Bits) -> Bits:
    """Intersection of two sets."""
    if left is None:
        return right
    return left if right is None else left & right


def difference(left: Bits, right: Bits, batch_size: int) -> Bits:
    """Part of `left` outside `right`, 0 if none. `batch_size` says what indexes leave of a whole entry."""
    if right is None:
        return 0
    return (full_ack_set(batch_size) if left is None else left) & ~right


def contains(outer: Bits, inner: Bits) -> bool:
    """True if `outer` covers all of `inner`."""
    return outer is None or (inner is not None and inner & ~outer == 0)


def up_to(cumulative: AckItem, position: Position, bits: Bits) -> Bits:
    """Part of `bits` at `position` that a cumulative item covers, 0 if none."""
    place, covered, _ = cumulative
    if position < place:
        return bits
    return intersection(bits, covered) if position == place else 0


def reaches(cumulative: AckItem, other: AckItem) -> bool:
    """True if one cumulative item covers everything that another one covers."""
    return other[0] < cumulative[0] or (other[0] == cumulative[0] and contains(cumulative[1], other[1]))


def joined(left: AckItem | None, right: AckItem | None) -> AckItem | None:
    """The cumulative item that covers what either covers."""
    if left is None or right is None:
        return left or right
    if left[0] != right[0]:
        return max(left, right, key=lambda item: item[0])
    return (left[0], union(left[1], right[1]), max(left[2], right[2]))


def normal_form(item: AckItem) -> AckItem:
    """A cumulative item in its normal form: up to the last index of a batch is the whole entry."""
    position, bits, batch_size = item
    return (position, None, batch_size) if bits is not None and bits == full_ack_set(batch_size) else item


def unacknowledged(bits: Bits, batch_size: int) -> int | None:
    """The ack set as the protocol has it: bits of the indexes that `bits` leaves unacknowledged; None for the whole entry."""
    return None if bits is None else full_ack_set(batch_size) & ~bits
