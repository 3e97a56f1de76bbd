"""Who is killed in the main job, one after the other: at named points, and at moments that a random number chooses.

Each kill waits until the one before has been recovered from: readers have seen micro-batches that are newer than it. So a slow
machine gets the same kills as a fast one, later.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
from crash import BROKER_POINT, RANDOM, note_kill, read_log
from patience import Patience
from processes import Broker, Child, processes_below

TASK_POINT: Final = "sink.write.end"
ENDING_POINT: Final = "sink.commit.after_end_txn_sent"
UNENDED_POINT: Final = "sink.commit.after_publish"

_POLL_SECONDS: Final = 0.05
_DELAY_SECONDS: Final = (0.2, 2.0)
"""A random moment is this long after the recovery from the kill before."""


@attrs.frozen
class Planned:
    """A kill to come: whose, and where; `RANDOM` for the point means at any moment."""

    target: str
    point: str = RANDOM


SHORT: Final = (
    Planned("driver", ENDING_POINT),
    Planned("executor", TASK_POINT),
    Planned("broker", BROKER_POINT),
    Planned("executor"),
    Planned("broker"),
)
LONG: Final = (
    *SHORT,
    Planned("driver", UNENDED_POINT),
    Planned("broker"),
    Planned("executor"),
    Planned("driver"),
)


def schedule(selection: str, *, our_broker: bool) -> list[Planned]:
    """The kills of a run; somebody else's broker is not killed."""
    plan = SHORT if selection == "small" else LONG
    return [each for each in plan if our_broker or each.target != "broker"]


def armed(log: Path) -> Path:
    """The file with the name of the step of Spark's sink that is to kill; see spark_crash.py."""
    return log.with_name("armed")


def broker_armed(log: Path) -> Path:
    """The file after whose appearance our broker dies at the next commit."""
    return log.with_name("armed-broker")


class Chaos:
    """Carries the plan out. `newest` answers the newest micro-batch that a reader has seen."""

    def __init__(
        self,
        plan: list[Planned],
        log: Path,
        job: Child,
        broker: Broker | None,
        newest: Callable[[], int],
        chance: random.Random,
    ) -> None:
        self._plan = plan
        self._log = log
        self._job = job
        self._broker = broker
        self._newest = newest
        self._chance = chance
        self._kills = 0

    async def run(self) -> None:
        """Kill, wait for the recovery, and go on to the next. Raises DemoFailedError when nothing recovers."""
        for planned in self._plan:
            await self._until_recovered()
            if planned.point == RANDOM:
                await asyncio.sleep(self._chance.uniform(*_DELAY_SECONDS))
                await self._kill(planned.target)
            else:
                self._arm(planned.point)
            self._kills += 1
            await self._until(lambda: len(read_log(self._log)) >= self._kills, f"reached {planned.point}")
        await self._until_recovered()

    async def _until_recovered(self) -> None:
        """One micro-batch may have been under way at the kill, so the second one after it is a new one."""
        seen = self._newest()
        await self._until(lambda: self._newest() > seen + 1 and self._is_whole(), "published a micro-batch")

    def _is_whole(self) -> bool:
        return len(self.pids("executor")) == 2 and (self._broker is None or self._broker.child.pid is not None)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        most = 0

        def signs() -> tuple[int, int, int]:
            nonlocal most
            most = max(most, len(self.pids("driver")) + len(self.pids("executor")))
            return self._newest(), len(read_log(self._log)), most

        patience = Patience(signs)
        last = lambda: f"nobody has {what}; the last lines of the job:\n{self._job.tail()}\n"  # noqa: E731
        await patience.until(holds, last, _POLL_SECONDS)

    def _arm(self, point: str) -> None:
        if point == BROKER_POINT:
            broker_armed(self._log).touch()
        else:
            fresh = self._log.with_name("armed.new")
            fresh.write_text(point, encoding="utf-8")
            fresh.rename(armed(self._log))

    async def _kill(self, target: str) -> None:
        await self._until(lambda: bool(self.pids(target)), f"started the {target}")
        victim = self._chance.choice(self.pids(target))
        note_kill(self._log, RANDOM, target, victim)
        os.kill(victim, signal.SIGKILL)

    def pids(self, target: str) -> list[int]:
        """The living processes that are meant by a target."""
        if target == "broker":
            pid = None if self._broker is None else self._broker.child.pid
            return [] if pid is None else [pid]
        if self._job.pid is None:
            return []
        program = {"driver": "org.apache.spark.deploy.SparkSubmit", "executor": "CoarseGrainedExecutorBackend"}[target]
        return [pid for pid, command in processes_below(self._job.pid) if program in command]
