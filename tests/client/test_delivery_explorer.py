"""Every history of a delivery up to a depth, breadth-first, against models of the dispatchers: the shortest fault comes first.

A space is small: two entries have arrived, and of what may go wrong some things may happen once. Each state that is reached is
healed and judged (`delivery_world`). States that are equal, whatever the way to them, are entered once. Longer histories, with
all at once, are random: `test_delivery_machine`.
"""

from __future__ import annotations

import os
import pickle
from typing import Any, Final

import pytest
from delivery_world import Move, World
from dispatcher_models import KEY_SHARED, KINDS, SHARED, OrderedDispatcher, SharedDispatcher

STATES = 5_000 if os.environ.get("PULSAR_TXN_SOAK") else 400
"""States of one space that are judged at most: this reaches a depth of five to nine moves, and in some spaces the end."""

NOTHING: Final = {"units": 0, "nacks": 0, "asks": 0, "cuts": 0, "seeks": 0}
SPACES: Final = {
    "units": {"units": 2},
    "a unit and a cut": {"units": 1, "cuts": 1},
    "a unit and a question": {"units": 1, "asks": 1},
    "a unit and a negative ack": {"units": 1, "nacks": 1},
    "a negative ack and a question": {"nacks": 1, "asks": 1},
    "a negative ack and a cut": {"nacks": 1, "cuts": 1},
    "a seek, a question and a cut": {"asks": 1, "cuts": 1, "seeks": 1},
}
SIZES: Final = {"single messages": [0, 0], "a batch and a single message": [2, 0]}


def begun(kind: str, sizes: list[int], budget: dict[str, int]) -> World:
    """A world in which all messages have arrived, and nothing else has happened."""
    broker: OrderedDispatcher | SharedDispatcher
    if kind in (SHARED, KEY_SHARED):
        broker = SharedDispatcher(sizes, [0] * len(sizes) if kind == KEY_SHARED else None)
    else:
        broker = OrderedDispatcher(kind, sizes, 2)
    world = World(broker, **NOTHING | budget)
    while arriving := [move for move in world.moves() if move[0] in ("publish", "go", "broker", "come")]:
        world.do(arriving[0])
    return world


def fingerprint(world: World) -> bytes:
    """Everything that decides what may happen next; counts that are kept for comparisons are no part of it."""
    uncounted: dict[str, Any] = {"asked": 0, "numbers": 0, "heap": None, "broker": vars(world.broker) | {"sent": 0}}
    return pickle.dumps(vars(world) | uncounted)


@pytest.mark.deeper
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_short_history_loses_doubles_or_overtakes_and_nobody_waits_for_ever(kind, space, sizes):
    seen: set[bytes] = set()
    reached: list[tuple[Move, ...]] = [()]
    for path in reached:  # grows at its end
        world = begun(kind, SIZES[sizes], SPACES[space])
        try:
            for move in path:
                world.do(move)
            state = fingerprint(world)
            if state in seen:
                continue
            seen.add(state)
            reached += [(*path, move) for move in world.moves()]
            world.heal()
            world.judge()
        except Exception as error:
            error.add_note(f"after {path}")
            raise
        if len(seen) == STATES:
            break
    assert len(seen) == STATES or len(seen) > 100  # the end of a space: it has been walked whole
