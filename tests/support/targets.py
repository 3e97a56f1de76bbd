"""The servers that tests run against: our broker, stock Apache Pulsar of two versions, or a cluster outside.

One server of each kind serves a whole test session, also one of several pytest-xdist workers: the worker that needs
it first starts it under a lock and notes it in the session's folder; the controlling process stops what was noted.
Should that process be killed, a guard of two lines of shell ends the server.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

import attrs
import pytest
import stock_install
from our_broker import OurBroker
from stock_container import ContainerPulsar, docker_answers
from stock_pulsar import StockPulsar

_GUARD: Final = 'while kill -0 "$1" 2>/dev/null; do kill -0 "$2" 2>/dev/null || exit 0; sleep 2; done; kill "$2"'
_CONTAINER_GUARD: Final = 'while kill -0 "$1" 2>/dev/null; do [ -e "$3" ] || exit 0; sleep 2; done; docker rm -f "$2"'
"""Ends with the session's folder, or ends the server when the session was killed."""


@attrs.frozen
class Target:
    """A running server with transactions. `kind`: "ours", "stock" or "outside"; `version` is empty when not known."""

    kind: str
    version: str
    service_url: str
    admin_url: str

    @property
    def label(self) -> str:
        """How the test summary calls it."""
        return f"{self.kind} {self.version}".strip()

    @property
    def is_ours(self) -> bool:
        """True for our own broker."""
        return self.kind == "ours"


def stock_names() -> list[str]:
    """The stock servers of this session: what PULSAR_URL names, or the versions of PULSAR_TXN_STOCK, or both known ones."""
    if os.environ.get("PULSAR_URL"):
        return ["outside"]
    chosen = os.environ.get("PULSAR_TXN_STOCK")
    return [f"stock-{version}" for version in (chosen.split(",") if chosen else stock_install.VERSIONS)]


def sampled_stock_names() -> list[tuple[str, list[pytest.MarkDecorator]]]:
    """`stock_names`, each with the marks of a test of which one version is enough of a sample: `make soak` runs it on all."""
    names = stock_names()
    return [(name, [] if name == names[-1] else [pytest.mark.soak]) for name in names]


def label_of(fixture: object) -> str | None:
    """The label of the server that a fixture's value is or belongs to; None for all other values."""
    match fixture:
        case Target(label=label):
            return label
        case StockPulsar(version=version):
            return f"stock {version}"
        case OurBroker():
            return "ours"
        case _:
            return "ours" if type(fixture).__module__.startswith("pulsar_txn.broker") else None


def tests_by_server(ran_on: Iterable[str]) -> str:
    """The line of the test summary for the labels of the servers that tests ran on, one label per test."""
    ran = Counter({"ours": 0, **{f"stock {version}": 0 for version in stock_install.VERSIONS}})
    ran.update(ran_on)
    return "tests by server: " + ", ".join(
        f"{count} on {'our broker' if label == 'ours' else label}" for label, count in ran.items()
    )


def lacking(what: str, reason: str) -> NoReturn:
    """Skip this test for lack of `what` ("pulsar", "spark", "cc", "postgres"), or fail it when PULSAR_TXN_REQUIRE names it."""
    if what in os.environ.get("PULSAR_TXN_REQUIRE", "").split(","):
        pytest.fail(f"{what} is required here (PULSAR_TXN_REQUIRE), but {reason}", pytrace=False)
    pytest.skip(reason)


def target(name: str, session_dir: Path) -> Target:
    """The server called `name` ("ours", "stock-4.2.4", "outside"), started if no test of this session needed it before."""
    if name == "outside":
        admin = os.environ.get("PULSAR_ADMIN_URL", "http://127.0.0.1:8080")
        return Target(kind="outside", version="", service_url=os.environ["PULSAR_URL"], admin_url=admin)
    return _shared(name, session_dir, _start_ours if name == "ours" else _start_stock)


def stop_all(session_dir: Path) -> None:
    """Stop every server that was noted in `session_dir`."""
    for note in sorted(session_dir.glob("*.json")):
        noted = json.loads(note.read_text(encoding="utf-8"))
        if noted["container"]:
            subprocess.run(["docker", "rm", "-f", noted["container"]], capture_output=True, timeout=60, check=False)
            note.unlink()
        else:
            _end_process(noted["pid"])


_Started = tuple[Target, "int | None", "str | None"]  # and the pid, or the container's id
_kept: list[object] = []  # a Popen that is collected while its process runs warns
_STILL: Final = {"message": "subprocess .* is still running", "category": ResourceWarning}
atexit.register(warnings.filterwarnings, "ignore", **_STILL)  # the worker ends, and leaves them to the controlling process


def _shared(name: str, session_dir: Path, start: Callable[[str, Path], _Started]) -> Target:
    note = session_dir / f"{name}.json"
    with _locked(session_dir / f"{name}.lock"):
        if note.exists():
            return Target(**json.loads(note.read_text(encoding="utf-8"))["target"])
        started, pid, container = start(name, session_dir)
        note.write_text(json.dumps({"target": attrs.asdict(started), "pid": pid, "container": container}), encoding="utf-8")
        _guard(_CONTAINER_GUARD if pid is None else _GUARD, str(container if pid is None else pid), note)
        return started


def _start_stock(name: str, session_dir: Path) -> _Started:
    version = name.removeprefix("stock-")
    if (reason := stock_install.missing_tools()) is None:
        try:
            server = StockPulsar(version, data_dir=session_dir / name).start()
        except stock_install.InstallError as error:
            lacking("pulsar", str(error))
        _kept.append(server)
        return Target("stock", version, server.service_url, server.admin_url), server.pid, None
    if not docker_answers():
        lacking("pulsar", f"{reason}; no Docker engine answers, and PULSAR_URL is not set")
    container = ContainerPulsar(version).start()
    return Target("stock", version, container.service_url, container.admin_url), None, container.container_id


def _start_ours(name: str, session_dir: Path) -> _Started:
    broker = OurBroker(data_dir=session_dir / name).start()
    _kept.append(broker)
    return Target("ours", "", broker.service_url, broker.admin_url), broker.pid, None


def _guard(script: str, server: str, note: Path) -> None:
    owner = (note.parent / "owner").read_text(encoding="utf-8")
    command = ["sh", "-c", script, "guard", owner, server, str(note)]
    nothing = subprocess.DEVNULL
    _kept.append(subprocess.Popen(command, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing))


def _end_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + 30.0
        while _runs(pid):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def _runs(pid: int) -> bool:
    """False once `pid` has ended; an ended child that nobody waited for yet has ended too."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        os.kill(pid, 0)
        return Path("/proc/self").exists() is False
    return state != "Z"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
