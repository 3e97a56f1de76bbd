"""The run of the main job: flights come in all the time, Spark settles them, and whoever is there is killed again and again."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Final

from chaos import ENDING_POINT, UNENDED_POINT, Chaos, armed, broker_armed, schedule
from crash import BROKER_POINT, Kill, read_log
from main_result import Found, MainResult
from patience import Patience
from processes import Broker, Child, Supervisor
from runs import KillReport, Stage, lines_of, topics_of
from watch import Arrival, Seen, follow_batches, publish_times, read_topic

from pulsar_txn.client import AsyncClient, TransactionState

_SECONDS: Final = {"small": 40.0, "all": 150.0}
_SECONDS_OF_A_MONTH: Final = 75.0
"""About how long flights come in: the publisher's rate follows from it."""


class MainJob:
    """One run over all flights, on a broker of its own (or `stage.outside`)."""

    def __init__(self, stage: Stage, seed: int, settled: asyncio.Event) -> None:
        """`settled` is set when readers have everything; the processes end after that."""
        self._stage = stage
        self._settled = settled
        self._seed = seed
        self._folder = stage.folder
        self.topics = topics_of(stage.prefix, "main")
        self._log = stage.folder / "main.crashes.jsonl"
        self._events = stage.folder / "main.events.jsonl"
        self._finish = stage.folder / "main.finish"
        self._supervisor = Supervisor(self._log, self._killed, self._restarted)
        self._reports: dict[Kill, KillReport] = {}
        self._arrivals: dict[str, dict[int, Arrival]] = {}
        self._client: AsyncClient
        self._broker: Broker | None = None
        self._undecided: list[str] = []
        self._plan = schedule(stage.input.selection, our_broker=stage.outside is None)

    async def run(self) -> MainResult:
        """Everything. Raises DemoFailedError when it cannot go on; what is merely wrong is among the problems."""
        begin = time.monotonic()
        url = await self._start_broker()
        async with AsyncClient(url, operation_timeout=60.0, max_backoff=1.0) as client:
            self._client = client
            await self.topics.prepare(client)
            await self._work(url)
            rows = {topic: await read_topic(client, topic) for topic in self._all_topics()}
            await self._tell_recoveries(rows)
            published = await publish_times(client, self.topics.flights)
        return self._result(rows, published, time.monotonic() - begin)

    def _all_topics(self) -> list[str]:
        return [*self.topics.settled, *self.topics.totals.values()]

    # --- the processes ----------------------------------------------------------------------------------------------

    async def _start_broker(self) -> str:
        if self._stage.outside is not None:
            return self._stage.outside
        env = {"PULSAR_TXN_CRASH_POINT": BROKER_POINT, "PULSAR_TXN_CRASH_LOG": str(self._log)}
        env["PULSAR_TXN_CRASH_AFTER"] = str(broker_armed(self._log))
        self._broker = Broker(self._stage.children, "broker-main", self._folder, env)
        seconds = await self._broker.start()
        self._stage.say(f"main job: broker ready at {self._broker.url} in {seconds:.1f} s")
        return self._broker.url

    async def _work(self, url: str) -> None:
        publisher, job = self._publisher(url), self._job(url)
        chaos = Chaos(self._plan, self._log, job, self._broker, self._newest, random.Random(self._seed))  # moments, not secrets
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self._follow(topic)) for topic in self._all_topics()]
            background.append(group.create_task(self._show()))
            background.append(group.create_task(self._note_executors()))
            if self._broker is not None:
                background.append(group.create_task(self._supervisor.keep(self._broker.child, self._broker.start)))
            publisher.start()
            job.start()
            self._stage.say("main job: Spark is starting; it takes a driver, two executors and a few seconds")
            working = group.create_task(self._supervisor.keep(job))
            await chaos.run()
            self._stage.say("main job: no more kills; the remaining flights are settled")
            self._finish.touch()
            await self._supervisor.keep(publisher)
            await self._until_all_is_seen()
            self._settled.set()
            job.signal(signal.SIGTERM)
            await working
            for task in background:
                task.cancel()

    def _publisher(self, url: str) -> Child:
        selection = self._stage.input.selection
        rate = self._stage.input.flights / _SECONDS.get(selection, _SECONDS_OF_A_MONTH)
        arguments = ["--url", url, "--prefix", self.topics.prefix, "--flights", selection, "--entry", "40"]
        arguments += ["--rate", f"{rate:.1f}", "--finish", str(self._finish)]
        return self._stage.children.program("publisher-main", "publisher.py", arguments)

    def _job(self, url: str) -> Child:
        env = {"PULSAR_TXN_CRASH_NOW": str(armed(self._log)), "PULSAR_TXN_CRASH_LOG": str(self._log)}
        arguments = ["--url", url, "--prefix", self.topics.prefix, "--scratch", str(self._folder / "spark")]
        arguments += ["--events", str(self._events), "--sink", "pulsar_armed"]
        return self._stage.children.program("driver", "job.py", arguments, env)

    # --- what readers see while it runs -----------------------------------------------------------------------------

    async def _follow(self, topic: str) -> None:
        await follow_batches(self._client, topic, self._arrivals.setdefault(topic, {}))

    def _newest(self) -> int:
        return max(self._arrivals.get(self.topics.settlements, ()), default=-1)

    def _seen(self, topic: str) -> int:
        return sum(arrival.rows for arrival in self._arrivals.get(topic, {}).values())

    def _settled_flights(self) -> int:
        return self._seen(self.topics.settlements) + self._seen(self.topics.refused)

    async def _show(self) -> None:
        while True:
            self._stage.progress("Spark settles", self._settled_flights(), self._stage.input.flights)
            await asyncio.sleep(0.1)

    async def _until_all_is_seen(self) -> None:
        """Until readers have every flight, and totals over as many; the checks say what is missing otherwise."""
        summed = 0
        patience = Patience(lambda: (summed, self._settled_flights(), self._newest()))
        while not patience.is_over():
            summed = await self._summed()
            if self._settled_flights() >= self._stage.input.flights and summed >= len(self._stage.input.truth):
                return
            await asyncio.sleep(0.2)

    async def _summed(self) -> int:
        """How many flights the newest totals by carrier count."""
        rows = await read_topic(self._client, self.topics.totals["carrier"])
        newest = max((row.batch_id or 0 for row in rows), default=-1)
        return sum(row.value["flights"] for row in rows if row.batch_id == newest)

    # --- kills ------------------------------------------------------------------------------------------------------

    async def _note_executors(self) -> None:
        """Spark replaces executors by itself, so no supervisor asks for them: read their kills from the log."""
        while True:
            for kill in read_log(self._log):
                if kill.target == "executor" and kill not in self._reports:
                    await self._killed(kill)
                    self._reports[kill].recovery = "Spark put another one in its place, and ran its tasks again"
            await asyncio.sleep(0.1)

    async def _killed(self, kill: Kill) -> None:
        self._reports[kill] = KillReport("main job", kill)
        self._stage.say(f"main job: {_who(kill)} killed at {kill.point}: {kill.describe() or 'NOTHING in flight'}")

    async def _restarted(self, kill: Kill, seconds: float) -> None:
        report = self._reports[kill]
        report.restart_seconds = seconds
        how = "on the same checkpoint" if kill.target == "driver" else f"in {seconds:.1f} s"
        report.recovery = f"started again {how}"
        if kill.point == BROKER_POINT and kill.txn_id is not None:
            await self._ask_for_the_decided(report)

    async def _ask_for_the_decided(self, report: KillReport) -> None:
        state = await self._client.attach_transaction(str(report.kill.txn_id)).resolve()
        report.recovery += f"; asked for {report.kill.txn_id}, it says {state.value}"
        if state is TransactionState.COMMITTED:
            report.recovery += ": the decision was carried out"
        else:
            self._undecided.append(f"{report.kill.point}: {report.recovery}, although COMMITTING was durable")

    async def _tell_recoveries(self, rows: Mapping[str, Sequence[Seen]]) -> None:
        for kill, report in self._reports.items():
            if kill.point == ENDING_POINT:
                await self._tell_ending(report, rows)
            if kill.point == UNENDED_POINT:
                report.recovery += f"; the new run announced itself, aborted {kill.txn_id}, and sent the micro-batch again"
            if (later := self._first_begun_after(kill.time_ms)) is not None:
                seconds = (later - kill.time_ms) / 1000
                report.recovery += f"; the next micro-batch begun after the kill was visible {seconds:.1f} s after it"

    async def _tell_ending(self, report: KillReport, rows: Mapping[str, Sequence[Seen]]) -> None:
        kill = report.kill
        batch_id = kill.in_flight["batch_id"]
        found = {str(seen.txn_id) for topic in self.topics.settled for seen in rows[topic] if seen.batch_id == batch_id}
        if found == {kill.txn_id}:
            report.recovery += (
                f"; Spark handed over micro-batch {batch_id} again, its marker on the control topic was recognised, and it was "
                "skipped: all its rows are those of the killed run"
            )
        else:
            report.recovery += f"; micro-batch {batch_id} was published by {', '.join(sorted(found))}"

    def _first_begun_after(self, time_ms: int) -> int | None:
        """When readers had the first micro-batch that cannot have been under way at this time."""
        arrivals = self._arrivals[self.topics.settlements]
        newest = max((number for number, arrival in arrivals.items() if arrival.first_ms <= time_ms), default=-1)
        return min((arrival.first_ms for number, arrival in arrivals.items() if number > newest + 1), default=None)

    @property
    def kills(self) -> list[KillReport]:
        """Those so far."""
        return list(self._reports.values())

    # --- results ----------------------------------------------------------------------------------------------------

    def _result(self, rows: Mapping[str, list[Seen]], published: list[int], seconds: float) -> MainResult:
        kills = self.kills
        found = Found(self.topics, rows, self._arrivals, [report.kill for report in kills])
        return MainResult(
            settlements=found.compared(self.topics.settlements, self._stage.input),
            refused=len(rows[self.topics.refused]),
            by_carrier=found.by_carrier(),
            batches=found.micro_batches(),
            totals_batches=len({seen.batch_id for seen in rows[self.topics.totals["carrier"]]}),
            totals=len(self._stage.input.totals),
            kills=kills,
            published_ms=published,
            events=lines_of(self._events),
            seconds=seconds,
            seed=self._seed,
            our_broker=self._broker is not None,
            problems=found.problems(self._stage.input, self._plan) + self._undecided,
        )


def _who(kill: Kill) -> str:
    return {"driver": "Spark's driver", "executor": "an executor", "broker": "the broker"}[kill.target]
