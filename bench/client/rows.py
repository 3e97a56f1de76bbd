"""What is measured, and with which clients."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import InTurns

HERE = Path(__file__).resolve().parent

ASYNCIO = "ours, asyncio"
UVLOOP = "ours, uvloop"
SYNC = "ours, sync"
OFFICIAL = "official"
JAVA = "Java"
PERF = "pulsar-perf"

OURS = {ASYNCIO: [], UVLOOP: ["--loop", "uvloop"], SYNC: ["--sync"]}
FILLED = {100: 200_000, 1024: 200_000}
"""Messages in the topics that are consumed, by their size."""

ONE_AT_A_TIME = "send, one at a time"
UNITS = "units of 1,000 x 1 KiB"

RATE = re.compile(r"Aggregated throughput stats.*?([\d.]+)\s+(?:txn|task|transaction)s?/s", re.IGNORECASE)


class Row:
    """One piece of work: `measure(tools, options, client)` does it once and returns what the driver said."""

    def __init__(
        self,
        name: str,
        clients: list[str],
        measure: Callable[[Any, Any, str], dict[str, Any] | None],
        *,
        prepare: Callable[[Any, Any], None] | None = None,
        rounds: int = 0,
        per: str = "message",
    ) -> None:
        self.name = name
        self.clients = clients
        self.measure = measure
        self.prepare = prepare
        self.rounds = rounds
        self.per = per


def _driver(tools: Any, what: str, client: str) -> list[str]:
    script = "official.py" if client == OFFICIAL else "ours.py"
    return [*tools.python, str(HERE / script), what, tools.url, *OURS.get(client, [])]


def _run(tools: Any, what: str, client: str, arguments: list[object]) -> dict[str, Any]:
    result: dict[str, Any] = tools.run([*_driver(tools, what, client), *map(str, arguments)])
    return result


def _produce(size: int) -> Row:
    def measure(tools: Any, options: Any, client: str) -> dict[str, Any]:
        seconds = ["--size", size, "--warm", 0.5 * options.scale, "--seconds", 1.25 * options.scale]
        return _run(tools, "produce", client, seconds)

    return Row(f"produce {size} B", [ASYNCIO, UVLOOP, SYNC, OFFICIAL], measure)


HOW = {
    "ours, receive_many": (ASYNCIO, ["--how", "many"]),
    "ours, receive": (ASYNCIO, ["--how", "receive"]),
    "ours, sync, receive_many": (SYNC, ["--how", "many"]),
    "ours, sync, receive": (SYNC, ["--how", "receive"]),
    "official, batch_receive": (OFFICIAL, ["--how", "batch"]),
    "official, receive": (OFFICIAL, ["--how", "receive"]),
    "official, listener": (OFFICIAL, ["--how", "listener"]),
}

LIKEST = [
    ("ours, receive_many", "official, batch_receive"),
    ("ours, receive", "official, receive"),
    ("ours, sync, receive_many", "official, batch_receive"),
    ("ours, sync, receive", "official, receive"),
]


def _consume(size: int) -> Row:
    topic = f"persistent://public/default/bench-client-filled-{size}-{time.time_ns()}"

    def count(options: Any) -> int:
        return int(FILLED[size] * min(1.0, options.scale))

    def prepare(tools: Any, options: Any) -> None:
        tools.ours("fill", tools.url, "--topic", topic, "--count", count(options), "--size", size)

    def measure(tools: Any, options: Any, client: str) -> dict[str, Any] | None:
        who, how = HOW[client]
        result = _run(tools, "consume", who, ["--topic", topic, "--count", count(options), *how])
        if result["size"] != count(options) * size:
            raise RuntimeError(f"{result['size']} bytes came instead of {count(options) * size}")
        return result

    clients = [client for client in HOW if size == 100 or client != "official, listener"]
    return Row(f"consume {size} B", clients, measure, prepare=prepare)


def _latency() -> Row:
    clients = [ASYNCIO, UVLOOP, SYNC, OFFICIAL]
    of_this_round: dict[str, dict[str, Any]] = {}

    def measure(tools: Any, options: Any, client: str) -> dict[str, Any]:
        if client not in of_this_round:
            with InTurns({each: _driver(tools, "latency", each) for each in clients}) as drivers:
                of_this_round.update(drivers.run(int(40 * options.scale), sends=100, warm=8))
        return of_this_round.pop(client)

    return Row(ONE_AT_A_TIME, clients, measure)


def _transactions(in_flight: int, many: int, clients: list[str], seconds: float) -> Row:
    most = {1: 200, 64: 5000}[in_flight]  # transactions a second that there is input for
    if many > 1 and in_flight > 1:
        most = 1600

    def measure(tools: Any, options: Any, client: str) -> dict[str, Any] | None:
        warm, counted = options.scale, seconds * options.scale
        if client == JAVA:
            if tools.java is None:
                return None
            warm *= 2.5  # its JVM wants it
        count = int(many * most * (warm + counted)) + 500
        if client != JAVA:
            numbers = ["--in-flight", in_flight, "--sends", many, "--acks", many, "--count", count]
            return _run(tools, "txn", client, [*numbers, "--warm", warm, "--seconds", counted])
        arguments = [tools.url, in_flight, many, many, count, warm, counted]
        result: dict[str, Any] = tools.run([*tools.java, *map(str, arguments)])
        if result["errors"]:
            raise RuntimeError(str(result["errors"]))
        return result | {"cpu": result["driver_cpu"]}

    return Row(f"txn {many}+{many}, {in_flight} in flight", clients, measure, per="txn")


def _perf(threads: int) -> Row:
    """`pulsar-perf transaction`: each of its threads opens the next transaction without waiting for the commit."""

    def measure(tools: Any, options: Any, _client: str) -> dict[str, Any] | None:
        if tools.perf is None:
            return None
        topic = f"persistent://public/default/bench-client-perf-{time.time_ns()}"
        seconds = max(6, round(8 * options.scale))  # it has no warm-up of its own
        count = 4000 * seconds
        tools.ours("fill", tools.url, "--topic", topic, "--count", count, "--single", "--subscription", "sub")
        given = ["--topics-c", topic, "--topics-p", f"{topic}-out", "-threads", threads, "-time", seconds, "-tto", 60]
        done = subprocess.run(
            [*tools.perf, *map(str, given), "-nmp", "1", "-nmc", "1", "-u", tools.url],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tools.folder,
            env=os.environ | {"PULSAR_MEM": "-Xmx768m", "PULSAR_GC": "-XX:+UseSerialGC"},
        )
        found = RATE.search(done.stdout + done.stderr)
        if found is None:
            raise RuntimeError(f"pulsar-perf said no rate: {(done.stdout + done.stderr)[-500:]}")
        return {"rate": float(found[1])}

    return Row(f"txn 1+1, {threads} thread{'s' * (threads > 1)}", [PERF], measure, rounds=1, per="txn")


def _units() -> Row:
    def measure(tools: Any, options: Any, client: str) -> dict[str, Any]:
        arguments = ["--size", 1024, "--in-flight", 8, "--warm", options.scale, "--seconds", 6.0 * options.scale]
        return _run(tools, "units", client, arguments)

    return Row(UNITS, [ASYNCIO, UVLOOP], measure)


def _memory() -> Row:
    def measure(tools: Any, options: Any, client: str) -> dict[str, Any]:
        return _run(tools, "memory", client, ["--count", int(1_000_000 * min(1.0, options.scale))])

    return Row("memory, messages", [ASYNCIO], measure, rounds=1)


def _memory_of_transactions() -> Row:
    def measure(tools: Any, options: Any, client: str) -> dict[str, Any]:
        return _run(tools, "memory-txn", client, ["--count", int(100_000 * min(1.0, options.scale))])

    return Row("memory, transactions", [UVLOOP], measure, rounds=1, per="txn")


ROWS = [
    _produce(100),
    _produce(1024),
    _consume(100),
    _consume(1024),
    _latency(),
    _transactions(1, 1, [ASYNCIO, UVLOOP, JAVA], 4.0),
    _transactions(64, 1, [ASYNCIO, UVLOOP, JAVA], 2.0),
    _transactions(1, 10, [UVLOOP, JAVA], 3.0),
    _transactions(64, 10, [UVLOOP, JAVA], 2.0),
    _units(),
    _perf(1),
    _perf(64),
    _memory(),
    _memory_of_transactions(),
]
