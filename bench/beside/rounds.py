"""The rounds of one cluster: its own coordinators and ours, in turns under the same client; the Java client is a witness."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs
from our_coordinator import OurCoordinator
from stock_install import install
from stock_pulsar import LONG_RUN, StockPulsar

HERE: Final = Path(__file__).resolve().parent
JVM: Final = ["-Xmx512m", "-XX:+UseSerialGC", "-Dlog4j2.level=ERROR"]

ENOUGH_PER_SECOND: Final = 2500
"""Messages of input for each second."""

WARM_SECONDS: Final = 1.2
"""Before each turn, not counted. Longer than the delay of repeats: in the counted part they come as fast as the ends."""

REPEAT_SECONDS: Final = 1
"""After which our coordinator tells an end once more that needs it. It is 40 as shipped: repeats would come in other turns."""

STOCK: Final = "stock"
OURS: Final = "ours"
JAVA: Final = "stock, Java client"

Result = dict[str, Any]


@attrs.frozen
class Row:
    """One kind of work: so many transactions at a time, each of one send and so many acknowledgements."""

    name: str
    in_flight: int
    acks: int


ROWS: Final = (
    Row("produce 1 + ack 1, 64 in flight", 64, 1),
    Row("produce 1, 64 in flight", 64, 0),
    Row("produce 1 + ack 1, one at a time", 1, 1),
    Row("produce 1, one at a time", 1, 0),
)


class Driver:
    """A process of `driver.py`, which works when it is its turn."""

    def __init__(self, url: str, coordinator: str | None, pids: Mapping[str, list[int]]) -> None:
        command = [sys.executable, str(HERE / "driver.py"), url, "--pids", json.dumps(pids)]
        if coordinator is not None:
            command += ["--coordinator", coordinator]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, row: Row, seconds: float) -> Result:
        """What one turn took. RuntimeError when the driver has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"in_flight": row.in_flight, "acks": row.acks, "warm": WARM_SECONDS, "seconds": seconds}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a driver ended with {self._process.wait()}")
        result: Result = json.loads(line)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # that ends it
        self._process.wait(timeout=30)


class Java:
    """The Java client on the cluster's own coordinators; a process for each turn."""

    def __init__(self, url: str, version: str, folder: Path, pids: list[int]) -> None:
        jars = f"{install(version) / 'lib'}/*"
        source = HERE.parent / "TxnDriver.java"
        subprocess.run(["javac", "-nowarn", "-Xlint:-deprecation", "-cp", jars, "-d", folder, source], check=True)
        self._command = ["java", *JVM, "-cp", f"{jars}:{folder}", "TxnDriver", url]
        self._pids = list(map(str, pids))

    def turn(self, row: Row, seconds: float) -> Result:
        """What one turn took. RuntimeError when it failed."""
        messages = int(ENOUGH_PER_SECOND * (seconds + WARM_SECONDS)) * row.acks
        work = [row.in_flight, 1, row.acks, messages, WARM_SECONDS, seconds]
        done = subprocess.run([*self._command, *map(str, work), *self._pids], capture_output=True, text=True, check=False)
        line = next((each for each in done.stdout.splitlines() if each.startswith("{")), None)
        if done.returncode or line is None:
            raise RuntimeError(f"the Java client ended with {done.returncode}: {done.stderr[-2000:]}")
        said: Result = json.loads(line)
        return said | {"cpu": {"broker": said["server_cpu"], "client": said["driver_cpu"]}}


def run(version: str, rounds: int, java_rounds: int, seconds: float, folder: Path) -> dict[tuple[str, str], list[Result]]:
    """By row and side, a result for each round. Who begins a round alternates; a short round before them does not count."""
    found: dict[tuple[str, str], list[Result]] = {}
    conf = {"transactionEndRepeatDelayInSeconds": str(REPEAT_SECONDS)}
    with (
        StockPulsar(version, gc=LONG_RUN) as cluster,
        OurCoordinator({"it": cluster.service_url}, conf=conf) as coordinator,
    ):
        broker = [cluster.pid]
        ours = coordinator.pids
        with (
            Driver(cluster.service_url, None, {"broker": broker}) as stock_driver,
            Driver(cluster.service_url, coordinator.service_url, {"broker": broker, "coordinator": ours}) as our_driver,
        ):

            def our_turn(row: Row, seconds: float) -> Result:
                result = our_driver.turn(row, seconds)
                time.sleep(REPEAT_SECONDS + 0.2)  # its last repeats are told
                return result

            sides: dict[str, Callable[[Row, float], Result]] = {STOCK: stock_driver.turn, OURS: our_turn}
            for turn in sides.values():
                turn(ROWS[0], seconds)
            java = Java(cluster.service_url, version, folder, broker) if java_rounds else None
            for number in range(rounds):
                for row in ROWS:
                    for side in list(sides) if number % 2 == 0 else reversed(sides):
                        _note(found, version, row, side, sides[side](row, seconds))
                    if java is not None and number < java_rounds:
                        _note(found, version, row, JAVA, java.turn(row, seconds))
    return found


def _note(found: dict[tuple[str, str], list[Result]], version: str, row: Row, side: str, result: Result) -> None:
    found.setdefault((row.name, side), []).append(result)
    middle = result["latencies_ms"][len(result["latencies_ms"]) // 2]
    rate = result["count"] / result["seconds"]
    print(f"  {version}  {row.name:34} {side:20} {rate:7.0f} /s   p50 {middle:7.2f} ms", flush=True)
