"""The report: one HTML file with everything in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import plots
from checks import cents
from crash import Kill
from runs import Input, KillReport, Run
from totals import TotalsRun

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { border: 1px solid #ccc; padding: .25rem .6rem; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums } th { background: #f4f4f4; text-align: left }
.ok { color: #1e7e34 } .bad { color: #c0392b } svg { max-width: 100%; height: auto } code { background: #f4f4f4 }
"""

_HELD_BACK = (
    "Messages of a transaction are beyond maxReadPosition until the transaction is decided. A killed worker's open "
    "transaction holds readers back until its five seconds are over; then everything after it appears at once."
)

RESULTS = ("run", "settled", "lost", "doubled", "net total", "truth", "kills", "commits", "aborts", "s")


def results_row(run: Run) -> list[str]:
    """What the tables say of a run, under `RESULTS`."""
    found = run.settlements
    ends = (str(run.transactions), str(run.aborts)) if run.transactions else ("-", "-")
    return [
        run.name,
        f"{found.messages:,}",
        f"{len(found.lost):,}",
        f"{len(found.doubled):,}",
        cents(found.cents),
        cents(found.truth_cents),
        str(len(run.kills)),
        *ends,
        f"{run.seconds:.1f}",
    ]


def killed_at(kill: Kill) -> str:
    """The point, and who died there."""
    return kill.point if kill.point.startswith(kill.target) else f"{kill.point}: {kill.target}"


def totals_line(run: TotalsRun) -> str:
    """What came out of the pipeline, in a sentence."""
    apart = [
        abs(at - other[batch])
        for seen in run.arrivals.values()
        for other in run.arrivals.values()
        for batch, at in seen.items()
        if batch in other
    ]
    cents_in_all = sum(net for (dimension, _), (_, net) in run.last.items() if dimension == "carrier")
    return (
        f"pipeline: micro-batches 0 to {run.batches - 1} in {run.transactions} transactions and {run.seconds:.1f} s; a reader "
        f"of both topics saw them at most {max(apart, default=0)} ms apart; the last one has {len(run.last)} of {run.totals} "
        f"totals, {cents(cents_in_all)} in all"
    )


def write_report(path: Path, known: Input, runs: Sequence[Run], totals: TotalsRun | None, problems: Sequence[str]) -> None:
    """Write it; all checks are done."""
    transactional = runs[0]
    reports = [report for run in [*runs, totals] if run is not None for report in run.kills]
    verdict = "All totals agree to the cent." if not problems else f"{len(problems)} checks failed."
    parts = [
        f"<h1>{len(known.truth):,} flights, settled in transactions</h1>",
        f'<p class="{"bad" if problems else "ok"}"><b>{verdict}</b></p>',
        _list(problems),
        "<h2>Results</h2>",
        _table(RESULTS, [results_row(run) for run in runs]),
        "<p>Truth: straight from the input, by columns, in code that shares nothing with the worker.</p>",
        "<h2>Kills</h2>",
        _kills(reports),
        "<h2>maxReadPosition and the end of the log</h2>",
        f"<p>{_HELD_BACK}</p>",
        plots.positions_plot(transactional),
        "<h2>Transactions</h2>",
        plots.transactions_plot(transactional),
        "<h2>The same worker with and without transactions</h2>",
        plots.progress_plot(runs, known),
        "<h2>Recovered totals against the truth</h2>",
        plots.totals_plot(runs, known),
        _totals(runs, known),
    ]
    if totals is not None:
        parts += ["<h2>The pipeline's micro-batches</h2>", f"<p>{escape(totals_line(totals))}</p>", plots.batches_plot(totals)]
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>pulsar-txn demo</title><style>{_STYLE}</style><body>'
    path.write_text(page + "\n".join(parts) + "</body></html>\n", encoding="utf-8")


def _kills(reports: Iterable[KillReport]) -> str:
    rows = [[each.run, killed_at(each.kill), each.kill.describe(), each.recovery] for each in reports]
    return _table(("run", "SIGKILL at", "in flight", "what recovery did"), rows, numbers=False)


def _totals(runs: Sequence[Run], known: Input) -> str:
    keys = sorted(key for key in known.totals if key[0] == "carrier")
    rows = []
    for key in keys:
        flights, net = known.totals[key]
        found = [cents(run.by_carrier.get(key, (0, 0))[1]) for run in runs]
        rows.append([key[1], f"{flights:,}", cents(net), *found])
    return _table(("carrier", "flights", "truth", *(run.name for run in runs)), rows)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    kind = ' class="n"' if numbers else ""
    body = "".join(
        f"<tr><td>{escape(row[0])}</td>" + "".join(f"<td{kind}>{escape(each)}</td>" for each in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f'<li class="bad">{escape(each)}</li>' for each in items) + "</ul>" if items else ""
