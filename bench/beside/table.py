"""The page of a run, as Markdown: the goals beside what was found, and all figures."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from rounds import JAVA, OURS, REPEAT_SECONDS, ROWS, STOCK, Result, Row

Found = Mapping[tuple[str, str], Sequence[Result]]

LEAST_RATE = 1.2
MOST_P50 = 0.8


def rate(result: Result) -> float:
    """Transactions a second."""
    return float(result["count"] / result["seconds"])


def percentile(result: Result, percent: int) -> float:
    """Of the latencies, in ms."""
    latencies = result["latencies_ms"]
    return float(latencies[len(latencies) * percent // 100])


def cpu_ms(result: Result, whose: str) -> float | None:
    """CPU of some process for each transaction."""
    seconds = result["cpu"].get(whose)
    return None if seconds is None else 1e3 * seconds / result["count"]


COLUMNS: dict[str, Callable[[Result], float | None]] = {
    "per second": rate,
    "p50 ms": lambda result: percentile(result, 50),
    "p99 ms": lambda result: percentile(result, 99),
    "broker CPU ms": lambda result: cpu_ms(result, "broker"),
    "coordinator CPU ms": lambda result: cpu_ms(result, "coordinator"),
    "client CPU ms": lambda result: cpu_ms(result, "client"),
}


def page(found: Mapping[str, Found], rounds: int, seconds: float, took: float) -> str:
    """The whole page; `found` by the version of the cluster."""
    parts = ["# Our coordinator beside stock Pulsar's own", _conditions(rounds, seconds, took), _goals(found)]
    parts += [_figures(name, results) for name, results in found.items()]
    return "\n\n".join(parts) + "\n"


def _conditions(rounds: int, seconds: float, took: float) -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    gib = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1]) / 1024**2
    return (
        f"`make bench BENCH=bench/beside` on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}: {os.cpu_count()} cores, {gib:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}, pulsar-txn {version('pulsar-txn')}; load averages at the "
        f"end {load}, all of this included; {took / 60:.1f} minutes.\n\n"
        "Each cluster is one stock standalone Pulsar as it is shipped: its journal is not synced to the disk. Our coordinator "
        "keeps its decisions in its journal, which always is. Everything shares one machine, over loopback. The same client "
        "does the same work with the cluster's own coordinators and with ours, by turns; the Java client on the cluster's own "
        f"is a second opinion. Each turn takes {seconds:g} s. A transaction is a managed block: one send of 100 bytes, not "
        "batched, and where the row says so one acknowledgement, then the commit, which returns when everything is visible. "
        "Our coordinator tells an end once more when a message of it may come late; here the client has an answer to "
        f"everything, so nearly none is (after {REPEAT_SECONDS} s, to come as fast as the ends). What the coordinator costs "
        f"without a cluster says `python bench/beside/cost.py`. Median of {rounds} rounds (least-greatest); a "
        "ratio is the median of those within a round. CPU is user and system time for each transaction."
    )


def _goals(found: Mapping[str, Found]) -> str:
    lines = ["| ours to stock, with the same client | goal | found | |", "|---|---|---|---|"]
    for name, results in found.items():
        for row in ROWS:
            if row.in_flight > 1:
                values = ratios(results, row, rate)
                met, goal, what = statistics.median(values) >= LEAST_RATE, f"at least {LEAST_RATE}", "rate"
            else:
                values = ratios(results, row, lambda result: percentile(result, 50))
                met, goal, what = statistics.median(values) <= MOST_P50, f"at most {MOST_P50}", "p50"
            lines.append(f"| Pulsar {name}, {row.name}: {what} | {goal} | {spread(values)} | {'yes' if met else '**no**'} |")
    return "\n".join(lines)


def ratios(found: Found, row: Row, read: Callable[[Result], float]) -> list[float]:
    """Ours by stock's, of each round."""
    pairs = zip(found[row.name, OURS], found[row.name, STOCK], strict=True)
    return [read(ours) / read(stock) for ours, stock in pairs]


def _figures(name: str, found: Found) -> str:
    lines = [f"| Pulsar {name} | coordinators | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for row in ROWS:
        for side in (STOCK, OURS, JAVA):
            results = found.get((row.name, side), ())
            if results:
                cells = [spread([read(result) for result in results]) for read in COLUMNS.values()]
                lines.append(f"| {row.name} | {side} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float | None]) -> str:
    """Median (least-greatest)."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, middle, high = (f"{value:,.{_places(value)}f}" for value in (min(known), statistics.median(known), max(known)))
    return f"**{middle}** ({low}-{high})" if len(known) > 1 else middle


def _places(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2
