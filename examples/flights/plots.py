"""The plots of the worker's runs, as SVG text that a page can hold; see `hover` for what they are made with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hover import Plot
from runs import Input, Run

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
    plot = Plot("entries of the topic settlements", begin_ms=_begin(run))
    ends: list[int] = []
    for _, position in stored:
        ends.append(max(line.number(position), ends[-1] if ends else 0))
    plot.steps([ms for ms, _ in stored], ends, "end of the log (receipts)", "#7f8c8d", "{:,} entries are stored")
    reads = run.watch.max_read
    numbers = [line.number(each) for _, each in reads]
    plot.line([ms for ms, _ in reads], numbers, "maxReadPosition", "#1f77b4", "readers see {:,} entries")
    plot.kills([report.kill for report in run.kills])
    return plot.svg("lower right")


def transactions_plot(run: Run) -> str:
    """Each unit of work: when it began and how long it took; the units that a kill cut off are the dotted lines."""
    plot = Plot("milliseconds, from begin to commit", begin_ms=_begin(run))
    for outcome, colour in (("committed", "#1f77b4"), ("aborted", "#c0392b")):
        units = [unit for unit in run.units if (unit["outcome"] == "done") == (outcome == "committed")]
        if units:
            took = [max(1, unit["end_ms"] - unit["begin_ms"]) for unit in units]
            tips = [
                f"transaction {unit['txn_id']}: {unit['flights']} flights, {outcome} after {each} ms"
                for unit, each in zip(units, took, strict=True)
            ]
            plot.points([unit["begin_ms"] for unit in units], took, tips, f"{len(units)} {outcome}", colour, size=12)
    plot.axes.set_yscale("log")
    plot.axes.set_xlim(left=0)
    plot.kills([report.kill for report in run.kills])
    return plot.svg("upper right")


def progress_plot(runs: Sequence[Run], known: Input) -> str:
    """Flights that a reader has seen, in each run; the dotted lines are its kills."""
    plot = Plot("different flights that a reader has seen")
    for run in runs:
        begin, colour = _begin(run), _RUN_COLOURS[run.name]
        seen = [number for _, number in run.watch.arrived]
        plot.line([ms - begin for ms, _ in run.watch.arrived], seen, run.name, colour, f"{run.name}: {{:,}} flights")
        plot.kills([report.kill for report in run.kills], since_ms=begin, colour=colour)
    plot.axes.axhline(known.flights, color="black", linestyle="--", linewidth=0.8, label="all flights")
    return plot.svg("lower right")


def totals_plot(found: Sequence[tuple[str, dict[tuple[str, str], tuple[int, int]]]], known: Input) -> str:
    """How far each carrier's total is from the truth, in each run (`found`: its name, and totals by dimension and key)."""
    truth = {key: total for key, total in known.totals.items() if key[0] == "carrier"}
    keys = sorted(truth)
    plot = Plot("dollars too many or too few", "carrier")
    width = 0.8 / len(found)
    for number, (name, totals) in enumerate(found):
        off = [(totals.get(key, (0, 0))[1] - truth[key][1]) / 100 for key in keys]
        label = f"{name}: {'exact' if not any(off) else 'wrong'}"
        places = [place + number * width for place in range(len(keys))]
        tips = [f"{name}, carrier {key[1]}: {each:+,.2f} dollars" for key, each in zip(keys, off, strict=True)]
        plot.bars(places, off, tips, label, _RUN_COLOURS.get(name, "#2e8b57"), width)
    plot.axes.set_xticks([place + 0.4 for place in range(len(keys))], [key[1] for key in keys])
    plot.axes.axhline(0, color="black", linewidth=0.8)
    return plot.svg("best")


def _begin(run: Run) -> int:
    times = [*(unit["begin_ms"] for unit in run.units), *(ms for ms, _ in run.watch.max_read)]
    return min(times, default=0)
