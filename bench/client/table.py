"""The table of a run, as Markdown, and the claims beside what was found."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import rows

Result = dict[str, Any]

RATE_ASKED = 3 * 34_000
"""Messages a second: three times what the official client once did with 100 bytes on two cores."""


def rate(result: Result) -> float | None:
    """Per second."""
    return result["rate"] if "rate" in result else result["count"] / result["seconds"]


def cpu_us(result: Result) -> float | None:
    """Client CPU for each."""
    return result["cpu"] / result["count"] * 1e6 if "cpu" in result else None


def share(result: Result) -> float | None:
    """Of a core, in percent."""
    return 100 * result["cpu"] / result["seconds"] if "cpu" in result else None


def percentile(result: Result, percent: int) -> float | None:
    """Of the latencies."""
    latencies = result.get("latencies_ms")
    return latencies[len(latencies) * percent // 100] if latencies else None


COLUMNS: dict[str, Callable[[Result], float | None]] = {
    "per second": rate,
    "client CPU µs each": cpu_us,
    "% of a core": share,
    "p50 ms": lambda result: percentile(result, 50),
    "p99 ms": lambda result: percentile(result, 99),
}


def number(value: float) -> str:
    """Three figures or so."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Sequence[float | None]) -> str:
    """Median (least-greatest)."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if len(known) == 1:
        return number(known[0])
    return f"**{number(statistics.median(known))}** ({number(min(known))}-{number(max(known))})"


def line(result: Result) -> str:
    """One result, for who watches."""
    parts = [f"{name} {number(value)}" for name, read in COLUMNS.items() if (value := read(result)) is not None]
    if "plain_us" in result:
        parts.append(f"plain {spread(result['plain_us'])} µs, txn {spread(result['txn_us'])} µs")
    return ", ".join(parts)


def page(bench: Any, seconds: float) -> str:
    """The whole page."""
    parts = ["# Our client beside others, on stock Pulsar\n", conditions(bench, seconds), claims(bench), results(bench)]
    return "\n".join([*parts, units(bench), memory(bench)]).rstrip() + "\n"


def conditions(bench: Any, seconds: float) -> str:
    """Machine, versions, what the words mean."""
    model = next(
        (
            each.split(":", 1)[1].strip()
            for each in Path("/proc/cpuinfo").read_text().splitlines()
            if each.startswith("model name")
        ),
        platform.processor(),
    )
    try:
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        java = "no Java"
    gib = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"`make bench BENCH=bench/client` on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}: {os.cpu_count()} cores of {model}, "
        f"{gib:.0f} GiB, {platform.system()} {platform.release()}; Python {platform.python_version()}, "
        f"pulsar-txn {version('pulsar-txn')}, uvloop {version('uvloop')}, pulsar-client {version('pulsar-client')}, {java}, "
        "Java client 4.2.4, pulsar-perf 4.0.8; stock Pulsar 4.2.4 (standalone, its own defaults: the journal is not synced). "
        f"Server and clients share the machine, over loopback. {bench.options.rounds} rounds in turns, "
        f"{seconds / 60:.1f} minutes; load averages at the end {load}, all of this included.\n\n"
        "`produce`: batched, `send_nowait` (official: `send_async` with a callback) until full, `flush` at the end. `consume`: "
        "everything in a topic, subscribing included, each message's data looked at, each message acknowledged. `send, one at "
        "a time`: no batching, each waited for; the clients take turns of 100 sends. `txn a+b`: a sends and b acknowledgements "
        "of 100 bytes that leave together, no batching, then commit. pulsar-perf has so many threads, sends 1 KiB in batches, "
        "and opens the next transaction of a thread without waiting for the commit; it tells no latency of transactions. "
        "Median (least-greatest), in the first table of the ratios of two clients in the same round; CPU is of the client's "
        "process.\n"
    )


def results(bench: Any) -> str:
    """Every row with every client."""
    lines = ["| | client | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 2) + "|"]
    for row in bench.rows():
        for client in row.clients:
            found = bench.results.get((row.name, client), [])
            if found and "plain_us" not in found[0] and "points" not in found[0]:
                cells = [spread([read(result) for result in found]) for read in COLUMNS.values()]
                lines.append(f"| {row.name} | {client} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def units(bench: Any) -> str:
    """Plain messages and transactions."""
    lines = []
    for row in bench.rows():
        for client in row.clients:
            found = [each for each in bench.results.get((row.name, client), []) if "plain_us" in each]
            if found:
                plain, txn = ([statistics.median(each[key]) for each in found] for key in ("plain_us", "txn_us"))
                lines.append(f"| {row.name} | {client} | {spread(list(plain))} | {spread(list(txn))} |")
    if not lines:
        return ""
    head = "| 8 at a time, client CPU µs per message | client | receipts waited for | as transactions |\n|---|---|---|---|"
    return "\n".join([head, *lines]) + "\n"


def memory(bench: Any) -> str:
    """What is held whenever nothing is under way."""
    parts = []
    for row in bench.rows():
        for client in row.clients:
            for result in bench.results.get((row.name, client), []):
                if "points" in result:
                    points = result["points"]
                    lines = [f"| {row.name} ({client}), after | " + " | ".join(f"{each['after']:,}" for each in points) + " |"]
                    lines.append("|---" * (len(points) + 1) + "|")
                    for key, name in (("rss_mib", "RSS, MiB"), ("blocks", "blocks allocated"), ("objects", "objects tracked")):
                        lines.append(f"| {name} | " + " | ".join(f"{each[key]:,.0f}" for each in points) + " |")
                    parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


# --- the claims -----------------------------------------------------------------------------------------------------


class Found:
    """What was measured, and how two of it compare."""

    def __init__(self, bench: Any) -> None:
        self._results = bench.results

    def median(self, row: str, client: str, read: Callable[[Result], float | None]) -> float | None:
        """None when it was not measured."""
        values = [value for result in self._results.get((row, client), []) if (value := read(result)) is not None]
        return statistics.median(values) if values else None

    def ratios(self, row: str, ours: str, other: str, read: Callable[[Result], float | None]) -> list[float]:
        """Ours by the other's, of each round."""
        mine, theirs = (
            {result["round"]: value for result in self._results.get((row, client), []) if (value := read(result)) is not None}
            for client in (ours, other)
        )
        return [value / theirs[number] for number, value in mine.items() if theirs.get(number)]

    def units(self, client: str) -> list[float]:
        """CPU of transactions by that of plain messages, of each pair of turns."""
        found = self._results.get((rows.UNITS, client), [])
        return [txn / plain for each in found for plain, txn in zip(each["plain_us"], each["txn_us"], strict=True)]


class Claims:
    """The rows of the table of claims; what was not measured is left out."""

    def __init__(self, bench: Any) -> None:
        self.found = Found(bench)
        self.lines: list[str] = []

    def say(self, what: str, found: list[float], *, least: float | None = None, most: float | None = None) -> None:
        """One claim: what, its bound, the ratios that were found."""
        if found:
            value = statistics.median(found)
            met = (least is None or value >= least) and (most is None or value <= most)
            bound = f"at least {number(least)}" if least is not None else f"at most {number(most or 0)}"
            self.lines.append(f"| {what}: {bound}x | {spread(found)} | {'yes' if met else '**no**'} |")

    def produce(self) -> None:
        """Rates."""
        for size in (100, 1024):
            row = f"produce {size} B"
            for client in (rows.ASYNCIO, rows.SYNC):
                ratio = self.found.ratios(row, client, rows.OFFICIAL, rate)
                self.say(f"{row}, {client}, rate to the official client's", ratio, least=1.0)
        asked = self.found.median("produce 100 B", rows.ASYNCIO, rate)
        if asked is not None:
            met = "yes" if asked >= RATE_ASKED else "**no**"
            text = f"produce 100 B, {rows.ASYNCIO}, messages a second: at least {number(RATE_ASKED)}"
            self.lines.append(f"| {text} | **{number(asked)}** | {met} |")

    def consume(self) -> None:
        """Rates, ours by the official way that is likest."""
        for size in (100, 1024):
            row = f"consume {size} B"
            for mine, theirs in rows.LIKEST:
                ratio = self.found.ratios(row, mine, theirs, rate)
                self.say(f"{row}, {mine}, rate to {theirs}", ratio, least=1.0)

    def latency(self) -> None:
        """Of single sends."""
        for client in (rows.ASYNCIO, rows.UVLOOP, rows.SYNC):
            for percent in (50, 99):
                ratio = self.found.ratios(rows.ONE_AT_A_TIME, client, rows.OFFICIAL, at(percent))
                self.say(f"{rows.ONE_AT_A_TIME}, {client}, p{percent} to the official client's", ratio, most=1.0)

    def transactions(self) -> None:
        """Latency of one, rate of 64."""
        for many in (1, 10):
            for client in (rows.ASYNCIO, rows.UVLOOP):
                p50 = self.found.ratios(f"txn {many}+{many}, 1 in flight", client, rows.JAVA, at(50))
                self.say(f"txn {many}+{many}, 1 in flight, {client}, p50 to the Java client's (the same)", p50, most=1.05)
                of_java = self.found.ratios(f"txn {many}+{many}, 64 in flight", client, rows.JAVA, rate)
                self.say(f"txn {many}+{many}, 64 in flight, {client}, rate to the Java client's", of_java, least=0.7)
        for client in (rows.ASYNCIO, rows.UVLOOP):
            self.say(f"{rows.UNITS}, {client}, CPU of a transaction to plain", self.found.units(client), most=1.08)


def at(percent: int) -> Callable[[Result], float | None]:
    """Reads a percentile."""
    return lambda result: percentile(result, percent)


def claims(bench: Any) -> str:
    """What was asked, what was found, and whether that is enough."""
    all_claims = Claims(bench)
    for part in (all_claims.produce, all_claims.consume, all_claims.latency, all_claims.transactions):
        part()
    return "\n".join(["| asked | found | |", "|---|---|---|", *all_claims.lines]) + "\n" if all_claims.lines else ""
