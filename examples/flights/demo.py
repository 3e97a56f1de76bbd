"""The whole demo, one step after the other: what runs when, and what is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

from main_job import MainJob
from main_result import MainResult
from processes import Children, DemoFailedError
from report import RESULTS, killed_at, main_lines, main_row, results_row, write_report
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from runs import Input, KillReport, Run, Stage, WorkerRun, topics_of

from pulsar_txn.client import AsyncClient

_LIMIT_SECONDS = {"all": 3600.0}
_LIMIT = 1200.0


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
        self._progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )

    async def run(self) -> list[str]:
        """Everything, and the report; returns what is wrong. Raises DemoFailedError when it cannot go on."""
        with self._progress, Children(self._folder) as children:
            known = await asyncio.to_thread(read_input, self._selection)
            stage = Stage(known, children, self._folder, self._say, self._show, self._outside, self._prefix)
            self._say(f"{known.flights:,} flights; seed {self._seed} chooses the random moments")
            main, runs = await self._scenes(stage)
        problems = [problem for run in [main, *runs] if run is not None for problem in run.problems]
        write_report(self._folder / "index.html", known, main, runs, problems)
        self._print(main, runs)
        return problems

    async def _scenes(self, stage: Stage) -> tuple[MainResult | None, list[Run]]:
        limit = _LIMIT_SECONDS.get(self._selection, _LIMIT)
        settled = asyncio.Event()
        try:
            async with asyncio.timeout(limit):
                async with asyncio.TaskGroup() as group:
                    main = group.create_task(MainJob(stage, self._seed, settled).run()) if self._spark else None
                    if main is not None:
                        await settled.wait()
                    runs = group.create_task(self._workers(stage))  # while Spark is on its way out
                if self._outside is not None:
                    await self._clean_up(self._outside)
        except TimeoutError:
            raise DemoFailedError(f"not finished after {limit:.0f} s; the logs are in {self._folder}") from None
        return None if main is None else main.result(), runs.result()

    async def _workers(self, stage: Stage) -> list[Run]:
        """With transactions, and beside it the two runs without. Each has a broker of its own, and waits more than it works."""
        modes = ("transactional", "ack-first", "send-first")
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(WorkerRun(stage, mode).run()) for mode in modes]
        return [run.result() for run in runs]

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
        self._progress.console.print(f"[dim]·[/] {text}", soft_wrap=True)

    def _show(self, name: str, done: int, wanted: int) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=wanted)
        self._progress.update(self._bars[name], completed=done)


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
