"""The tests of the rooms are tested: each mutant is a patch that breaks a promise, and its room's tests must notice.

See README.md beside this file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MUTANTS = sorted(HERE.glob("*/*.patch"))
TESTS_FAILED = 1
NOT_THE_MUTANT = 99

# A pytest plugin of the run with the mutant. It makes hypothesis quick and repeatable, and fails the run unless every
# module of the room came from the patched copy: otherwise a mutant that was never imported could pass for caught.
GUARD = f"""
import os, sys
from hypothesis import Phase, settings

settings.register_profile(
    "mutant", max_examples=30, stateful_step_count=30, deadline=None, database=None, derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # nobody reads the smallest example of a mutant
)
settings.load_profile("mutant")

def pytest_sessionfinish(session, exitstatus):
    room, copy = "pulsar_txn." + os.environ["PULSAR_TXN_MUTANT_ROOM"], os.environ["PULSAR_TXN_MUTANT_COPY"] + os.sep
    ours = [m for name, m in sys.modules.items() if name == room or name.startswith(room + ".")]
    strangers = [m.__name__ for m in ours if not (m.__file__ or "").startswith(copy)]
    if strangers or not ours:
        print("not the mutant's copy:", strangers or room)
        session.exitstatus = {NOT_THE_MUTANT}
"""


def run_room(room: str, copy: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The tests of `room` with the copy of its portion ahead of the installed one."""
    (copy / "mutant_guard.py").write_text(GUARD)
    path = os.pathsep.join([str(copy), str(copy / room), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PULSAR_TXN_MUTANT_ROOM": room,
        "PULSAR_TXN_MUTANT_COPY": str(copy),
    }
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "mutant_guard", "-p", "no:randomly", *more]
    command = [sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / room)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False)


def copy_of(room: str, folder: Path) -> Path:
    shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("patch", MUTANTS, ids=lambda patch: f"{patch.parent.name}-{patch.stem}")
def test_the_rooms_own_tests_catch_the_mutant(patch: Path, tmp_path: Path) -> None:
    room = patch.parent.name
    copy = copy_of(room, tmp_path)
    applied = subprocess.run(["git", "apply", "-p1", str(patch)], cwd=copy, capture_output=True, text=True, check=False)
    assert applied.returncode == 0, f"{patch.name} no longer fits the code it is to break; make it anew.\n{applied.stderr}"
    result = run_room(room, copy)
    report = f"{patch.name}: pytest ended with {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-2000:]}"
    assert result.returncode != NOT_THE_MUTANT, f"the tests did not import the patched copy\n{report}"
    assert result.returncode == TESTS_FAILED, f"not caught: no test of tests/{room} failed\n{report}"


def test_the_runner_calls_an_unbroken_room_unbroken(tmp_path: Path) -> None:
    result = run_room("tc", copy_of("tc", tmp_path))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


def test_the_runner_notices_when_the_copy_is_not_what_runs(tmp_path: Path) -> None:
    shutil.rmtree(copy_of("tc", tmp_path) / "tc" / "pulsar_txn")
    assert run_room("tc", tmp_path, "--collect-only").returncode == NOT_THE_MUTANT
