"""The ends that wait at one topic: side by side while it takes them, one at a time while it does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.tc_service.cluster.attempts import RULES, Answer
from pulsar_txn.tc_service.cluster.ends import Line


def test_a_topic_that_takes_ends_gets_them_side_by_side() -> None:
    line: Line[int] = Line(3)
    for end in range(5):
        line.add(end)
    assert line.take(0) == [0, 1, 2]
    assert line.take(0) == []
    line.answered(1, Answer.OK, 0)
    assert line.take(0) == [3]
    assert len(line) == 4


def test_an_end_starts_at_once_while_nothing_waits_and_the_topic_takes_ends() -> None:
    line: Line[int] = Line(2)
    assert [line.start(end) for end in range(3)] == [True, True, False]
    assert line.take(0) == []
    line.answered(0, Answer.OK, 0)
    assert not line.start(3)  # not ahead of what waits
    assert line.take(0) == [2]
    for end in (1, 2):
        line.answered(end, Answer.NOT_READY, 10)
    assert not line.start(4)  # the topic has failed, and rests
    assert line.take(1009) == []
    assert len(line) == 4


def test_after_a_failure_one_alone_is_tried_after_a_pause_and_the_rest_when_that_went_well() -> None:
    line: Line[int] = Line(3)
    for end in range(5):
        line.add(end)
    assert line.take(0) == [0, 1, 2]
    assert line.rests_until_ms is None
    for end in range(3):
        line.answered(end, Answer.NOT_READY, 10)
    assert line.failures == 1  # three ends that were under way side by side met one failure
    assert line.rests_until_ms == 1010
    assert line.take(1009) == []
    (alone,) = line.take(1010)
    assert line.take(1010) == []
    line.answered(alone, Answer.OK, 1020)
    assert line.failures == 0
    assert len(line.take(1020)) == 3


def test_each_failure_in_a_row_makes_the_pause_longer() -> None:
    line: Line[int] = Line(3)
    line.add(7)
    now, pauses = 0, []
    for _ in range(5):
        assert line.take(now) == [7]
        line.answered(7, Answer.NOT_READY, now)
        assert line.rests_until_ms is not None
        pauses.append(line.rests_until_ms - now)
        now = line.rests_until_ms
    assert pauses == [1000, 2000, 4000, 5000, 5000]


@given(st.lists(st.sampled_from(sorted(Answer, key=str)), max_size=60), st.integers(1, 20), st.integers(1, 5))
def test_no_end_is_lost_or_told_twice_whatever_is_answered(answers: list[Answer], ends: int, width: int) -> None:
    line: Line[int] = Line(width)
    for end in range(ends):
        line.add(end)
    now, done, flying = 0, [], []
    replies = iter(answers)
    while line:
        flying += line.take(now)
        if not flying:
            assert line.rests_until_ms is not None
            assert line.rests_until_ms > now
            now = line.rests_until_ms
            continue
        assert len(flying) <= width
        end, answer = flying.pop(), next(replies, Answer.OK)
        line.answered(end, answer, now)
        if RULES[answer].done:
            done.append(end)
    assert sorted(done) == list(range(ends))
