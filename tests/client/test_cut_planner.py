"""What a consistent reader hands out, in a model of partitions (`cut_world`): never a part of a transaction, and everything."""

from __future__ import annotations

import random

import pytest
from cut_world import WEIGHTS, CutWorld, Step
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.client.errors import CutTooLarge
from pulsar_txn.client.receive.consistent.half_topic import SampledEnds
from pulsar_txn.client.receive.consistent.lookahead import RUN_MESSAGES, Samples
from pulsar_txn.client.receive.consistent.planner import Limits, Planner, Shown
from pulsar_txn.client.receive.entry_reader import HalfMessageEnds
from pulsar_txn.wire.ids import EARLIEST, TxnId

STEPS = st.lists(st.tuples(st.sampled_from(sorted(WEIGHTS)), st.integers(0, 9), st.integers(0, 9)), max_size=60)


@given(before=STEPS, steps=STEPS, latest=st.booleans(), beside=st.booleans())
def test_no_transaction_is_handed_out_in_part_and_all_come(
    before: list[Step], steps: list[Step], latest: bool, beside: bool
) -> None:
    world = CutWorld(before, latest=latest, beside=beside)
    world.play(steps)
    world.finish()


def drawn(rng: random.Random, count: int) -> list[Step]:
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    return [(name, rng.randrange(10), rng.randrange(10)) for name in rng.choices(names, weights, k=count)]


@pytest.mark.seed_rows("B36")
def test_many_runs_hand_out_whole_transactions_only() -> None:
    torn_apart = 0
    for seed in range(300):
        rng = random.Random(seed)
        world = CutWorld(drawn(rng, rng.randrange(80)), latest=seed % 2 == 0, beside=seed % 3 == 0)
        world.play(drawn(rng, 150))
        world.finish()
        torn_apart += world.torn_apart
    assert torn_apart > 1000, "readers of each partition alone would have seen parts of transactions"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_tens_of_thousands_of_runs() -> None:
    for seed in range(30_000):
        rng = random.Random(f"soak {seed}")
        world = CutWorld(drawn(rng, rng.randrange(80)), latest=seed % 2 == 0, beside=seed % 3 == 0)
        world.play(drawn(rng, 200))
        world.finish()


SMALL = Limits(100, 100, 1000)


def planner(partitions: int = 2, limits: Limits = SMALL) -> Planner:
    made = Planner(limits)
    for _ in range(partitions):
        made.add_partition()
    made.listed(1 << 62)
    return made


def shown(first: int, count: int, txn: int | None = None, size: int = 1) -> list[Shown]:
    return [Shown((0, first + at), None if txn is None else TxnId(0, txn), 1, size) for at in range(count)]


def all_passed(made: Planner) -> None:
    for index, lookahead in enumerate(made.lookaheads):
        number = made.begin_sample()
        made.sampled(index, number, lookahead.read)
        made.passed(index, lookahead.read)
    made.mark_complete()


def test_a_transaction_larger_than_a_cut_may_be_is_refused_and_what_is_before_it_comes() -> None:
    made = planner(limits=Limits(1000, 100, 1000))
    made.show(0, shown(0, 3))
    made.show(0, shown(3, 60, txn=1))
    made.show(1, shown(0, 41, txn=1))
    all_passed(made)
    plan = made.next(50)
    assert plan is not None
    assert plan.messages == 3
    assert made.is_ready, "the next call says what is wrong"
    with pytest.raises(CutTooLarge, match="more than 100 messages"):
        made.next(50)


def test_a_transaction_of_more_bytes_than_a_cut_may_have_is_refused() -> None:
    made = planner(limits=Limits(1000, 100, 1000))
    made.show(0, shown(0, 2, txn=1, size=501))
    all_passed(made)
    with pytest.raises(CutTooLarge, match="1000 bytes"):
        made.next(1)


def test_a_transaction_of_as_many_messages_as_a_cut_may_have_comes() -> None:
    made = planner(limits=Limits(1000, 100, 1000))
    made.show(0, shown(0, 50, txn=1))
    made.show(1, shown(0, 50, txn=1))
    all_passed(made)
    plan = made.next(1)
    assert plan is not None
    assert plan.messages == 100


def test_what_waits_is_bounded() -> None:
    made = planner()
    for at in range(100):
        made.check_ahead()
        made.show(0, shown(at, 1, txn=at))
    with pytest.raises(CutTooLarge, match=r"100 runs .* max_ahead=100"):
        made.check_ahead()
    all_passed(made)
    made.check_ahead()


def test_plain_messages_come_in_portions() -> None:
    made = planner(1, Limits(1000, 10_000, 1 << 30))
    made.show(0, shown(0, 5 * RUN_MESSAGES))
    plan = made.next(10)
    assert plan is not None
    assert plan.messages == RUN_MESSAGES


def test_a_large_interleaved_transaction_costs_one_walk() -> None:
    made = planner(3, Limits(10**6, 10**6, 1 << 40))
    for at in range(0, 30_000, 2):
        for index in range(3):
            made.show(index, shown(at, 1, txn=0) + shown(at + 1, 1, txn=at + 1))
    for index, lookahead in enumerate(made.lookaheads):
        number = made.begin_sample()
        made.sampled(index, number, lookahead.read)
        made.passed(index, lookahead.read)
    made.mark_complete()
    plan = made.next(1)
    assert plan is not None
    assert plan.messages == 90_000 - 3, "the last messages are after the transaction"


def test_samples_that_are_many_are_thinned_and_the_newest_counts() -> None:
    samples = Samples()
    for number in range(1, 1001):
        samples.add(number, (0, number))
    samples.reach((0, 1000))
    assert samples.reached == 1000
    samples.add(1001, (5, 0))
    samples.add(1002, (1, 0))  # a topic that lost what was never confirmed
    samples.reach((1, 0))
    assert samples.reached == 1002


def test_an_empty_partition_holds_nothing_up() -> None:
    made = planner()
    made.show(0, shown(0, 1, txn=1))
    for index in range(2):
        number = made.begin_sample()
        made.sampled(index, number, (7, -1) if index else (0, 0))
        made.passed(index, EARLIEST if index else (0, 0))
    made.mark_complete()
    assert made.next(1) is not None


def sampled(made: Planner, index: int, end: int) -> None:
    made.sampled(index, made.begin_sample(), (0, end))


def nothing_comes(made: Planner) -> bool:
    made.mark_complete()
    return made.next(10) is None


def test_a_sample_that_was_under_way_when_a_transaction_was_seen_says_nothing_of_it() -> None:
    made = planner()
    under_way = made.begin_sample()  # the end of partition 1 is (0, 3) when the broker looks
    made.show(0, shown(0, 1, txn=1))  # its other message is (0, 4)
    made.sampled(1, under_way, (0, 3))
    made.passed(1, (0, 3))
    sampled(made, 0, 0)
    made.passed(0, (0, 0))
    assert nothing_comes(made)
    made.show(1, shown(4, 1, txn=1))
    sampled(made, 1, 4)
    made.passed(1, (0, 4))
    made.mark_complete()
    plan = made.next(10)
    assert plan is not None
    assert plan.messages == 2


def test_the_partition_that_shows_a_transaction_may_not_show_all_of_it() -> None:
    """Between two of its messages there is one of another transaction, which is open."""
    made = planner(1)
    made.show(0, shown(0, 1, txn=1))
    sampled(made, 0, 2)
    made.passed(0, (0, 0))
    assert nothing_comes(made)


def test_a_place_reaches_the_samples_up_to_it_and_no_later_one() -> None:
    samples = Samples()
    samples.add(1, (0, 5))
    samples.add(2, (0, 9))
    samples.reach((0, 5))
    assert samples.reached == 1
    samples.reach((0, 8))
    assert samples.reached == 1
    samples.reach((0, 9))
    assert samples.reached == 2


def test_a_partition_that_nobody_has_looked_for_may_have_a_part_of_a_transaction() -> None:
    made = Planner(SMALL)
    made.add_partition()
    made.listed(made.begin_sample())
    made.show(0, shown(0, 1, txn=1))
    all_passed(made)
    assert made.needs_list
    assert nothing_comes(made)
    number = made.begin_sample()
    made.add_partition()
    made.listed(number)
    assert not made.needs_list
    assert nothing_comes(made)
    made.show(1, shown(0, 1, txn=1))
    all_passed(made)
    plan = made.next(10)
    assert plan is not None
    assert plan.messages == 2


def test_an_end_counts_for_halves_that_were_settled_before_it_was_asked_for() -> None:
    ends = SampledEnds()
    ends.begin()
    assert ends.answered(1, HalfMessageEnds(last=(7, 4), first=(7, 2))) == 0, "a half waits"
    ends.begin()
    assert ends.answered(2, HalfMessageEnds(last=(7, 4), first=None)) == 0, "it was copied after the end was asked for, perhaps"
    ends.begin()
    assert ends.answered(3, HalfMessageEnds(last=(7, 9), first=(7, 5))) == 2
    ends.begin()
    assert ends.answered(4, HalfMessageEnds(last=(7, 9), first=(7, 5))) == 2
    assert SampledEnds().answered(5, None) == 5, "no topic of halves"
