"""The client on uvloop, whose handles of very short delays are not asyncio's timers."""

import asyncio

import pytest

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient
from pulsar_txn.client.net.runtime import AsyncioRuntime
from pulsar_txn.client.net.timer import NearestTimer

uvloop = pytest.importorskip("uvloop")


@pytest.mark.parametrize("delay", [0, 1e-9, 0.0004, 0.01])
def test_a_deadline_of_any_delay_is_met_and_moved(delay):
    async def met():
        runtime, called = AsyncioRuntime(), asyncio.get_running_loop().create_future()
        timer = NearestTimer(runtime, called.set_result)
        due = runtime.monotonic() + delay
        timer.set(due + 60)
        timer.set(due)
        timer.set(due + 60)
        return await called >= due

    assert uvloop.run(met())


def test_batches_with_a_tiny_delay_are_sent_on_uvloop():
    async def story():
        async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
            producer = await client.create_producer("t", batching_max_delay=0.0001)
            tickets = []
            for number in range(2_000):
                await producer.wait_for_room()
                tickets.append(producer.send_nowait(b"%d" % number))
            return [await ticket for ticket in tickets]

    assert len(set(uvloop.run(story()))) == 2_000
