"""Fixtures of every test: the servers to run against, and the line that says how many tests ran on which.

`pulsar` runs a test on our broker and on each stock version; `stock_pulsar` on each stock version alone. Both take
indirect parametrisation for one of them: `@pytest.mark.parametrize("pulsar", ["stock-4.2.4"], indirect=True)`.
A server is shared by the whole session: use the fixture `topic`, or other names of your own. Tests that kill or
restart a server start one themselves: `StockPulsar(version)` of `stock_pulsar`, `OurBroker()` of `our_broker`.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pieces
import pytest
import repeats
import reruns
import targets
from targets import Target

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.txn.transaction import AMBIENT

_STOCK = [pytest.param(name, marks=pytest.mark.stock) for name in targets.stock_names()]
_SESSION_DIR = pytest.StashKey[Path]()

# For CI, where a busy machine may hold a process up in the middle of an example: `--hypothesis-profile=unhurried`.
hypothesis.settings.register_profile("unhurried", deadline=None, derandomize=False, print_blob=True)
# For `make quick`: few examples, soon.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)


@pytest.fixture(scope="session", params=["ours", *_STOCK])
def pulsar(request: pytest.FixtureRequest) -> Target:
    """A server with transactions: our broker, then each stock version (or what PULSAR_URL names)."""
    return targets.target(request.param, request.config.stash[_SESSION_DIR])


@pytest.fixture(scope="session", params=_STOCK)
def stock_pulsar(request: pytest.FixtureRequest) -> Target:
    """A stock Apache Pulsar with transactions, of each version (or what PULSAR_URL names)."""
    return targets.target(request.param, request.config.stash[_SESSION_DIR])


@pytest.fixture(scope="session")
def shared_server(request: pytest.FixtureRequest) -> Callable[[str], Target]:
    """A server of this session by its name, as `targets.target` has them."""
    return partial(targets.target, session_dir=request.config.stash[_SESSION_DIR])


@pytest.fixture(autouse=True)
def _nothing_is_left_around() -> Iterator[None]:
    """Fail the test that leaves a unit around the running code: those that the worker runs after it would be in it."""
    yield
    around = AMBIENT.get()
    AMBIENT.set(None)
    assert around is None, f"this test has left a block without its end: {around}"


@pytest.fixture
async def client(pulsar: Target) -> AsyncIterator[AsyncClient]:
    """A client of the server that the test runs on. In `tests/client` it is one of a broker in memory."""
    async with AsyncClient(pulsar.service_url) as connected:
        yield connected


@pytest.fixture
def topic() -> str:
    """The full name of a topic that nobody else uses."""
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session of a run; all tests that take it run in one worker (see `schedule`)."""
    import spark_local  # here, because only these tests need Java

    spark_local.prepare_environment()
    session = spark_local.session()
    yield session
    session.stop()


class _ToldAtOnce:
    """Prints a failure when it happens: a run that is ended by its limit has no summary."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            told = getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or str(report.longrepr)
            self._terminal.write_line(f"\nFAILED at {report.when}: {report.nodeid}: {told.strip()[:1000]}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_ToldAtOnce(terminal), "told-at-once")
    given = getattr(config, "workerinput", {}).get("servers")
    config.stash[_SESSION_DIR] = Path(given) if given else _new_session_dir()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m quick` does not even import the other files: its environment lacks what they need."""
    if not config.getoption("markexpr").startswith("quick") or pieces.has_quick_tests(collection_path, config.rootpath):
        return None
    return True


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.nodeid.startswith(pieces.QUICK_FOLDERS):
        item.add_marker(pytest.mark.quick)
    if "PULSAR_TXN_SOAK" in os.environ:
        goes_deeper = item.get_closest_marker("deeper") is not None
        if goes_deeper:
            item.add_marker(pytest.mark.timeout(3600))
        if goes_deeper or _waits_for_soak(item):
            item.add_marker(pytest.mark.soak)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no worker of pytest-xdist has one of them left at the end.

    What only `make soak` runs is left out, unless it is asked for.
    """
    reruns.allow_on_stock(config, items)
    if "PULSAR_TXN_SOAK" not in os.environ:
        left_out = {item for item in items if item.get_closest_marker("soak") is not None or _waits_for_soak(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_rank)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Take the collected tests from the garbage collector, which would look at all of them again and again."""
    gc.collect()
    gc.freeze()


def _waits_for_soak(item: pytest.Item) -> bool:
    """True if another test is enough of a sample: one on a newer stock version, or a keeper of `tests/repeats.txt`."""
    if repeats.is_repeat(item.nodeid):
        return True
    older = [name.removeprefix("stock-") for name in targets.stock_names()[:-1]]
    return pieces.is_sampled(item.nodeid, older, needs_stock=item.get_closest_marker("stock") is not None)


def _rank(item: pytest.Item) -> int:
    if item.nodeid.startswith(pieces.LAST):
        return len(pieces.LONG) + 1
    return next((rank for rank, long in enumerate(pieces.LONG) if item.nodeid.startswith(long)), len(pieces.LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests go to a worker together; see `schedule`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from schedule import ByFileAndServer  # only where pytest-xdist is

    return ByFileAndServer(config, log)


def _new_session_dir() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="pulsar-txn-servers-"))
    (folder / "owner").write_text(str(os.getpid()), encoding="utf-8")
    return folder


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a pytest-xdist worker where the servers of this session are noted."""
    node.workerinput["servers"] = str(node.config.stash[_SESSION_DIR])


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        folder = config.stash[_SESSION_DIR]
        targets.stop_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def pytest_runtest_call(item: pytest.Item) -> None:
    """Note what a test runs on; the note travels with its report, also from a worker."""
    labels = {targets.label_of(value) for value in getattr(item, "funcargs", {}).values()} - {None}
    item.user_properties += [("ran on", label) for label in sorted(labels, key=str)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    ran_on = [value for report in reports if report.when == "call" for key, value in report.user_properties if key == "ran on"]
    terminalreporter.write_line(targets.tests_by_server(ran_on))
