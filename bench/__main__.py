"""Our broker beside stock Pulsar 4.2.4, in turns on one machine, both syncing before they answer.

    make bench                          all of it, about 15 minutes; writes bench/RESULTS.md
    make bench ARGS=--quick             one short round, to see that it works; writes nothing
    make bench ARGS="--only 1+1@64 --rounds 5"
    make bench ARGS="--servers ours --no-java"

Each figure is the median of its rounds, with the least and the greatest. In a round every row runs on both servers, one right
after the other, with a driver that is a process of its own. When a driver needs more than 80 % of a core, the row is measured
with two. Exit code 1 when an operation failed anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

import report  # noqa: E402 - beside this file, and the fixtures of the tests
import servers  # noqa: E402
from stock_install import InstallError, install  # noqa: E402

BUSY_DRIVER = 0.8


class Row:
    """One measurement: its name, and the driver's arguments."""

    def __init__(self, name: str, *arguments: str, java: bool = False, per: str = "txn") -> None:
        self.name = name
        self.arguments = arguments
        self.java = java
        self.per = per


def _txn(name: str, in_flight: int, many: int, messages: int, *, java: bool = False) -> Row:
    asked = ("txn", "--in-flight", in_flight, "--sends", many, "--acks", many, "--input", messages)
    return Row(name, *map(str, asked), java=java)


ROWS = [
    _txn("1+1@1", 1, 1, 6_000),
    _txn("1+1@64", 64, 1, 90_000),
    _txn("10+10@1", 1, 10, 40_000),
    _txn("10+10@64", 64, 10, 150_000),
    _txn("1+1@64 java", 64, 1, 90_000, java=True),
    Row("plain 100 B", "plain", "--size", "100", per="message"),
    Row("plain 1 KiB", "plain", "--size", "1024", per="message"),
    Row("plain 100 B encoded", "plain", "--size", "100", "--encoded", per="message"),
    Row("plain 1 KiB encoded", "plain", "--size", "1024", "--encoded", per="message"),
]


class JavaClient:
    """The Java driver, compiled once; the client's jars are those of the stock server."""

    def __init__(self, folder: Path) -> None:
        self._jars = f"{install(servers.STOCK_VERSION) / 'lib'}/*"
        self._classes = folder
        subprocess.run(
            ["javac", "-nowarn", "-Xlint:-deprecation", "-cp", self._jars, "-d", folder, HERE / "TxnDriver.java"],
            check=True,
        )

    def command(self, row: Row, server: servers.Server, warm: float, seconds: float, share: int) -> list[str]:
        """The command of one run."""
        given = dict(zip(row.arguments[1::2], row.arguments[2::2], strict=True))
        numbers = [int(given["--in-flight"]) // share, given["--sends"], given["--acks"], int(given["--input"]) // share]
        jvm = [
            "java",
            "-Xmx768m",
            "-XX:+UseSerialGC",
            "-Dlog4j2.level=ERROR",
            "-cp",
            f"{self._jars}:{self._classes}",
            "TxnDriver",
            server.url,
        ]
        return [*jvm, *map(str, [*numbers, warm, seconds, *server.pids])]


def _python(row: Row, server: servers.Server, warm: float, seconds: float, share: int) -> list[str]:
    arguments = list(row.arguments)
    for option in ("--in-flight", "--input"):
        if option in arguments:
            at = arguments.index(option) + 1
            arguments[at] = str(max(1, int(arguments[at]) // share))
    command = [sys.executable, str(HERE / "driver.py"), arguments[0], server.url, *arguments[1:]]
    command += ["--warm", str(warm), "--seconds", str(seconds), "--pids", *map(str, server.pids)]
    return command + (["--metrics", server.metrics] if server.metrics else [])


def measure(row: Row, server: servers.Server, java: JavaClient | None, options: Any, drivers: int) -> dict[str, Any]:
    """Run a row's drivers at the same time and put their results together."""
    make = java.command if row.java and java is not None else _python
    warm = options.warm * 2 if row.java else options.warm  # the driver's own JVM wants warming as well
    command = make(row, server, warm, options.seconds, drivers)
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(drivers)]
    results = []
    for process in running:
        output, _ = process.communicate(timeout=warm + options.seconds + 300)
        lines = [line for line in output.splitlines() if line.startswith("{")]  # Java logs to the same place
        result = json.loads(lines[-1]) if lines else {"errors": [f"the driver ended with {process.returncode}"]}
        if "count" not in result:
            return {"errors": [*result["errors"], "nothing was counted"]}
        results.append(result)
    return combine(results)


def combine(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result of drivers that ran side by side: each saw the same server during about the same seconds."""
    first = results[0]
    rate = sum(each["count"] / each["seconds"] for each in results)
    counted = max(1e-9, rate * first["seconds"])
    latencies = sorted(latency for each in results for latency in each["latencies_ms"])
    return {
        "rate": rate,
        "server_us": first["server_cpu"] / counted * 1e6,
        "driver_us": sum(each["driver_cpu"] for each in results) / counted * 1e6,
        "driver_share": max(each["driver_cpu"] / each["seconds"] for each in results),
        "drivers": len(results),
        "syncs": None if first["syncs"] is None else first["syncs"] / counted,
        "p50": latencies[len(latencies) // 2] if latencies else None,
        "p99": latencies[len(latencies) * 99 // 100] if latencies else None,
        "count": sum(each["count"] for each in results),
        "errors": [error for each in results for error in each["errors"]],
    }


class Bench:
    """All rounds."""

    def __init__(self, options: Any, running: list[servers.Server], java: JavaClient | None) -> None:
        self.options = options
        self.running = running
        self.java = java
        self.drivers = {row.name: 1 for row in ROWS}
        self.results: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.memory: dict[tuple[str, str], tuple[float, float]] = {}
        self.transactions = dict.fromkeys((server.name for server in running), 0)
        self.errors: list[str] = []

    def rows(self) -> Iterator[Row]:
        """Those that were asked for."""
        for row in ROWS:
            asked = not self.options.only or row.name in self.options.only
            if asked and (self.java is not None or not row.java):
                yield row

    def run(self) -> None:
        """Every round, every row, both servers in turns; who begins alternates."""
        for number in range(self.options.rounds):
            for row in self.rows():
                order = self.running if number % 2 == 0 else self.running[::-1]
                for server in order:
                    self._one(row, server, number)

    def _one(self, row: Row, server: servers.Server, number: int) -> None:
        result = measure(row, server, self.java, self.options, self.drivers[row.name])
        if result.get("driver_share", 0) > BUSY_DRIVER and self.drivers[row.name] == 1 and not row.java:
            print(f"  {row.name}: the driver used {result['driver_share']:.0%} of a core; measured with two", flush=True)
            self.drivers[row.name] = 2
            for name in [key for key in self.results if key[0] == row.name]:
                del self.results[name]
            if server is not self.running[0] and number % 2 == 0:
                self._one(row, self.running[0], number)
            result = measure(row, server, self.java, self.options, 2)
        for error in result["errors"]:
            self.errors.append(f"{row.name} on {server.name}: {error}")
            print(f"  ERROR {self.errors[-1]}", flush=True)
        if "rate" not in result:
            return
        if row.per == "txn":
            self._count(server, row, result)
        self.results.setdefault((row.name, server.name), []).append(result)
        print(f"  round {number + 1}: {report.line(row.name, server.name, result)}", flush=True)

    def _count(self, server: servers.Server, row: Row, result: dict[str, Any]) -> None:
        self.transactions[server.name] += result["count"]
        if self.transactions[server.name] >= 100_000 and (server.name, "after 100,000") not in self.memory:
            self.memory[server.name, "after 100,000"] = server.memory_mib()

    def fill_up(self) -> None:
        """Go on until each server has carried out 100,000 transactions, and look at its memory."""
        row = next(row for row in ROWS if row.name == "1+1@64")
        for server in self.running:
            while (server.name, "after 100,000") not in self.memory:
                result = measure(row, server, self.java, argparse.Namespace(warm=0.5, seconds=15.0), 1)
                self.errors += [f"memory of {server.name}: {error}" for error in result["errors"]]
                if "rate" not in result:
                    return
                self._count(server, row, result)


def starts(options: Any) -> dict[str, list[tuple[float, float]]]:
    """Start-up on an empty folder, several times, each alone."""
    found: dict[str, list[tuple[float, float]]] = {}
    for make in options.makers:
        for _ in range(options.rounds):
            server = make()
            try:
                found.setdefault(server.name, []).append(servers.seconds_to_ready(server))
            finally:
                server.process.stop()
    return found


def parse() -> Any:
    """The options."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of a second or two each")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warm", type=float, help="seconds before counting (5)")
    parser.add_argument("--seconds", type=float, help="seconds counted (8)")
    parser.add_argument("--only", nargs="*", choices=[row.name for row in ROWS], help="only these rows")
    parser.add_argument("--servers", nargs="*", choices=["ours", "stock"], default=["ours", "stock"])
    parser.add_argument("--no-java", action="store_true", help="leave the Java client out")
    parser.add_argument("--no-memory", action="store_true", help="leave start-up and memory out")
    parser.add_argument("--write", type=Path, help="where the table goes (bench/RESULTS.md for a whole run)")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.warm = (1.0 if options.quick else 5.0) if options.warm is None else options.warm
    options.seconds = options.seconds or (2.0 if options.quick else 8.0)
    options.makers = [{"ours": servers.ours, "stock": servers.stock}[name] for name in options.servers]
    whole = not options.quick and not options.only and len(options.servers) == 2 and not options.no_java
    if options.write is None and whole:
        options.write = HERE / "RESULTS.md"
    return options


def main() -> int:
    """Run it, print the table, write it where it belongs."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with it
    if not options.no_memory:
        print("start-up ...", flush=True)
    start_times = {} if options.no_memory else starts(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        java = None
        if not options.no_java:
            try:
                java = JavaClient(folder)
            except (InstallError, OSError, subprocess.CalledProcessError) as error:
                print(f"without the Java client: {error}", flush=True)
        running = []
        for make in options.makers:
            server = make()
            stack.callback(server.process.stop)
            server.process.start()
            running.append(server)
        bench = Bench(options, running, java)
        if not options.no_memory:
            bench.memory |= {(server.name, "idle"): server.memory_mib() for server in running}
        bench.run()
        if not options.no_memory and not options.quick:
            bench.fill_up()
    text = report.page(bench, start_times)
    print("\n" + text)
    if options.write is not None and not bench.errors:
        options.write.write_text(text, encoding="utf-8")
        print(f"written to {os.path.relpath(options.write)}")
    return 1 if bench.errors else 0


if __name__ == "__main__":
    sys.exit(main())
