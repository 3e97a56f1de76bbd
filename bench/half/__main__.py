"""One message per transaction: our broker with half messages beside our broker with Pulsar's buffer, in turns.

    make bench BENCH=bench/half                     about three minutes; writes bench/half/RESULTS.md
    make bench BENCH=bench/half ARGS=--quick        one short round; writes nothing
    make bench BENCH=bench/half ARGS="--rounds 9 --no-java"

A turn is a driver of its own: transactions of one 100-byte message, so many at a time, each opened, sent and committed.
RocketMQ's transaction message does the same (half message, local transaction, commit). Its figures stand beside ours; they
were taken on another day. Exit code 1 when an operation failed.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

import report  # noqa: E402 - beside the driver, and the fixtures of the tests
import servers  # noqa: E402
from our_broker import OurBroker  # noqa: E402
from processes import cpu_of  # noqa: E402

from bench.__main__ import JavaClient, Row, measure  # noqa: E402

BUFFERS = ("half-topic", "topic")
ROCKETMQ = (
    ("1 in flight, Java", "1,250", "0.55", "3.2", "557", "1.67"),
    ("64 in flight, Java", "7,100", "8.4", "27", "121", "0.18"),
)
"""RocketMQ 5.5.0 with SYNC_FLUSH, measured on 2026-11-21 on a machine of the same kind, with up to 0.8 cores of other load:
row, per second, p50, p99, CPU of the broker, flushes."""
FSYNCS = 300
QUIET_CORES = 0.3
_BUSY = (
    "**Other work used {:.1f} cores while this was measured.** So the rates and latencies say what was left of the machine, "
    "and cannot stand beside RocketMQ's. The CPU and the syncs of each transaction depend less on it.\n"
)

Result = dict[str, Any]


def _row(name: str, in_flight: int, *, java: bool = False) -> Row:
    asked = ("txn", "--in-flight", in_flight, "--sends", 1, "--acks", 0, "--input", 0)
    return Row(name, *map(str, asked), java=java)


ROWS = (
    _row("1 in flight", 1),
    _row("64 in flight", 64),
    _row("1 in flight, Java", 1, java=True),
    _row("64 in flight, Java", 64, java=True),
)

COLUMNS: tuple[tuple[str, Callable[[Result], float | None]], ...] = (
    ("per second", lambda result: result["rate"]),
    ("p50 ms", lambda result: result["p50"]),
    ("p99 ms", lambda result: result["p99"]),
    ("broker CPU µs", lambda result: result["server_us"]),
    ("syncs each", lambda result: result["syncs"]),
    ("driver CPU µs", lambda result: result["driver_us"]),
    ("other load, cores", lambda result: result["foreign"]),
)


def busy_seconds() -> float:
    """CPU that the whole machine has used, without idle time and waiting."""
    fields = [int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def turn(row: Row, server: servers.Server, java: JavaClient | None, options: Any) -> Result:
    """One row on one server, and what else the machine did meanwhile."""
    pids = server.pids

    def own() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cpu_of(pids) + children.ru_utime + children.ru_stime + time.process_time()

    began, busy, ours = time.perf_counter(), busy_seconds(), own()
    result = measure(row, server, java, options, 1)
    foreign = (busy_seconds() - busy - (own() - ours)) / (time.perf_counter() - began)
    return result | {"foreign": max(0.0, foreign)}


def fsync_us(folder: str) -> float:
    """The median of an append of 1 KiB and its fdatasync, in the folder of the data."""
    taken = []
    with (Path(folder) / "probe").open("wb", buffering=0) as probe:
        for _ in range(FSYNCS):
            began = time.perf_counter()
            probe.write(bytes(1024))
            os.fdatasync(probe.fileno())
            taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)


def rows(options: Any) -> Iterator[Row]:
    """Those that were asked for."""
    return (row for row in ROWS if options.java or not row.java)


def page(results: dict[tuple[str, str], list[Result]], options: Any, syncs_us: float) -> str:
    """The whole page."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    conditions = (
        f"`make bench BENCH=bench/half` on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}: {os.cpu_count()} cores of {model}, "
        f"{platform.system()} {platform.release()}; Python {platform.python_version()}, pulsar-txn {version('pulsar-txn')}, "
        f"uvloop {version('uvloop')}; an append of 1 KiB with its fdatasync takes {syncs_us:.0f} µs. {options.rounds} rounds "
        f"in turns, {options.warm:g} s warm-up (twice that for Java), {options.seconds:g} s counted. Brokers and driver share "
        "the machine; every answer waits for the disk.\n"
    )
    meaning = (
        "Each transaction has one message of 100 bytes: it is opened, the message is sent, it is committed. Median "
        "(least-greatest) of the rounds. CPU is per transaction; `other load` is what the rest of the machine used "
        "meanwhile, in cores.\n"
    )
    foreign = statistics.median(result["foreign"] for found in results.values() for result in found)
    lines = [
        "# Half messages beside Pulsar's buffer\n",
        conditions,
        *([_BUSY.format(foreign)] if foreign > QUIET_CORES else []),
        meaning,
        "| | broker | " + " | ".join(name for name, _ in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for row in rows(options):
        for buffer in BUFFERS:
            found = results.get((row.name, buffer), [])
            cells = [report.spread([read(result) for result in found]) for _, read in COLUMNS]
            lines.append(f"| {row.name} | pulsar-txn, `{buffer}` | " + " | ".join(cells) + " |")
        for name, *figures in ROCKETMQ:
            if name == row.name:
                lines.append(f"| {row.name} | RocketMQ 5.5.0, synced | " + " | ".join([*figures, "-", "up to 0.8"]) + " |")
    lines.append(
        "\nRocketMQ's figures are of 2026-11-21, on a machine of the same kind, with its own Java client (64 threads, one "
        "transaction message each); they are no part of this run. Its transaction is one message, and nobody waits for the "
        "answer to its second phase. Ours may have any number of messages, topics and acknowledgements: it is opened and "
        "registered at a coordinator, and its commit is answered when readers see it. `half-topic` writes each message twice, "
        "and no reader waits for an open transaction.\n"
    )
    return "\n".join(lines)


def main() -> int:
    """Measure, print the page, write it where it belongs."""
    parser = argparse.ArgumentParser(
        prog="bench/half", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round without Java; writes no page")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--warm", type=float, default=3.0, help="seconds before each turn counts")
    parser.add_argument("--no-java", dest="java", action="store_false", help="without the rows of the Java client")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warm, options.java = 1, 1.5, 0.7, False
    results: dict[tuple[str, str], list[Result]] = {}
    errors: list[str] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-half-"))
        java = JavaClient(Path(folder)) if options.java else None
        running = []
        for buffer in BUFFERS:
            process = OurBroker(conf={"ledgerProvider": "journal", "transactionBufferProviderClassName": buffer})
            stack.callback(process.stop)
            process.start()
            running.append(servers.Server(buffer, process))
        for number in range(options.rounds):
            for row in rows(options):
                for server in running if number % 2 == 0 else running[::-1]:
                    result = turn(row, server, java, options)
                    errors += [f"{row.name} on {server.name}: {error}" for error in result["errors"]]
                    if "rate" in result:
                        results.setdefault((row.name, server.name), []).append(result)
                        print(f"round {number + 1}: {report.line(row.name, server.name, result)}", flush=True)
        text = page(results, options, fsync_us(folder))
    print("\n" + text)
    if not options.quick and options.java:
        (HERE / "RESULTS.md").write_text(text, encoding="utf-8")
    print("\n".join(errors))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
