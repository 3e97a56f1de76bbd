"""Where the worker is killed, or kills the broker, in the middle of a unit of work; and how the log of kills is read.

Environment: PULSAR_TXN_CRASH_POINT names the point, PULSAR_TXN_CRASH_LOG the file that gets a line of JSON before each kill
(what was in flight), PULSAR_TXN_CRASH_NTH says at which unit whom: `80=worker`, `20=broker 40=worker`. A target that has a
line in the log is not killed again. PULSAR_TXN_CRASH_BROKER is the ready file of the broker, which has its pid.
The broker and the Spark sink have points of their own and write the same kind of lines.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

POINTS: Final = {
    "transactional": "worker.before_end_txn",
    "ack-first": "worker.before_sends",
    "send-first": "worker.before_acks",
}
"""The worker's point in each mode: between the two halves of a unit."""

BROKER_POINT: Final = "broker.before_last_marker"
"""Our broker's point: a commit is durably decided, and half told; see broker_crash.py."""

RANDOM: Final = "a random moment"
"""In place of a point: nobody chose the moment, and nobody knows what was in flight."""

_TARGET_OF: Final = {"broker": "broker", "sink": "driver", "worker": "worker"}


@attrs.frozen
class Kill:
    """One line of the log: who was killed where and when, and what was in flight."""

    point: str
    target: str
    time_ms: int
    pid: int
    in_flight: Mapping[str, Any] = attrs.field(hash=False)

    @property
    def txn_id(self) -> str | None:
        """The transaction that was open, half told, or being ended."""
        return self.in_flight.get("txn_id")

    @property
    def flights(self) -> tuple[int, ...]:
        """The flights of the unit of work that was cut in two."""
        return tuple(self.in_flight.get("flights", ()))

    def describe(self) -> str:
        """What was in flight, in one line; empty when it was nothing."""
        known = self.in_flight
        parts = [f"transaction {self.txn_id}"] if self.txn_id else []
        if "told" in known:
            parts.append(f"COMMITTING durable, told: {_short(known['told'])}, not told: {_short(known['not_told'])}")
        if self.flights:
            parts.append(f"{len(self.flights)} flights ({self.flights[0]} … {self.flights[-1]}): {known.get('done')}")
        if self.point == RANDOM:
            parts.append("not recorded")
        elif self.point == "sink.write.end":
            parts.append(f"micro-batch {known.get('batch_id')}: a task that has encoded its rows, and has not handed them over")
        elif self.point == "sink.commit.after_publish":
            parts.append(f"micro-batch {known.get('batch_id')}: all its rows are sent in it, END_TXN is not")
        elif "batch_id" in known:
            answer = "was there already" if known.get("answered") else "not there yet"
            parts.append(f"micro-batch {known['batch_id']}, END_TXN sent, its answer {answer}")
        return "; ".join(parts)

    def nothing_in_flight(self) -> bool:
        """Whether this kill proves nothing."""
        if self.point == RANDOM:
            return False
        if self.point == "sink.write.end":
            return self.in_flight.get("batch_id") is None
        if self.point.startswith("broker."):
            return not (self.txn_id and self.in_flight.get("told") and self.in_flight.get("not_told"))
        if self.point.startswith("sink."):
            return not self.txn_id or bool(self.in_flight.get("answered"))
        return not self.flights or (self.point == POINTS["transactional"] and not self.txn_id)


def _short(participants: list[str]) -> str:
    return ", ".join(each.rsplit("//", 1)[-1].split("/", 2)[-1] for each in participants) or "nobody"


def note_kill(log: Path, point: str, target: str, pid: int, **in_flight: Any) -> None:
    """Add a line to the log and make it durable; only then kill."""
    line = {"point": point, "target": target, "pid": pid, "time_ms": time.time_ns() // 1_000_000, **in_flight}
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def parse_line(line: str) -> Kill:
    """One line. Raises ValueError or KeyError for any other text."""
    known = json.loads(line)
    point, pid, time_ms = known.pop("point"), known.pop("pid"), known.pop("time_ms")
    target = known.pop("target", None) or _TARGET_OF[point.split(".")[0]]
    return Kill(point, target, time_ms, pid, known)


def read_log(log: Path) -> list[Kill]:
    """All kills so far. A last line that is cut short belongs to a kill that is just being written, and is left out."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [parse_line(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class CrashPoint:
    """The point of this worker; nothing when the environment does not name it."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self._name = name
        self._log = Path(environ.get("PULSAR_TXN_CRASH_LOG", os.devnull))
        self._broker = environ.get("PULSAR_TXN_CRASH_BROKER")
        self._units = 0
        self._plan: dict[str, int] = {}
        if environ.get("PULSAR_TXN_CRASH_POINT") == name:
            fired = {(kill.point, kill.target) for kill in read_log(self._log)} if self._log.is_file() else set()
            for word in environ.get("PULSAR_TXN_CRASH_NTH", "1=worker").split():
                number, target = word.split("=")
                if (name, target) not in fired:
                    self._plan[target] = int(number)

    def reached(self, **in_flight: Any) -> None:
        """The unit is half done. Kills, or does not return, when the plan says so."""
        self._units += 1
        for target, number in list(self._plan.items()):
            if self._units >= number:
                del self._plan[target]
                self._kill(target, in_flight)

    def _kill(self, target: str, in_flight: Mapping[str, Any]) -> None:
        victim = os.getpid()
        if target == "broker" and self._broker is not None:
            victim = json.loads(Path(self._broker).read_text(encoding="utf-8"))["pid"]
        note_kill(self._log, self._name, target, victim, **in_flight)
        os.kill(victim, signal.SIGKILL)
