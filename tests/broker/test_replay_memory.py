"""What waits to be delivered again takes memory for what waits, and not for all that ever waited."""

from __future__ import annotations

import random
from types import MappingProxyType
from typing import Any

import pytest
from keeping import kept_by

from pulsar_txn.broker.dispatch.waiting import Replay, SlotReplay
from pulsar_txn.wire.ids import Position

SLOTS = 50


class Owner:
    """As much of a consumer as a replay asks of it: it is itself."""


class Owners:
    """Slots in turns."""

    def __init__(self, *owners: Any) -> None:
        self.owners = owners

    def owner(self, slot: int) -> Any:
        """Whose slot it is."""
        return self.owners[slot % len(self.owners)]


@pytest.mark.parametrize("kind", ["plain", "one slot", "many slots", "fresh"])
def test_positions_that_are_settled_while_an_earlier_one_waits_leave_the_heaps(kind: str) -> None:
    slots = {} if kind == "fresh" else {(0, each): 7 if kind == "one slot" else each % SLOTS for each in range(100_001)}
    owner: Any = Owner()
    replay = Replay() if kind == "plain" else SlotReplay(MappingProxyType(slots), Owners(owner))  # type: ignore[arg-type] # nobody comes or goes
    replay.add((0, 0))
    for entry in range(1, 100_001):
        replay.add((0, entry))
        if entry > 10:
            replay.discard((0, entry - 10))
    assert len(replay) == 11
    assert kept_by(replay) < 5000
    order = [position for position, _ in replay.in_order()]
    assert order == [(0, 0), *((0, each) for each in range(99_991, 100_001))]


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_is_offered_in_order_whatever_was_settled_before(seed: int) -> None:
    rnd, owners = random.Random(seed), [Owner() for _ in range(3)]
    slots: dict[Position, int] = {}
    replay = SlotReplay(MappingProxyType(slots), Owners(*owners))  # type: ignore[arg-type] # nobody comes or goes
    waiting: set[Position] = set()
    for step in range(30_000):
        entry = rnd.randrange(400)
        position = (0, entry)
        if position in waiting and rnd.random() < 0.9:
            replay.discard(position)
            waiting.discard(position)
        elif position not in waiting:
            slots[position] = entry % SLOTS
            replay.add(position)
            waiting.add(position)
        if step % 100 == 0 or not replay._discarded:  # right after what was settled was forgotten
            for number, owner in enumerate(owners):
                mine = [each for each in waiting if slots[each] % 3 == number]
                found = replay.first_of(owner)  # type: ignore[arg-type] # as above
                assert (found and found[0]) == (min(mine) if mine else None)
    assert kept_by(replay) < 10_000


def test_a_slot_whose_first_position_was_settled_is_still_offered_after_others_were_forgotten() -> None:
    mine, others = Owner(), Owner()
    replay = SlotReplay({(0, 0): 0, (0, 1): 1, (0, 2): 0}, Owners(mine, others))  # type: ignore[arg-type] # nobody comes or goes
    replay.add((0, 0))
    replay.add((0, 2))
    replay.discard((0, 0))
    for _ in range(5000):
        replay.add((0, 1))
        replay.discard((0, 1))
    assert replay.first_of(mine) == ((0, 2), 0)  # type: ignore[arg-type] # as above
