"""The plots of the main job: how flights flow through it while it is hit."""

from __future__ import annotations

from collections import Counter
from statistics import median

from hover import Plot
from main_result import MainResult, MicroBatch

_IN, _OUT = "#7f8c8d", "#2e8b57"


def flow_plot(run: MainResult) -> str:
    """Flights published, and flights that readers see settled or refused: the distance is what is under way."""
    plot = Plot("flights", begin_ms=begin_ms(run))
    every = max(1, len(run.published_ms) // 1000)
    times = run.published_ms[::every]
    plot.line(times, [every * number for number in range(len(times))], "published", _IN, "{:,} flights published")
    visible = run.visible
    plot.steps([ms for ms, _ in visible], [count for _, count in visible], "visible", _OUT, "{:,} flights visible")
    return _with_kills(plot, run).svg("lower right")


def rate_plot(run: MainResult) -> str:
    """Flights per second, in and out; what waited during a restart comes out at once after it."""
    begin = begin_ms(run)
    coming = Counter((ms - begin) // 1000 for ms in run.published_ms)
    going: Counter[int] = Counter()
    for batch in run.batches:
        if batch.visible_ms is not None:
            going[(batch.visible_ms - begin) // 1000] += batch.flights
    plot = Plot("flights in this second")
    seconds = range(max([*coming, *going], default=0) + 1)
    for counted, label, colour, shift in ((coming, "published", _IN, 0.25), (going, "became visible", _OUT, 0.65)):
        shown = [second for second in seconds if counted[second]]
        tips = [f"second {second}: {counted[second]:,} flights {label}" for second in shown]
        plot.bars([second + shift for second in shown], [counted[second] for second in shown], tips, label, colour, 0.4)
    plot.kills([report.kill for report in run.kills], since_ms=begin)
    plot.axes.set_xlim(0, _seconds(run))
    return plot.svg("upper right")


def latency_plot(run: MainResult) -> str:
    """Each micro-batch when it became visible: how long its flights had waited since they were published."""
    plot = Plot("seconds from published to visible", begin_ms=begin_ms(run))
    shown = [batch for batch in run.batches if batch.visible_ms is not None and batch.waited_ms]
    times = [batch.visible_ms or 0 for batch in shown]
    for name, pick, colour in (("the flight that waited longest", max, "#e08e0b"), ("half of the flights", median, _OUT)):
        waited = [max(0.001, pick(batch.waited_ms) / 1000) for batch in shown]
        plot.points(times, waited, [describe(batch) for batch in shown], name, colour, size=26)
    plot.axes.set_yscale("log")
    return _with_kills(plot, run).svg("upper right")


def _with_kills(plot: Plot, run: MainResult) -> Plot:
    """All plots of the main job have the same seconds across."""
    plot.kills([report.kill for report in run.kills])
    plot.axes.set_xlim(0, _seconds(run))
    return plot


def _seconds(run: MainResult) -> float:
    last = max([*run.published_ms, *(ms for ms, _ in run.visible)], default=0)
    return max(1.0, (last - begin_ms(run)) / 1000 * 1.02)


def describe(batch: MicroBatch) -> str:
    """A micro-batch and its transaction in a line."""
    waited = f", half of them within {median(batch.waited_ms) / 1000:.1f} s" if batch.waited_ms else ""
    return f"micro-batch {batch.number}, transaction {batch.txn_id}: {batch.flights:,} flights{waited}"


def begin_ms(run: MainResult) -> int:
    """When the first flight was published."""
    return min(run.published_ms, default=0)
