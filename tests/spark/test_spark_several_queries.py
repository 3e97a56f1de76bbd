"""Several queries with a sink in one session: Spark hands their commits to a pool of processes, in any order."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from targets import Target
from visible import read_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BATCHES = 3
ROWS = 5


def _run(spark: Any, url: str, topic: str, folder: Path, deliveries: tuple[str, ...]) -> list[str]:
    """As many queries as deliveries, over the same small files, started together; how each ended."""
    (folder / "in").mkdir()
    for batch in range(BATCHES):
        (folder / "in" / f"{batch}.txt").write_text("\n".join(f"{batch}-{number}" for number in range(ROWS)) + "\n")
    queries = []
    for number, delivery in enumerate(deliveries):
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in")).coalesce(1)
        writer = rows.writeStream.format("pulsar").option("service.url", url).option("delivery", delivery)
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{number}"))
        queries.append(writer.option("topic", f"{topic}-{number}").trigger(availableNow=True).start())
    deadline = time.monotonic() + 800
    while any(query.isActive for query in queries) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [str(query.exception()) for query in queries if query.exception() is not None or query.isActive]


def _check(spark: Any, pulsar: Target, topic: str, folder: Path, deliveries: tuple[str, ...]) -> None:
    trouble = _run(spark, pulsar.service_url, topic, folder, deliveries)
    assert not [each for each in trouble if "Python worker failed to connect back" not in each], trouble[:1]
    expected = Counter(f"{batch}-{number}" for batch, number in itertools.product(range(BATCHES), range(ROWS)))
    for number in range(len(deliveries)):
        found = Counter(
            each.decode() if isinstance(each, bytes) else each
            for each in asyncio.run(read_all(pulsar.service_url, f"{topic}-{number}"))
        )
        assert found == expected or (trouble and not found - expected), number


@pytest.mark.parametrize("deliveries", [("staged", "grouped")])
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_two_queries_of_one_session_end_none_of_them(
    pulsar: Target, topic: str, spark: Any, tmp_path: Path, deliveries: tuple[str, ...]
) -> None:
    _check(spark, pulsar, topic, tmp_path, deliveries)


@pytest.mark.soak
@pytest.mark.parametrize(
    "deliveries", [("staged", "staged"), ("grouped", "grouped"), ("grouped", "staged", "auto", "staged") * 2]
)
@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
def test_many_queries_of_one_session_end_none_of_them(
    pulsar: Target, topic: str, spark: Any, tmp_path: Path, deliveries: tuple[str, ...]
) -> None:
    _check(spark, pulsar, topic, tmp_path, deliveries)


@pytest.mark.soak
@pytest.mark.parametrize("queries", [2, 8])
@pytest.mark.parametrize("pulsar", [pytest.param("stock-4.2.4", marks=[pytest.mark.stock])], indirect=True)
def test_many_queries_of_one_session_work_on_stock_pulsar(
    pulsar: Target, topic: str, spark: Any, tmp_path: Path, queries: int
) -> None:
    _check(spark, pulsar, topic, tmp_path, ("staged", "auto") * (queries // 2))
