"""The algebra of ack sets against plain sets of batch indexes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.rm_pending_ack.ack_sets import (
    Bits,
    contains,
    difference,
    intersection,
    joined,
    overlaps,
    reaches,
    unacknowledged,
    union,
    up_to,
)
from pulsar_txn.rm_pending_ack.requests import AckItem

SIZE = 70  # more than one word
sets = st.one_of(st.none(), st.integers(1, (1 << SIZE) - 1), st.sampled_from([1, 1 << 63, 1 << 64, (1 << SIZE) - 1]))
items = st.tuples(st.tuples(st.just(1), st.integers(0, 3)), sets, st.just(SIZE))
EVERYTHING = set(range(SIZE))


def plain(bits: Bits) -> set[int]:
    return set(EVERYTHING) if bits is None else {index for index in range(SIZE) if bits >> index & 1}


def covered(item: AckItem) -> set[tuple[int, int]]:
    (_, place), bits, _ = item
    before = {(entry, index) for entry in range(place) for index in EVERYTHING}
    return before | {(place, index) for index in plain(bits)}


@given(sets, sets)
def test_sets_behave_as_plain_sets(left: Bits, right: Bits) -> None:
    assert overlaps(left, right) == bool(plain(left) & plain(right))
    assert plain(union(left, right)) == plain(left) | plain(right)
    assert plain(intersection(left, right)) == plain(left) & plain(right)
    assert plain(difference(left, right, SIZE)) == plain(left) - plain(right)
    assert plain(unacknowledged(left, SIZE) or 0) == EVERYTHING - plain(left)


@given(sets, sets)
def test_containing_is_of_sets_except_that_no_indexes_are_the_whole_entry(outer: Bits, inner: Bits) -> None:
    if outer is not None and inner is None:
        assert not contains(outer, inner)
    else:
        assert contains(outer, inner) == (plain(outer) >= plain(inner))


@given(items, items)
def test_cumulative_items_behave_as_everything_they_cover(left: AckItem, right: AckItem) -> None:
    both = joined(left, right)
    assert both is not None
    assert covered(both) == covered(left) | covered(right)
    (_, place), bits, _ = right
    assert {(place, index) for index in plain(up_to(left, right[0], bits))} == covered(left) & {
        (place, index) for index in plain(bits)
    }
    if left[1] is None or right[1] is not None:
        assert reaches(left, right) == (covered(left) >= covered(right))


def test_joining_with_nothing_is_the_other() -> None:
    item = ((1, 2), 3, 4)
    assert joined(None, item) == joined(item, None) == item
    assert joined(None, None) is None


def test_nothing_left_of_a_batch_is_not_the_whole_entry() -> None:
    assert difference(0b11, 0b11, 2) == 0
    assert difference(None, None, 0) == 0
    assert unacknowledged(0b11, 2) == 0
    assert unacknowledged(None, 2) is None
