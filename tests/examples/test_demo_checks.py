"""The demo's checks find what they are there for: each is shown a fault, and a faultless result beside it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pandas")

from checks import (
    MOST_APART_MS,
    batch_problems,
    cents,
    compare,
    comparison_problems,
    gap_problems,
    kill_problems,
    recovery_problems,
    refused_problems,
    sums,
    totals_problems,
    transaction_problems,
)
from crash import RANDOM, Kill
from report import RESULTS, results_row
from runs import KillReport, Run
from watch import Seen

TRUTH = {number: {"carrier": "AA" if number % 2 else "UA", "net_cents": 100 * number} for number in range(4)}


def settled() -> list[dict[str, Any]]:
    return [{"id": number, "route": "EWR-LAX", **known} for number, known in TRUTH.items()]


def test_a_faultless_result_is_clean() -> None:
    found = compare("settlements", settled(), TRUTH)
    assert found.clean
    assert found.problems() == []
    assert (found.messages, found.cents) == (4, 600)


def test_a_lost_flight_is_found_even_when_it_weighs_nothing() -> None:
    found = compare("settlements", settled()[1:], TRUTH)
    assert found.lost == (0,)
    assert found.cents == found.truth_cents
    assert not found.clean
    assert "1 flights are lost (0)" in found.problems()[0]


def test_a_doubled_flight_is_found() -> None:
    found = compare("settlements", [*settled(), settled()[3]], TRUTH)
    assert found.doubled == (3,)
    assert found.problems() == ["settlements: 1 flights are doubled (3)", "settlements: $9.00 in all, and the truth is $6.00"]


@pytest.mark.parametrize("change", [{"net_cents": 101}, {"carrier": "B6"}, {"id": 99}])
def test_a_wrong_field_and_an_unknown_flight_are_found(change: dict[str, Any]) -> None:
    values = settled()
    values[1] |= change
    found = compare("settlements", values, TRUTH)
    assert found.wrong
    assert not found.clean


def test_two_errors_that_cancel_out_are_both_found() -> None:
    values = settled()
    values[1]["net_cents"] += 1
    values[2]["net_cents"] -= 1
    found = compare("settlements", values, TRUTH)
    assert found.cents == found.truth_cents
    assert found.wrong == (1, 2)


def test_a_total_that_is_off_by_a_cent_or_a_flight_is_named() -> None:
    found = sums(settled())
    assert found == {("carrier", "UA"): (2, 200), ("carrier", "AA"): (2, 400)}
    assert totals_problems("postings", found, found) == []
    truth = found | {("carrier", "AA"): (2, 401)}
    assert totals_problems("postings", found, truth) == ["postings: total of carrier AA is (2, 400), and the truth is (2, 401)"]
    assert len(totals_problems("postings", found, {**found, ("carrier", "B6"): (1, 1)})) == 1
    assert len(totals_problems("postings", {}, found)) == 2


@pytest.mark.parametrize(("amount", "text"), [(0, "$0.00"), (-5, "-$0.05"), (123_456_789, "$1,234,567.89")])
def test_cents_are_shown_as_dollars(amount: int, text: str) -> None:
    assert cents(amount) == text


def killed(point: str, **in_flight: Any) -> Kill:
    return Kill(point, point.split(".")[0], 0, 1, in_flight)


HALF_TOLD = killed("broker.before_last_marker", txn_id="(1,2)", told=["a"], not_told=["b"])
UNSENT = killed("worker.before_end_txn", txn_id="(1,3)", flights=[1, 2])
ENDING = killed("sink.commit.after_end_txn_sent", txn_id="(1,4)", batch_id=2, answered=False)


def test_kills_with_something_in_flight_pass_and_a_point_that_was_not_reached_does_not() -> None:
    assert kill_problems([HALF_TOLD, UNSENT, ENDING], [HALF_TOLD.point, UNSENT.point, ENDING.point]) == []
    assert kill_problems([UNSENT], [HALF_TOLD.point, UNSENT.point]) == ["nobody was killed at broker.before_last_marker"]


@pytest.mark.parametrize(
    "kill",
    [
        killed("broker.before_last_marker", txn_id="(1,2)", told=[], not_told=["b"]),
        killed("broker.before_last_marker", txn_id="(1,2)", told=["a"], not_told=[]),
        killed("broker.before_last_marker", told=["a"], not_told=["b"]),
        killed("worker.before_end_txn", flights=[1]),
        killed("worker.before_end_txn", txn_id="(1,3)", flights=[]),
        killed("worker.before_acks"),
        killed("sink.commit.after_end_txn_sent", txn_id="(1,4)", answered=True),
        killed("sink.commit.after_end_txn_sent"),
        killed("sink.commit.after_publish", batch_id=3),
        killed("sink.write.end"),
    ],
)
def test_a_kill_with_nothing_in_flight_is_a_problem(kill: Kill) -> None:
    assert kill_problems([kill], [kill.point]) == [f"nothing was in flight at {kill.point}"]


def test_a_kill_at_a_random_moment_needs_nothing_in_flight() -> None:
    assert kill_problems([killed(RANDOM)], []) == []


def seen(value: dict[str, Any], *, txn_id: str | None = None, batch_id: int | None = None) -> Seen:
    return Seen(value, txn_id, batch_id, (0, 0))


def test_a_decided_transaction_must_be_in_every_topic_and_an_aborted_one_in_none() -> None:
    rows = {"settlements": [seen({}, txn_id="(1,2)")], "postings": [seen({}, txn_id="(1,2)")]}
    assert recovery_problems(HALF_TOLD, rows, committed=True) == []
    assert len(recovery_problems(HALF_TOLD, {**rows, "postings": []}, committed=True)) == 1
    assert recovery_problems(UNSENT, rows, committed=False) == []
    assert len(recovery_problems(UNSENT, {**rows, "postings": [seen({}, txn_id="(1,3)")]}, committed=False)) == 1


def test_a_comparison_that_comes_out_clean_fails_the_demo() -> None:
    clean = compare("settlements", settled(), TRUTH)
    lost = compare("settlements", settled()[:-1], TRUTH)
    doubled = compare("settlements", [*settled(), settled()[1]], TRUTH)
    assert comparison_problems("ack-first", lost) == []
    assert comparison_problems("send-first", doubled) == []
    for mode, useless in (("ack-first", clean), ("ack-first", doubled), ("send-first", clean), ("send-first", lost)):
        assert len(comparison_problems(mode, useless)) == 1
    wrong = compare("settlements", [{**settled()[0], "net_cents": 7}], TRUTH)
    assert "wrong" in comparison_problems("ack-first", wrong)[0]


def test_a_refusal_that_is_missing_doubled_or_without_rule_or_reason_is_found() -> None:
    given = [{"id": 7, "reason": "departed"}, {"id": 9, "reason": "departed"}]
    assert refused_problems("refused", given, {7, 9}) == []
    assert refused_problems("refused", given[:1], {7, 9}) == ["refused: 1 flights are missing (9)"]
    assert refused_problems("refused", [*given, given[0]], {7, 9}) == ["refused: 1 flights are doubled (7)"]
    assert refused_problems("refused", given, {7}) == ["refused: 1 flights are refused without a rule for it (9)"]
    assert refused_problems("refused", [given[0], {"id": 9}], {7, 9}) == ["refused: 1 flights are refused without a reason (9)"]


def batches_in(txns: dict[str, list[tuple[int, str | None]]]) -> dict[str, list[Seen]]:
    return {topic: [seen({}, txn_id=txn, batch_id=batch) for batch, txn in rows] for topic, rows in txns.items()}


def test_micro_batches_of_one_transaction_each_over_all_topics_are_faultless() -> None:
    assert (
        transaction_problems(batches_in({"a": [(0, "(1,0)"), (1, "(2,0)")], "b": [(0, "(1,0)"), (1, "(2,0)")], "c": []})) == []
    )


@pytest.mark.parametrize(
    ("b", "problem"),
    [
        ([(0, "(3,0)")], "micro-batch 0 came in 2 transactions: (1,0), (3,0)"),
        ([(1, "(1,0)")], "transaction (1,0) holds micro-batches [0, 1]"),
        ([(2, "(4,0)")], "micro-batches 1 are missing"),
        ([(0, None)], "there are rows that were sent in no transaction"),
    ],
)
def test_a_micro_batch_that_is_not_one_transaction_is_found(b: list[tuple[int, str | None]], problem: str) -> None:
    assert problem in transaction_problems(batches_in({"a": [(0, "(1,0)")], "b": b}))


# --- the pipeline's topics ----------------------------------------------------------------------------------------------

FINAL = {("carrier", "AA"): (2, 400), ("carrier", "UA"): (2, 200), ("route", "EWR-LAX"): (4, 600)}


def batch(batch_id: int, dimension: str, totals: dict[str, tuple[int, int]]) -> list[Seen]:
    rows = [{"dimension": dimension, "key": key, "flights": of[0], "net_cents": of[1]} for key, of in totals.items()]
    return [seen(row, batch_id=batch_id) for row in rows]


def topics() -> dict[str, list[Seen]]:
    carrier = [*batch(0, "carrier", {"AA": (1, 100)}), *batch(1, "carrier", {"AA": (2, 400), "UA": (2, 200)})]
    route = [*batch(0, "route", {"EWR-LAX": (1, 100)}), *batch(1, "route", {"EWR-LAX": (4, 600)})]
    return {"carrier": carrier, "route": route}


def test_batches_once_each_in_both_topics_and_the_truth_at_the_end_are_faultless() -> None:
    assert batch_problems(topics(), FINAL) == []


def test_a_batch_that_one_topic_lacks_is_found() -> None:
    given = topics()
    given["route"] = given["route"][:1]
    assert any("not at the same batch" in problem for problem in batch_problems(given, FINAL))


def test_a_batch_left_out_is_found() -> None:
    given = topics()
    for dimension in given:
        given[dimension] = [each for each in given[dimension] if each.batch_id == 1]
    assert any("batches [1] instead of [0, 1]" in problem for problem in batch_problems(given, FINAL))


def test_a_batch_that_was_published_twice_is_found() -> None:
    given = topics()
    given["route"] = [*given["route"], given["route"][-1]]
    assert any("has EWR-LAX twice" in problem for problem in batch_problems(given, FINAL))
    again = topics()
    again["route"] = [*again["route"], again["route"][0]]
    assert any("appears again after batch 1" in problem for problem in batch_problems(again, FINAL))


def test_half_a_batch_is_found() -> None:
    given = topics()
    given["carrier"] = given["carrier"][:-1]
    assert any("batch 1 is not the same in all topics" in problem for problem in batch_problems(given, FINAL))


def test_a_last_batch_that_is_off_by_a_cent_is_found() -> None:
    problems = batch_problems(topics(), FINAL | {("carrier", "AA"): (2, 401)})
    assert problems == ["last micro-batch: total of carrier AA is (2, 400), and the truth is (2, 401)"]


def test_no_batch_at_all_is_found() -> None:
    assert any("instead of at least one" in problem for problem in batch_problems({"carrier": [], "route": []}, FINAL))


def test_a_batch_that_comes_to_one_topic_only_or_much_later_is_found() -> None:
    assert gap_problems({"carrier": {0: 10, 1: 500}, "route": {0: 12, 1: 500 + MOST_APART_MS}}) == []
    assert gap_problems({"carrier": {0: 10, 1: 500}, "route": {0: 12}}) == ["batch 1 never reached all topics"]
    late = gap_problems({"carrier": {0: 10}, "route": {0: 11 + MOST_APART_MS}})
    assert late == [f"batch 0 reached the topics {1 + MOST_APART_MS} ms apart"]


def test_a_transaction_that_its_timeout_aborted_is_counted_and_units_without_transactions_are_not() -> None:
    """Named after a table of the demo: the killed worker's transaction was missing in it, and a send-first run had an abort."""

    def row(name: str, units: list[dict[str, Any]], *, aborted: bool) -> dict[str, str]:
        kill = Kill(point="worker.before_end_txn", target="worker", time_ms=0, pid=1, in_flight={})
        found = compare("settlements", [], {})
        kills = [KillReport(name, kill, aborted=aborted)]
        run = Run(name, found, found, kills, units, watch=None, seconds=1.0, problems=[], by_carrier={})  # type: ignore[arg-type]  # no row shows the watch
        return dict(zip(RESULTS, results_row(run), strict=True))

    done, aborted, failed = {"outcome": "done"}, {"outcome": "aborted: a conflict"}, {"outcome": "failed: a lost receipt"}
    with_ids = [unit | {"txn_id": "(0,1)"} for unit in (done, done, aborted)]
    shown = row("transactional", with_ids, aborted=True)
    assert (shown["commits"], shown["aborts"]) == ("2", "2")
    shown = row("send-first", [unit | {"txn_id": None} for unit in (done, failed)], aborted=False)
    assert (shown["commits"], shown["aborts"]) == ("-", "-")
