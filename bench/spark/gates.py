"""What both sides of the benchmark share: a broker, a Spark session, rows, and gates."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import spark_local
from our_broker import OurBroker
from stock_install import VERSIONS
from stock_pulsar import LONG_RUN, StockPulsar


@attrs.frozen
class Gate:
    """A bound on the ratio of two figures of one run."""

    name: str
    ours: float
    theirs: float
    bound: float
    unit: str
    at_least: bool = True
    note: str = ""

    @property
    def ratio(self) -> float:
        """Ours by theirs."""
        return self.ours / self.theirs

    @property
    def is_met(self) -> bool:
        """Whether the ratio keeps its bound."""
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        text = f"{self.name}: {self.ours:,.0f} against {self.theirs:,.0f} {self.unit}: {self.ratio:.2f} ({sign} {self.bound})"
        return f"{'ok  ' if self.is_met else 'MISS'} {text}{' - ' + self.note if self.note else ''}"


@attrs.frozen
class Place:
    """Where a run happens, and how much of it there is."""

    spark: Any
    url: str
    admin_url: str
    folder: Path
    rows: int
    rounds: int
    is_ours: bool = True

    def seconds(self, *works: Callable[[], object]) -> list[float]:
        """Median seconds of each work; in every round they take turns, after one round that does not count."""
        found: list[list[float]] = [[] for _ in works]
        for number in range(self.rounds + 1):
            for index, work in enumerate(works):
                begin = time.perf_counter()
                work()
                if number:
                    found[index].append(time.perf_counter() - begin)
        return [statistics.median(each) for each in found]


def json_row(number: int) -> bytes:
    """A row of about 100 bytes, as JSON; sizes differ by a few bytes."""
    carrier, origin = b"AADLUAWN"[number % 4 * 2 :][:2], b"JFKLGAEWR"[number % 3 * 3 :][:3]
    return b'{"id":%d,"carrier":"%s","origin":"%s","cents":%d,"flight":%d,"note":"%s"}' % (
        number,
        carrier,
        origin,
        number * 7919 % 100_000,
        number % 977,
        _NOTE,
    )


_NOTE = b"settled"


@contextmanager
def started(folder: Path, server: str = "ours") -> Iterator[tuple[Any, str, str]]:
    """A Spark session with two slots and Spark's usual settings, and the URLs of a broker: of its service and of its admin."""
    spark_local.prepare_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # Spark's workers import what is beside this file
    keep = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}  # no subscription keeps what is measured
    broker: OurBroker | StockPulsar = OurBroker(data_dir=folder / "broker", conf=keep)
    if server == "stock":
        broker = StockPulsar(VERSIONS[-1], data_dir=folder / "broker", conf=keep, gc=LONG_RUN)
    broker.start()
    session = spark_local.session(
        {
            "spark.driver.memory": "3g",
            "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        }
    )
    try:
        yield session, broker.service_url, broker.admin_url
    finally:
        session.stop()
        broker.stop()
