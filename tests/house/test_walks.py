"""The walks of walks.py: no circle of calls grows, and the tracer sees calls as it says."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sources import Tree, modules_of

PROGRAM = Path(__file__).with_name("walks.py")


def load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


walks = load("traced_walks", PROGRAM)  # docs/walks.py has the plain name


def test_no_circle_of_calls_in_the_walks_is_larger_than_the_stored_one() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# The tracer, on two rooms of two files each

LOW = """
import asyncio

class Low:
    def __init__(self, told=None):
        self.told = told
        self.count = 0
    def tell(self):
        self.count += 1
        return self.told()
    async def tell_later(self):
        return self.told()
    def ask(self):
        return self.count
    @property
    def size(self):
        self.count += 1
        return self.count
    def __repr__(self):
        return "low"
    def spawn(self):
        asyncio.get_running_loop().call_soon(self.told)
    def sort(self):
        return sorted([1, 2], key=lambda one: self.told())

def hand_on(told):
    return told()
"""

HIGH = """
from one import low

class High:
    def __init__(self):
        self.low = low.Low(self.told)
        self.count = 0
    def told(self):
        self.count += 1
        return self.count
    def look(self):
        return self.low.size, repr(self.low)
    def lead(self):
        return self.low.tell()

class Plain:
    def __init__(self):
        self.low = low.Low(self.told)
    def told(self):
        return 1
"""


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Callable[[Callable[[Any, Any], Any]], Any]]:
    """Runs a function with the modules `low` and `high` under a tracer; returns the trace."""
    for room, name, text in (("one", "low", LOW), ("two", "high", HIGH)):
        folder = tmp_path / room / "pulsar_txn" / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("", encoding="utf-8")
        (folder / f"{name}.py").write_text(text.replace("from one", "from pulsar_txn.one"), encoding="utf-8")
    tree = Tree(tmp_path)
    files = {str(file): name for name, file in modules_of(tmp_path).items()}
    names = ["pulsar_txn.one", "pulsar_txn.one.low", "pulsar_txn.two.high"]
    sys.modules["pulsar_txn.one"] = one = ModuleType("pulsar_txn.one")
    one.low = load(names[1], tmp_path / "one/pulsar_txn/one/low.py")  # type: ignore[attr-defined]
    high = load(names[2], tmp_path / "two/pulsar_txn/two/high.py")

    def run(work: Callable[[Any, Any], Any]) -> Any:
        tracer = walks.Tracer(files, walks.owners_of_state(tree))
        low = one.low
        with tracer.on():
            work(low, high)
        return tracer.trace

    yield run
    for name in names:
        sys.modules.pop(name, None)


UP, DOWN = ("pulsar_txn.one.low", "pulsar_txn.two.high"), ("pulsar_txn.two.high", "pulsar_txn.one.low")
OWNERS_UP = ("pulsar_txn.one.low:Low", "pulsar_txn.two.high:High")


def test_a_call_down_and_a_callback_up_are_edges_and_close_a_circle(trace: Any) -> None:
    seen = trace(lambda low, high: high.High().low.tell())
    assert {*seen.edges} == {UP, DOWN}
    assert seen.calls == 4
    assert {*seen.owners} == {OWNERS_UP, OWNERS_UP[::-1]}
    assert walks.circles({"a": seen}).sizes() == {
        "modules": {"one": 0, "two": 0, "all": 2},
        "owners": {"one": 0, "two": 0, "all": 2},
    }


def test_a_call_down_alone_makes_no_circle(trace: Any) -> None:
    seen = trace(lambda low, high: high.High().low.ask())
    assert {*seen.edges} == {DOWN}
    assert walks.circles({"a": seen}).modules["all"] == []


@pytest.mark.parametrize(
    "work",
    [
        lambda low, high: low.Low(high.High().told).sort(),
        lambda low, high: asyncio.run(low.Low(high.High().told).tell_later()),
        lambda low, high: low.hand_on(high.High().told),
    ],
    ids=["through sorted", "awaited", "through a function"],
)
def test_a_callback_is_seen_through(trace: Any, work: Callable[[Any, Any], Any]) -> None:
    assert UP in trace(work).edges


def test_a_property_and_a_repr_count_as_calls(trace: Any) -> None:
    seen = trace(lambda low, high: high.High().look())
    assert seen.edges[DOWN] == 3  # with the construction
    assert seen.calls == 5


def test_what_the_event_loop_calls_has_no_caller(trace: Any) -> None:
    async def main(high: Any) -> None:
        high.High().low.spawn()
        await asyncio.sleep(0)

    seen = trace(lambda low, high: asyncio.run(main(high)))
    assert {*seen.edges} == {DOWN}
    assert seen.calls == 4


def test_a_class_that_writes_nothing_after_construction_owns_no_state(trace: Any) -> None:
    seen = trace(lambda low, high: high.Plain().low.tell())
    assert {*seen.edges} == {UP, DOWN}
    assert {*seen.owners} == set()


def test_what_the_net_is_given_from_outside_has_no_caller(trace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "ENTRIES", {"pulsar_txn.one": "bytes come from outside"})
    monkeypatch.setattr(walks, "ENTRY_METHODS", {"tell_later"})
    entered = trace(lambda low, high: asyncio.run(high.High().low.tell_later()))
    assert {*entered.edges} == {DOWN}
    begun_there = trace(lambda low, high: high.High().low.tell())  # as a task or a timer of the net
    assert {*begun_there.edges} == {DOWN}
    called = trace(lambda low, high: high.High().lead())
    assert {*called.edges} == {UP, DOWN}


def test_deferred_work_has_no_caller(trace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "DEFERRED", {"pulsar_txn.one.low": "calls what was deferred"})
    assert {*trace(lambda low, high: high.High().lead()).edges} == {DOWN}


# The list


def test_a_larger_circle_fails_and_a_smaller_one_asks_to_be_stored() -> None:
    assert walks.complaints({"modules": {"a": 3}}, {"modules": {"a": 3}}) == []
    (larger,) = walks.complaints({"modules": {"a": 4}}, {"modules": {"a": 3}})
    assert larger.startswith("a: 4 modules call each other in a circle, 3 are stored: return an effect")
    (smaller,) = walks.complaints({"owners": {"a": 2}}, {"owners": {"a": 3}})
    assert smaller == "a: the largest circle has 2 owners, 3 are stored: `--update` stores the smaller one"
    (new,) = walks.complaints({"modules": {"b": 2}}, {})
    assert new.startswith("b: 2 modules")


def test_an_update_never_stores_a_larger_circle(tmp_path: Path) -> None:
    found = {"modules": {"a": 2, "b": 5, "c": 2}}
    kept = walks.smaller(found, {"modules": {"a": 3, "b": 4}})
    assert kept == {"modules": {"a": 2, "b": 4, "c": 0}}
    walks.write_sizes(tmp_path / "walks.toml", kept)
    assert walks.read_sizes(tmp_path / "walks.toml") == kept
