"""Who is killed when: one after the other, each after the recovery from the kill before; and points that a file arms."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyspark")

import chaos
import spark_crash
from chaos import LONG, SHORT, Chaos, Planned, schedule
from crash import BROKER_POINT, RANDOM, note_kill, read_log
from processes import Children, processes_below


def test_every_run_kills_driver_executor_and_broker_at_named_points_and_at_random_ones() -> None:
    for plan in (SHORT, LONG):
        named = {planned.target for planned in plan if planned.point != RANDOM}
        assert named == {"driver", "executor", "broker"}
        assert {"executor", "broker"} <= {planned.target for planned in plan if planned.point == RANDOM}
    for target in ("driver", "executor", "broker"):
        assert sum(planned.target == target for planned in LONG) >= 3
    assert ("driver", RANDOM) in {(planned.target, planned.point) for planned in LONG}


@pytest.mark.parametrize("selection", ["small", "jan"])
def test_a_broker_that_is_not_ours_is_not_killed(selection: str) -> None:
    targets = {planned.target for planned in schedule(selection, our_broker=False)}
    assert targets == {"driver", "executor"}


class Scene:
    """A job of one micro-batch per look at it, whose processes are names; kills are notes in the log."""

    def __init__(self, folder: Path, plan: list[Planned], monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "crashes.jsonl"
        self.newest = 0
        self.killed_at: list[int] = []
        self.executors = [11, 12]
        with Children(folder) as children:
            job = children.make("driver", [sys.executable])
        self.chaos = Chaos(plan, self.log, job, None, self.look, random.Random(1))
        monkeypatch.setattr(chaos, "_DELAY_SECONDS", (0.0, 0.0))
        monkeypatch.setattr(chaos, "_POLL_SECONDS", 0.0)
        monkeypatch.setattr(chaos.os, "kill", self.kill)
        monkeypatch.setattr(Chaos, "pids", lambda _, target: {"executor": self.executors, "driver": [7]}[target])

    def look(self) -> int:
        self.newest += 1
        return self.newest

    def kill(self, pid: int, number: signal.Signals) -> None:
        assert number is signal.SIGKILL
        self.killed_at.append(self.newest)


async def test_each_kill_waits_for_two_micro_batches_after_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, [Planned("executor"), Planned("driver"), Planned("executor")], monkeypatch)
    await scene.chaos.run()
    assert [kill.target for kill in read_log(scene.log)] == ["executor", "driver", "executor"]
    first, second, third = scene.killed_at
    assert second - first >= 2
    assert third - second >= 2
    assert scene.newest - third >= 2


async def test_nobody_is_killed_while_an_executor_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, [Planned("driver")], monkeypatch)
    scene.executors = [11]
    running = asyncio.ensure_future(scene.chaos.run())
    for _ in range(200):
        await asyncio.sleep(0)
    assert scene.killed_at == []
    scene.executors = [11, 12]
    await asyncio.wait_for(running, 30)
    assert len(scene.killed_at) == 1


async def test_a_named_point_is_armed_by_its_file_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, [Planned("driver", "sink.commit.begin"), Planned("broker", BROKER_POINT)], monkeypatch)
    running = asyncio.ensure_future(scene.chaos.run())
    while not chaos.armed(scene.log).exists():  # noqa: ASYNC110 - a file sets no event
        await asyncio.sleep(0)
    assert chaos.armed(scene.log).read_text(encoding="utf-8") == "sink.commit.begin"
    assert not chaos.broker_armed(scene.log).exists()
    note_kill(scene.log, "sink.commit.begin", "driver", 7)
    while not chaos.broker_armed(scene.log).exists():  # noqa: ASYNC110 - a file sets no event
        await asyncio.sleep(0)
    note_kill(scene.log, BROKER_POINT, "broker", 8)
    await asyncio.wait_for(running, 30)


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(step, target) of each kill; nobody dies."""
    found: list[tuple[str, str]] = []
    monkeypatch.setenv("PULSAR_TXN_CRASH_NOW", str(tmp_path / "armed"))
    monkeypatch.setattr(spark_crash, "kill_driver", lambda name, *, target, **_: found.append((name, target)))
    return found


def test_an_armed_point_fires_once_and_only_at_its_step(tmp_path: Path, killed: list[tuple[str, str]]) -> None:
    spark_crash.armed_crash_point("sink.commit.begin", batch_id=1)
    (tmp_path / "armed").write_text("sink.commit.end", encoding="utf-8")
    spark_crash.armed_crash_point("sink.commit.begin", batch_id=1)
    assert killed == []
    spark_crash.armed_crash_point("sink.commit.end", batch_id=1)
    spark_crash.armed_crash_point("sink.commit.end", batch_id=2)
    assert killed == [("sink.commit.end", "driver")]


def test_at_the_end_of_a_task_it_is_an_executor_that_dies(tmp_path: Path, killed: list[tuple[str, str]]) -> None:
    (tmp_path / "armed").write_text("sink.write.end", encoding="utf-8")
    spark_crash.armed_crash_point("sink.write.end", batch_id=1)
    assert killed == [("sink.write.end", "executor")]


def test_processes_below_are_children_and_their_children() -> None:
    inner = "import time; time.sleep(600)"
    outer = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {inner!r}]); print(p.pid, flush=True); p.wait()"
    )
    middle = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    try:
        assert middle.stdout is not None
        grandchild = int(middle.stdout.readline())
        below = dict(processes_below(os.getpid()))
        assert {middle.pid, grandchild} <= below.keys()
        assert "time.sleep(600)" in below[grandchild]
        assert dict(processes_below(middle.pid)).keys() == {grandchild}
        os.kill(grandchild, signal.SIGKILL)
    finally:
        middle.kill()
        middle.wait()
