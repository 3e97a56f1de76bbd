"""Speculation: two attempts of a task are alive, on two hosts; the one that lost goes on after the commit.

The loser is held back before it sends, until its twin is delivered and the micro-batch is committed. Then it goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import spark_faults
import spark_local
from spark_faults import Fault, Numbers, environment
from spark_standalone import standalone
from targets import Target
from witness import Witness

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("pulsar", ["ours"], indirect=True),
]

ROWS = 200
SECONDS = 240
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.python.task.killTimeout": "600s",  # Spark gives the loser this long; 2 s unless it is set
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    spark_local.prepare_environment()
    with standalone(tmp_path_factory.mktemp("standalone")) as url:
        yield url


@pytest.mark.parametrize(
    ("delivery", "payload"),
    [
        ("grouped", 0),
        pytest.param("grouped", 1, marks=pytest.mark.soak),
        pytest.param("staged", 0, marks=pytest.mark.soak),
        pytest.param("staged", 1, marks=pytest.mark.soak),
    ],
    ids=lambda each: each if isinstance(each, str) else f"before payload {each}",
)
def test_an_attempt_that_lost_changes_nothing_and_keeps_no_reader_waiting(
    pulsar: Target, topic: str, tmp_path: Path, master: str, delivery: str, payload: int
) -> None:
    # Nobody is rescued by the timeout: it is longer than the test. A task has several payloads.
    options = {"delivery": delivery, "transactionTimeoutMs": "1800000", "batchingMaxMessages": "20", "inlineMaxBytes": "1"}
    stay = tmp_path / "stay"
    stay.touch()
    numbers = Numbers(pulsar.service_url, topic, str(tmp_path), master, options, SPECULATION, str(stay))
    numbers.fill(1, ROWS)
    release = tmp_path / "release"
    fault = Fault("sink.write.before_send", "wait", str(tmp_path / "once"), 0, str(release), payload)
    witness = Witness(pulsar.service_url, topic)
    log = tmp_path / "driver.log"
    program = [sys.executable, str(Path(spark_faults.__file__)), json.dumps(attrs.asdict(numbers))]
    with log.open("w") as output:
        driver = subprocess.Popen(program, env=os.environ | environment(fault), stdout=output, stderr=output)
    try:
        committed = tmp_path / "checkpoint" / "commits" / "0"
        _wait_for(committed.exists, driver, log)
        os.kill(fault.pid(), 0)  # raises when the loser is no longer alive
        assert fault.attempt_ended() == ""
        assert witness.read() == Counter(range(ROWS)), "before the loser goes on"

        release.touch()
        _wait_for(lambda: fault.attempt_ended() != "", driver, log)
        if delivery == "grouped":
            assert "StoreFailed" in fault.attempt_ended()
        assert witness.read() == Counter(), "after the loser went on"

        stay.unlink()
        assert driver.wait(SECONDS) == 0, log.read_text()[-3000:]
    finally:
        witness.close()
        release.touch()
        driver.kill()
        driver.wait()


def _wait_for(happened: Callable[[], bool], driver: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + SECONDS
    while not happened():
        assert driver.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.1)
