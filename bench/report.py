"""The table of a run, as Markdown."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ASKED = {
    ("1+1@64", "rate"): "more than stock",
    ("1+1@64", "server_us"): "at most half of stock's",
    ("1+1@1", "p50"): "at most a third of stock's",
    ("plain 100 B", "rate"): "300,000",
}


def number(value: float | None) -> str:
    """Three figures or so."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: list[float | None]) -> str:
    """Median (least-greatest)."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if len(known) == 1:
        return number(known[0])
    return f"**{number(statistics.median(known))}** ({number(min(known))}-{number(max(known))})"


def line(row: str, server: str, result: dict[str, Any]) -> str:
    """One result on one line, for who watches."""
    parts = [f"{row:20} {server:13} {number(result['rate'])}/s", f"server {number(result['server_us'])} µs"]
    parts.append(
        f"driver {number(result['driver_us'])} µs, {result['driver_share']:.0%} of a core, drivers: {result['drivers']}"
    )
    if result["p50"] is not None:
        parts.append(f"p50 {number(result['p50'])} p99 {number(result['p99'])} ms")
    if result["syncs"] is not None:
        parts.append(f"{number(result['syncs'])} syncs each")
    return ", ".join(parts)


def page(bench: Any, starts: dict[str, list[tuple[float, float]]]) -> str:
    """The whole page."""
    names = [server.name for server in bench.running]
    parts = ["# Our broker beside stock Pulsar\n", conditions(bench), table(bench, names)]
    if starts or bench.memory:
        parts.append(start_and_memory(bench, names, starts))
    parts.append(verdict(bench, names))
    return "\n".join(parts)


def conditions(bench: Any) -> str:
    """Machine and versions."""
    model = next(
        (
            row.split(":", 1)[1].strip()
            for row in Path("/proc/cpuinfo").read_text().splitlines()
            if row.startswith("model name")
        ),
        platform.processor(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 1024**2
    try:
        java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        java = "no Java"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    options = bench.options
    return (
        f"`make bench` on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}: {os.cpu_count()} cores of {model}, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, pulsar-txn {version('pulsar-txn')}, "
        f"uvloop {version('uvloop')}; {java}. Servers and driver share machine and disk, over loopback; both sync "
        f"before they answer (the journal; journalSyncData=true). {options.rounds} rounds in turns, {options.warm:g} s "
        f"warm-up, {options.seconds:g} s counted; load averages at the end {load}, all of this included.\n\n"
        "`1+1@64`: transactions of 1 send and 1 acknowledgement, 64 in flight; `10+10`: ten of each. `@1`: one at a time, each"
        " step waited for. `java`: the Java client as driver, else ours. `plain`: batched messages without transactions, "
        "`encoded`: in batches that were built before. Median (least-greatest). CPU is of the server's processes (ours with "
        "its sync helper), per transaction or message; driver: of one driver.\n"
    )


COLUMNS: list[tuple[str, Callable[[dict[str, Any]], float | None]]] = [
    ("per second", lambda result: result["rate"]),
    ("p50 ms", lambda result: result["p50"]),
    ("p99 ms", lambda result: result["p99"]),
    ("server CPU µs", lambda result: result["server_us"]),
    ("syncs each", lambda result: result["syncs"]),
    ("driver, % of a core", lambda result: 100 * result["driver_share"]),
]


def table(bench: Any, names: list[str]) -> str:
    """Every row on every server."""
    lines = ["| | server | " + " | ".join(name for name, _ in COLUMNS) + " | drivers |"]
    lines.append("|---" * (len(COLUMNS) + 3) + "|")
    for row in bench.rows():
        for name in names:
            results = bench.results.get((row.name, name), [])
            cells = [spread([read(result) for result in results]) for _, read in COLUMNS]
            drivers = str(results[0]["drivers"]) if results else "-"
            lines.append(f"| {row.name} | {name} | " + " | ".join([*cells, drivers]) + " |")
    return "\n".join(lines) + "\n"


def start_and_memory(bench: Any, names: list[str], starts: dict[str, list[tuple[float, float]]]) -> str:
    """Seconds to ready, MiB idle and after 100,000 transactions."""
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]

    def add(what: str, cell: Callable[[str], str]) -> None:
        lines.append(f"| {what} | " + " | ".join(cell(name) for name in names) + " |")

    def memory(name: str, when: str) -> str:
        found = bench.memory.get((name, when))
        return "-" if found is None else f"{found[0]:.0f} ({found[1]:.0f})"

    add("start to open port, s", lambda name: spread([port for port, _ in starts.get(name, [])]))
    add("start to ready, s", lambda name: spread([ready for _, ready in starts.get(name, [])]))
    add("RSS (RssAnon) idle, MiB", lambda name: memory(name, "idle"))
    add("RSS (RssAnon) after 100,000 transactions, MiB", lambda name: memory(name, "after 100,000"))
    return "\n".join(lines) + "\n"


def verdict(bench: Any, names: list[str]) -> str:
    """What was asked, beside what was found."""
    if len(names) < 2:
        return ""
    lines = ["| asked of ours | ours | stock |", "|---|---|---|"]
    for (row, key), asked in ASKED.items():
        found = [bench.results.get((row, name), []) for name in names]
        if all(found):
            cells = [number(statistics.median([each[key] for each in results])) for results in found]
            lines.append(f"| {row}, {key}: {asked} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
