"""Named points where the demo and the tests end Spark's driver with SIGKILL: a `format("pulsar")` that watches its steps.

`arm(spark)` registers it in a session whose environment has PULSAR_TXN_CRASH_POINT, the name of a step. PULSAR_TXN_CRASH_LOG
is a file that gets a line of JSON first: what was in flight. PULSAR_TXN_CRASH_BATCH restricts the point to one micro-batch.
A point that has a line in the log does not fire again, so the environment may stay as it is for the restart.

`ArmedPulsar` is for a demo that chooses the moment while everything runs: PULSAR_TXN_CRASH_NOW is a file that holds the name
of a step. Whoever reaches that step next takes the file away and dies: the driver at `sink.commit.…`, an executor at
`sink.write.end`.

Steps, in the order in which a commit meets them: `sink.commit.begin`, `sink.commit.after_fence`,
`sink.commit.after_new_txn`, `sink.commit.after_publish`, `sink.commit.after_marker`,
`sink.commit.after_end_txn_sent` (END_TXN has been written to the socket, its answer has not been looked at),
`sink.commit.after_end_txn`, `sink.commit.end`; with delivery=grouped `sink.commit.before_end_group` in place of
`sink.commit.after_publish` and `sink.commit.after_end_txn_sent`. In a task: `sink.write.before_send` (before each payload) and
`sink.write.end`. In the source: `source.commit`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from pulsar_txn.pipeline.spark import PulsarDataSource


def arm(spark: Any) -> None:
    """Let the steps of this session's queries kill its driver, when the environment names one of them.

    Spark's workers import this module by its name, so the folder must be on the PYTHONPATH with which the JVM was started.
    """
    if "PULSAR_TXN_CRASH_POINT" in os.environ:
        spark.dataSource.register(CrashingPulsar)
    if "PULSAR_TXN_CRASH_NOW" in os.environ:
        spark.dataSource.register(ArmedPulsar)


def crash_point(name: str, /, **in_flight: Any) -> None:
    """Kill the JVM that this worker belongs to, and the worker, when the environment asks for it at this point."""
    if is_armed(name, in_flight.get("batch_id")):
        kill_driver(name, **in_flight)


def is_armed(name: str, batch_id: int | None = None) -> bool:
    """Whether `crash_point` would kill."""
    environment = os.environ
    if environment.get("PULSAR_TXN_CRASH_POINT") != name:
        return False
    wanted = environment.get("PULSAR_TXN_CRASH_BATCH")
    if wanted is not None and batch_id is not None and int(wanted) != batch_id:
        return False
    log = environment.get("PULSAR_TXN_CRASH_LOG")
    return log is None or not Path(log).exists() or f'"point": "{name}"' not in Path(log).read_text(encoding="utf-8")


def armed_crash_point(name: str, /, **in_flight: Any) -> None:
    """Kill as `crash_point` does, when the file of PULSAR_TXN_CRASH_NOW names this point; only one process can take it."""
    armed = Path(os.environ["PULSAR_TXN_CRASH_NOW"])
    try:
        if armed.read_text(encoding="utf-8") != name:
            return
        armed.rename(armed.with_name(f"{armed.name}.{os.getpid()}"))
    except FileNotFoundError:
        return
    kill_driver(name, target="executor" if name.startswith("sink.write.") else "driver", **in_flight)


def kill_driver(name: str, **in_flight: Any) -> None:
    """Note what is in flight, then SIGKILL the nearest Java process above this one, and this one.

    That is the driver's, and with executors in processes of their own an executor's when this is called in a task.
    """
    java = java_ancestor()
    if log := os.environ.get("PULSAR_TXN_CRASH_LOG"):
        line = {"point": name, **in_flight, "pid": os.getpid(), "jvm_pid": java, "time_ms": time.time_ns() // 1_000_000}
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    if java is not None:
        os.kill(java, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def java_ancestor() -> int | None:
    """The process id of the nearest ancestor whose program is `java`; None if absent."""
    pid = os.getppid()
    while pid > 1:
        parent, program = _parent_and_program(pid)
        if program == "java":
            return pid
        pid = parent
    return None


def _parent_and_program(pid: int) -> tuple[int, str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        answer = subprocess.run(["ps", "-o", "ppid=,comm=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607  # a standard tool, a number
        parent, _, program = answer.stdout.strip().partition(" ")
    else:
        program = text[text.index("(") + 1 : text.rindex(")")]
        parent = text[text.rindex(")") + 1 :].split()[1]
    return int(parent or 0), Path(program.strip()).name


class CrashingPulsar(PulsarDataSource):
    """`format("pulsar")` with a crash point at every step."""

    on_step = staticmethod(crash_point)


class ArmedPulsar(PulsarDataSource):
    """The same under a name of its own, for the query that is to be hit."""

    on_step = staticmethod(armed_crash_point)

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "pulsar_armed"
