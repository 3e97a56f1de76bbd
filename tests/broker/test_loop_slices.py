"""Long work shares the milliseconds of a loop turn: a thousand works at once hold the loop no longer than one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from loop_blocks import LONGEST_SECONDS, held_loop
from raw_client import RawClient

from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.broker.base.slices import SLICE_SECONDS, LoopBudget
from pulsar_txn.wire.ids import TxnAction

SHARED = 1


class CountedRuntime(AsyncioRuntime):
    """A clock that moves by what works say they took."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:  # type: ignore[override] # a method here
        return self.now


class Turns:
    """Counts the turns of the loop, and the seconds that works used in each."""

    def __init__(self, runtime: CountedRuntime) -> None:
        self.runtime = runtime
        self.used = [0.0]
        self._stopped = False
        self._tick()

    def _tick(self) -> None:
        if not self._stopped:
            self.used.append(0.0)
            asyncio.get_running_loop().call_soon(self._tick)

    def work(self, seconds: float) -> None:
        self.runtime.now += seconds
        self.used[-1] += seconds

    def stop(self) -> None:
        self._stopped = True


async def test_all_works_together_use_two_slices_of_a_turn_at_most_however_many_there_are() -> None:
    runtime = CountedRuntime()
    budget, turns = LoopBudget(runtime), Turns(runtime)
    piece = SLICE_SECONDS / 4
    finished: list[int] = []

    async def work(number: int) -> None:
        for _ in range(20):
            await budget.pause()
            turns.work(piece)
        finished.append(number)

    await asyncio.gather(*(work(number) for number in range(300)))
    turns.stop()
    assert len(finished) == 300
    assert max(turns.used) <= 2 * (SLICE_SECONDS + piece) + 1e-9
    assert sum(turns.used) == pytest.approx(300 * 20 * piece)


async def test_works_that_enter_run_in_the_order_in_which_they_came() -> None:
    runtime = CountedRuntime()
    budget, turns = LoopBudget(runtime), Turns(runtime)
    order: list[int] = []

    async def work(number: int) -> None:
        await budget.enter()
        order.append(number)
        turns.work(SLICE_SECONDS / random.Random(number).choice([1, 3, 50]))

    tasks = []
    for number in range(200):
        tasks.append(asyncio.create_task(work(number)))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    turns.stop()
    assert order == list(range(200))


async def test_a_work_that_is_cancelled_while_it_waits_keeps_nobody_else_waiting() -> None:
    runtime = CountedRuntime()
    budget, turns = LoopBudget(runtime), Turns(runtime)
    finished: list[int] = []

    async def work(number: int) -> None:
        for _ in range(5):
            await budget.pause()
            turns.work(SLICE_SECONDS)
        finished.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(60)]
    for step in range(0, 60, 2):
        await asyncio.sleep(0)
        tasks[step].cancel()
    try:
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        turns.stop()
    assert set(finished) >= set(range(1, 60, 2))
    assert budget.waiters == 0


async def test_a_work_that_is_cancelled_in_front_of_a_queue_lets_the_queue_go_on() -> None:
    runtime = CountedRuntime()
    budget, turns = LoopBudget(runtime), Turns(runtime)
    turns.stop()

    async def spend() -> None:
        assert not budget.is_spent()
        turns.work(3 * SLICE_SECONDS)

    async def cancel_the_first() -> None:
        assert budget.waiters == 3
        waiting[0].cancel()

    first = asyncio.create_task(spend())
    waiting = [asyncio.create_task(budget.pause()) for _ in range(3)]
    await asyncio.gather(first, asyncio.create_task(cancel_the_first()))
    for _ in range(10):  # nobody else asks for a turn
        await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True] * 3
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_work_alone_goes_on_though_each_piece_takes_more_than_a_slice() -> None:
    runtime = CountedRuntime()
    budget, turns = LoopBudget(runtime), Turns(runtime)
    seen = 0
    async for _ in budget.each(range(1000)):
        seen += 1
        turns.work(SLICE_SECONDS)
    turns.stop()
    assert seen == 1000


async def test_hundreds_of_seeks_by_time_at_once_leave_the_loop_to_others(client: RawClient) -> None:
    await client.producer("a")
    for number in range(4000):
        client.send(b"%d" % number)
    await client.until(lambda: len(client.receipts) == 4000, turns=20_000)
    for number in range(300):
        await client.subscribe("a", f"s{number}", consumer_id=number, permits=0, kind=SHARED)
    async with held_loop() as held:
        with held.not_counted():
            requests = [client.start("seek", consumer_id=number, message_publish_time=2**53) for number in range(300)]
        for request in requests:
            await client.until(lambda request=request: client._answers.get(request), turns=100_000)
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_time_outs_of_many_coordinators_at_once_leave_the_loop_to_others(benches: Callable[..., Any]) -> None:
    bench = await benches(number_of_transaction_coordinators=16, max_active_transactions_per_coordinator=10_000).start()
    client = bench.client()
    for tc_id in range(16):
        await client.new_txn(tc_id, timeout_ms=3_600_000)
        requests = [client.start("newTxn", tc_id=tc_id, txn_ttl_millis=3_600_000) for _ in range(600)]
        await client.until(lambda requests=requests: client._answers.get(requests[-1]), turns=100_000)
    hosts = [bench.broker.coordinators.ready(tc_id) for tc_id in range(16)]
    async with held_loop() as held:
        bench.broker.clock.observe(bench.broker.clock.now_ms() + 4_000_000)
        for host in hosts:
            host._timer.cancel()  # the clock went ahead, and so does the timer
            host._timer = None
            host.look()
        await client.until(lambda: not any(host.machine.active_count for host in hosts), turns=200_000)
    assert sum(host.ended[TxnAction.ABORT] for host in hosts) == 16 * 601
    assert held.longest_seconds < LONGEST_SECONDS, held
