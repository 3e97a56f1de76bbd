"""The gate of the broker's hot path: an old commit of ours, this tree, and stock Pulsar, in turns under the Java client.

    python bench/gate.py                          three rounds, about five minutes
    python bench/gate.py --rounds 1 --seconds 3   a quick look
    python bench/gate.py --no-stock --no-rates    only the calls per transaction
    python bench/gate.py --old COMMIT             another commit to compare with

A transaction is one send and one acknowledgement, 64 of them are in flight. Printed are the processor time of the broker per
transaction (median of the rounds; ours divided by the old one's), transactions per second (ours divided by stock's), and the
Python calls of the broker per transaction, counted by `sys.setprofile` in a broker process of its own. Exit code 1 when a
bound is missed or an operation failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
sys.path[:0] = [str(HERE), str(CHECKOUT / "tests" / "support")]

import servers  # noqa: E402 - beside this file, and the fixtures of the tests
from our_broker import OurBroker  # noqa: E402
from stock_install import install  # noqa: E402

OLD = "90385d5"
MOST_CPU = 0.75
MOST_CALLS = 300
LEAST_RATE = 1.5
IN_FLIGHT = 64
WARM_TRANSACTIONS = 2000
ROOMS = ("wire", "ledger", "tc", "rm_producer", "rm_pending_ack", "broker")

COUNTING = """
import json, os, signal, sys
from collections import Counter
counts = Counter()
def note(frame, event, _):
    if event == "call":
        counts[frame.f_code] += 1
def tell(*_):
    sys.setprofile(None)
    path = os.environ["GATE_COUNTS"]
    told = {}
    for code, count in counts.items():
        if "/pulsar_txn/" in code.co_filename:
            where = code.co_filename.rpartition("/pulsar_txn/")[2] + ":" + code.co_qualname
            told[where] = told.get(where, 0) + count
    with open(path + ".new", "w") as file:
        json.dump(told, file)
    os.replace(path + ".new", path)
    sys.setprofile(note)
signal.signal(signal.SIGUSR1, tell)
from pulsar_txn.broker.cli import main
sys.setprofile(note)
main()
"""
"""The program of a broker that counts its Python calls, and writes the counts to $GATE_COUNTS at SIGUSR1."""


def old_tree(commit: str, stack: ExitStack) -> Path:
    """The sources of an old commit, in a folder that goes with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-old-")))
    archive = folder / "old.tar"
    done = subprocess.run(
        ["git", "-C", CHECKOUT, "archive", "-o", archive, commit], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"commit {commit} is not in this clone ({done.stderr.strip()}); fetch the history, or choose one with --old")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder


def environment(tree: Path) -> dict[str, str]:
    """What makes a broker process import its rooms from a tree."""
    return {"PYTHONPATH": os.pathsep.join(str(tree / room) for room in ROOMS), "ledgerProvider": "journal"}


class Gate:
    """The Java driver, and what it measured."""

    def __init__(self, options: Any, stack: ExitStack) -> None:
        self.options = options
        self.errors: list[str] = []
        self._jars = f"{install(servers.STOCK_VERSION) / 'lib'}/*"
        self._classes = stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-java-"))
        javac = ["javac", "-nowarn", "-Xlint:-deprecation", "-cp", self._jars, "-d", self._classes, HERE / "TxnDriver.java"]
        subprocess.run(javac, check=True)

    def start(self, url: str, pids: list[int], *, seconds: float | None = None) -> subprocess.Popen[str]:
        """The driver against one server: it fills the input, warms up, and counts for some seconds."""
        options = self.options
        numbers = [IN_FLIGHT, 1, 1, options.messages, options.warm, seconds or options.seconds, *pids]
        jvm = ["java", "-Xmx768m", "-XX:+UseSerialGC", "-Dlog4j2.level=ERROR", "-cp", f"{self._jars}:{self._classes}"]
        command = [*jvm, "TxnDriver", url, *map(str, numbers)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def result(self, name: str, process: subprocess.Popen[str]) -> dict[str, Any] | None:
        """What it printed; None when nothing was counted."""
        output, _ = process.communicate(timeout=300)
        lines = [line for line in output.splitlines() if line.startswith("{")]  # Java logs to the same place
        found: dict[str, Any] = json.loads(lines[-1]) if lines else {"count": 0, "errors": ["the driver printed nothing"]}
        self.errors += [f"{name}: {error}" for error in found["errors"]]
        return found if found["count"] else None

    def measure(self, name: str, server: servers.Server) -> tuple[float, float] | None:
        """(transactions per second, processor time of the server per transaction in microseconds)."""
        found = self.result(name, self.start(server.url, server.pids))
        if found is None:
            return None
        rate, cost = found["count"] / found["seconds"], found["server_cpu"] / found["count"] * 1e6
        print(f"  {name:12} {rate:7.0f} txn/s   {cost:6.0f} µs of the server's processor per transaction", flush=True)
        return rate, cost

    def rates(self, tree: Path, stack: ExitStack) -> dict[str, list[tuple[float, float]]]:
        """All servers in turns; who begins changes."""
        running = {"old": OurBroker(conf=environment(tree)), "ours": OurBroker(conf=environment(CHECKOUT))}
        found: dict[str, list[tuple[float, float]]] = {}
        started = {}
        for name, broker in running.items():
            stack.callback(broker.stop)
            started[name] = servers.Server(name, broker.start())
        if not self.options.no_stock:
            stock = servers.stock()
            stack.callback(stock.process.stop)
            stock.process.start()
            started["stock"] = stock
        for number in range(self.options.rounds):
            order = list(started.items())
            for name, server in order[number % len(order) :] + order[: number % len(order)]:
                measured = self.measure(name, server)
                if measured is not None:
                    found.setdefault(name, []).append(measured)
        return found

    def calls(self, name: str, tree: Path) -> tuple[float, dict[str, float]]:
        """Python calls per transaction in a broker of `tree`: all, and by function."""
        with tempfile.TemporaryDirectory(prefix="gate-calls-") as folder:
            path = Path(folder) / "counts"
            with OurBroker(conf=environment(tree) | {"GATE_COUNTS": str(path)}, program=COUNTING) as broker:
                driver = self.start(broker.service_url, [], seconds=300)
                before = _counts_after(broker, path, driver, WARM_TRANSACTIONS)
                after = _counts_after(broker, path, driver, _ended(before) + self.options.transactions)
                driver.kill()
                driver.communicate()
        many = max(1, _ended(after) - _ended(before))
        spent = {where: (count - before.get(where, 0)) / many for where, count in after.items()}
        return sum(spent.values()), spent


def _counts_after(broker: OurBroker, path: Path, driver: subprocess.Popen[str], transactions: int) -> dict[str, int]:
    """The counts after so many transactions."""
    while True:
        time.sleep(0.5)
        path.unlink(missing_ok=True)
        os.kill(broker.pid, signal.SIGUSR1)
        while not path.exists():
            time.sleep(0.01)
        found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
        if _ended(found) >= transactions:
            return found
        if driver.poll() is not None:
            sys.exit(f"the driver ended after {_ended(found)} transactions; give it more --messages than {transactions}")


def _ended(counts: dict[str, int]) -> int:
    return sum(count for where, count in counts.items() if where.endswith(":on_end_txn"))


def parse() -> Any:
    """The options."""
    parser = argparse.ArgumentParser(prog="gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", default=OLD, help=f"the commit to compare with ({OLD})")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=float, default=6.0, help="seconds before counting")
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds counted")
    parser.add_argument("--messages", type=int, default=90_000, help="input of one run")
    parser.add_argument("--transactions", type=int, default=5000, help="transactions whose calls are counted")
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--no-rates", action="store_true", help="count calls only")
    parser.add_argument("--no-calls", action="store_true")
    parser.add_argument("--top", type=int, default=0, help="print so many functions with the most calls")
    return parser.parse_args()


def main() -> int:
    """Run it and print the ratios beside the bounds."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with it
    missed = 0
    with ExitStack() as stack:
        gate, tree = Gate(options, stack), old_tree(options.old, stack)
        if not options.no_rates:
            found = gate.rates(tree, stack)
            middle = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
            ratio = middle["ours"][1] / middle["old"][1]
            print(f"processor time per transaction, ours / {options.old}: {ratio:.2f} (at most {MOST_CPU})")
            missed += ratio > MOST_CPU
            print(f"transactions per second, ours / {options.old}: {middle['ours'][0] / middle['old'][0]:.2f}")
            if "stock" in middle:
                ratio = middle["ours"][0] / middle["stock"][0]
                print(f"transactions per second, ours / stock {servers.STOCK_VERSION}: {ratio:.2f} (at least {LEAST_RATE})")
                missed += ratio < LEAST_RATE
        if not options.no_calls:
            for name, each in (("old", tree), ("ours", CHECKOUT)):
                calls, spent = gate.calls(name, each)
                print(
                    f"Python calls per transaction, {name}: {calls:.0f}"
                    + (f" (at most {MOST_CALLS})" if name == "ours" else "")
                )
                for where, count in sorted(spent.items(), key=lambda item: -item[1])[: options.top]:
                    print(f"  {count:7.2f} {where}")
            missed += calls > MOST_CALLS
    for error in gate.errors:
        print(f"ERROR {error}")
    return 1 if missed or gate.errors else 0


if __name__ == "__main__":
    sys.exit(main())
