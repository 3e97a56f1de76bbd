"""Notes of positions go when they are done with, and putting one never costs more than a look at two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.broker.dispatch.position_notes import PositionNotes
from pulsar_txn.wire.ids import Position

actions = st.lists(st.tuples(st.sampled_from(["put", "discard", "done"]), st.integers(0, 20)), max_size=200)


@given(actions)
def test_notes_are_kept_until_they_are_done_with(steps: list[tuple[str, int]]) -> None:
    done: set[Position] = set()
    notes: PositionNotes[int] = PositionNotes(done.__contains__)
    expected: dict[Position, int] = {}
    for number, (action, entry) in enumerate(steps):
        position = (1, entry)
        if action == "put":
            notes.put(position, number)
            expected[position] = number
        elif action == "discard":
            notes.discard(position)
            expected.pop(position, None)
        else:
            done.add(position)
        for each, note in expected.items():
            assert each in done or notes[each] == note
        assert set(notes) <= set(expected)
    notes.clear()
    assert not notes


def test_there_are_at_most_about_twice_as_many_as_are_not_done_and_each_put_looks_at_two() -> None:
    horizon, looks = 0, 0

    def is_done(position: Position) -> bool:
        nonlocal looks
        looks += 1
        return position[1] < horizon

    notes: PositionNotes[None] = PositionNotes(is_done)
    for entry in range(50_000):
        horizon = entry - 1000
        notes.put((1, entry), None)
        assert len(notes) <= 2 * 1000 + 3
    assert looks <= 100_000
