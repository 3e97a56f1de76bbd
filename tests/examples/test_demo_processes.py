"""The log of kills, the worker's crash point, and the processes: started again when asked for, ended by their pid."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas")

import crash
from crash import CrashPoint, Kill, parse_line, read_log
from processes import Children, DemoFailedError, Supervisor

BROKER = {"point": "broker.before_last_marker", "txn_id": "(1,2)", "told": ["persistent://public/default/postings"]}
BROKER |= {"not_told": ["persistent://public/default/flights / settle"], "time_ms": 5, "pid": 7}
SINK = {"point": "sink.commit.after_end_txn_sent", "batch_id": 2, "txn_id": "(3,4)", "answered": False}
SINK |= {"pid": 8, "jvm_pid": 9, "time_ms": 6}


def test_lines_of_broker_and_sink_say_who_was_killed_and_what_was_in_flight() -> None:
    broker, sink = parse_line(json.dumps(BROKER)), parse_line(json.dumps(SINK))
    assert (broker.target, broker.txn_id, broker.time_ms, broker.pid) == ("broker", "(1,2)", 5, 7)
    assert broker.describe() == "transaction (1,2); COMMITTING durable, told: postings, not told: flights / settle"
    assert (sink.target, sink.txn_id) == ("driver", "(3,4)")
    assert "micro-batch 2, END_TXN sent, its answer not there yet" in sink.describe()
    assert not broker.nothing_in_flight()
    assert not sink.nothing_in_flight()


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_log(log) == []
    whole = json.dumps(BROKER)
    log.write_text(f"{whole}\n{whole[:20]}", encoding="utf-8")
    assert [kill.point for kill in read_log(log)] == ["broker.before_last_marker"]


def worker_point(log: Path, nth: str, **more: str) -> CrashPoint:
    point = crash.POINTS["send-first"]
    return CrashPoint(
        point, {"PULSAR_TXN_CRASH_POINT": point, "PULSAR_TXN_CRASH_LOG": str(log), "PULSAR_TXN_CRASH_NTH": nth, **more}
    )


def test_the_workers_point_fires_once_for_each_target_at_the_unit_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victims: list[tuple[int, int]] = []
    monkeypatch.setattr(crash.os, "kill", lambda pid, number: victims.append((pid, number)))
    log, ready = tmp_path / "log", tmp_path / "ready"
    ready.write_text(json.dumps({"pid": 4_000_000}), encoding="utf-8")
    point = worker_point(log, "2=broker 3=worker", PULSAR_TXN_CRASH_BROKER=str(ready))
    killed_at = []
    for unit in range(1, 6):
        point.reached(flights=[unit], done="sent, not acknowledged")
        killed_at.append(len(victims))
    assert killed_at == [0, 1, 2, 2, 2]
    assert victims == [(4_000_000, signal.SIGKILL), (os.getpid(), signal.SIGKILL)]
    assert [(kill.target, kill.flights) for kill in read_log(log)] == [("broker", (2,)), ("worker", (3,))]

    again = worker_point(log, "2=broker 3=worker", PULSAR_TXN_CRASH_BROKER=str(ready))  # the worker's next start
    for unit in range(1, 6):
        again.reached(flights=[unit], done="sent, not acknowledged")
    assert len(victims) == 2


def test_without_its_name_in_the_environment_the_point_does_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    point = CrashPoint(crash.POINTS["ack-first"], {"PULSAR_TXN_CRASH_POINT": "other", "PULSAR_TXN_CRASH_LOG": str(log)})
    for unit in range(3):
        point.reached(flights=[unit])
    assert read_log(log) == []


# --- processes --------------------------------------------------------------------------------------------------------

_DIES_ONCE = """
import os, signal, sys, json, pathlib
log = pathlib.Path(sys.argv[1])
if not log.exists():
    line = {"point": "worker.before_acks", "target": "worker", "pid": os.getpid(), "time_ms": 1, "flights": [3]}
    log.write_text(json.dumps(line) + "\\n")
    os.kill(os.getpid(), signal.SIGKILL)
print("done")
"""


def supervisor(log: Path, said: list[Any]) -> Supervisor:
    async def on_kill(kill: Kill) -> None:
        said.append(kill.flights)

    async def on_restart(kill: Kill, seconds: float) -> None:
        said.append((kill.target, seconds >= 0))

    return Supervisor(log, on_kill, on_restart)


async def test_a_kill_that_was_asked_for_is_told_and_the_process_started_again(tmp_path: Path) -> None:
    said: list[Any] = []
    log = tmp_path / "crashes"
    with Children(tmp_path) as children:
        child = children.make("worker-x", [sys.executable, "-c", _DIES_ONCE, str(log)])
        child.start()
        await asyncio.wait_for(supervisor(log, said).keep(child), 60)
        assert said == [(3,), ("worker", True)]
        assert child.starts == 2
        assert child.tail() == "done"


@pytest.mark.parametrize("code", ["import sys; print('a sentence'); sys.exit(3)", "import os; os.kill(os.getpid(), 9)"])
async def test_an_end_that_nobody_asked_for_fails_the_demo(tmp_path: Path, code: str) -> None:
    with Children(tmp_path) as children:
        child = children.make("worker-x", [sys.executable, "-c", code])
        child.start()
        with pytest.raises(DemoFailedError, match="no crash point had asked for it"):
            await asyncio.wait_for(supervisor(tmp_path / "crashes", []).keep(child), 60)


_PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_leaving_ends_every_process_and_what_it_has_started_also_when_something_failed(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with pytest.raises(KeyboardInterrupt), Children(tmp_path) as children:
            child = children.make("parent", [sys.executable, "-c", _PARENT])
            child.start()
            until = time.monotonic() + 30
            while not child.tail() and time.monotonic() < until:
                time.sleep(0.01)
            pids = [child.pid, int(child.tail())]
            raise KeyboardInterrupt
        for pid in pids:
            assert pid is not None
            assert not is_alive(pid)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def is_alive(pid: int) -> bool:
    """Give a killed grandchild a moment to be gone; one that waits for its parent to ask for its code is gone."""
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        try:
            state = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return False
        if state == "Z":
            return False
        time.sleep(0.01)
    return True
