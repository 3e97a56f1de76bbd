"""What the main job's results must be, and the page about them: one file, for newcomers, whose plots answer to the mouse."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

pytest.importorskip("pandas")
pytest.importorskip("matplotlib")

from chaos import ENDING_POINT, UNENDED_POINT, Planned
from checks import compare
from crash import BROKER_POINT, RANDOM, Kill
from hover import Plot
from main_result import Found, MainResult
from report import main_lines, write_report
from runs import Input, KillReport, Run
from topics import Topics
from watch import Arrival, Seen, Watch

TRUTH = {number: {"carrier": "AA", "route": "EWR-LAX", "net_cents": 100} for number in range(3)}
KNOWN = Input("small", TRUTH, {("carrier", "AA"): (3, 300), ("route", "EWR-LAX"): (3, 300)}, frozenset({3}))
TOPICS = Topics("main-")
PLAN = [Planned("driver", UNENDED_POINT), Planned("broker", BROKER_POINT), Planned("executor")]
KILLS = [
    Kill(UNENDED_POINT, "driver", 1500, 1, {"batch_id": 1, "txn_id": "(9,9)"}),
    Kill(BROKER_POINT, "broker", 1600, 2, {"txn_id": "(2,0)", "told": ["a"], "not_told": ["b"]}),
    Kill(RANDOM, "executor", 1700, 3, {}),
]


def rows() -> dict[str, list[Seen]]:
    """Two micro-batches of each query: flights 0 and 1, then 2, and 3 is refused."""

    def seen(value: dict[str, Any], txn: int, batch: int) -> Seen:
        return Seen(value, f"({txn},0)", batch, (0, batch))

    settled = [(0, 0), (1, 0), (2, 1)]
    found = {
        topic: [seen({"id": each, **TRUTH[each]}, batch + 1, batch) for each, batch in settled] for topic in TOPICS.settled
    }
    found[TOPICS.refused] = [seen({"id": 3, "carrier": "AA", "reason": "never arrived"}, 2, 1)]
    for dimension, key in (("carrier", "AA"), ("route", "EWR-LAX")):
        totals = [{"dimension": dimension, "key": key, "flights": count, "net_cents": 100 * count} for count in (2, 3)]
        found[TOPICS.totals[dimension]] = [seen(value, batch + 5, batch) for batch, value in enumerate(totals)]
    return found


def arrivals() -> dict[str, dict[int, Arrival]]:
    of_settled = {topic: {0: Arrival(1200, 2, [200, 100]), 1: Arrival(2100, 1, [900])} for topic in TOPICS.settled[:2]}
    return of_settled | {topic: {0: Arrival(1300, 1), 1: Arrival(2400, 1)} for topic in TOPICS.totals.values()}


def problems(given: dict[str, list[Seen]], kills: list[Kill] = KILLS) -> list[str]:
    return Found(TOPICS, given, arrivals(), kills).problems(KNOWN, PLAN)


def test_a_faultless_main_job_has_no_problems() -> None:
    assert problems(rows()) == []


def test_the_main_job_s_faults_are_found_wherever_they_are() -> None:
    for topic, words in ((TOPICS.settlements, "lost"), (TOPICS.postings, "lost"), (TOPICS.refused, "missing")):
        given = rows()
        given[topic] = given[topic][:-1]
        assert any(topic in problem and words in problem for problem in problems(given)), topic
    for topic in TOPICS.settled:
        given = rows()
        given[topic] = [*given[topic], given[topic][-1]]
        assert any(topic in problem and "doubled" in problem for problem in problems(given)), topic


def test_a_micro_batch_in_two_transactions_and_rows_of_an_aborted_one_are_found() -> None:
    given = rows()
    given[TOPICS.postings][-1] = attrs.evolve(given[TOPICS.postings][-1], txn_id="(9,9)")
    found = problems(given)
    assert "micro-batch 1 came in 2 transactions: (2,0), (9,9)" in found
    assert any("shows 1 messages of (9,9), which never committed" in problem for problem in found)


def test_a_decided_transaction_that_nobody_sees_is_found() -> None:
    kill = attrs.evolve(KILLS[1], in_flight={"txn_id": "(8,8)", "told": ["a"], "not_told": ["b"]})
    assert problems(rows(), [KILLS[0], kill, KILLS[2]]) == [f"{BROKER_POINT}: no topic has anything of the decided (8,8)"]


@pytest.mark.parametrize("number", range(3))
def test_a_kill_that_did_not_happen_is_found(number: int) -> None:
    found = problems(rows(), [kill for each, kill in enumerate(KILLS) if each != number])
    assert f"main job: the {KILLS[number].target} was killed 0 times instead of 1" in found
    assert f"nobody was killed at {KILLS[number].point}" in found


# --- the page -----------------------------------------------------------------------------------------------------------


def main_result(**changes: Any) -> MainResult:
    found = Found(TOPICS, rows(), arrivals(), KILLS)
    result = MainResult(
        settlements=found.compared(TOPICS.settlements, KNOWN),
        refused=1,
        by_carrier=found.by_carrier(),
        batches=found.micro_batches(),
        totals_batches=2,
        totals=2,
        kills=[KillReport("main job", kill, recovery="started again <b>") for kill in KILLS],
        published_ms=[1000, 1010, 1200, 1210],
        events=[{"what": "batch", "query": "settle", "batch": 0, "rows": 2, "took_ms": 100}],
        seconds=2.0,
        seed=7,
        our_broker=True,
        problems=[],
    )
    return attrs.evolve(result, **changes)


def worker_runs() -> list[Run]:
    unit = {"begin_ms": 10, "end_ms": 20, "flights": 3, "txn_id": "(1,0)", "outcome": "done", "stored": [0, 1], "stored_ms": 15}
    found = compare("settlements", [], TRUTH)
    runs = []
    for name in ("transactional", "ack-first", "send-first"):
        watch = Watch(None, "settlements")  # type: ignore[arg-type]  # nobody reads here
        watch.arrived, watch.max_read = [(12, 1), (20, 3)], [(11, (0, 0)), (21, (0, 1))]
        kills = [KillReport(name, KILLS[0])]
        runs.append(Run(name, found, found, kills, [unit], watch, 1.0, [], {("carrier", "AA"): (3, 300)}))
    return runs


class Page(HTMLParser):
    """Which elements are open, what they point to, and their texts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.titles: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.titles if self.open[-1:] == ["title"] else self.texts).append(data)


def page_of(folder: Path, main: MainResult | None) -> Page:
    path = folder / "index.html"
    write_report(path, KNOWN, main, worker_runs(), [])
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


@pytest.mark.parametrize("with_spark", [True, False])
def test_the_report_is_one_whole_page_that_asks_nothing_of_the_network(tmp_path: Path, with_spark: bool) -> None:
    page = page_of(tmp_path, main_result() if with_spark else None)
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    assert ("started again <b>" in page.texts) == with_spark


def test_every_micro_batch_is_shown_with_its_transaction_and_every_kill_on_the_time_line(tmp_path: Path) -> None:
    page = page_of(tmp_path, main_result())
    for number, txn in ((0, "(1,0)"), (1, "(2,0)")):
        assert any(f"micro-batch {number}, transaction {txn}: 2 flights" in title for title in page.titles)
        assert txn in page.texts
    for kill in KILLS:
        shown = f"{kill.target} killed at {kill.point}, second {(kill.time_ms - 1000) / 1000:.1f}"
        assert sum(title.startswith(shown) for title in page.titles) == 3, shown  # in flow, rate and latency


def test_the_numbers_of_the_main_job_are_those_of_what_was_seen() -> None:
    said = "\n".join(main_lines(main_result()))
    assert "4 flights in 2 micro-batches" in said
    assert "2 flights read, 4 rows written and committed in 0.1 s; 40 rows a second" in said
    assert "half of the flights within 0.2 s" in said
    assert "no query ended with an error" in said
    assert "--seed 7" in said
    assert "broker" not in said
    failed = main_result(events=[{"what": "failed", "query": "settle", "cause": "x"}], our_broker=False)
    said = "\n".join(main_lines(failed))
    assert "1 times a query ended with an error, and was started again" in said
    assert "was not killed" in said


def test_a_kill_with_its_commit_unanswered_is_described_in_words() -> None:
    kill = Kill(ENDING_POINT, "driver", 1, 1, {"txn_id": "(1,0)", "batch_id": 2, "answered": False})
    assert "END_TXN sent, its answer not there yet" in kill.describe()


def test_points_bars_and_lines_of_a_plot_carry_their_texts() -> None:
    plot = Plot("up")
    plot.points([1000, 2000], [1, 2], ["first & one", "second"], "points", "#000000")
    plot.line([1000, 2000], [1, 2], "line", "#111111", "{:,} of them")
    plot.bars([1, 2], [3, 4], ["bar one", "bar two"], "bars", "#222222", 0.4)
    page = Page()
    page.feed(plot.svg("best"))
    texts = ["first & one", "second", "second 1.0: 1 of them", "second 2.0: 2 of them", "bar one", "bar two"]
    assert sorted(page.titles) == sorted(texts)
