"""The algebra of acknowledgements, against plain sets."""

from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client.state.ack_group import AckGroup, cumulative_id, named_ids
from pulsar_txn.client.state.owners import merged
from pulsar_txn.wire.ids import full_ack_set

SIZES = {0: 1, 1: 3, 2: 64, 3: 70}


@st.composite
def places(draw):
    entry = draw(st.integers(0, 3))
    index = draw(st.integers(0, SIZES[entry] - 1)) if entry else -1
    return ((1, entry), index, SIZES[entry] if entry else 0)


@st.composite
def runs(draw):
    """Neighbours in one entry, as they are acknowledged after a batch was received."""
    position, index, size = draw(places())
    return [(position, each, size) for each in range(index, min(index + draw(st.integers(1, 70)), size))] or [(position, -1, 0)]


@st.composite
def groups_of_places(draw):
    return [
        place for some in draw(st.lists(st.one_of(places().map(lambda place: [place]), runs()), max_size=8)) for place in some
    ]


def acknowledged(ids):
    """The (entry, index) pairs that ids of individual acknowledgements name."""
    found = set()
    for _, entry, left, size in ids:
        assert left is None or 0 <= left < full_ack_set(size)
        found |= {(entry, index) for index in range(SIZES[entry]) if left is None or not left >> index & 1}
    return found


def named(given_places):
    return {(position[1], max(index, 0)) for position, index, _ in given_places}


@given(st.lists(groups_of_places(), max_size=6))
def test_groups_name_exactly_what_was_acknowledged_so_far_in_their_entries(groups):
    tracker, so_far = AckGroup(), set()
    for group in groups:
        for place in group[:3]:
            tracker.add([place])
        tracker.add(group[3:])
        so_far |= named(group)
        assert (len(tracker) == 0) == (not group)
        individual, cumulative = tracker.take()
        assert cumulative == []
        entries = {entry for entry, _ in named(group)}
        complete = {entry for entry in entries if all((entry, index) in so_far for index in range(SIZES[entry]))}
        assert {(entry, index) for entry, index in acknowledged(individual)} >= named(group)
        assert acknowledged(individual) <= so_far
        assert {id_[1] for id_ in individual if id_[2] is None} <= complete
        so_far -= {(entry, index) for entry in complete for index in range(SIZES[entry])}


@given(st.lists(places(), max_size=30))
def test_a_request_merges_its_indexes(given_places):
    assert acknowledged(named_ids(merged(given_places))) == named(given_places)


@given(st.lists(places(), max_size=30))
def test_a_request_in_a_transaction_names_the_indexes_of_a_batch_also_when_it_has_all_of_them(given_places):
    assert all((left is None) == (size == 0) for _, _, left, size in named_ids(merged(given_places)))


@given(st.integers(1, 130), st.data())
def test_a_cumulative_id_leaves_exactly_what_is_behind_it(size, data):
    index = data.draw(st.integers(0, size - 1))
    _, _, left, _ = cumulative_id(((1, 0), index, size))
    assert [bool((left or 0) >> bit & 1) for bit in range(size)] == [bit > index for bit in range(size)]


def test_forgetting_clears_everything_that_waits():
    tracker = AckGroup()
    tracker.add([((1, 1), 0, 3)])
    tracker.add_cumulative(((1, 0), -1, 0))
    tracker.clear()
    assert tracker.take() == ([], [])
