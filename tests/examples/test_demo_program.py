"""The program as a whole: its exit code, and that nothing of it stays behind."""

from __future__ import annotations

import logging
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pandas")

import demo
from processes import HERE

pytestmark = pytest.mark.timeout(120)


def start(report: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE), "--flights", "small", "--no-spark", "--report", str(report), *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PULSAR_URL"}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def of_this_run(report: Path) -> list[str]:
    """Command lines of living processes that were given something in the folder of the report."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(report) in line:
                found.append(line)
    return found


def wait_for(report: Path, name: str) -> None:
    until = time.monotonic() + 60
    while not (report / name).exists():
        assert time.monotonic() < until, f"{name} never came"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_when_it_is_interrupted_every_process_of_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    report = tmp_path / "report"
    program = start(report)
    wait_for(report, "transactional.crashes.jsonl")
    assert len(of_this_run(report)) >= 2
    program.send_signal(number)
    said, _ = program.communicate(timeout=60)
    assert program.returncode == 130, said
    assert "interrupted" in said
    assert of_this_run(report) == []


def test_a_worker_that_dies_on_its_own_fails_the_demo_with_its_last_lines(tmp_path: Path) -> None:
    report = tmp_path / "report"
    program = start(report)
    wait_for(report, "transactional.units.jsonl")
    workers = [process for process in Path("/proc").iterdir() if process.name.isdigit() and is_worker(process, report)]
    assert workers
    os.kill(int(workers[0].name), signal.SIGKILL)
    said, _ = program.communicate(timeout=60)
    assert program.returncode == 1, said
    assert "worker-transactional ended with -9, and no crash point had asked for it" in said
    assert "FAILED" in said
    assert of_this_run(report) == []


def is_worker(process: Path, report: Path) -> bool:
    try:
        line = (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return "worker.py" in line and str(report / "transactional.") in line


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["postings: $1.00 in all, and the truth is $1.01"], 1)])
def test_the_exit_code_says_whether_every_check_held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problems: list[str],
    code: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run(self: demo.Demo) -> list[str]:
        return problems

    monkeypatch.setattr(demo.Demo, "run", run)
    monkeypatch.setattr(sys, "argv", ["flights", "--report", str(tmp_path / "report")])
    caplog.set_level(logging.NOTSET, "pulsar_txn")  # puts back what the program sets, or later tests would see no warnings
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(HERE / "__main__.py"), run_name="__main__")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == code
    assert ("FAILED" in capsys.readouterr().out) == bool(code)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    program = start(tmp_path)
    said, _ = program.communicate(timeout=60)
    assert program.returncode == 2
    assert "choose another --report" in said
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
