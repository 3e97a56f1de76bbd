"""The ends that wait at one topic: side by side while it takes them, one at a time while it does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn.tc_service.cluster.attempts import RULES, Answer
from pulsar_txn.tc_service.cluster.ends import TopicQueue


def test_a_topic_that_takes_ends_gets_them_side_by_side() -> None:
    queue: TopicQueue[int] = TopicQueue(3)
    for end in range(5):
        queue.add(end)
    assert queue.take(0) == [0, 1, 2]
    assert queue.take(0) == []
    queue.answered(1, Answer.OK, 0)
    assert queue.take(0) == [3]
    assert len(queue) == 4


def test_an_end_starts_at_once_while_nothing_waits_and_the_topic_takes_ends() -> None:
    queue: TopicQueue[int] = TopicQueue(2)
    assert [queue.start(end) for end in range(3)] == [True, True, False]
    assert queue.take(0) == []
    queue.answered(0, Answer.OK, 0)
    assert not queue.start(3)  # not ahead of what waits
    assert queue.take(0) == [2]
    for end in (1, 2):
        queue.answered(end, Answer.NOT_READY, 10)
    assert not queue.start(4)  # the topic has failed, and rests
    assert queue.take(1009) == []
    assert len(queue) == 4


def test_after_a_failure_one_alone_is_tried_after_a_pause_and_the_rest_when_that_went_well() -> None:
    queue: TopicQueue[int] = TopicQueue(3)
    for end in range(5):
        queue.add(end)
    assert queue.take(0) == [0, 1, 2]
    assert queue.next_try_ms is None
    for end in range(3):
        queue.answered(end, Answer.NOT_READY, 10)
    assert queue.failures == 1  # three ends that were under way side by side met one failure
    assert queue.next_try_ms == 1010
    assert queue.take(1009) == []
    (alone,) = queue.take(1010)
    assert queue.take(1010) == []
    queue.answered(alone, Answer.OK, 1020)
    assert queue.failures == 0
    assert len(queue.take(1020)) == 3


def test_each_failure_in_a_row_makes_the_pause_longer() -> None:
    queue: TopicQueue[int] = TopicQueue(3)
    queue.add(7)
    now, pauses = 0, []
    for _ in range(5):
        assert queue.take(now) == [7]
        queue.answered(7, Answer.NOT_READY, now)
        assert queue.next_try_ms is not None
        pauses.append(queue.next_try_ms - now)
        now = queue.next_try_ms
    assert pauses == [1000, 2000, 4000, 5000, 5000]


@given(st.lists(st.sampled_from(sorted(Answer, key=str)), max_size=60), st.integers(1, 20), st.integers(1, 5))
def test_no_end_is_lost_or_told_twice_whatever_is_answered(answers: list[Answer], ends: int, width: int) -> None:
    queue: TopicQueue[int] = TopicQueue(width)
    for end in range(ends):
        queue.add(end)
    now, done, in_flight = 0, [], []
    replies = iter(answers)
    while queue:
        in_flight += queue.take(now)
        if not in_flight:
            assert queue.next_try_ms is not None
            assert queue.next_try_ms > now
            now = queue.next_try_ms
            continue
        assert len(in_flight) <= width
        end, answer = in_flight.pop(), next(replies, Answer.OK)
        queue.answered(end, answer, now)
        if RULES[answer].done:
            done.append(end)
    assert sorted(done) == list(range(ends))
