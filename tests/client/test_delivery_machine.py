"""The machine of a delivery: the table of owners walked whole, and its histories against models of three dispatchers.

`delivery_world` says what may happen in a history, and what is true at its end.
"""

from __future__ import annotations

import os
import random
from typing import Final

import attrs
import pytest
from delivery_world import OPTIONS, World
from dispatcher_models import KEY_SHARED, KINDS, MARKER, NEW, SHARED, OrderedDispatcher, SharedDispatcher

from pulsar_txn.client.state.owners import TRANSITIONS, Act, Event, Hold, Owners, State

HISTORIES = 100_000 if os.environ.get("PULSAR_TXN_SOAK") else 1000
SEEDS = 5

WEIGHTS: Final = {
    "publish": 4,
    "broker": 8,
    "come": 8,
    "go": 8,
    "ack": 5,
    "nack": 0.7,
    "forget": 0.4,
    "ask": 0.4,
    "work": 6,
    "ack in": 1,
    "commit": 2,
    "abort": 1.5,
    "end": 3,
    "tell": 0.5,
    "late": 1,
    "apply": 0.5,
    "early": 1,
    "leave": 0.4,
    "elsewhere": 0.2,
    "cut": 0.2,
    "seek": 0.05,
    "wait": 1,
}
"""How likely a move is, by its kind."""

AT = (7, 1)

CELLS = [pytest.param(state, event, id=f"{state.name}-{event.name}") for state in State for event in Event]


# --- the table ----------------------------------------------------------------------------------------------------------


def in_state(state: State) -> tuple[Owners, Hold | None]:
    """A table that knows one entry of two messages, the first of them in a state."""
    table = Owners()
    table.give(table.settled, AT, 0b10, 2, (0, 0b11))
    if state is State.FREE:
        return table, None
    if state in (State.SETTLED, State.WANTED):
        hold = table.settled if state is State.SETTLED else table.wanted
        table.give(hold, AT, 0b01, 2, (0, 0b11))
        return table, hold
    hold = Hold(State.HELD if state is State.HELD else State.ASKED, "unit")
    table.give(hold, AT, 0b01, 2, (0, 0b11))
    if state is State.TAKEN:
        table.answer(hold)
    return table, hold


def happens(table: Owners, hold: Hold | None, event: Event) -> None:
    """Let the event happen to the first message."""
    match event:
        case Event.COPY:
            table.new_generation()  # else a copy of what is free or settled is a second one
            table.admit(AT, 0b01, 2)
        case Event.RECEIVE if table.has_free(AT, 0b01):
            table.give(Hold(State.HELD, "other"), AT, 0b01, 2)
        case Event.ACKNOWLEDGE | Event.CLAIM:
            unit = "unit" if event is Event.ACKNOWLEDGE else "other"
            if table.in_the_way(AT, 0b01, 2, unit) is None:
                table.give(Hold(State.ASKED, unit), AT, 0b01, 2)
        case Event.ANSWER if hold is not None:
            table.answer(hold)
        case Event.REFUSE | Event.ABORT if hold is not None and TRANSITIONS[hold.state, event].act is Act.GIVE:
            table.release(hold)
        case Event.SETTLE:
            table.settle_outside([(AT, 0, 2)])
        case Event.LEAVE:
            table.leave(AT, 0b01)
        case Event.WANT:
            table.want(AT, 0b01, 2, (0, 0b11))
        case Event.COMMIT if hold is not None and TRANSITIONS[hold.state, event].act is Act.GIVE:
            table.settle_all(hold)
        case Event.MOVE:
            table.move()


def test_the_table_has_every_cell_and_nothing_else():
    assert set(TRANSITIONS) == {(state, event) for state in State for event in Event}


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_a_cell_says_what_happens(state, event):
    table, hold = in_state(state)
    happens(table, hold, event)
    owner = table.owner(AT, 0)
    after = State.FREE if owner is None else owner.state
    settled = not table.knows(AT) and event in (Event.SETTLE, Event.COMMIT)  # with the other one all of the entry
    assert (State.SETTLED if settled else after) is TRANSITIONS[state, event].to


@pytest.mark.parametrize(("state", "event"), CELLS)
def test_what_is_done_nothing_about_stays_as_it_is(state, event):
    cell = TRANSITIONS[state, event]
    assert (cell.act in (Act.KEEP, Act.CONFLICT, Act.DROP, Act.NOTE)) <= (cell.to is state)


# --- histories ----------------------------------------------------------------------------------------------------------


def chunks_of(rnd: random.Random, sizes: list[int]) -> dict[int, tuple[str, int, int]]:
    """Say of some entries that they are chunks of one message, or of two, one after the other or mixed."""
    single = [entry for entry, size in enumerate(sizes) if size == 0]
    total = rnd.choice([2, 3])
    if rnd.random() < 0.6 or len(single) < total:
        return {}
    those = single[:total] if rnd.random() < 0.5 else single[-total:]
    chunks = {entry: ("first", number, total) for number, entry in enumerate(those)}
    rest = [entry for entry in single if entry not in chunks][:2]
    if len(rest) == 2 and rnd.random() < 0.5:
        chunks |= {entry: ("second", number, 2) for number, entry in enumerate(rest)}
    return chunks


def world_of(rnd: random.Random, kind: str) -> World:
    """A world with a dispatcher of a kind."""
    sizes = [0, *(rnd.choice([0, 0, 3, MARKER]) for _ in range(rnd.randint(2, 13)))]
    keys = [rnd.randint(0, 2) for _ in sizes] if kind == KEY_SHARED else None
    is_shared = kind in (SHARED, KEY_SHARED)
    return World(
        SharedDispatcher(sizes, keys) if is_shared else OrderedDispatcher(kind, sizes, rnd.randint(1, 6)),
        is_calm=kind == NEW,
        chunks=chunks_of(rnd, sizes),
        options=attrs.evolve(OPTIONS, queue_bytes=rnd.choice([0, 0, 35])),
        expects=rnd.random() < 0.5,
        asks=0 if is_shared and rnd.random() < 0.7 else 1000,
    )


def history(seed: int, kind: str) -> None:
    """One random history against a dispatcher."""
    rnd = random.Random(f"{kind} {seed}")
    world = world_of(rnd, kind)
    for _ in range(rnd.randint(20, 150)):
        moves = list(world.moves())
        if not moves:
            break
        world.do(rnd.choices(moves, [WEIGHTS[move[0]] for move in moves])[0])
    world.heal()
    world.judge()


@pytest.mark.deeper
@pytest.mark.parametrize("start", range(SEEDS))
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_doubled_or_overtaken_and_nobody_waits_for_ever(kind, start):
    share = HISTORIES // SEEDS
    for seed in range(start * share, start * share + share):
        try:
            history(seed, kind)
        except AssertionError as error:
            error.add_note(f"history({seed}, {kind!r})")
            raise
