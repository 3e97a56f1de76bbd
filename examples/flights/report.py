"""The report: one HTML file with everything in it, for somebody who knows neither Pulsar nor this project."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import attrs
import main_plots
import plots
from checks import Findings, cents
from crash import Kill
from main_result import MainResult, MicroBatch
from processes import HERE
from runs import Input, KillReport, Run

_STYLE: Final = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { border: 1px solid #ccc; padding: .25rem .6rem; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { background: #f4f4f4; text-align: left }
.ok { color: #1e7e34 } .bad { color: #c0392b } code { background: #f4f4f4 }
#tip { position: fixed; display: none; background: #222; color: #fff; padding: .3rem .6rem; border-radius: 4px; font-size: 13px;
  max-width: 26rem; pointer-events: none; z-index: 9 }
summary { cursor: pointer } .drawing { overflow-x: auto } .drawing svg { width: 100%; min-width: 44rem; height: auto }
.told td { min-width: 9rem }
.drawing svg * { pointer-events: none } .drawing svg [data-tip], .drawing svg [data-tip] * { pointer-events: all }
"""

_SCRIPT: Final = """
const box = document.getElementById("tip");
document.addEventListener("mousemove", (event) => {
  const told = event.target.closest("[data-tip]");
  box.style.display = told ? "block" : "none";
  if (!told) return;
  box.textContent = told.dataset.tip;
  const left = event.clientX + 14, over = left + box.offsetWidth - document.documentElement.clientWidth;
  box.style.left = Math.max(0, over > 0 ? left - over : left) + "px";
  box.style.top = event.clientY + 18 + "px";
});
for (const title of document.querySelectorAll("svg title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
"""
"""Shows at once, beside the mouse, what browsers show of a `<title>` after a while; without it they still do."""

_INTRODUCTION: Final = """
Flights come in as messages of <b>Apache Pulsar</b>, a server (a <i>broker</i>) that keeps messages in named topics.
<b>Spark</b> takes all flights that are new, about once a second, and calculates what each of them earned and cost;
it calls such a portion a <i>micro-batch</i>, and writes the results to three topics.
All that a micro-batch writes is one <b>transaction</b>: readers see all of it from one moment on, or nothing of it, ever.
While this goes on, the demo kills the programs that do the work, at the worst moments and at random ones; whoever was
killed is started again and goes on.
At the end every flight must be settled exactly once, and every total right to the cent; the truth comes from the same
input, by other code, in pandas.
"""

_ON_TRUTH: Final = """
<p>The truth comes straight from the input, by columns in pandas, in code that shares nothing with Spark's job or the worker.
Move the mouse over a plot: its points, bars and dotted lines say what they are.</p>
"""

_ON_WAITING: Final = """
<p>From the moment at which a flight is published to the one at which a reader has its settlement. Each micro-batch has two
points.</p>
"""

_ON_THE_WORKER: Final = """
<p>A program of the client library takes flights and settles them by the same rules. Its transaction holds the results and
the acknowledgements of the flights. It is killed in the middle of one, and so is its broker.</p>
"""

_ON_THE_COUNTER_RUNS: Final = """
<p>The same kills, at the same place in a unit of work. <code>ack-first</code> acknowledges flights before it sends their
results: what is killed in between is lost. <code>send-first</code> sends before it acknowledges: that is done twice.</p>
"""

_HELD_BACK: Final = (
    "Readers see a topic only up to the first message of the oldest transaction that is still open; Pulsar calls this place "
    "maxReadPosition. A killed worker's open transaction therefore holds all readers back until its timeout of five seconds "
    "aborts it. Then everything after it appears at once."
)

_SHOWN_AT_ONCE: Final = 40

RESULTS: Final = ("run", "settled", "lost", "doubled", "net total", "truth", "kills", "commits", "aborts", "s")


def results_row(run: Run) -> list[str]:
    """What the tables say of a worker's run, under `RESULTS`."""
    ends = (str(run.transactions), str(run.aborts)) if run.transactions else ("-", "-")
    return [*_found(run.name, run.settlements), str(len(run.kills)), *ends, f"{run.seconds:.1f}"]


def main_row(run: MainResult) -> list[str]:
    """The same of the main job; a micro-batch is committed in one transaction."""
    found = _found("main job on Spark", run.settlements)
    return [*found, str(len(run.kills)), str(len(run.batches)), "-", f"{run.seconds:.1f}"]


def _found(name: str, found: Findings) -> list[str]:
    counts = [f"{found.messages:,}", f"{len(found.lost):,}", f"{len(found.doubled):,}"]
    return [name, *counts, cents(found.cents), cents(found.truth_cents)]


def killed_at(kill: Kill) -> str:
    """The point, and who died there."""
    return kill.point if kill.point.startswith(kill.target) else f"{kill.target} at {kill.point}"


def main_lines(run: MainResult) -> list[str]:
    """The numbers of the main job, a sentence each."""
    visible = run.visible
    seconds = (visible[-1][0] - main_plots.begin_ms(run)) / 1000 if visible else 0.0
    flights = visible[-1][1] if visible else 0
    pace = f"{flights / max(seconds, 1):,.0f} flights a second from the first one published to the last one visible"
    lines = [f"{flights:,} flights in {len(run.batches)} micro-batches; each is one transaction over three topics."]
    lines.append(f"{run.refused} of them were refused, as the rules say.")
    lines.append(f"{pace} ({seconds:.0f} s, with all kills in it); the publisher sends no faster.")
    if (fastest := _fastest(run)) is not None:
        lines.append(fastest)
    waited = sorted(each for batch in run.batches for each in batch.waited_ms)
    if len(waited) > 1:
        half, late, longest = (each / 1000 for each in (median(waited), quantiles(waited, n=20)[-1], waited[-1]))
        lines.append(
            f"From published to visible: half of the flights within {half:.1f} s, 95 % within {late:.1f} s, all within "
            f"{longest:.1f} s. The long ones waited for a start of Spark."
        )
    lines.append(f"{run.totals} totals by carrier and route, written again in {run.totals_batches} micro-batches of query 2.")
    failed = sum(event["what"] == "failed" for event in run.events)
    how = f"{failed} times a query ended with an error, and was started again on its checkpoint" if failed else ""
    lines.append(f"Apart from the kills of the driver, {how or 'no query ended with an error'}.")
    lines.append(f"The random moments come from seed {run.seed}; --seed {run.seed} chooses them again.")
    if not run.our_broker:
        lines.append("The broker of --pulsar-url was not killed.")
    return lines


def _fastest(run: MainResult) -> str | None:
    """What Spark does in a second when enough flights wait."""
    known = [event for event in run.events if event["what"] == "batch" and event["query"] == "settle" and event["took_ms"]]
    fastest = max(known, key=lambda event: event["rows"] / event["took_ms"], default=None)
    if fastest is None:
        return None
    written = next((sum(batch.rows.values()) for batch in run.batches if batch.number == fastest["batch"]), 0)
    took = fastest["took_ms"] / 1000
    return (
        f"The fastest micro-batch, number {fastest['batch']}: {fastest['rows']:,} flights read, {written:,} rows written and "
        f"committed in {took:.1f} s; {written / took:,.0f} rows a second."
    )


@attrs.frozen
class Early:
    """What there is to tell of a demo that ended before its checks: how far each run was, what was said, and who was killed."""

    progress: Sequence[str]
    said: Sequence[str]
    kills: Sequence[KillReport]


def write_report(
    path: Path,
    known: Input,
    main: MainResult | None,
    runs: Sequence[Run],
    problems: Sequence[str],
    early: Early | None = None,
) -> None:
    """Write it. All checks are done, or with `early` those of the runs that had ended."""
    verdict = "All totals agree to the cent." if not problems else f"{len(problems)} checks failed."
    if early is not None:
        verdict = "The demo did not finish. This is what happened until then."
    picture = _drawing((HERE / "pipeline.svg").read_text(encoding="utf-8"))
    parts = [
        f"<h1>{known.flights:,} flights, settled in transactions</h1>",
        f"<p>{_INTRODUCTION}</p>",
        picture,
        f'<p class="{"bad" if problems else "ok"}"><b>{verdict}</b></p>',
        _list(problems, "bad"),
        _table(RESULTS, [*([main_row(main)] if main is not None else []), *map(results_row, runs)]),
        _ON_TRUTH,
    ]
    if early is not None:
        parts += _early_scene(early)
    if main is not None:
        parts += _main_scene(main)
    if runs:
        parts += _worker_scene(runs[0])
        parts += _counter_scene(main, runs, known)
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    page = f"{head}<title>pulsar-txn demo</title><style>{_STYLE}</style></head><body>"
    end = f'<div id="tip"></div><script>{_SCRIPT}</script></body></html>\n'
    path.write_text(page + "\n".join(parts) + end, encoding="utf-8")


def _early_scene(early: Early) -> list[str]:
    return [
        "<h2>How far it came</h2>",
        _list(early.progress),
        "<h3>Kills</h3>",
        _kills(early.kills),
        "<h3>What it said</h3>",
        _list(early.said),
    ]


def _main_scene(main: MainResult) -> list[str]:
    rows = [
        [
            str(batch.number),
            batch.txn_id,
            _second(main, batch),
            *(f"{count:,}" for count in _counts(batch.rows)),
            _waited(batch.waited_ms),
        ]
        for batch in main.batches
    ]
    shown = " open" if len(rows) < _SHOWN_AT_ONCE else ""
    headings = ("micro-batch", "transaction", "visible at second", "settlements", "postings", "refused", "median wait, s")
    return [
        "<h2>1. The main job: Spark settles flights, and is killed</h2>",
        _list(main_lines(main)),
        "<h3>Flights in, flights visible</h3>",
        "<p>The distance between the lines is what is under way. Each dotted line is a SIGKILL.</p>",
        _drawing(main_plots.flow_plot(main)),
        _drawing(main_plots.rate_plot(main)),
        "<h3>How long a flight waits</h3>",
        _ON_WAITING,
        _drawing(main_plots.latency_plot(main)),
        "<h3>Kills</h3>",
        _kills(main.kills),
        "<h3>Micro-batches and their transactions</h3>",
        f"<details{shown}><summary>all {len(rows)}</summary>{_table(headings, rows)}</details>",
    ]


def _worker_scene(run: Run) -> list[str]:
    return [
        "<h2>2. The same rules without Spark: a worker</h2>",
        _ON_THE_WORKER,
        _kills(run.kills),
        "<h3>maxReadPosition and the end of the log</h3>",
        f"<p>{_HELD_BACK}</p>",
        _drawing(plots.positions_plot(run)),
        "<h3>Transactions</h3>",
        _drawing(plots.transactions_plot(run)),
    ]


def _counter_scene(main: MainResult | None, runs: Sequence[Run], known: Input) -> list[str]:
    compared = [*([("main job", main.by_carrier)] if main is not None else []), *((run.name, run.by_carrier) for run in runs)]
    return [
        "<h2>3. The same worker without transactions</h2>",
        _ON_THE_COUNTER_RUNS,
        _kills([report for run in runs[1:] for report in run.kills]),
        _drawing(plots.progress_plot(runs, known)),
        "<h3>Totals by carrier against the truth</h3>",
        _drawing(plots.totals_plot(compared, known)),
        _totals(compared, known),
    ]


def _drawing(svg: str) -> str:
    """On a narrow screen it is moved rather than made too small to read."""
    return f'<div class="drawing">{svg}</div>'


def _counts(rows: dict[str, int]) -> list[int]:
    names = ("settlements", "postings", "refused")
    return [sum(count for topic, count in rows.items() if topic.endswith(name)) for name in names]


def _second(main: MainResult, batch: MicroBatch) -> str:
    return "-" if batch.visible_ms is None else f"{(batch.visible_ms - main_plots.begin_ms(main)) / 1000:.1f}"


def _waited(waited_ms: Sequence[int]) -> str:
    return f"{median(waited_ms) / 1000:.1f}" if waited_ms else "-"


def _kills(reports: Iterable[KillReport]) -> str:
    rows = [[each.run, killed_at(each.kill), each.kill.describe(), each.recovery] for each in reports]
    return _table(("run", "SIGKILL", "in flight", "what recovery did"), rows, numbers=False)


def _totals(compared: Sequence[tuple[str, dict[tuple[str, str], tuple[int, int]]]], known: Input) -> str:
    keys = sorted(key for key in known.totals if key[0] == "carrier")
    rows = []
    for key in keys:
        flights, net = known.totals[key]
        rows.append([key[1], f"{flights:,}", cents(net), *(cents(totals.get(key, (0, 0))[1]) for _, totals in compared)])
    return _table(("carrier", "flights", "truth", *(name for name, _ in compared)), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    kind = ' class="n"' if numbers else ""
    body = "".join(
        f"<tr><td>{escape(row[0])}</td>" + "".join(f"<td{kind}>{escape(each)}</td>" for each in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table{'' if numbers else ' class=told'}><tr>{head}</tr>{body}</table>"


def _list(items: Sequence[str], kind: str = "") -> str:
    return "<ul>" + "".join(f'<li class="{kind}">{escape(each)}</li>' for each in items) + "</ul>" if items else ""
