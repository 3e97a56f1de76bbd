"""How long the import of the client takes, beside a bare interpreter: `make bench BENCH=bench/importing.py`.

Each statement is run in processes of its own, in turns; the medians are shown. pip compiles what it installs, so bytecode is
made before anything is timed, in a folder of its own. Asked: at most 150 ms more than the bare interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

STATEMENTS = (
    "pass",
    "import asyncio",
    "import pulsar_txn.client",
    "from pulsar_txn.client import AsyncClient",
    "from pulsar_txn.client import AsyncClient, Client",
    "from pulsar_txn.client import *",
)


def seconds(statement: str, environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of an interpreter that runs a statement."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", statement], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{statement!r} failed")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        for statement in STATEMENTS:
            seconds(statement, environment)
        taken = {statement: [seconds(statement, environment)] for statement in STATEMENTS}
        for _ in range(rounds - 1):
            for statement in STATEMENTS:
                taken[statement].append(seconds(statement, environment))
    bare = [statistics.median(column) for column in zip(*taken["pass"], strict=True)]
    print(f"Python {sys.version.split()[0]}, medians of {rounds}, ms more than the bare interpreter ({bare[0] * 1000:.0f} ms)")
    for statement in STATEMENTS[1:]:
        wall, cpu = (statistics.median(column) for column in zip(*taken[statement], strict=True))
        print(f"{(wall - bare[0]) * 1000:7.0f} wall {(cpu - bare[1]) * 1000:7.0f} CPU   {statement}")


if __name__ == "__main__":
    main()
