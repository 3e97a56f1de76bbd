"""The demo waits as long as something moves, and it writes its report in any case."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")
pytest.importorskip("pyspark")

import demo as demo_module
import patience as patience_module
from crash import RANDOM, Kill
from demo import Demo
from patience import Patience, cpu_seconds
from processes import DemoFailedError
from rich.console import Console
from runs import Input, KillReport

TRUTH = {number: {"carrier": "AA", "route": "EWR-LAX", "net_cents": 100} for number in range(3)}
KNOWN = Input("small", TRUTH, {("carrier", "AA"): (3, 300), ("route", "EWR-LAX"): (3, 300)}, frozenset({3}))


class World:
    """A clock, the CPU time that the processes got, and what has moved."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0
        self.moved = 0
        self.patience = Patience(lambda: self.moved, lambda: self.now, lambda: self.cpu)

    def goes_on(self, seconds: float, *, share: float, moves: bool = False) -> bool:
        """So much time with this share of a CPU; whether patience is over then."""
        for _ in range(int(seconds / 10)):
            self.now += 10
            self.cpu += 10 * share
            self.moved += moves
            if self.patience.is_over():
                return True
        return False


def test_what_moves_is_waited_for_however_slow_it_is() -> None:
    world = World()
    assert not world.goes_on(100_000, share=1.0, moves=True)


def test_a_starved_machine_gets_the_cpu_time_that_a_fast_one_has_had() -> None:
    world = World()
    assert not world.goes_on(1500, share=0.1), "it has had 150 s of CPU"
    assert world.goes_on(5000, share=0.1)
    assert 3000 <= world.now <= 3100


@pytest.mark.parametrize(("share", "bound"), [(2.0, 310), (0.0, 310)])
def test_what_stands_still_ends_when_it_had_the_cpu_or_wants_none(share: float, bound: float) -> None:
    world = World()
    world.goes_on(50, share=share, moves=True)
    assert world.goes_on(1000, share=share)
    assert world.now <= 50 + bound


def test_the_cpu_time_of_this_program_is_known_and_grows() -> None:
    before = cpu_seconds()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        sum(range(10_000))
    after = cpu_seconds()
    assert before is not None
    assert after is not None
    assert after > before


async def test_waiting_for_something_that_never_comes_says_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience_module, "_LOOK_SECONDS", 0.0)
    clock = iter(range(0, 10**6, 100))
    with pytest.raises(DemoFailedError, match=r"nobody has published: nothing has moved for \d+ s"):
        await Patience(lambda: 1, lambda: next(clock), lambda: 0.0).until(lambda: False, lambda: "nobody has published", 0.0)


class FailingJob:
    """A run of one of the scenes that does not come to its end."""

    def __init__(self, *_given: Any) -> None:
        self.kills = [
            KillReport("main job", Kill(RANDOM, "executor", 1700, 3, {}), recovery="Spark put another one in its place")
        ]

    async def run(self) -> None:
        await asyncio.sleep(0)
        raise DemoFailedError("nobody has published a micro-batch")


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_demo_that_ends_early_leaves_a_report_of_what_happened(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HangingJob(FailingJob):
        async def run(self) -> None:
            await asyncio.sleep(3600)

    monkeypatch.setattr(demo_module, "read_input", lambda _: KNOWN)
    monkeypatch.setattr(demo_module, "MainJob", FailingJob if how == "fails" else HangingJob)
    monkeypatch.setattr(demo_module, "_POLL_SECONDS", 0.01)
    demo = Demo(Console(quiet=True), tmp_path, "small")
    demo._show("Spark settles", 2, 3)
    if how == "hangs":
        running = asyncio.ensure_future(demo.run())
        await asyncio.sleep(0.3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        with pytest.raises(BaseExceptionGroup) as group:
            await demo.run()
        assert group.group_contains(DemoFailedError)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "The demo did not finish" in page
    assert "Spark settles: 2 of 3" in page
    assert "Spark put another one in its place" in page
    assert ("nobody has published a micro-batch" if how == "fails" else "interrupted") in page
