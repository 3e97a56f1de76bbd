"""The cursor model against a plain set, its encodings, and what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.ledger.cursor_changes import Changes, apply_changes, decode_base, encode_base
from pulsar_txn.ledger.cursor_state import CHUNK_ENTRIES, END, CursorState, Tally

NEAR = [0, CHUNK_ENTRIES - 20, 3 * CHUNK_ENTRIES - 20]
ENTRIES = st.builds(int.__add__, st.sampled_from([0, 0, *NEAR]), st.integers(0, 40))
LAST = NEAR[-1] + 50
OPERATION = st.one_of(
    st.tuples(st.just("delete"), st.lists(ENTRIES, min_size=1, max_size=4)),
    st.tuples(st.just("range"), ENTRIES, ENTRIES),
    st.tuples(st.just("mark"), ENTRIES),
    st.tuples(st.just("indexes"), ENTRIES, st.integers(1, 2**70 - 1)),
    st.tuples(st.just("reset"), ENTRIES),
    st.tuples(st.just("properties"), st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)),
)
OPERATIONS = st.lists(OPERATION, max_size=30)
BATCH = 70


class Plain:
    """Acknowledged entries as a set, batches as sets of indexes left."""

    def __init__(self):
        self.mark = -1
        self.deleted = set()
        self.left = {}
        self.properties = {}

    def delete(self, entries):
        self.deleted.update(entries)
        self.settle()

    def settle(self):
        while self.mark + 1 in self.deleted:
            self.mark += 1
        self.deleted = {entry for entry in self.deleted if entry > self.mark}
        self.left = {entry: left for entry, left in self.left.items() if entry > self.mark and entry not in self.deleted}

    def carry_out(self, name, arguments):
        if name == "delete":
            self.delete(arguments[0])
        elif name == "range":
            self.delete(range(arguments[0], arguments[1] + 1))
        elif name == "mark":
            self.mark = max(self.mark, arguments[0])
            self.settle()
        elif name == "indexes":
            entry, acked = arguments
            if entry > self.mark and entry not in self.deleted:
                self.left[entry] = self.left.get(entry, set(range(BATCH))) - {i for i in range(BATCH) if acked >> i & 1}
                if not self.left[entry]:
                    self.delete([entry])
        elif name == "reset":
            self.mark, self.deleted, self.left = arguments[0], set(), {}
        else:
            self.properties = dict(arguments[0])


def carry_on(state, changes, operation):
    name, *arguments = operation
    if name == "delete":
        changes.delete([entry for entry in arguments[0] if state.delete(entry)])
    elif name == "range":
        changes.delete([entry for entry in range(arguments[0], arguments[1] + 1) if state.delete(entry)])
    elif name == "mark" and state.mark_delete_to(arguments[0]):
        changes.mark_delete_to(arguments[0])
    elif name == "indexes" and state.delete_indexes(*arguments, BATCH):
        changes.delete_indexes(*arguments, BATCH)
    elif name == "reset" and state.reset(arguments[0]):
        changes.reset(arguments[0])
    elif name == "properties":
        state.properties = dict(arguments[0])
        changes.put_properties(arguments[0])


def carry_out(operations):
    state, plain, changes = CursorState(), Plain(), Changes()
    for operation in operations:
        carry_on(state, changes, operation)
        plain.carry_out(operation[0], operation[1:])
        state.check_invariants()
    return state, plain, changes


@given(OPERATIONS)
def test_the_cursor_model_agrees_with_a_plain_set(operations):
    state, plain, _ = carry_out(operations)
    assert state.mark == plain.mark
    assert {entry for entry in range(plain.mark + 1, LAST) if state.is_deleted(entry)} == plain.deleted
    assert {entry for start, end in state.ranges() for entry in range(start, end + 1)} == plain.deleted
    assert state.ranges(2) == state.ranges()[:2]
    assert state.ack_sets() == {e: sum(1 << i for i in left) for e, left in plain.left.items() if len(left) < BATCH}
    for upto in (-1, plain.mark, plain.mark + 5, CHUNK_ENTRIES, 2 * CHUNK_ENTRIES + 7, LAST):
        assert state.deleted_upto(upto) == len([entry for entry in plain.deleted if entry <= upto])


@given(OPERATIONS)
def test_a_base_is_read_back_equal(operations):
    state, _, _ = carry_out(operations)
    again, upto = decode_base(encode_base(state, END)[0])
    assert (again, upto) == (state, END)
    again.check_invariants()


@given(OPERATIONS, st.integers(0, 30))
def test_changes_over_a_base_give_the_same_state(operations, cut):
    base, _, _ = carry_out(operations[:cut])
    whole, _, _ = carry_out(operations)
    state, _, changes = carry_out(operations[:cut])
    changes.take()
    replayed, _ = decode_base(encode_base(base, END)[0])
    for operation in operations[cut:]:
        carry_on(state, changes, operation)
    apply_changes(replayed, changes.take())
    assert replayed == state == whole


@given(OPERATIONS, st.lists(st.lists(OPERATION, max_size=3), max_size=12), st.integers(1, 40))
def test_pieces_written_between_changes_add_up_to_the_state(before, between, size):
    """What is written while the cursor goes on: each piece of the moment, and every change after the base."""
    state, _, changes = carry_out(before)
    changes.take()
    base, upto = encode_base(state, size)
    replayed, complete = decode_base(base)
    for operations in between:
        for operation in operations:
            carry_on(state, changes, operation)
        complete = apply_changes(replayed, changes.take(), complete)
        if upto != END:
            piece, upto = state.piece(upto, size)
            added, length = replayed.add_piece(piece)
            assert (added, length) == (upto, len(piece))
            complete = max(complete, added)
        replayed.check_invariants()
    while upto != END:
        before_it = upto
        piece, upto = state.piece(upto, size)
        replayed.add_piece(piece)
        assert upto > before_it
    assert replayed == state


def test_a_state_of_many_ack_sets_in_one_chunk_is_cut_into_pieces():
    state = CursorState()
    for entry in range(1, 100):
        state.delete_indexes(entry, 1 << 9_999, 10_000)
    replayed, upto, pieces = CursorState(), state.mark, 0
    while upto != END:
        piece, upto = state.piece(upto, 5_000)
        assert len(piece) < 8_000
        replayed.add_piece(piece)
        pieces += 1
    assert pieces > 20
    assert replayed == state


@given(OPERATIONS.filter(bool), st.data())
def test_cut_encodings_are_refused(operations, data):
    state, _, _ = carry_out(operations)
    encoded, _ = encode_base(state, END)
    with pytest.raises(ValueError, match="not a"):
        decode_base(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(ValueError, match="not a cursor base"):
        decode_base(encoded + b"x")
    for junk in (b"X" + bytes(8), b"D\x05\x00\x00\x00", b"M\x00"):
        with pytest.raises(ValueError, match=r"cursor change|bytes length"):
            apply_changes(CursorState(), junk)


def test_four_million_ranges_take_little_memory_and_are_counted():
    tally = Tally()
    state = CursorState(tally=tally)
    entries = range(1, 8_000_000, 2)
    for entry in entries:
        state.delete(entry)
    assert (state.mark, state.deleted_count, len(state.ranges(10))) == (-1, 4_000_000, 10)
    assert tally.bytes == state.bytes < 2 << 20
    encoded, upto = encode_base(state, END)
    assert upto == END
    assert len(encoded) < 1_100_000
    assert decode_base(encoded)[0].deleted_count == 4_000_000
    assert state.deleted_upto(4_000_000) == 2_000_000
    for entry in range(0, 8_000_000, 2):  # the holes, from the front: each raises the mark by two
        state.delete(entry)
    assert (state.mark, state.deleted_count, state.bytes) == (7_999_999, 0, tally.bytes)
    assert state.bytes < 1000
