"""The whole demo, one step after the other: what runs when, and what is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

from processes import Children
from report import RESULTS, killed_at, results_row, totals_line, write_report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from runs import Input, KillReport, Run, Stage, WorkerRun, topics_of
from totals import PipelineRun

from pulsar_txn.client import AsyncClient

_LIMIT_SECONDS = {"small": 300.0, "all": 3600.0}
_LIMIT = 900.0


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
    ) -> None:
        self._console = console
        self._folder = folder
        self._selection = selection
        self._outside = outside
        self._prefix = prefix
        self._spark = spark
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )

    async def run(self) -> list[str]:
        """Everything, and the report; returns what is wrong. Raises DemoFailedError when it cannot go on."""
        with self._progress, Children(self._folder) as children:
            known = await asyncio.to_thread(read_input, self._selection)
            stage = Stage(known, children, self._folder, self._say, self._show, self._outside, self._prefix)
            self._say(f"{len(known.truth):,} flights, {known.units} units of {known.batch}")
            async with asyncio.timeout(_LIMIT_SECONDS.get(self._selection, _LIMIT)):
                worker = WorkerRun(stage, "transactional")
                runs = [await worker.run()]
                async with asyncio.TaskGroup() as group:
                    comparing = group.create_task(self._compare(stage))
                    totals = await PipelineRun(stage, worker.url, worker.topics).run() if self._spark else None
                runs += comparing.result()
                if self._outside is not None:
                    await self._clean_up(self._outside)
        problems = [problem for run in [*runs, totals] if run is not None for problem in run.problems]
        write_report(self._folder / "index.html", known, runs, totals, problems)
        reports = [report for run in [*runs, totals] if run is not None for report in run.kills]
        self._console.print(results_table(runs), kills_table(reports))
        if totals is not None:
            self._console.print(totals_line(totals))
        return problems

    async def _clean_up(self, url: str) -> None:
        async with AsyncClient(url) as client:
            for mode in ("transactional", "ack-first", "send-first"):
                await topics_of(self._prefix, mode).forget(client)

    async def _compare(self, stage: Stage) -> list[Run]:
        """On brokers of their own, one after the other, beside the pipeline."""
        return [await WorkerRun(stage, mode).run() for mode in ("ack-first", "send-first")]

    def _say(self, text: str) -> None:
        self._progress.console.print(f"[dim]·[/] {text}", soft_wrap=True)

    def _show(self, name: str, done: int, wanted: int) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=wanted)
        self._progress.update(self._bars[name], completed=done)


def read_input(selection: str) -> Input:
    """The truth; imports pandas, which takes a moment."""
    import truth

    frame = truth.flights_frame(selection)
    columns = ["carrier", "route", "fare_cents", "penalty_cents", "refund_cents", "net_cents"]
    rows = zip(frame.index.tolist(), *(frame[column].tolist() for column in columns), strict=True)
    return Input(selection, {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}, truth.totals(frame))


def results_table(runs: list[Run]) -> Table:
    """A line per run."""
    table = Table(title="results", title_justify="left")
    for heading in RESULTS:
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for run in runs:
        table.add_row(*results_row(run))
    return table


def kills_table(reports: list[KillReport]) -> Table:
    """A line per kill."""
    table = Table(title="kills", title_justify="left", show_lines=True)
    for heading, ratio in (("run", 2), ("SIGKILL at", 3), ("in flight", 6), ("what recovery did", 7)):
        table.add_column(heading, overflow="fold", ratio=ratio)
    for report in reports:
        table.add_row(report.run, killed_at(report.kill), report.kill.describe(), report.recovery)
    return table
