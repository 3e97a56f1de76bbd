"""The tests of the rooms are tested: each mutant breaks a promise, and its room's tests must notice.

See README.md beside this file.
"""

from __future__ import annotations

import compileall
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import ROOT, Edit, MisfitError, Mutant, mutants

MUTANTS = mutants()
TESTS_FAILED = 1
SECONDS = 100
TOGETHER = 8
"""Tests that catch mutants and run together on the unbroken room."""
NOT_THE_MUTANT = 99
pytestmark = pytest.mark.timeout(2 * SECONDS + 30)  # a file that catches nothing is followed by the whole room

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


# What all runs of a room import is imported once; each run is a fork of this, since half of its time would be imports
# otherwise. The arguments are modules of the rooms below: nothing of the room itself, nor what imports it.
SERVER = """
import hypothesis.stateful, importlib, json, os, pytest, pytest_asyncio.plugin, sys, time, xdist.plugin
import google.protobuf.message, pulsar_txn

for name in sys.argv[1:]:
    importlib.import_module(name)

sys.dont_write_bytecode = True
for line in sys.stdin:
    job = json.loads(line)
    if not (pid := os.fork()):
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1), os.dup2(output, 2)
        os.environ.update(job["environment"])
        sys.path[:0] = job["path"]
        pulsar_txn.__path__[:0] = [each + "/pulsar_txn" for each in job["path"]]  # found before the copies
        status = int(pytest.main(job["arguments"]))
        sys.stdout.flush()
        os._exit(status)
    until = time.monotonic() + job["seconds"]  # no alarm: pytest-timeout has the only one that a process has
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(pid, 9)
        time.sleep(0.005)
    print(os.waitstatus_to_exitcode(ended[1]), flush=True)
"""


WIRE = ("pulsar_txn.wire.ids", "pulsar_txn.wire.pulsar_pb2", "pulsar_txn.wire.entries", "pulsar_txn.wire.hot")
LOGS = (*WIRE, "pulsar_txn.ledger.hosting", "pulsar_txn.ledger.memory", "pulsar_txn.ledger.journal")
MACHINES = (*LOGS, "pulsar_txn.tc.coordinator", "pulsar_txn.rm_producer", "pulsar_txn.rm_pending_ack")
CLIENT = (*WIRE, "pulsar_txn.client.client", "pulsar_txn.client.sync")
BELOW = {
    "ledger": WIRE,
    "tc": LOGS,
    "rm_producer": LOGS,
    "rm_pending_ack": LOGS,
    "broker": MACHINES,
    "client": WIRE,
    "pipeline": CLIENT,
    "tc_service": (*MACHINES, "pulsar_txn.broker.net.connection", *CLIENT),
}


class Runner:
    """Runs the tests of rooms, each in a process of its own."""

    def __init__(self) -> None:
        self._servers: dict[str, subprocess.Popen[str]] = {}

    def _server(self, room: str) -> subprocess.Popen[str]:
        if room not in self._servers:
            command = [sys.executable, "-c", SERVER, *BELOW[room]]
            self._servers[room] = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._servers[room]

    def close(self) -> None:
        """End the servers."""
        for server in self._servers.values():
            server.communicate()

    def run(self, room: str, copy: Path, named: Sequence[str] = (), *more: str) -> tuple[int, str]:
        """How pytest ended (negative: by which signal) and what it said, with the copy ahead of the installed room.

        `named`: tests, or files of them, of one folder, as `caught_by` gives them; without them all tests of the room run.
        """
        (copy / "mutant_guard.py").write_text(GUARD)
        options = [
            "-x",
            "-q",
            "--tb=no",
            "-o",
            f"timeout={SECONDS // 3}",
            "-p",
            "no:cacheprovider",
            "-p",
            "mutant_guard",
            "-p",
            "no:randomly",
            "-m",
            "not slow and not soak",
            *more,
        ]
        folder = named[0].partition("::")[0].rpartition("/")[0] if named else ""
        tests = ROOT / "tests" / (folder or room)
        where = [str(tests / each.removeprefix(folder + "/")) for each in named] or [str(tests)]
        job = {
            "arguments": [*options, f"--confcutdir={tests}", *where],
            "environment": {"PULSAR_TXN_MUTANT_ROOM": room, "PULSAR_TXN_MUTANT_COPY": str(copy)},
            "path": [str(copy), str(copy / room)],
            "output": str(copy / "output.txt"),
            "seconds": SECONDS,
        }
        server = self._server(room)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return status, f"pytest ended with {status}\n" + (copy / "output.txt").read_text()[-5000:]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


class Copies:
    """A copy of each room, made and compiled once, since half of the time of a run would be compiling otherwise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, room: str) -> Path:
        """The copy, as the room is."""
        folder = self._folder / room
        if not folder.exists():
            compileall.compile_dir(copy_of(room, folder) / room, quiet=2)
        return folder

    @contextmanager
    def broken_by(self, mutant: Mutant) -> Iterator[Path]:
        """The copy with the mutant, until the end of the block. Compiled files are told apart by the times of their sources."""
        copy = self.of(mutant.room)
        files = mutant.files(ROOT)
        try:
            for path, source in files.items():
                (copy / path).write_text(source)
            yield copy
        finally:
            for path in files:
                shutil.copy2(ROOT / path, copy / path)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return Copies(tmp_path_factory.mktemp("rooms"))


def copy_of(room: str, folder: Path) -> Path:
    shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "conf").symlink_to(ROOT / "conf")  # a room in a checkout finds the shipped files beside itself
    return folder


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.room}-{mutant.name}")
def test_the_rooms_own_tests_catch_the_mutant(runner: Runner, copies: Copies, mutant: Mutant) -> None:
    with copies.broken_by(mutant) as copy:
        status, said = runner.run(mutant.room, copy, [mutant.caught_by])
        assert status != NOT_THE_MUTANT, f"{mutant.name}: the tests did not import the broken copy\n{said}"
        if status == TESTS_FAILED:
            return
        status, said = runner.run(mutant.room, copy)
        pytest.fail(
            f"{mutant.name}: {mutant.caught_by} no longer catches it, but other tests do: correct `caught_by`.\n{said}"
            if status == TESTS_FAILED
            else f"{mutant.name}: not caught: no test of tests/{mutant.room} failed\n{said}"
        )


def catchers() -> Iterator[tuple[str, tuple[str, ...]]]:
    """By room: everything that catches a mutant there, a few of one folder at a time.

    Where a file is named, its tests are not named again.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for mutant in MUTANTS:
        named = mutant.caught_by
        found.setdefault((mutant.room, named.partition("::")[0].rpartition("/")[0]), set()).add(named)
    for (room, _), of_folder in sorted(found.items()):
        names = sorted(each for each in of_folder if "::" not in each or each.partition("::")[0] not in of_folder)
        for at in range(0, len(names), TOGETHER):
            yield room, tuple(names[at : at + TOGETHER])


@pytest.mark.parametrize(("room", "named"), list(catchers()), ids=lambda value: value if isinstance(value, str) else value[0])
def test_the_tests_that_catch_mutants_pass_on_the_unbroken_room(
    runner: Runner, copies: Copies, room: str, named: tuple[str, ...]
) -> None:
    status, said = runner.run(room, copies.of(room), named)
    assert status == 0, said


def test_the_runner_notices_when_the_copy_is_not_what_runs(runner: Runner, tmp_path: Path) -> None:
    shutil.rmtree(copy_of("tc", tmp_path) / "tc" / "pulsar_txn")
    assert runner.run("tc", tmp_path, (), "--collect-only")[0] == NOT_THE_MUTANT


SOURCE = """
class Lease:
    epoch = 1

    def renew(self):
        if self.epoch:
            self.epoch += 1

    def end(self):
        if self.epoch:
            return
"""


@pytest.mark.parametrize(
    ("symbol", "old", "says"),
    [
        ("m:Lease.release", "if self.epoch:", "m has no Lease.release"),
        ("m:Lease.renew", "if self.epoch > 1:", "m:Lease.renew has no places"),
        ("m:Lease", "if self.epoch:", "m:Lease has 2 places"),
    ],
)
def test_a_mutant_that_no_longer_fits_says_why(symbol: str, old: str, says: str) -> None:
    with pytest.raises(MisfitError, match=says):
        Edit(symbol, (old,), ("pass",)).applied(SOURCE)


@pytest.mark.parametrize(
    ("symbol", "old"), [("m:Lease.renew", "if self.epoch:"), ("m:Lease.epoch", "epoch = 1"), ("m", "class Lease:")]
)
def test_a_mutant_replaces_lines_of_its_symbol_only(symbol: str, old: str) -> None:
    applied = Edit(symbol, (old,), ("one", "", "  two")).applied(SOURCE)
    line = next(each for each in SOURCE.splitlines() if each.endswith(old))
    indent = line.removesuffix(old)
    assert applied == SOURCE.replace(line + "\n", f"{indent}one\n\n{indent}  two\n", 1)
