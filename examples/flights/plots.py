"""The plots of the report, as SVG text that a page can hold."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crash import Kill
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from runs import Input, Run
from totals import TotalsRun

_KILL_COLOURS = {"broker": "#c0392b", "worker": "#8e44ad", "pipeline": "#d35400"}
_RUN_COLOURS = {"transactional": "#1f77b4", "ack-first": "#c0392b", "send-first": "#e08e0b"}


class Line:
    """Positions `(ledger, entry)` of one topic as numbers of entries from its start, over several ledgers."""

    def __init__(self, positions: Iterable[tuple[int, int]]) -> None:
        ends: dict[int, int] = {}
        for ledger, entry in positions:
            if entry >= 0:
                ends[ledger] = max(ends.get(ledger, 0), entry + 1)
        self._base: dict[int, int] = {}
        total = 0
        for ledger in sorted(ends):
            self._base[ledger] = total
            total += ends[ledger]

    def number(self, position: tuple[int, int]) -> int:
        """How many entries there are up to and with `position`; 0 before the first."""
        ledger, entry = position
        return self._base.get(ledger, 0) + entry + 1 if entry >= 0 else 0


def end_of_log(run: Run) -> list[tuple[int, tuple[int, int]]]:
    """When which position of `settlements` was confirmed as stored, by the receipts that the workers got."""
    units = [*run.units, *(report.kill.in_flight for report in run.kills)]
    return sorted((unit["stored_ms"], tuple(unit["stored"])) for unit in units if unit.get("stored"))


def positions_plot(run: Run) -> str:
    """maxReadPosition against the end of the log: what an open transaction holds back, and what a restart brings back."""
    stored = end_of_log(run)
    line = Line([position for _, position in [*stored, *run.watch.max_read]])
    begin = _begin(run)
    figure, axes = _figure("entries of the topic settlements")
    ends: list[int] = []
    for _, position in stored:
        ends.append(max(line.number(position), ends[-1] if ends else 0))
    times = [(ms - begin) / 1000 for ms, _ in stored]
    axes.step(times, ends, where="post", color="#7f8c8d", label="end of the log (receipts)")
    reads = run.watch.max_read
    axes.plot(
        [(ms - begin) / 1000 for ms, _ in reads],
        [line.number(each) for _, each in reads],
        color="#1f77b4",
        label="maxReadPosition",
    )
    _mark_kills(axes, [report.kill for report in run.kills], begin)
    axes.legend(loc="lower right")
    return _svg(figure)


def transactions_plot(run: Run) -> str:
    """Each unit of work: when it began and how long it took; the units that a kill cut off are the dotted lines."""
    begin = _begin(run)
    figure, axes = _figure("milliseconds, from begin to commit")
    for outcome, colour in (("done", "#1f77b4"), ("aborted", "#c0392b")):
        units = [unit for unit in run.units if (unit["outcome"] == "done") == (outcome == "done")]
        if units:
            times = [(unit["begin_ms"] - begin) / 1000 for unit in units]
            took = [max(1, unit["end_ms"] - unit["begin_ms"]) for unit in units]
            name = "committed" if outcome == "done" else "aborted"
            axes.scatter(times, took, s=12, color=colour, label=f"{len(units)} {name}")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    _mark_kills(axes, [report.kill for report in run.kills], begin)
    axes.legend(loc="upper right")
    return _svg(figure)


def progress_plot(runs: Sequence[Run], known: Input) -> str:
    """Flights that a reader has seen, in each run."""
    figure, axes = _figure("different flights in settlements")
    for run in runs:
        begin = _begin(run)
        times = [(ms - begin) / 1000 for ms, _ in run.watch.arrived]
        axes.plot(times, [seen for _, seen in run.watch.arrived], label=run.name, color=_RUN_COLOURS[run.name])
        for report in run.kills:
            axes.axvline((report.kill.time_ms - begin) / 1000, color=_RUN_COLOURS[run.name], linestyle=":", linewidth=0.9)
    axes.axhline(len(known.truth), color="black", linestyle="--", linewidth=0.8, label="truth")
    axes.legend(loc="lower right")
    return _svg(figure)


def totals_plot(runs: Sequence[Run], known: Input) -> str:
    """How far each carrier's total is from the truth, in each run."""
    truth = {key: total for key, total in known.totals.items() if key[0] == "carrier"}
    keys = sorted(truth)
    figure, axes = _figure("dollars too many or too few", "carrier")
    width = 0.8 / len(runs)
    for number, run in enumerate(runs):
        off = [(run.by_carrier.get(key, (0, 0))[1] - truth[key][1]) / 100 for key in keys]
        label = f"{run.name}: {'exact' if not any(off) else 'wrong'}"
        axes.bar([place + number * width for place in range(len(keys))], off, width, label=label, color=_RUN_COLOURS[run.name])
    axes.set_xticks([place + 0.4 for place in range(len(keys))], [key[1] for key in keys])
    axes.axhline(0, color="black", linewidth=0.8)
    axes.legend()
    return _svg(figure)


def batches_plot(run: TotalsRun) -> str:
    """When a reader saw which micro-batch in which topic."""
    first = [ms for seen in run.arrivals.values() for ms in seen.values()] + [report.kill.time_ms for report in run.kills]
    begin = min(first, default=0)
    figure, axes = _figure("micro-batch", "seconds since the first one")
    for (dimension, seen), marker in zip(run.arrivals.items(), "ox", strict=True):
        axes.plot(
            [(ms - begin) / 1000 for ms in seen.values()],
            list(seen),
            marker,
            markersize=8,
            fillstyle="none",
            label=f"totals-{dimension}",
        )
    _mark_kills(axes, [report.kill for report in run.kills], begin)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="lower right")
    return _svg(figure)


def _begin(run: Run) -> int:
    times = [*(unit["begin_ms"] for unit in run.units), *(ms for ms, _ in run.watch.max_read)]
    return min(times, default=0)


def _mark_kills(axes: Axes, kills: Sequence[Kill], begin: int) -> None:
    for kill in kills:
        at = (kill.time_ms - begin) / 1000
        axes.axvline(at, color=_KILL_COLOURS.get(kill.target, "black"), linestyle=":", linewidth=1.2)
        axes.annotate(
            f" {kill.target} killed",
            (at, 0.02),
            xycoords=("data", "axes fraction"),
            color=_KILL_COLOURS.get(kill.target),
            fontsize=8,
        )


def _figure(up: str, across: str = "seconds") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25)
    return figure, axes


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    metadata: Mapping[str, Any] = {"Date": None}
    figure.savefig(text, format="svg", metadata=metadata)
    return text.getvalue()[text.getvalue().index("<svg") :]
