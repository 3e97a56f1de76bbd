"""Our client beside the official Python client, the Java client and pulsar-perf, on a stock Pulsar 4.2.4 of its own.

    make bench BENCH=bench/client                    all of it, about 17 minutes; writes bench/client/RESULTS.md
    make bench BENCH=bench/client ARGS=--quick       one short round, to see that it works; writes nothing
    make bench BENCH=bench/client ARGS="--only produce send --rounds 5"

A row is one piece of work, done by several clients; each run is a process of its own, and in every round they take turns, who
begins changes. Each figure is the median of its rounds with the least and the greatest; a claim is the median of the ratios
that two clients had in the same round, as what the machine gives changes from minute to minute. CPU is user and system time
of the client's process. Exit code 1 when something failed; a claim that is not met is said in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "tests" / "support")]

import rows  # noqa: E402 - beside this file, and the fixtures of the tests
import table  # noqa: E402
from stock_install import InstallError, install  # noqa: E402
from stock_pulsar import LONG_RUN, StockPulsar  # noqa: E402

STOCK_VERSION = "4.2.4"
PERF_VERSION = "4.0.8"
"""Where pulsar-perf comes from: it is not in the jars of 4.2.4 that Maven has."""

JVM = ["-Xmx768m", "-XX:+UseSerialGC", "-Dlog4j2.level=ERROR"]


class Tools:
    """Where the other clients are; None what could not be had."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.folder = folder
        self.python = [sys.executable]
        self.java: list[str] | None = None
        self.perf: list[str] | None = None
        try:
            jars = f"{install(STOCK_VERSION) / 'lib'}/*"
            driver = HERE.parent / "TxnDriver.java"
            subprocess.run(["javac", "-nowarn", "-Xlint:-deprecation", "-cp", jars, "-d", folder, driver], check=True)
            self.java = ["java", *JVM, "-cp", f"{jars}:{folder}", "TxnDriver"]
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"without the Java client: {error}", flush=True)
        try:
            self.perf = [str(install(PERF_VERSION) / "bin" / "pulsar-perf"), "transaction"]
        except InstallError as error:
            print(f"without pulsar-perf: {error}", flush=True)

    def ours(self, *arguments: object) -> dict[str, Any]:
        """Run our driver."""
        return self.run([*self.python, str(HERE / "ours.py"), *map(str, arguments)])

    def run(self, command: list[str], timeout: float = 300.0) -> dict[str, Any]:
        """Run a driver; its last line of JSON."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError(f"{' '.join(command[1:4])} ended with {done.returncode}: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(lines[-1])
        return result


class Bench:
    """All rounds."""

    def __init__(self, options: Any, tools: Tools) -> None:
        self.options = options
        self.tools = tools
        self.results: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.errors: list[str] = []

    def rows(self) -> Iterator[rows.Row]:
        """Those that were asked for."""
        for row in rows.ROWS:
            if not self.options.only or any(row.name.startswith(wanted) for wanted in self.options.only):
                yield row

    def run(self) -> None:
        """Every round, every row, its clients in turns; who begins alternates."""
        for row in self.rows():
            if row.prepare is not None:
                row.prepare(self.tools, self.options)
        for number in range(self.options.rounds):
            for row in self.rows():
                if number < (row.rounds or self.options.rounds):
                    for client in row.clients if number % 2 == 0 else row.clients[::-1]:
                        self._one(row, client, number)

    def _one(self, row: rows.Row, client: str, number: int) -> None:
        began = time.perf_counter()
        try:
            result = row.measure(self.tools, self.options, client)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            self.errors.append(f"{row.name}, {client}: {error}")
            print(f"  ERROR {self.errors[-1]}", flush=True)
            return
        if result is None:
            return
        self.results.setdefault((row.name, client), []).append(result | {"round": number})
        took = time.perf_counter() - began
        print(f"  round {number + 1}: {row.name:22} {client:22} {table.line(result)}  [{took:.1f} s]", flush=True)


def parse() -> Any:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="bench/client", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of half a second each")
    parser.add_argument("--rounds", type=int, help="5")
    parser.add_argument("--scale", type=float, help="how long each run is, against the usual (1.0)")
    parser.add_argument("--only", nargs="*", metavar="ROW", help="rows whose names begin so")
    parser.add_argument("--url", help="measure on this server instead, transactions on")
    parser.add_argument("--write", type=Path, help="where the table goes (bench/client/RESULTS.md for a whole run)")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    options.scale = options.scale or (0.25 if options.quick else 1.0)
    if options.write is None and not options.quick and not options.only and options.url is None:
        options.write = HERE / "RESULTS.md"
    return options


def main() -> int:
    """Run it, print the table, write it where it belongs."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends with it
    began = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-client-")))
        url = options.url or stack.enter_context(StockPulsar(STOCK_VERSION, gc=LONG_RUN)).service_url
        bench = Bench(options, Tools(folder, url))
        bench.run()
    text = table.page(bench, time.perf_counter() - began)
    print("\n" + text)
    if options.write is not None and not bench.errors:
        options.write.write_text(text, encoding="utf-8")
        print(f"written to {os.path.relpath(options.write)}")
    return 1 if bench.errors else 0


if __name__ == "__main__":
    sys.exit(main())
