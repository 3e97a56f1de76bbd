"""The broker says how long its loop was held: as metrics, and in the log with what was slowest."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from raw_client import RawClient

from pulsar_txn.broker.admin.metrics import exposition
from pulsar_txn.broker.base.loop_meter import BEAT_SECONDS, WARN_SECONDS, Histogram, LoopMeter
from pulsar_txn.broker.base.runtime import AsyncioRuntime, Clock
from pulsar_txn.broker.base.turn import WORK_SECONDS, Turn


class SteppedRuntime(AsyncioRuntime):
    """Timers and turns are called by the test, and the clock is moved by it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Any] = []
        self.timers: list[tuple[float, Any]] = []

    def monotonic(self) -> float:  # type: ignore[override] # a method here
        return self.now

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Any, *args: Any) -> Any:
        self.timers.append((self.now + delay, callback))
        return asyncio.TimerHandle(0, callback, args, _NoLoop())  # type: ignore[arg-type] # cancelled at most


class _NoLoop:
    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, _handle: Any) -> None:
        """Nothing is scheduled."""


class Slow:
    """Deferred work that takes as long as it is told."""

    def __init__(self, runtime: SteppedRuntime, name: str, seconds: float) -> None:
        self.runtime, self.name, self.seconds = runtime, name, seconds

    def __repr__(self) -> str:
        return self.name

    def dispatch(self) -> None:
        self.runtime.now += self.seconds


def turn_with(*works: tuple[str, float]) -> tuple[Turn, SteppedRuntime]:
    runtime = SteppedRuntime()
    turn = Turn(runtime, Clock(runtime))
    for name, seconds in works:
        turn.defer(Slow(runtime, name, seconds).dispatch)
    for callback in runtime.soon:
        callback()
    return turn, runtime


def test_a_turn_counts_from_the_first_work_put_off_to_the_last_write() -> None:
    turn, _ = turn_with(("a", 0.002), ("b", 0.004))
    assert turn.meter.turns.total == pytest.approx(0.006)
    assert dict(turn.meter.turns.buckets())["0.01"] == 1
    assert dict(turn.meter.turns.buckets())["0.005"] == 0


def test_a_long_turn_is_told_once_in_the_log_with_the_slowest_of_its_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    turn, runtime = turn_with(("quick one", 0.001), ("subscription 's'", WARN_SECONDS), ("late one", 0.002))
    assert "subscription 's'" in caplog.text
    assert "quick one" not in caplog.text
    for _ in range(5):
        turn.meter.turn_ended(WARN_SECONDS, 0.0, None)
    assert len(caplog.records) == 1
    runtime.now += 60
    turn.meter.turn_ended(WARN_SECONDS, 0.0, None)
    assert len(caplog.records) == 2
    assert "5 more" in caplog.records[1].message


def test_a_beat_sees_what_held_the_loop_outside_of_turns() -> None:
    runtime = SteppedRuntime()
    meter = LoopMeter(runtime)
    meter.start()
    due, beat = runtime.timers.pop()
    assert due == pytest.approx(runtime.now + BEAT_SECONDS)
    runtime.now = due + 0.7
    beat()
    assert meter.longest_seconds == pytest.approx(0.7)
    assert dict(meter.late.buckets())["1.0"] == 1
    assert runtime.timers[0][0] == pytest.approx(runtime.now + BEAT_SECONDS)


def test_every_duration_is_in_one_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 0.3, 10.0, 11.0):
        histogram.note(seconds)
    counts = dict(histogram.buckets())
    assert counts["0.001"] == 2
    assert counts["0.25"] == 3
    assert counts["10.0"] == 5
    assert counts["+Inf"] == 6
    assert histogram.longest == 11.0


async def test_metrics_show_the_turns_of_a_broker_that_works(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.sent(b"x")
    lines = "".join([part async for part in exposition(bench.broker)]).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['pulsar_txn_broker_loop_block_seconds_count{cluster="standalone"}']) > 0
    assert float(values['pulsar_txn_broker_loop_block_seconds_bucket{cluster="standalone",le="+Inf"}']) > 0
    assert 'pulsar_txn_broker_loop_late_seconds_count{cluster="standalone"}' in values
    assert float(values['pulsar_txn_broker_loop_longest_block_seconds{cluster="standalone"}']) < 60


def test_much_deferred_work_leaves_the_loop_in_between_and_keeps_its_order() -> None:
    runtime = SteppedRuntime()
    turn = Turn(runtime, Clock(runtime))
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        runtime.now += WORK_SECONDS / 4
        if number == 0:
            turn.defer(lambda: done.append(99))

    for number in range(20):
        turn.defer(partial(work, number))
    lengths = []
    while runtime.soon:
        (callback,) = runtime.soon
        runtime.soon.clear()
        before = len(done)
        callback()
        lengths.append(len(done) - before)
    assert done == [*range(20), 99]
    assert max(lengths) <= 5
    assert turn.meter.turns.longest <= 2 * WORK_SECONDS


def test_answers_beyond_the_share_of_a_turn_come_later_and_in_their_order() -> None:
    turn, runtime = turn_with()
    given: list[int] = []

    def answer(number: int, _error: None, _message: str) -> None:
        given.append(number)
        runtime.now += WORK_SECONDS
        if number == 0:
            turn.answer(answer, 9, None, "")  # asked for later than the others, so given after them

    for number in range(7):
        turn.answer(answer, number, None, "")
    turns = 0
    while runtime.soon:
        before = len(given)
        runtime.soon.pop(0)()
        assert len(given) - before <= 4, "a turn gave more than its share before and after its work"
        turns += 1
    assert given == [0, 1, 2, 3, 4, 5, 6, 9]
    assert turns > 1
