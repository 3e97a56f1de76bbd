"""One run of the worker over all flights, with its kills: with transactions, or without them for comparison."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from checks import (
    Findings,
    compare,
    comparison_problems,
    kill_problems,
    recovery_problems,
    refused_problems,
    sums,
    totals_problems,
)
from crash import BROKER_POINT, POINTS, Kill
from processes import Broker, Child, Children, Supervisor
from topics import Topics
from watch import Seen, Watch, read_topic

from pulsar_txn.client import AsyncClient, TransactionState

_IDLE_SECONDS: Final = {"transactional": 30.0, "ack-first": 3.0, "send-first": 3.0}
"""Longer than a transaction's timeout, after which a killed worker's flights come back; then somebody has lost some."""

_BATCHES: Final = {"small": 50}
_BATCH: Final = 100


@attrs.frozen
class Input:
    """The flights of this demo and the truth about them."""

    selection: str
    truth: Mapping[int, Mapping[str, Any]]
    """Of each flight that can be settled, by its id: carrier, route and the four amounts, of truth.py."""
    totals: Mapping[tuple[str, str], tuple[int, int]]
    refused: frozenset[int] = frozenset()
    """The ids of the flights that cannot."""

    @property
    def flights(self) -> int:
        """How many there are in all."""
        return len(self.truth) + len(self.refused)

    @property
    def batch(self) -> int:
        """Flights in a unit of work."""
        return _BATCHES.get(self.selection, _BATCH)

    @property
    def units(self) -> int:
        """Units of work when none is done twice."""
        return -(-self.flights // self.batch)


@attrs.define
class KillReport:
    """A kill, and the outcome of what was in flight."""

    run: str
    kill: Kill
    restart_seconds: float = 0.0
    recovery: str = "nothing: it was not started again"
    aborted: bool = False
    """Whether that was a transaction which its timeout aborted."""


@attrs.define
class Run:
    """What came out of one run."""

    name: str
    settlements: Findings
    postings: Findings
    kills: list[KillReport]
    units: list[dict[str, Any]]
    watch: Watch
    seconds: float
    problems: list[str]
    by_carrier: dict[tuple[str, str], tuple[int, int]]

    @property
    def transactions(self) -> int:
        """Units that were committed."""
        return sum(unit["outcome"] == "done" and unit["txn_id"] is not None for unit in self.units)

    @property
    def aborts(self) -> int:
        """Transactions that ended otherwise: by the worker, or by their timeout because nobody was there to end them."""
        told: int = sum(unit["outcome"] != "done" and unit["txn_id"] is not None for unit in self.units)
        return told + sum(report.aborted for report in self.kills)


@attrs.frozen
class Stage:
    """What every run has at hand. `outside`: the URL of somebody's cluster, where nobody's broker is killed."""

    input: Input
    children: Children
    folder: Path
    say: Callable[[str], None]
    progress: Callable[[str, int, int], None]
    outside: str | None = None
    prefix: str = ""


def topics_of(prefix: str, mode: str) -> Topics:
    """The topics of the run in a mode."""
    return Topics(prefix + ("" if mode == "transactional" else f"{mode}-"))


class WorkerRun:
    """One run in one mode. `topics` and `url` are known once it has begun; our broker is left running."""

    def __init__(self, stage: Stage, mode: str) -> None:
        self.mode = mode
        self.topics = topics_of(stage.prefix, mode)
        self.url = stage.outside or ""
        self._stage = stage
        self._in_transactions = mode == "transactional"
        self._crash_log = stage.folder / f"{mode}.crashes.jsonl"
        self._units_file = stage.folder / f"{mode}.units.jsonl"
        self._published = stage.folder / f"{mode}.published"
        self._supervisor = Supervisor(self._crash_log, self._killed, self._restarted)
        self._reports: dict[Kill, KillReport] = {}
        self._undecided: list[str] = []
        self.broker: Broker | None = None

    async def run(self) -> Run:
        """Everything. Raises DemoFailedError when it cannot go on; what is merely wrong is among the problems."""
        begin = time.monotonic()
        await self._start_broker()
        async with AsyncClient(self.url, operation_timeout=60.0, max_backoff=1.0) as client:
            await self.topics.prepare(client)
            watch = Watch(client, self.topics.settlements)
            await self._work(watch)
            rows = {topic: await read_topic(client, topic) for topic in (self.topics.settlements, self.topics.postings)}
            await self._ask_for_the_workers_transaction(client, rows)
            refused = await read_topic(client, self.topics.refused)
        return self._result(watch, rows, refused, time.monotonic() - begin)

    # --- the processes ----------------------------------------------------------------------------------------------

    async def _start_broker(self) -> None:
        if self._stage.outside is not None:
            return
        commits = self._stage.input.units * 2 // 3
        env = {"PULSAR_TXN_CRASH_NTH": str(commits)} if self._in_transactions else {}
        point = BROKER_POINT if self._in_transactions else ""
        self.broker = Broker(self._stage.children, f"broker-{self.mode}", self._stage.folder, self._crash_env(point) | env)
        seconds = await self.broker.start()
        self.url = self.broker.url
        self._stage.say(f"{self.mode}: broker at {self.url}, ready in {seconds:.2f} s")

    def _crash_env(self, point: str) -> dict[str, str]:
        return {"PULSAR_TXN_CRASH_POINT": point, "PULSAR_TXN_CRASH_LOG": str(self._crash_log)}

    def _worker(self) -> Child:
        units = self._stage.input.units
        plan = [f"{units // 3}=worker"]
        env = self._crash_env(POINTS[self.mode])
        if not self._in_transactions and self.broker is not None:
            plan = [f"{units // 3}=broker", f"{units * 2 // 3}=worker"]
            env["PULSAR_TXN_CRASH_BROKER"] = str(self.broker.ready_file)
        arguments = ["--mode", self.mode, "--batch", str(self._stage.input.batch), "--units", str(self._units_file)]
        arguments += ["--idle", str(_IDLE_SECONDS[self.mode]), "--published", str(self._published), *self._address()]
        env["PULSAR_TXN_CRASH_NTH"] = " ".join(plan)
        return self._stage.children.program(f"worker-{self.mode}", "worker.py", arguments, env)

    def _publisher(self) -> Child:
        # Acknowledging a part of an entry in a transaction needs a key on a stock broker that may not be set there.
        entry = "40" if self._stage.outside is None else "1"
        arguments = ["--flights", self._stage.input.selection, "--entry", entry, *self._address()]
        return self._stage.children.program(f"publisher-{self.mode}", "publisher.py", arguments)

    def _address(self) -> list[str]:
        return ["--url", self.url, "--prefix", self.topics.prefix]

    async def _work(self, watch: Watch) -> None:
        publisher, worker = self._publisher(), self._worker()
        async with asyncio.TaskGroup() as group:
            followed = (self.topics.settlements, self.topics.refused)
            background = [group.create_task(watch.follow(topic)) for topic in followed]
            background.append(group.create_task(self._show(watch, worker)))
            if self._in_transactions:
                background.append(group.create_task(watch.sample()))
            if self.broker is not None:
                background.append(group.create_task(self._supervisor.keep(self.broker.child, self.broker.start)))
            publisher.start()
            worker.start()
            working = group.create_task(self._supervisor.keep(worker))
            await self._supervisor.keep(publisher)
            self._published.touch()
            await working
            for task in background:
                task.cancel()

    async def _show(self, watch: Watch, worker: Child) -> None:
        """Progress; a worker with transactions is told to stop once a reader has seen every flight."""
        wanted = self._stage.input.flights
        told = not self._in_transactions
        while True:
            self._stage.progress(self.mode, len(watch.ids), wanted)
            if not told and len(watch.ids) == wanted:
                told = True
                worker.signal(signal.SIGTERM)
            await asyncio.sleep(0.1)

    # --- kills ------------------------------------------------------------------------------------------------------

    async def _killed(self, kill: Kill) -> None:
        self._reports[kill] = KillReport(self.mode, kill)
        self._stage.say(
            f"{self.mode}: {kill.target} {kill.pid} killed at {kill.point}: {kill.describe() or 'NOTHING in flight'}"
        )

    async def _restarted(self, kill: Kill, seconds: float) -> None:
        report = self._reports[kill]
        report.restart_seconds = seconds
        report.recovery = f"started again in {seconds:.2f} s"
        if kill.point == BROKER_POINT and kill.txn_id is not None:
            async with AsyncClient(self.url, max_backoff=0.2) as client:
                begin = time.monotonic()
                state = await client.attach_transaction(kill.txn_id).resolve()
                asked = time.monotonic() - begin
            report.recovery += f"; asked for {kill.txn_id}, it says {state.value} after {asked:.2f} s"
            if state is TransactionState.COMMITTED:
                report.recovery += ": the commit was carried out"
            else:
                self._undecided.append(f"{kill.point}: {report.recovery}, although COMMITTING was durable")
        self._stage.say(f"{self.mode}: {kill.target} {report.recovery}")

    async def _ask_for_the_workers_transaction(self, client: AsyncClient, rows: Mapping[str, Sequence[Seen]]) -> None:
        """Only now: to ask is to ask for the commit again, which an open transaction would take for the first time."""
        for kill, report in self._reports.items():
            if kill.point != POINTS["transactional"] or kill.txn_id is None:
                continue
            ids = set(kill.flights)
            later = sorted({str(seen.txn_id) for seen in rows[self.topics.settlements] if seen.value["id"] in ids})
            state = await client.attach_transaction(kill.txn_id).resolve()
            if state is TransactionState.COMMITTED:
                self._undecided.append(f"{kill.point}: {kill.txn_id} was still open when everything else was settled")
            report.aborted = state is not TransactionState.COMMITTED
            said = "has forgotten it, since it is over" if state is TransactionState.UNKNOWN else f"says {state.value}"
            report.recovery += (
                f"; {kill.txn_id} was aborted by its timeout (its coordinator {said}), and its flights came again: "
                f"settled in {', '.join(later)}"
            )

    @property
    def kills(self) -> list[KillReport]:
        """Those so far."""
        return list(self._reports.values())

    # --- results ----------------------------------------------------------------------------------------------------

    def _result(self, watch: Watch, rows: Mapping[str, Sequence[Seen]], refused: Sequence[Seen], seconds: float) -> Run:
        values = {topic: [seen.value for seen in those] for topic, those in rows.items()}
        truth = self._stage.input.truth
        settlements, postings = (compare(topic, values[topic], truth) for topic in values)
        by_carrier = sums(values[self.topics.postings])
        run = Run(
            name=self.mode,
            settlements=settlements,
            postings=postings,
            kills=list(self._reports.values()),
            units=lines_of(self._units_file),
            watch=watch,
            seconds=seconds,
            problems=[],
            by_carrier=by_carrier,
        )
        if not self._in_transactions:
            self._say_what_was_not_recovered(run)
        run.problems += self._problems(run, rows)
        if self._in_transactions:
            run.problems += refused_problems(self.topics.refused, [seen.value for seen in refused], self._stage.input.refused)
        return run

    def _say_what_was_not_recovered(self, run: Run) -> None:
        for report in run.kills:
            for what, ids in (("lost", run.settlements.lost), ("doubled", run.settlements.doubled)):
                those = set(report.kill.flights) & set(ids)
                if those:
                    report.recovery += f"; {len(those)} of its {len(report.kill.flights)} flights are {what}"
            if report.recovery.endswith(" s"):
                report.recovery += "; the worker had lived on, and sent what it held"

    def _problems(self, run: Run, rows: Mapping[str, Sequence[Seen]]) -> list[str]:
        kills = list(self._reports)
        if not self._in_transactions:
            points = [POINTS[self.mode]]
            targets = [kill.target for kill in kills]
            unkilled = [f"{self.mode}: the {each} was not killed" for each in self._targets() if each not in targets]
            return kill_problems(kills, points) + unkilled + comparison_problems(self.mode, run.settlements)
        expected = [POINTS[self.mode], *([] if self._stage.outside else [BROKER_POINT])]
        problems = kill_problems(kills, expected) + run.settlements.problems() + run.postings.problems()
        carriers = {key: total for key, total in self._stage.input.totals.items() if key[0] == "carrier"}
        problems += totals_problems("postings", run.by_carrier, carriers)
        for kill in kills:
            problems += recovery_problems(kill, rows, committed=kill.point == BROKER_POINT)
        return problems + self._undecided

    def _targets(self) -> list[str]:
        return ["worker"] if self._stage.outside else ["broker", "worker"]


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines; none when it is absent."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
