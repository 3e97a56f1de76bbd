"""The heap whose entries may lose their meaning: what is in front is alive, and no change works on all of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn.ledger import swept_heap
from pulsar_txn.ledger.swept_heap import SLACK, SweptHeap


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "add", "lose", "look"]), st.integers(0, 60)), max_size=120),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_the_smallest_that_are_alive_are_found_whatever_was_lost(
    changes: list[tuple[str, int]], slack: int, limit: int
) -> None:
    alive: set[tuple[int, int]] = set()
    before, swept_heap.SLACK = swept_heap.SLACK, slack  # type: ignore[misc] # small, so that it is swept
    try:
        heap: SweptHeap[tuple[int, int]] = SweptHeap(alive.__contains__)
        for number, (kind, value) in enumerate(changes):
            if kind == "add":
                alive.add((value, number))
                heap.add((value, number))
            elif kind == "lose" and alive:
                alive.remove(sorted(alive)[value % len(alive)])
                heap.lost(len(alive))
            expected = sorted(alive)
            assert heap.first() == (expected[0] if expected else None)
            wanted = [entry for entry in expected if entry[0] <= value][:limit]
            assert heap.smallest(limit, lambda entry, value=value: entry[0] <= value) == wanted  # type: ignore[misc] # a default
            assert alive <= set(heap)
    finally:
        swept_heap.SLACK = before  # type: ignore[misc] # as it was


def test_no_change_looks_at_more_than_a_few_entries_and_the_room_is_given_back() -> None:
    alive, looks = set(range(30_000)), 0

    def is_alive(entry: int) -> bool:
        nonlocal looks
        looks += 1
        return entry in alive

    heap: SweptHeap[int] = SweptHeap(is_alive)
    for entry in range(30_000):
        heap.add(entry)
    most = 0
    for entry in range(1, 29_999):
        looks = 0
        alive.remove(entry)
        heap.lost(len(alive))
        most = max(most, looks)
    assert most <= 8
    assert len(heap) <= SLACK + 8
    alive.remove(0)
    heap.lost(1)
    for _ in range(10):
        looks = 0
        first = heap.first()
        assert looks <= 300
    assert first == 29_999
