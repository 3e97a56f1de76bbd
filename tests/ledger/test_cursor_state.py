"""The cursor model against a plain set, and its encodings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.ledger.cursor_state import Changes, CursorState, apply_changes

ENTRIES = st.integers(0, 40)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("delete"), st.lists(ENTRIES, min_size=1, max_size=4)),
        st.tuples(st.just("mark"), ENTRIES),
        st.tuples(st.just("indexes"), ENTRIES, st.integers(1, 2**70 - 1)),
        st.tuples(st.just("reset"), ENTRIES),
        st.tuples(st.just("properties"), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)),
    ),
    max_size=30,
)
BATCH = 70


class Plain:
    """Acknowledged entries as a set, batches as sets of indexes left."""

    def __init__(self):
        self.mark = -1
        self.deleted = set()
        self.left = {}

    def delete(self, entry):
        if entry > self.mark:
            self.deleted.add(entry)
        self.settle()

    def settle(self):
        while self.mark + 1 in self.deleted:
            self.mark += 1
        self.deleted = {entry for entry in self.deleted if entry > self.mark}
        self.left = {entry: left for entry, left in self.left.items() if entry > self.mark and entry not in self.deleted}


def carry_out(operations):
    state, plain, changes = CursorState(), Plain(), Changes()
    for name, *arguments in operations:
        if name == "delete":
            changed = [entry for entry in arguments[0] if state.delete(entry)]
            changes.delete(changed)
            for entry in arguments[0]:
                plain.delete(entry)
        elif name == "mark":
            if state.mark_delete_to(arguments[0]):
                changes.mark_delete_to(arguments[0])
            plain.mark = max(plain.mark, arguments[0])
            plain.settle()
        elif name == "indexes":
            entry, acked = arguments
            if state.delete_indexes(entry, acked, BATCH):
                changes.delete_indexes(entry, acked, BATCH)
            if entry > plain.mark and entry not in plain.deleted:
                plain.left[entry] = plain.left.get(entry, set(range(BATCH))) - {i for i in range(BATCH) if acked >> i & 1}
                if not plain.left[entry]:
                    plain.delete(entry)
        elif name == "reset":
            if state.reset(arguments[0]):
                changes.reset(arguments[0])
            plain.__init__()
            plain.mark = arguments[0]
        else:
            state.properties = dict(arguments[0])
            changes.put_properties(arguments[0])
        state.check_invariants()
    return state, plain, changes


@given(OPERATIONS)
def test_the_cursor_model_agrees_with_a_plain_set(operations):
    state, plain, _ = carry_out(operations)
    assert state.mark == plain.mark
    assert {entry for entry in range(50) if state.is_deleted(entry) and entry > state.mark} == plain.deleted
    assert state.ack_sets == {e: sum(1 << i for i in left) for e, left in plain.left.items() if len(left) < BATCH}


@given(OPERATIONS)
def test_a_base_is_read_back_equal(operations):
    state, _, _ = carry_out(operations)
    again = CursorState.decode(state.encode())
    assert again == state
    assert (again.mark, again.ranges(), again.ack_sets, again.properties) == (
        state.mark,
        state.ranges(),
        state.ack_sets,
        state.properties,
    )


@given(OPERATIONS, st.integers(0, 30))
def test_changes_over_a_base_give_the_same_state(operations, cut):
    base, _, _ = carry_out(operations[:cut])
    whole, _, _ = carry_out(operations)
    state, _, changes = carry_out(operations[:cut])
    changes.take()
    replayed = CursorState.decode(base.encode())
    for operation in operations[cut:]:
        _carry_on(state, changes, operation)
    apply_changes(replayed, changes.take())
    assert replayed == state == whole


def _carry_on(state, changes, operation):
    name, *arguments = operation
    if name == "delete":
        changes.delete([entry for entry in arguments[0] if state.delete(entry)])
    elif name == "mark" and state.mark_delete_to(arguments[0]):
        changes.mark_delete_to(arguments[0])
    elif name == "indexes" and state.delete_indexes(*arguments, BATCH):
        changes.delete_indexes(*arguments, BATCH)
    elif name == "reset" and state.reset(arguments[0]):
        changes.reset(arguments[0])
    elif name == "properties":
        state.properties = dict(arguments[0])
        changes.put_properties(arguments[0])


@given(OPERATIONS.filter(bool), st.data())
def test_cut_encodings_are_refused(operations, data):
    state, _, _ = carry_out(operations)
    encoded = state.encode()
    with pytest.raises(ValueError, match="not a cursor base"):
        CursorState.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(ValueError, match="not a cursor base"):
        CursorState.decode(encoded + b"x")
    for junk in (b"X" + bytes(8), b"D\x05\x00\x00\x00", b"M\x00"):
        with pytest.raises(ValueError, match=r"cursor change|bytes length"):
            apply_changes(CursorState(), junk)
