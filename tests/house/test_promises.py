"""No promise is lost when tests move: the inventory names each, and each is kept, moved, or dropped with a reason."""

from __future__ import annotations

import pytest
from promises import INVENTORY, MOVED, broken, kept, page, written

TESTS = {"tests/a.py::test_one_thing", "tests/b.py::TestSuite::test_another"}


def test_every_promise_of_the_inventory_is_kept() -> None:
    promises = written(INVENTORY.read_text(encoding="utf-8"))
    assert len(promises) > 4000
    assert broken(promises, MOVED.read_text(encoding="utf-8") if MOVED.exists() else "", kept()) == []


def test_an_inventory_reads_as_it_was_written() -> None:
    assert page(TESTS) == "tests/a.py\n  one thing\n\ntests/b.py\n  TestSuite::another\n"
    assert written(page(TESTS)) == TESTS


@pytest.mark.parametrize(
    ("moved", "says"),
    [
        ("", ["tests/a.py::test_one_thing: no test keeps this promise any more"]),
        ("tests/a.py::test_one_thing -> tests/b.py::TestSuite::test_another", []),
        ("tests/a.py::test_one_thing dropped: the option is gone", []),
        (
            "tests/a.py::test_one_thing -> tests/c.py::test_x",
            ["tests/a.py::test_one_thing: it is said to be tests/c.py::test_x, which"],
        ),
        ("tests/a.py::test_one_thing dropped: ", ["it is neither moved"]),
    ],
)
def test_a_promise_that_is_gone_is_named_unless_it_was_moved_or_dropped(moved: str, says: list[str]) -> None:
    found = broken(TESTS, moved, TESTS - {"tests/a.py::test_one_thing"})
    assert len(found) >= len(says)
    assert all(any(each in line for line in found) for each in says)
    assert bool(found) == bool(says)
