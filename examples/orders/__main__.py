"""Orders in a database, events in Pulsar, and a worker that is killed at every point of its work: none is lost or doubled.

    python examples/orders                                        # a broker of its own, and a SQLite file
    python examples/orders --database postgresql://localhost/shop # the same with PostgreSQL
    python examples/orders --pulsar-url pulsar://…                # on your broker
    python examples/orders --pulsar-url pulsar://… --coordinator pulsar://…  # stock Pulsar, and a coordinator beside it

The exit code is 0 when the orders of the database are those that were asked for, and the events of Pulsar are the orders.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from judge import complaints
from points import POINTS
from store import Store
from worker import EVENTS, REQUESTS

from pulsar_txn.client import Client
from pulsar_txn.client.outbox import identity_sql, table_sql

HERE = Path(__file__).resolve().parent
WORKER_SECONDS = 120


@contextmanager
def own_broker(folder: Path) -> Iterator[str]:
    """A broker in a process of its own; its URL."""
    ready = folder / "ready.json"
    command = [sys.executable, "-c", "from pulsar_txn.broker.cli import main; main()", "standalone"]
    command += ["--port", "0", "--http-port", "0", "--data", str(folder / "broker"), "--ready-file", str(ready)]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - our own program
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit((folder / "broker.log").read_text())
            signal.sigtimedwait([], 0.05)
        yield json.loads(ready.read_text())["serviceUrl"]
    finally:
        process.terminate()
        process.wait()


def ask_for(client: Client, topic: str, first: int, count: int) -> None:
    """Requests for so many orders."""
    producer = client.create_producer(topic)
    for number in range(first, first + count):
        request = {"id": number, "customer": f"customer {number % 7}", "cents": 100 + number * 37 % 9900}
        producer.send_nowait(json.dumps(request).encode())
    producer.flush()
    producer.close()


def run_worker(arguments: argparse.Namespace, point: str, idle: float) -> int:
    """A worker until it ends, or is killed at a point; its exit code."""
    command = [sys.executable, str(HERE / "worker.py"), "--pulsar-url", arguments.pulsar_url, "--batch", "5"]
    command += ["--database", arguments.database, "--prefix", arguments.prefix, "--idle", str(idle)]
    if arguments.coordinator:
        command += ["--coordinator", arguments.coordinator]
    environ = {**os.environ, "PULSAR_TXN_CRASH_POINT": point, "PULSAR_TXN_CRASH_NTH": "2"}
    return subprocess.run(command, env=environ, timeout=WORKER_SECONDS, check=False).returncode  # noqa: S603 - our own program


def demo(arguments: argparse.Namespace) -> list[str]:
    """All points, one worker after the other. What is wrong at the end; nothing when it is well."""
    store, asked, wrong = Store(arguments.database), 0, []
    dialect = "postgresql" if store.is_postgres else "sqlite"
    store.create(table_sql(dialect=dialect), identity_sql(dialect=dialect))
    with Client(arguments.pulsar_url) as client:
        for point, there in POINTS.items():
            ask_for(client, arguments.prefix + REQUESTS, asked, 15)
            asked += 15
            code = run_worker(arguments, point, arguments.idle)
            print(f"killed at {point:12} {there}", flush=True)
            if code != -signal.SIGKILL:
                wrong.append(f"the worker was not killed at {point}: it ended with {code}")
    if run_worker(arguments, "", arguments.idle) != 0:
        wrong.append("the last worker failed")
    return wrong + complaints(store.orders(), asked, arguments.pulsar_url, arguments.prefix + EVENTS)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulsar-url")
    parser.add_argument("--database")
    parser.add_argument("--coordinator")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds that a worker waits for a request before it ends")
    arguments = parser.parse_args()
    arguments.prefix = f"{uuid.uuid4().hex[:8]}-"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orders-")))
        arguments.database = arguments.database or str(folder / "orders.db")
        arguments.pulsar_url = arguments.pulsar_url or stack.enter_context(own_broker(folder))
        wrong = demo(arguments)
    print("\n".join(wrong) or "every order has its event, every event its order")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
