"""The map that machines keep what grows in: a dict in order, whose moments can be walked while it changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn.ledger.ordered import Moment, OrderedMap

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "change", "to end", "moment", "walk", "walk", "drop"]),
        st.integers(0, 30),
    ),
    max_size=120,
)


@settings(deadline=None)
@given(CHANGES, st.integers(1, 5))
def test_a_moment_shows_the_map_as_it_was_whatever_happens_while_it_is_walked(
    changes: list[tuple[str, int]], group: int
) -> None:
    live: OrderedMap[int, list[int]] = OrderedMap(tuple, group=group)
    model: dict[int, list[int]] = {}
    walks: list[tuple[list[tuple[int, Any]], Iterator[list[tuple[int, Any]]], list[tuple[int, Any]]]] = []
    for number, (kind, key) in enumerate(changes):
        if kind == "put":
            live[key] = value = [number]
            model[key] = value
        elif kind == "delete" and key in model:
            assert live.pop(key) == model.pop(key)
        elif kind == "change" and key in model:
            live.changing(key)
            model[key].append(number)
        elif kind == "to end" and key in model:
            value = model.pop(key)
            del live[key]
            live[key] = model[key] = value
        elif kind == "moment":
            walks.append(([(one, tuple(value)) for one, value in model.items()], live.moment().groups(), []))
        elif kind == "walk" and walks:
            walks[key % len(walks)][2].extend(next(walks[key % len(walks)][1], []))
        elif kind == "drop" and walks:
            del walks[key % len(walks)]
        assert list(live.items()) == list(model.items())
        assert list(live) == list(model)
        assert list(live.values()) == list(model.values())
        assert live.first() == next(iter(model.items()), None)
        assert len(live) == len(model)
        assert [live.get(one) for one in range(31)] == [model.get(one) for one in range(31)]
    for expected, walk, seen in walks:
        for part in walk:
            seen.extend(part)
        assert seen == expected


def test_a_moment_that_is_dropped_is_not_copied_for_any_more() -> None:
    images = 0

    def image(value: int) -> int:
        nonlocal images
        images += 1
        return value

    live: OrderedMap[int, int] = OrderedMap(image, group=4)
    for key in range(40):
        live[key] = key
    moment: Moment[int] | None = live.moment()
    live[0] = 7
    assert images == 4, "one group is copied, no more"
    live[1] = 7
    assert images == 4, "and once"
    del moment
    gc.collect()
    live[20] = 7
    assert images == 4


def test_a_group_that_was_walked_or_came_later_is_not_copied() -> None:
    images: list[int] = []
    live: OrderedMap[int, int] = OrderedMap(lambda value: images.append(value) or value, group=2)
    for key in range(6):
        live[key] = key
    walk = live.moment().groups()
    assert next(walk) == [(0, 0), (1, 1)]
    images.clear()
    live[0], live[9] = 10, 19
    assert images == []
    assert [item for part in walk for item in part] == [(2, 2), (3, 3), (4, 4), (5, 5)]


def test_the_first_key_is_found_without_a_walk_over_what_was_taken_out() -> None:
    live: OrderedMap[_Counted, None] = OrderedMap()
    for number in range(2_000):
        live[_Counted(number)] = None
    _Counted.looks = 0
    for number in range(2_000):
        found = live.first()
        assert found is not None
        assert found[0].number == number
        del live[found[0]]
    assert live.first() is None
    assert _Counted.looks <= 10 * 2_000


class _Counted:
    looks = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        _Counted.looks += 1
        return self.number
