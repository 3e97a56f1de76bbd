"""One timer for the nearest of many deadlines."""

import asyncio
import math

import pytest

from pulsar_txn.client.net.timer import NearestTimer

pytestmark = pytest.mark.quick


class Clock:
    """A runtime whose timers are listed here and fire when the test says so."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def monotonic(self):
        return self.now

    def call_later(self, delay, callback, *args):
        handle = asyncio.Handle(callback, args, asyncio.get_running_loop())
        self.timers.append((self.now + delay, handle))
        return handle

    @property
    def waiting(self):
        return [due for due, handle in self.timers if not handle.cancelled()]

    def fire(self, *, early=0.0):
        """Go to the one timer that waits, or just before it."""
        ((due, handle),) = [each for each in self.timers if not each[1].cancelled()]
        self.timers.clear()
        self.now = due - early
        handle._run()


@pytest.fixture
async def clock():
    return Clock()


async def test_the_earliest_of_many_deadlines_is_the_one_that_is_waited_for(clock):
    called = []
    timer = NearestTimer(clock, called.append)
    for due in (105.0, 103.0, 104.0, math.inf):
        timer.set(due)
        assert len(clock.waiting) == 1
    assert clock.waiting == [103.0]
    clock.fire()
    assert called == [103.0]
    assert clock.waiting == []


async def test_a_timer_is_set_anew_for_what_is_left_when_it_calls(clock):
    left, called = [104.0, 106.0], []

    def on_due(now):
        called.append(now)
        if left:
            timer.set(left.pop(0))

    timer = NearestTimer(clock, on_due)
    timer.set(101.0)
    for _ in range(3):
        clock.fire()
    assert called == [101.0, 104.0, 106.0]
    assert clock.waiting == []


async def test_a_loop_that_fires_early_does_not_make_a_deadline_early(clock):
    called = []
    timer = NearestTimer(clock, called.append)
    timer.set(103.0)
    clock.fire(early=0.0009)
    assert called == [103.0]


async def test_a_late_call_is_told_how_late_it_is(clock):
    called = []
    timer = NearestTimer(clock, called.append)
    timer.set(103.0)
    clock.fire(early=-2.0)
    assert called == [105.0]


async def test_what_is_over_already_is_due_at_once(clock):
    timer = NearestTimer(clock, lambda _now: None)
    timer.set(99.0)
    assert clock.waiting == [100.0]


async def test_a_cancelled_timer_does_not_call_and_may_be_set_to_a_later_time(clock):
    called = []
    timer = NearestTimer(clock, called.append)
    timer.cancel()
    timer.set(101.0)
    timer.cancel()
    assert clock.waiting == []
    timer.set(102.0)
    clock.fire()
    assert called == [102.0]


async def test_never_is_never(clock):
    NearestTimer(clock, lambda _now: None).set(math.inf)
    assert clock.waiting == []
