"""What the broker owes an Exclusive or Failover consumer: each message once and in order, also when some are passed over.

Stock 4.0.8 passes entries over when it is asked to deliver again while it reads; see `receive/owed.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import AsyncConsumer, ConsumerType
from pulsar_txn.client.receive import owed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed, "PASSED_OVER_PAUSE", 0.005)
    monkeypatch.setattr(owed, "SILENCE", 0.02)


def deliver(broker: FakeBroker, numbers: Iterable[int], epoch: int) -> None:
    for number in numbers:
        broker.deliver(1, number, b"%d" % number, epoch=epoch)


async def received(consumer: AsyncConsumer[bytes], count: int) -> list[int]:
    return [int((await consumer.receive(5)).data) for _ in range(count)]


def requests(broker: FakeBroker) -> list[int]:
    return [body.consumer_epoch for body in broker.all("redeliverUnacknowledgedMessages")]


def when_asked(broker: FakeBroker, *answers: Iterable[int]) -> None:
    """What the broker delivers after the first request to deliver everything again, after the second, and so on."""
    left = iter(answers)

    def answer(_pipe: object, body: object) -> object:
        deliver(broker, next(left, ()), body.consumer_epoch)  # type: ignore[attr-defined] # a protobuf message
        return SILENCE

    broker.on["redeliverUnacknowledgedMessages"] = answer


async def test_what_was_sent_in_an_old_epoch_and_not_again_is_asked_for_once_more(broker: FakeBroker) -> None:
    """The stall: 50 messages that the broker had sent stayed with nobody until the consumer was closed."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.EXCLUSIVE)
        deliver(broker, range(3), epoch=0)
        assert await received(consumer, 3) == [0, 1, 2]
        when_asked(broker, range(3), range(9))
        consumer.redeliver_unacknowledged()
        deliver(broker, range(3, 9), epoch=0)
        assert await received(consumer, 9) == [*range(9)]
        await asyncio.sleep(0.1)
        assert consumer.queued == 0
    assert requests(broker) == [1, 2]


async def test_what_follows_an_entry_that_was_passed_over_is_kept_back_and_nothing_comes_twice(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(8), epoch=0)
        assert await received(consumer, 4) == [0, 1, 2, 3]
        when_asked(broker, [0, 1, 6, 7, 8], [0, 1, 2, 5], range(10))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 10) == [*range(10)]
        await asyncio.sleep(0.05)
        assert consumer.queued == 0
    assert requests(broker) == [1, 2, 3]


async def test_what_comes_twice_in_one_epoch_is_handed_out_once(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(6), epoch=0)
        assert await received(consumer, 6) == [*range(6)]
        when_asked(broker, [0, 1, 2, 1, 2, 3, 4, 3, 4, 5, 6])
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 7) == [*range(7)]
        assert consumer.queued == 0
    assert requests(broker) == [1]


@pytest.mark.parametrize("how", ["each", "cumulatively", "in a batch"])
async def test_what_the_program_acknowledges_is_not_waited_for(broker: FakeBroker, how: str) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", ack_group_delay=60)
        if how == "in a batch":
            broker.deliver(1, 0, b"0", b"1", b"2", epoch=0)
        else:
            deliver(broker, range(3), epoch=0)
        messages = await consumer.receive_many(3, max_wait=5)
        consumer.redeliver_unacknowledged()
        await broker.until(lambda: requests(broker))
        if how == "cumulatively":
            await consumer.acknowledge_cumulative(messages[-1])
        else:
            for message in messages:
                await consumer.acknowledge(message)
        deliver(broker, [4], epoch=1)
        assert await received(consumer, 1) == [4]
        await asyncio.sleep(0.1)
    assert requests(broker) == [1]


async def test_what_has_expired_is_not_waited_for_for_ever(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(5), epoch=0)
        assert await received(consumer, 5) == [*range(5)]
        when_asked(broker, *itertools.repeat([3, 4, 5], owed.TIMES + 2))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 3) == [3, 4, 5]
        await asyncio.sleep(0.1)
    assert requests(broker) == [*range(1, owed.TIMES + 3)]


async def test_a_program_that_takes_its_time_is_not_hurried(broker: FakeBroker) -> None:
    """While messages wait for the program, the broker may have no permit to send more."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=2)
        deliver(broker, range(4), epoch=0)
        assert await received(consumer, 4) == [*range(4)]
        when_asked(broker, [0, 1])
        consumer.redeliver_unacknowledged()
        await asyncio.sleep(0.3)
        assert requests(broker) == [1]
        assert await received(consumer, 2) == [0, 1]
        deliver(broker, [2, 3], epoch=1)
        assert await received(consumer, 2) == [2, 3]


async def test_on_shared_subscriptions_nothing_is_kept_back(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
        for entry in range(3):
            broker.deliver(1, entry, b"%d" % entry)
        assert await received(consumer, 3) == [0, 1, 2]
        consumer.redeliver_unacknowledged()
        broker.deliver(1, 2, b"2")
        assert await received(consumer, 1) == [2]
        await asyncio.sleep(0.1)
    assert len(requests(broker)) == 1
