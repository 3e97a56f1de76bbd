"""The run of the PySpark pipeline after the worker: killed in a commit, started again, read from outside."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import attrs
from checks import batch_problems, gap_problems, kill_problems
from crash import Kill
from processes import Supervisor
from runs import KillReport, Stage
from topics import Topics
from watch import Seen, follow_batches, read_topic

from pulsar_txn.client import AsyncClient, TransactionState

POINT: Final = "sink.commit.after_end_txn_sent"
_MICRO_BATCHES: Final = 6
_SMALLEST_BATCH: Final = 500
_KILLED_BATCH: Final = 1


@attrs.define
class TotalsRun:
    """What came out of the pipeline."""

    arrivals: dict[str, dict[int, int]]
    """By dimension: when a reader saw which batch first, in milliseconds since the epoch."""
    batches: int
    transactions: int
    kills: list[KillReport]
    seconds: float
    problems: list[str]
    last: dict[tuple[str, str], tuple[int, int]]
    totals: int


class PipelineRun:
    """One run over the settlements of `topics`, which are all there."""

    def __init__(self, stage: Stage, url: str, topics: Topics) -> None:
        self._stage = stage
        self._url = url
        self._topics = topics
        self._crash_log = stage.folder / "pipeline.crashes.jsonl"
        self._supervisor = Supervisor(self._crash_log, self._killed, self._restarted)
        self._reports: list[KillReport] = []
        self._per_batch = max(_SMALLEST_BATCH, -(-len(stage.input.truth) // _MICRO_BATCHES))

    async def run(self) -> TotalsRun:
        """Everything. Raises DemoFailedError when it cannot go on; what is merely wrong is among the problems."""
        begin = time.monotonic()
        arrivals: dict[str, dict[int, int]] = {dimension: {} for dimension in self._topics.totals}
        async with AsyncClient(self._url, operation_timeout=60.0, max_backoff=1.0) as client:
            async with asyncio.TaskGroup() as group:
                watching = [
                    group.create_task(follow_batches(client, topic, arrivals[dimension]))
                    for dimension, topic in self._topics.totals.items()
                ]
                watching.append(group.create_task(self._show(arrivals)))
                child = self._stage.children.program("pipeline", "pipeline.py", self._arguments(), self._environment())
                child.start()
                await self._supervisor.keep(child)
                await self._until_seen(client, arrivals)
                for task in watching:
                    task.cancel()
            rows = {dimension: await read_topic(client, topic) for dimension, topic in self._topics.totals.items()}
            for report in self._reports:
                await self._tell_recovery(client, report, rows)
        return self._result(arrivals, rows, time.monotonic() - begin)

    def _arguments(self) -> list[str]:
        address = ["--url", self._url, "--prefix", self._topics.prefix]
        return [*address, "--checkpoint", str(self._stage.folder / "checkpoint"), "--per-batch", str(self._per_batch)]

    def _environment(self) -> dict[str, str]:
        return {
            "PULSAR_TXN_CRASH_POINT": POINT,
            "PULSAR_TXN_CRASH_LOG": str(self._crash_log),
            "PULSAR_TXN_CRASH_BATCH": str(_KILLED_BATCH),
        }

    async def _show(self, arrivals: dict[str, dict[int, int]]) -> None:
        wanted = -(-len(self._stage.input.truth) // self._per_batch)
        while True:
            self._stage.progress("micro-batches", min(map(len, arrivals.values())), wanted)
            await asyncio.sleep(0.1)

    async def _until_seen(self, client: AsyncClient, arrivals: dict[str, dict[int, int]]) -> None:
        """The readers lag by a moment: give them what is there."""
        newest = {}
        for dimension, topic in self._topics.totals.items():
            newest[dimension] = max((seen.batch_id or 0 for seen in await read_topic(client, topic)), default=-1)
        until = time.monotonic() + 10
        while any(max(seen, default=-1) < newest[dimension] for dimension, seen in arrivals.items()):
            if time.monotonic() > until:
                return  # the check of the gaps says what is missing
            await asyncio.sleep(0.02)

    async def _killed(self, kill: Kill) -> None:
        self._reports.append(KillReport("pipeline", kill))
        self._stage.say(f"pipeline: Spark's driver killed at {kill.point}: {kill.describe() or 'NOTHING in flight'}")

    async def _restarted(self, kill: Kill, seconds: float) -> None:
        del kill
        self._reports[-1].restart_seconds = seconds
        self._reports[-1].recovery = "started again on the same checkpoint"

    async def _tell_recovery(self, client: AsyncClient, report: KillReport, rows: dict[str, list[Seen]]) -> None:
        kill = report.kill
        if kill.txn_id is None:
            return
        batch_id = kill.in_flight["batch_id"]
        state = await client.attach_transaction(kill.txn_id).resolve()
        said = "over, and forgotten by its coordinator" if state is TransactionState.UNKNOWN else state.value
        found = {str(seen.txn_id) for those in rows.values() for seen in those if seen.batch_id == batch_id}
        if found == {kill.txn_id}:
            report.recovery += (
                f"; {kill.txn_id} is {said}; Spark handed over micro-batch {batch_id} again, its marker on the control topic "
                "was recognised, and it was skipped: all its rows are those of the killed run"
            )
        else:
            report.recovery += f"; {kill.txn_id} is {said}; micro-batch {batch_id} was published by {', '.join(sorted(found))}"

    def _result(self, arrivals: dict[str, dict[int, int]], rows: dict[str, list[Seen]], seconds: float) -> TotalsRun:
        truth = self._stage.input.totals
        problems = kill_problems([report.kill for report in self._reports], [POINT])
        problems += batch_problems(rows, truth) + gap_problems(arrivals)
        newest = max((seen.batch_id or 0 for those in rows.values() for seen in those), default=-1)
        last: dict[tuple[str, str], Any] = {
            (seen.value["dimension"], seen.value["key"]): (seen.value["flights"], seen.value["net_cents"])
            for those in rows.values()
            for seen in those
            if seen.batch_id == newest
        }
        return TotalsRun(
            arrivals=arrivals,
            batches=newest + 1,
            transactions=len({seen.txn_id for those in rows.values() for seen in those}),
            kills=self._reports,
            seconds=seconds,
            problems=problems,
            last=last,
            totals=len(truth),
        )
