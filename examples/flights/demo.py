"""The whole demo, one step after the other: what runs when, and what is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

from main_job import MainJob
from main_result import MainResult
from patience import Patience
from processes import Children, DemoFailedError
from report import RESULTS, Early, killed_at, main_lines, main_row, results_row, write_report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from runs import Input, KillReport, Run, Stage, WorkerRun, topics_of

from pulsar_txn.client import AsyncClient

_POLL_SECONDS = 1.0


class Demo:
    """Run it once. `outside`: the service URL of a cluster that is not ours."""

    def __init__(
        self,
        console: Console,
        folder: Path,
        selection: str,
        *,
        outside: str | None = None,
        prefix: str = "",
        spark: bool = True,
        seed: int = 0,
    ) -> None:
        self._console = console
        self._folder = folder
        self._selection = selection
        self._outside = outside
        self._prefix = prefix
        self._spark = spark
        self._seed = seed
        self._bars: dict[str, TaskID] = {}
        self._shown: dict[str, tuple[int, int]] = {}
        self._said: list[str] = []
        self._jobs: list[MainJob | WorkerRun] = []
        self._main: MainResult | None = None
        self._runs: list[Run] = []
        self._progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )

    async def run(self) -> list[str]:
        """Everything, and the report; returns what is wrong. Raises DemoFailedError when it cannot go on."""
        with self._progress, Children(self._folder) as children:
            known = await asyncio.to_thread(read_input, self._selection)
            stage = Stage(known, children, self._folder, self._say, self._show, self._outside, self._prefix)
            self._say(f"{known.flights:,} flights; seed {self._seed} chooses the random moments")
            try:
                await self._watched(stage)
            except BaseException as error:
                self._report(known, _reasons(error))
                raise
        main, runs = self._main, self._runs
        problems = self._report(known, [])
        self._print(main, runs)
        return problems

    def _report(self, known: Input, stopped: list[str]) -> list[str]:
        """Write down what has happened, also when that is not all; returns what is wrong. `stopped`: why it ended early."""
        found = [run for run in [self._main, *self._runs] if run is not None]
        problems = [*stopped, *(problem for run in found for problem in run.problems)]
        early = None
        if stopped:
            kills = [report for job in self._jobs for report in job.kills]
            early = Early(
                [f"{name}: {done:,} of {wanted:,}" for name, (done, wanted) in self._shown.items()], self._said, kills
            )
        write_report(self._folder / "index.html", known, self._main, self._runs, problems, early)
        return problems

    async def _watched(self, stage: Stage) -> None:
        """The scenes. DemoFailedError when nothing moves any more."""
        patience = Patience(lambda: (dict(self._shown), len(self._said)))
        scenes = asyncio.ensure_future(self._scenes(stage))
        try:
            what = f"the demo stands still; the logs are in {self._folder}"
            await patience.until(scenes.done, lambda: what, _POLL_SECONDS)
        finally:
            scenes.cancel()
            await asyncio.wait([scenes])
        scenes.result()

    async def _scenes(self, stage: Stage) -> None:
        settled = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            if self._spark:
                group.create_task(self._main_job(stage, settled))
                await settled.wait()
            group.create_task(self._workers(stage))  # while Spark is on its way out
        if self._outside is not None:
            await self._clean_up(self._outside)

    async def _main_job(self, stage: Stage, settled: asyncio.Event) -> None:
        job = MainJob(stage, self._seed, settled)
        self._jobs.append(job)
        self._main = await job.run()

    async def _workers(self, stage: Stage) -> None:
        """With transactions, and beside it the two runs without. Each has a broker of its own, and waits more than it works."""
        jobs = [WorkerRun(stage, mode) for mode in ("transactional", "ack-first", "send-first")]
        self._jobs += jobs
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(job.run()) for job in jobs]
        self._runs = [run.result() for run in runs]

    async def _clean_up(self, url: str) -> None:
        async with AsyncClient(url) as client:
            for mode in ("transactional", "ack-first", "send-first"):
                await topics_of(self._prefix, mode).forget(client)
            if self._spark:
                await topics_of(self._prefix, "main").forget(client, spark=True)

    def _print(self, main: MainResult | None, runs: list[Run]) -> None:
        reports = [report for run in [main, *runs] if run is not None for report in run.kills]
        self._console.print(results_table(main, runs), kills_table(reports))
        for line in main_lines(main) if main is not None else []:
            self._console.print(f"[dim]·[/] {line}", soft_wrap=True)

    def _say(self, text: str) -> None:
        self._said.append(text)
        self._progress.console.print(f"[dim]·[/] {text}", soft_wrap=True)

    def _show(self, name: str, done: int, wanted: int) -> None:
        self._shown[name] = (done, wanted)
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=wanted)
        self._progress.update(self._bars[name], completed=done)


def _reasons(error: BaseException) -> list[str]:
    """Why the demo has ended early."""
    if isinstance(error, BaseExceptionGroup):
        return [reason for each in error.exceptions for reason in _reasons(each)]
    if isinstance(error, asyncio.CancelledError):
        return ["interrupted"]
    return [str(error) if isinstance(error, DemoFailedError) else repr(error)]


def read_input(selection: str) -> Input:
    """The truth; imports pandas, which takes a moment."""
    import truth

    frame = truth.flights_frame(selection)
    settled = frame[~frame["refused"]]
    columns = ["carrier", "route", "fare_cents", "penalty_cents", "refund_cents", "net_cents"]
    rows = zip(settled.index.tolist(), *(settled[column].tolist() for column in columns), strict=True)
    known = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}
    return Input(selection, known, truth.totals(frame), frozenset(frame.index[frame["refused"]].tolist()))


def results_table(main: MainResult | None, runs: list[Run]) -> Table:
    """A line per run."""
    table = Table(title="results", title_justify="left")
    for heading in RESULTS:
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for row in [*([main_row(main)] if main is not None else []), *map(results_row, runs)]:
        table.add_row(*row)
    return table


def kills_table(reports: list[KillReport]) -> Table:
    """A line per kill."""
    table = Table(title="kills", title_justify="left", show_lines=True)
    for heading, ratio in (("run", 2), ("SIGKILL", 3), ("in flight", 6), ("what recovery did", 7)):
        table.add_column(heading, overflow="fold", ratio=ratio)
    for report in reports:
        table.add_row(report.run, killed_at(report.kill), report.kill.describe(), report.recovery)
    return table
