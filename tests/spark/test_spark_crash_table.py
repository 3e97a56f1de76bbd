"""The crash table: whatever dies, on a cluster of several processes, every number is there once, and no reader waits.

Each case is a driver of its own on `local-cluster`: two executors, each a process. They run in `make soak` only.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import spark_faults
import spark_local
from spark_faults import Fault, Numbers
from targets import Target
from visible import is_blocked, read_all

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]

BATCHES, ROWS = 3, 400
DRIVER_SECONDS = 400


class Cluster:
    """Drivers of one query, one after the other or side by side."""

    def __init__(self, numbers: Numbers, folder: Path) -> None:
        self.numbers = numbers
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def fault(self, step: str, how: str, batch: int | None = None) -> Fault:
        """A fault of this case."""
        return Fault(step, how, str(self.folder / "once"), batch, str(self.folder / "release"))

    def start(self, fault: Fault | None = None) -> subprocess.Popen[str]:
        """A driver."""
        environment = {**os.environ, **({} if fault is None else fault.environment())}
        program = [sys.executable, str(Path(spark_faults.__file__)), json.dumps(attrs.asdict(self.numbers))]
        log = (self.folder / f"driver-{len(self.started)}.log").open("w")
        self.started.append(subprocess.Popen(program, env=environment, stdout=log, stderr=log, text=True))
        return self.started[-1]

    def run(self, fault: Fault | None = None) -> int:
        """A driver, until its end; what it ended with."""
        return self.start(fault).wait(DRIVER_SECONDS)

    def logs(self) -> str:
        """What the drivers said last."""
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("driver-*.log")))

    def happened(self) -> bool:
        """Whether the fault has come about."""
        return (self.folder / "once").exists()

    def check(self) -> None:
        """Every number once, and nobody is kept waiting."""
        url, topic = self.numbers.service_url, self.numbers.topic
        found = Counter(int(value) for value in asyncio.run(read_all(url, topic)))
        assert found == Counter(range(BATCHES * ROWS)), self.logs()
        assert not asyncio.run(is_blocked(url, topic))


@pytest.fixture
def cluster(pulsar: Target, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    spark_local.prepare_environment()
    delivery: str = request.param
    options = {"delivery": delivery, "inlineMaxBytes": "1000", "transactionTimeoutMs": "60000"}
    numbers = Numbers(pulsar.service_url, topic + "-out", str(tmp_path), options=options)
    numbers.fill(BATCHES, ROWS)
    cluster = Cluster(numbers, tmp_path)
    yield cluster
    for driver in cluster.started:
        driver.terminate()


both = pytest.mark.parametrize("cluster", ["staged", "grouped"], indirect=True)


@both
def test_an_executor_that_is_killed_after_its_task_has_sent(cluster: Cluster) -> None:
    assert cluster.run(cluster.fault("sink.write.end", "kill", 1)) == 0, cluster.logs()
    assert cluster.happened()
    cluster.check()


@both
def test_a_worker_that_ends_after_its_task_has_sent(cluster: Cluster) -> None:
    assert cluster.run(cluster.fault("sink.write.end", "exit", 1)) == 0, cluster.logs()
    assert cluster.happened()
    cluster.check()


@both
@pytest.mark.parametrize("away_seconds", [0, 12], ids=["back at once", "away for longer than the timeout"])
@pytest.mark.parametrize(
    "step",
    [
        "sink.commit.begin",
        "sink.commit.after_fence",
        "sink.commit.after_new_txn",
        "sink.commit.after_marker",
        "sink.commit.after_end_txn",
        "sink.commit.end",
    ],
)
def test_a_driver_that_is_killed(cluster: Cluster, step: str, away_seconds: int) -> None:
    if away_seconds:
        cluster.numbers.options["transactionTimeoutMs"] = str((away_seconds - 2) * 1000)
    batch = 0 if step == "sink.commit.after_fence" else 1
    assert cluster.run(cluster.fault(step, "kill", batch)) != 0
    assert cluster.happened(), cluster.logs()
    time.sleep(away_seconds)  # that is what happens here
    assert cluster.run() == 0, cluster.logs()
    cluster.check()


@both
@pytest.mark.parametrize("step", ["sink.commit.begin", "sink.commit.after_marker"])
def test_a_driver_that_comes_back_after_its_successor_is_done(cluster: Cluster, step: str) -> None:
    zombie = cluster.start(cluster.fault(step, "wait", 1))
    until = time.monotonic() + DRIVER_SECONDS
    while not cluster.happened():
        assert time.monotonic() < until, cluster.logs()
        assert zombie.poll() is None, cluster.logs()
        time.sleep(0.2)
    assert cluster.run() == 0, cluster.logs()
    (cluster.folder / "release").touch()
    assert zombie.wait(DRIVER_SECONDS) != 0, "it says that it is done, although another has done it"
    cluster.check()
