"""The settlement rules, coded twice, say the same of every flight of the year."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "flights"))

pd = pytest.importorskip("pandas")
data = pytest.importorskip("data")
settle = pytest.importorskip("settle")
truth = pytest.importorskip("truth")


@pytest.mark.parametrize(
    ("delay", "cents"),
    [(-30, 0), (0, 0), (15, 0), (16, 25), (60, 45 * 25), (61, 45 * 25 + 50), (180, 45 * 25 + 6_000), (181, 7_225)],
)
def test_a_delay_costs_what_the_rules_say(delay, cents):
    assert settle.penalty_cents(delay, fare=1_000_000) == cents


@pytest.mark.parametrize(("miles", "cents"), [(0, 3_900), (500, 10_900), (501, 10_911), (1_500, 21_900), (1_501, 21_909)])
def test_a_fare_follows_the_distance(miles, cents):
    assert settle.fare_cents(miles) == cents


def test_january_has_27004_flights_and_521_of_them_were_cancelled():
    flights = list(data.read_flights("jan"))
    assert len(flights) == 27_004
    assert sum(flight.dep_time is None for flight in flights) == 521
    assert flights[0].id == 0


def test_flights_that_departed_and_have_no_arrival_are_refused_and_no_others():
    flights = [flight for flight in data.read_flights("jan") if isinstance(settle.settle(flight), settle.Refusal)]
    assert len(flights) == 15
    assert all(flight.dep_time is not None and flight.arr_time is None for flight in flights)
    assert sum(truth.flights_frame("all")["refused"]) == 458


@pytest.mark.parametrize("month", ["jan", pytest.param("all", marks=pytest.mark.soak)])
def test_both_codings_agree_on_every_flight_to_the_cent(month):
    frame = truth.flights_frame(month)
    refused = frame["refused"].tolist()
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    columns = zip(frame.index, frame["fare_cents"], frame["penalty_cents"], frame["refund_cents"], strict=True)
    for flight, (number, fare, penalty, refund), is_refused in zip(data.read_flights(month), columns, refused, strict=True):
        settled = settle.settle(flight)
        assert isinstance(settled, settle.Refusal) == is_refused
        if is_refused:
            assert settled == settle.Refusal(number, flight.carrier, settle.NO_ARRIVAL)
            continue
        assert (settled.id, settled.fare_cents, settled.penalty_cents, settled.refund_cents) == (number, fare, penalty, refund)
        for key in (("carrier", settled.carrier), ("route", settled.route)):
            sums[key][0] += 1
            sums[key][1] += settled.net_cents
    assert {key: tuple(pair) for key, pair in sums.items()} == truth.totals(frame)
