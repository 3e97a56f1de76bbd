"""The table of owners against a model with one word per message."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsar_txn.client.state import owners as owners_module
from pulsar_txn.client.state.owners import (
    Hold,
    Owners,
    State,
    bit_of,
    full,
    indexes,
    merged,
    positions_of,
)

SIZES = (0, 3, 5, 70)


def position(entry):
    return (7, entry)


entries = st.integers(0, len(SIZES) - 1)
some = st.integers(0, 2**70 - 1)


class OwnersModel(RuleBasedStateMachine):
    """Each message is free, or named by the hold that has it. Generations are told apart per entry."""

    def __init__(self):
        super().__init__()
        self.table = Owners()
        self.has = {}
        self.known = {}
        self.generation = 0
        self.units = [Hold(State.HELD, unit) for unit in ("t1", "t2")]
        self.requests = []

    def _named(self, entry):
        return {index: hold for (each, index), hold in self.has.items() if each == entry}

    def _give(self, hold, entry, bits, generation):
        size = SIZES[entry]
        self.table.give(hold, position(entry), bits, size, generation)
        for index in indexes(bits, size):
            self.has[entry, index] = hold
        before = self.known.get(entry, (-1, 0))
        same = before[0] == generation[0]
        self.known[entry] = (before[0], before[1] | generation[1]) if same else max(before, generation)

    @rule(entry=entries, bits=some)
    def a_copy_comes(self, entry, bits):
        size = SIZES[entry]
        live = (bits & full(size)) or 1
        admitted = self.table.admit(position(entry), live, size)
        known = self.known.get(entry, (-1, 0))
        seen = known[1] if known[0] == self.generation else 0
        expected = 0
        for index in indexes(live, size):
            hold = self.has.get((entry, index))
            if hold is None:
                welcome = not seen & bit_of(index)
            elif hold.state in (State.HELD, State.ASKED):
                welcome = False
            elif hold.state is State.SETTLED:
                welcome = not seen & bit_of(index)
                if welcome:
                    del self.has[entry, index]
            else:
                welcome = True
                del self.has[entry, index]
            expected |= bit_of(index) * welcome
        assert admitted == expected
        if entry in self.known:
            self.known[entry] = (self.generation, seen | live)

    @rule(entry=entries, bits=some, unit=st.integers(0, 1), more=some)
    def a_unit_receives(self, entry, bits, unit, more):
        size = SIZES[entry]
        bits = self.table.has_free(position(entry), bits & full(size))
        taken = {i for i in indexes(full(size), size) if self.has.get((entry, i), self.table.wanted).state is not State.WANTED}
        assert not taken & set(indexes(bits, size))
        if bits:
            self._give(self.units[unit], entry, bits, (self.generation, bits | more & full(size)))

    @rule(unit=st.integers(0, 1), cut=st.integers(0, 3))
    def a_unit_asks(self, unit, cut):
        hold = self.units[unit]
        request = Hold(State.ASKED, hold.unit)
        for place, bits in list(hold.entries.items())[:cut]:
            self._give(request, place[1], bits, (-1, 0))
        self.requests.append(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), how=st.sampled_from(["answered", "commits", "aborts", "is abandoned"]))
    def a_request(self, data, how):
        request = data.draw(st.sampled_from(self.requests))
        if how == "answered":
            self.table.answer(request)
            return
        self.requests.remove(request)
        mine = [key for key, hold in self.has.items() if hold is request]
        if how == "commits":
            self.table.settle_all(request)
            for key in mine:
                self.has[key] = self.table.settled
            for entry in {key[0] for key in mine}:
                named = self._named(entry)
                if len(named) == max(SIZES[entry], 1) and set(named.values()) == {self.table.settled}:
                    self._forget(entry)
        elif how == "aborts":
            self.table.release(request)
            self.has.update(dict.fromkeys(mine, self.table.wanted))
        else:
            self.table.abandon([request])
            self.table.admit((9, 9), 1, 0)  # whatever comes next carries it out
            self.has.update(dict.fromkeys(mine, self.table.wanted))

    @rule(entry=entries, bits=some)
    def it_is_asked_whether_messages_may_stay(self, entry, bits):
        bits &= full(SIZES[entry])
        generation, seen = self.known.get(entry, (-1, 0))
        named = {bit_of(index): hold for index, hold in self._named(entry).items()}
        here = {bit for bit in (bit_of(index) for index in indexes(seen, SIZES[entry])) if generation == self.generation}
        ours = {bit for bit in here if bit not in named}
        others = {bit for bit in here if bit not in named or named[bit].state <= State.TAKEN}
        asked = {bit_of(index) for index in indexes(bits, SIZES[entry])}
        assert self.table.may_stay(position(entry), bits) == (asked <= ours and bool(others - asked))

    def _forget(self, entry):
        self.has = {key: hold for key, hold in self.has.items() if key[0] != entry}
        del self.known[entry]

    @rule(unit=st.integers(0, 1))
    def a_unit_gives_back(self, unit):
        hold = self.units[unit]
        self.table.release(hold)
        self.has = {key: self.table.wanted if each is hold else each for key, each in self.has.items()}

    @rule()
    def everything_comes_again(self):
        self.table.new_generation()
        self.generation += 1

    @rule()
    def the_subscription_is_moved(self):
        self.table.move()
        self.generation += 1
        self.has = {key: hold for key, hold in self.has.items() if hold.state in (State.ASKED, State.TAKEN)}
        self.known = {key[0]: (-1, 0) for key in self.has}

    @invariant()
    def every_message_has_one_owner(self):
        for entry, size in enumerate(SIZES):
            named = self._named(entry)
            for index in indexes(full(size), size):
                assert self.table.owner(position(entry), index) is named.get(index)
            for hold in [*self.units, *self.requests, self.table.wanted, self.table.settled]:
                bits = sum(bit_of(index) for index, each in named.items() if each is hold)
                assert hold.entries.get(position(entry), 0) == bits
        assert self.table.open_acks == sum(hold.state in (State.ASKED, State.TAKEN) for hold in self.has.values())
        assert len(self.table) == len(self.known)


OwnersModel.TestCase.settings = settings(deadline=None, stateful_step_count=40)
test_every_message_has_one_owner_whatever_happens = OwnersModel.TestCase


@given(st.lists(st.tuples(entries, st.integers(0, 69)), max_size=40))
def test_places_are_merged_by_entry_and_told_apart_again(given_places):
    places = [(position(e), min(i, SIZES[e] - 1) if SIZES[e] else -1, SIZES[e]) for e, i in given_places]
    table, hold = Owners(), Hold(State.HELD)
    for where, (bits, size) in merged(places).items():
        table.give(hold, where, bits, size)
    assert positions_of(table.known(hold).items()) == sorted(set(places))


def test_what_is_wanted_tells_who_waits_once_when_the_last_of_it_has_come():
    table, ticket = Owners(), Hold(State.WANTED, is_awaited=True)
    for entry in (1, 2):
        table.give(ticket, position(entry), full(SIZES[entry]), SIZES[entry], (0, full(SIZES[entry])))
    assert table.admit(position(1), 0b111, 3) == 0b111
    assert table.admit(position(2), 0b1, 5) == 0b1
    assert table.arrived == []
    table.settle(position(2), 0b11110, 5)
    assert table.arrived == [ticket]


def test_an_entry_that_comes_twice_after_two_aborts_brings_only_what_they_gave_back():
    """Four units share a batch of 40; two abort. The other two, and what is queued, keep what they have."""
    table = Owners()
    units = [Hold(State.HELD, number) for number in range(4)]
    for number, unit in enumerate(units[:3]):
        table.give(unit, position(1), full(10) << 10 * number, 40, (table.generation, full(40)))
    table.release(units[0])
    table.release(units[2])
    assert table.admit(position(1), full(40), 40) == full(10) | full(10) << 20
    assert table.admit(position(1), full(40), 40) == 0
    assert table.owner(position(1), 15) is units[1]


def test_a_cumulative_acknowledgement_covers_what_lies_before_its_place():
    table, hold = Owners(), Hold(State.ASKED, "t1")
    hold.up_to = (position(2), 1)
    table.add_range(hold)
    assert table.acknowledged_in(position(1), 4) is hold
    assert table.acknowledged_in(position(2), 1) is hold
    assert table.acknowledged_in(position(2), 2) is None
    table.abandon([hold])
    assert table.admit(position(2), 0b100, 5) == 0b100
    assert table.acknowledged_in(position(1), 4) is hold
    assert table.admit(position(2), 0b010, 5) == 0b010
    assert table.acknowledged_in(position(1), 4) is None


def test_one_open_unit_at_a_time_has_a_cumulative_acknowledgement():
    table = Owners()
    first, second = Hold(State.ASKED, "t1"), Hold(State.ASKED, "t2")
    for hold in (first, second):
        hold.up_to = (position(1), -1)
        table.answer(hold)
        table.add_range(hold)
    table.supersede("t2")
    assert table.acknowledged_in(position(1), -1) is second
    assert len(table) == 1


def test_what_other_units_hold_before_a_place_is_known():
    table = Owners()
    table.give(Hold(State.HELD, "t1"), position(1), 0b110, 3)
    assert not table.held_up_to((position(1), 0))
    assert table.held_up_to((position(1), 1))
    assert table.held_up_to((position(2), -1), but="t2")
    assert not table.held_up_to((position(2), -1), but="t1")


@pytest.mark.parametrize("kind", ["settled", "wanted"])
def test_entries_of_which_nothing_is_held_are_forgotten_beyond_a_limit(monkeypatch, kind):
    monkeypatch.setattr(owners_module, "LIMIT", 10)
    table, held = Owners(), Hold(State.HELD, "t1")
    table.give(held, position(0), 0b1, 3)
    for entry in range(1, 100):
        table.give(getattr(table, kind), position(entry), 0b1, 3, (0, 0b111))
    assert len(table) == 11
    assert table.owner(position(0), 0) is held
    assert table.admit(position(1), 0b111, 3) == 0b111
    assert table.admit(position(99), 0b111, 3) == (0b001 if kind == "wanted" else 0)


def test_a_copy_of_what_is_asked_for_is_noted_until_the_answer_is_there():
    table, request = Owners(), Hold(State.ASKED, "t1")
    table.give(request, position(0), 1, 0)
    assert table.admit(position(0), 1, 0) == 0
    assert request.copies == [position(0)]
    table.answer(request)
    assert table.admit(position(0), 1, 0) == 1
    assert table.owner(position(0), -1) is None


def test_what_was_committed_of_an_entry_is_known_until_all_of_it_is():
    table = Owners()
    for bits, known in ((0b001, True), (0b110, False)):
        request = Hold(State.ASKED, "t1")
        table.give(request, position(1), bits, 3)
        table.settle_all(request)
        assert (table.in_the_way(position(1), bits, 3, "t2") is not None) == known
        assert len(table) == known


def test_a_copy_of_what_is_settled_is_dropped_until_the_acknowledgement_may_be_lost():
    """It was sent before the broker knew: a message of a batch was handed out twice on Shared."""
    table = Owners()
    table.want(position(1), 0b001, 3, (table.generation, 0b111))
    table.settle_outside([(position(1), 1, 3)])
    assert table.admit(position(1), 0b111, 3) == 0b001
    table.new_generation()
    assert table.admit(position(1), 0b111, 3) == 0b111


def test_a_seek_takes_messages_out_of_their_units_but_not_out_of_acknowledgements():
    table, unit, request = Owners(), Hold(State.HELD, "t1"), Hold(State.ASKED, "t1")
    table.give(unit, position(1), 0b011, 3, (table.generation, 0b111))
    table.give(request, position(1), 0b100, 3)
    table.give(unit, position(2), 0b1, 0, (table.generation, 0b1))
    table.move()
    assert (unit.entries, request.entries, len(table)) == ({}, {position(1): 0b100}, 1)
    assert table.has_free(position(1), 0b111) == 0b011


def test_what_another_consumer_had_when_the_entry_came_first_is_handed_out_when_it_comes():
    """The chain found it: such a message was taken for one that the program has, and stayed until the consumer closed."""
    table = Owners()
    table.want(position(1), 0b001, 3, (table.generation, 0b011))
    assert table.admit(position(1), 0b101, 3) == 0b101
    assert table.admit(position(1), 0b101, 3) == 0


def test_of_an_entry_that_came_in_part_the_rest_is_handed_out_when_it_comes():
    """Another consumer had the message in the middle when the others came; then it gave that one back."""
    table = Owners()
    table.want(position(1), 0b101, 3, (table.generation, 0b101))
    assert table.admit(position(1), 0b001, 3) == 0b001
    assert table.admit(position(1), 0b010, 3) == 0b010
