"""The crash table: whatever dies, on a cluster of several processes, every number is there once, and no reader waits.

Each case is a driver of its own on `local-cluster`: two executors, each a process. They run in `make soak` only.
"""

from __future__ import annotations

import itertools
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
from spark_faults import Fault, Numbers, environment
from targets import Target
from witness import Witness

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]

ROWS = 200
"""Of a micro-batch."""
DRIVER_SECONDS = 400
AWAY_SECONDS = 30


class Cluster:
    """Drivers of one query, one after the other or side by side."""

    def __init__(self, numbers: Numbers, folder: Path, witness: Witness) -> None:
        self.numbers = numbers
        self.folder = folder
        self.witness = witness
        self.batches = 0
        self.started: list[subprocess.Popen[str]] = []

    def fill(self, batches: int) -> None:
        """The input of so many micro-batches."""
        self.batches = batches
        self.numbers.fill(batches, ROWS)

    def fault(self, step: str, how: str, batch: int | None) -> Fault:
        """A fault of this case."""
        return Fault(step, how, str(self.folder / f"once-{step}-{how}"), batch, str(self.folder / "release"))

    def start(self, *faults: Fault, **options: str) -> subprocess.Popen[str]:
        """A driver."""
        numbers = attrs.evolve(self.numbers, options=self.numbers.options | options)
        program = [sys.executable, str(Path(spark_faults.__file__)), json.dumps(attrs.asdict(numbers))]
        with (self.folder / f"driver-{len(self.started)}.log").open("w") as log:
            given = os.environ | environment(*faults)
            self.started.append(subprocess.Popen(program, env=given, stdout=log, stderr=log, text=True))
        return self.started[-1]

    def run(self, *faults: Fault, **options: str) -> int:
        """A driver, until its end; what it ended with."""
        return self.start(*faults, **options).wait(DRIVER_SECONDS)

    def die(self, fault: Fault, **options: str) -> None:
        """Drivers until one of them has met the fault. On a busy machine a micro-batch may be slower than a short timeout."""
        for _ in range(3):
            assert self.run(fault, **options) != 0
            if fault.happened():
                return
            assert "nothing was published" in self.logs(), self.logs()
        raise AssertionError(f"{fault.step} was never reached")

    def logs(self) -> str:
        """What the drivers said last."""
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("driver-*.log")))

    def check(self) -> None:
        """Every number once, and nobody is kept waiting."""
        found, expected = self.witness.read(), Counter(range(self.batches * ROWS))
        assert found == expected, f"lost {expected - found}, doubled {found - expected}\n{self.logs()}"


@pytest.fixture
def cluster(pulsar: Target, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    spark_local.prepare_environment()
    delivery: str = request.param
    # Nobody is rescued by the timeout: it is longer than a case.
    options = {"delivery": delivery, "inlineMaxBytes": "1000", "transactionTimeoutMs": "1800000"}
    numbers = Numbers(pulsar.service_url, topic + "-out", str(tmp_path), options=options)
    witness = Witness(numbers.service_url, numbers.topic)
    cluster = Cluster(numbers, tmp_path, witness)
    yield cluster
    witness.close()
    for driver in cluster.started:
        driver.terminate()


both = pytest.mark.parametrize("cluster", ["staged", "grouped"], indirect=True)

POINTS = {
    "staged": [
        "sink.commit.after_fence",
        "sink.commit.begin",
        "sink.commit.after_new_txn",
        "sink.commit.after_publish",
        "sink.commit.after_forward",
        "sink.commit.after_marker",
        "sink.commit.after_end_txn_sent",
        "sink.commit.after_end_txn",
        "sink.commit.end",
    ],
    "grouped": [
        "sink.commit.after_fence",
        "sink.commit.begin",
        "sink.commit.after_new_txn",
        "sink.commit.after_marker",
        "sink.commit.before_end_group",
        "sink.commit.after_end_txn",
        "sink.commit.end",
    ],
}
"""Every step of a commit, by delivery. The driver fences once in a run, at its first commit, so that point is for batch 0."""

IN_FLIGHT = {"staged": POINTS["staged"][2:7], "grouped": POINTS["grouped"][1:5]}
"""Those at which transactions are open, which time out while the driver is away."""


@both
def test_attempts_that_end_before_they_are_delivered_count_once(cluster: Cluster) -> None:
    ways = list(itertools.product(["rows.middle", "sink.write.end"], ["raise", "exit", "kill"]))
    faults = [cluster.fault(step, how, batch) for batch, (step, how) in enumerate(ways)]
    cluster.fill(len(faults) + 1)
    assert cluster.run(*faults) == 0, cluster.logs()
    assert [fault for fault in faults if not fault.happened()] == []
    cluster.check()


@pytest.mark.parametrize(("cluster", "points"), POINTS.items(), ids=POINTS, indirect=["cluster"])
def test_a_driver_that_is_killed_at_every_point_of_a_commit(cluster: Cluster, points: list[str]) -> None:
    cluster.fill(len(points) + 1)
    for batch, point in enumerate(points):
        cluster.die(cluster.fault(point, "kill", batch))
    assert cluster.run() == 0, cluster.logs()
    cluster.check()


@pytest.mark.parametrize(("cluster", "points"), IN_FLIGHT.items(), ids=IN_FLIGHT, indirect=["cluster"])
def test_a_driver_that_is_killed_and_away_for_longer_than_the_timeout(cluster: Cluster, points: list[str]) -> None:
    cluster.fill(len(points) + 1)
    for batch, point in enumerate(points):
        cluster.die(cluster.fault(point, "kill", batch), transactionTimeoutMs=str((AWAY_SECONDS - 1) * 1000))
        time.sleep(AWAY_SECONDS)  # that is what happens here
    assert cluster.run() == 0, cluster.logs()
    cluster.check()


@both
@pytest.mark.parametrize("step", ["sink.commit.begin", "sink.commit.after_marker"])
def test_a_driver_that_comes_back_after_its_successor_is_done(cluster: Cluster, step: str) -> None:
    cluster.fill(3)
    fault = cluster.fault(step, "wait", 1)
    zombie = cluster.start(fault)
    until = time.monotonic() + DRIVER_SECONDS
    while not fault.happened():
        assert time.monotonic() < until, cluster.logs()
        assert zombie.poll() is None, cluster.logs()
        time.sleep(0.2)
    assert cluster.run() == 0, cluster.logs()
    (cluster.folder / "release").touch()
    assert zombie.wait(DRIVER_SECONDS) != 0, "it says that it is done, although another has done it"
    cluster.check()
