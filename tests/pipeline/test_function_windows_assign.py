"""Which messages make a window: with and without crashes, which forget everything but what transactions have stored."""

from __future__ import annotations

import random

import pytest

from pulsar_txn.pipeline.functions.windows.assign import CountWindows, Place, TimeWindows


def place(number, source="t"):
    return Place(source, (0, number, 0))


def contents(window):
    return [item.message for item in window.items]


def drain(windows, now_ms=None):
    found = []
    while (window := windows.due(now_ms)) is not None:
        found.append((contents(window), [item.message for item in window.leaving]))
        windows.fired(window)
    return found


def test_a_count_window_is_due_when_it_is_full_and_all_of_it_leaves():
    windows = CountWindows(3, 3)
    for number in range(7):
        windows.add(number, place(number), 0)
    assert drain(windows) == [([0, 1, 2], [0, 1, 2]), ([3, 4, 5], [3, 4, 5])]


def test_a_sliding_count_window_has_the_last_messages_and_those_leave_that_the_next_one_will_not_have():
    windows = CountWindows(4, 2)
    for number in range(9):
        windows.add(number, place(number), 0)
    assert drain(windows) == [([0, 1], []), ([0, 1, 2, 3], [0, 1]), ([2, 3, 4, 5], [2, 3]), ([4, 5, 6, 7], [4, 5])]


@pytest.mark.parametrize(("length", "slide"), [(5, 2), (5, 4), (7, 3), (4, 4), (6, 1)])
def test_a_sliding_count_window_has_what_the_definition_says(length, slide):
    windows = CountWindows(length, slide)
    for number in range(40):
        windows.add(number, place(number), 0)
    ends = range(slide, 41, slide)
    kept = [max(0, end + slide - length) for end in ends]
    assert drain(windows) == [
        (list(range(max(0, end - length), end)), list(range(before, after)))
        for end, before, after in zip(ends, [0, *kept], kept, strict=False)
    ]


def test_a_time_window_is_due_when_the_newest_message_of_each_source_is_behind_its_end():
    windows = TimeWindows(10, 10, sources=["a", "b"])
    windows.add("a5", place(0, "a"), 5)
    windows.add("a12", place(1, "a"), 12)
    assert drain(windows) == []
    windows.add("b7", place(0, "b"), 7)
    assert drain(windows) == []
    windows.add("b10", place(1, "b"), 10)
    assert drain(windows) == [(["a5", "b7"], ["a5", "b7"])]


def test_a_source_without_messages_holds_nothing_up_when_nothing_waits_to_be_received():
    windows = TimeWindows(10, 10, sources=["a", "b"])
    windows.add("a5", place(0, "a"), 5)
    windows.add("a12", place(1, "a"), 12)
    assert drain(windows, now_ms=1000) == [(["a5"], ["a5"])]


def test_a_lag_keeps_a_window_open_for_messages_that_come_out_of_order():
    windows = TimeWindows(10, 10, max_lag_ms=5)
    windows.add(1, place(0), 1)
    windows.add(14, place(1), 14)
    assert drain(windows) == []
    assert windows.add(9, place(2), 9)
    windows.add(15, place(3), 15)
    assert drain(windows) == [([1, 9], [1, 9])]
    assert not windows.add(8, place(4), 8)


def test_a_sliding_time_window_has_a_message_as_often_as_it_overlaps():
    windows = TimeWindows(10, 5)
    for number in (1, 6, 11, 30):
        windows.add(number, place(number), number)
    assert drain(windows) == [([1], []), ([1, 6], [1]), ([6, 11], [6]), ([11], [11])]


def test_a_message_at_the_end_of_a_window_is_in_the_next_one():
    windows = TimeWindows(10, 10)
    for number in (0, 10, 20):
        windows.add(number, place(number), number)
    assert drain(windows) == [([0], [0]), ([10], [10])]


def test_by_the_clock_a_window_ends_without_further_messages_and_late_ones_are_in_the_next_window_only():
    windows = TimeWindows(10, 5, by_clock=True)
    windows.add("in time", place(0), 3)
    assert drain(windows, now_ms=4) == []
    assert drain(windows, now_ms=20) == [(["in time"], []), (["in time"], ["in time"])]
    assert windows.add("late", place(1), 2)
    assert drain(windows, now_ms=20) == [(["late"], ["late"])]


class Crashing:
    """A broker's part of the work: what is not acknowledged comes again, in order, after a crash."""

    def __init__(self, messages, make):
        self.unacknowledged = dict(enumerate(messages))
        self.make = make
        self.progress = None
        self.committed = []

    def run(self, chance):
        windows, crash_at = self.make(self.progress), chance.randrange(1, 40)
        for number, time_ms in list(self.unacknowledged.items()):
            assert windows.add(number, place(number), time_ms)
            while (window := windows.due(None)) is not None:
                crash_at -= 1
                if crash_at == 0:
                    return False
                self.committed.append((window.end_ms, contents(window)))
                self.progress = window.progress
                for item in window.leaving:
                    del self.unacknowledged[item.message]
                windows.fired(window)
                if crash_at == 1 and chance.random() < 0.5:
                    return False
        return True


@pytest.mark.parametrize("slide", [10, 7, 3, 1])
@pytest.mark.parametrize("kind", ["count", "time"])
def test_crashes_change_no_window(kind, slide):
    def make(progress):
        if kind == "count":
            return CountWindows(10, slide, progress)
        return TimeWindows(10, slide, max_lag_ms=6, progress=progress)

    for seed in range(40):
        chance = random.Random(seed)
        times = [number // 2 + chance.randrange(6) for number in range(300)]
        crashing = Crashing(times, make)
        while not crashing.run(chance):
            pass
        reference = make(None)
        for number, time_ms in enumerate(times):
            reference.add(number, place(number), time_ms)
        windows = []
        while (window := reference.due(None)) is not None:
            windows.append((window.end_ms, contents(window)))
            reference.fired(window)
        assert crashing.committed == windows
