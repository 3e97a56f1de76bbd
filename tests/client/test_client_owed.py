"""What the broker owes an Exclusive or Failover consumer: each message once and in order, also when some are passed over.

Stock 4.0.8 passes entries over when it is asked to deliver again while it reads; see `state/rewinds.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest
from fake_broker import SILENCE, FakeBroker, fake_client

from pulsar_txn.client import AsyncConsumer, ConsumerType
from pulsar_txn.client.state import rewinds

LONG = 60.0
"""Seconds of silence for tests in which nothing may be asked for because nothing comes."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewinds, "PASSED_OVER_PAUSE", 0.005)
    monkeypatch.setattr(rewinds, "SILENCE", 0.02)


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


async def test_what_follows_entries_of_an_old_epoch_is_kept_back_until_they_have_come(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(3), epoch=0)
        assert await received(consumer, 3) == [0, 1, 2]
        when_asked(broker, [0, 1, 2, 9], range(10))
        consumer.redeliver_unacknowledged()
        deliver(broker, range(3, 9), epoch=0)
        assert await received(consumer, 10) == [*range(10)]
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
async def test_what_the_program_acknowledges_is_not_waited_for(
    broker: FakeBroker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewinds, "SILENCE", LONG)
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
        following = 1 if how == "in a batch" else 3
        deliver(broker, [following], epoch=1)
        assert await received(consumer, 1) == [following]
        await asyncio.sleep(0.1)
    assert requests(broker) == [1]


async def test_what_was_read_and_never_sent_is_asked_for_once_more(broker: FakeBroker) -> None:
    """Stock 4.2.4 dropped what it had read in an old epoch, and went on with what followed: 150 messages never came."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(3), epoch=0)
        assert await received(consumer, 3) == [0, 1, 2]
        when_asked(broker, [0, 1, 2, 6, 7], range(9))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 9) == [*range(9)]
        await asyncio.sleep(0.05)
        assert consumer.queued == 0
        when_asked(broker, [0, 1, 2, 6, 7, 8], range(9))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 9) == [*range(9)]
    assert requests(broker) == [1, 2, 3, 4]


async def test_what_was_read_and_never_sent_is_asked_for_after_entries_of_an_old_epoch_too(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(3), epoch=0)
        assert await received(consumer, 3) == [0, 1, 2]
        when_asked(broker, (), [0, 1, 2, 6, 7], range(9))
        consumer.redeliver_unacknowledged()
        consumer.redeliver_unacknowledged()
        deliver(broker, [6, 7], epoch=1)
        assert await received(consumer, 9) == [*range(9)]
        await asyncio.sleep(0.05)
        assert consumer.queued == 0
    assert requests(broker) == [1, 2, 3]


async def test_a_hole_that_stays_is_doubted_once(broker: FakeBroker) -> None:
    """Markers of transactions and what is acknowledged leave holes that nothing fills."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0, 2], epoch=0)
        assert await received(consumer, 2) == [0, 2]
        when_asked(broker, [0, 2, 4, 6], [0, 2, 4, 6, 8])
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 5) == [0, 2, 4, 6, 8]
        deliver(broker, [10, 12], epoch=2)
        assert await received(consumer, 2) == [10, 12]
        await asyncio.sleep(0.05)
        assert consumer.queued == 0
    assert requests(broker) == [1, 2]


async def test_a_hole_after_others_long_after_a_request_is_not_doubted(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewinds, "SILENCE", LONG)
    monkeypatch.setattr(rewinds, "DOUBT", 0.0)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0], epoch=0)
        assert await received(consumer, 1) == [0]
        when_asked(broker, [0, 1, 3, 5])
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 4) == [0, 1, 3, 5]
        await asyncio.sleep(0.05)
    assert requests(broker) == [1]


async def test_the_end_of_a_topic_that_was_read_and_never_sent_is_asked_for_once_more(broker: FakeBroker) -> None:
    """Stock 4.2.4 dropped the last 100 messages of a topic; nothing followed them, so nobody missed them."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(3), epoch=0)
        assert await received(consumer, 3) == [0, 1, 2]
        when_asked(broker, range(3), range(9))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 9) == [*range(9)]
        await asyncio.sleep(0.1)
        assert consumer.queued == 0
    assert requests(broker) == [1, 2]


async def test_a_hole_that_shows_long_after_a_request_is_doubted_when_nothing_came_between(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewinds, "DOUBT", 0.0)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0], epoch=0)
        assert await received(consumer, 1) == [0]
        when_asked(broker, [0, 4], range(6))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 6) == [*range(6)]
    assert requests(broker) == [1, 2]


async def test_whoever_waits_for_the_first_message_gets_it_although_a_hole_is_doubted(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An aborted batch was asked for once a while, and each answer was kept back: seconds without a message."""
    monkeypatch.setattr(rewinds, "SILENCE", LONG)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(2), epoch=0)
        with pytest.raises(ZeroDivisionError):
            async with consumer.transactional_batch(max_messages=2, max_wait=1):
                broker.refuses = True
                broker.pipe.cut()
                await broker.until(lambda: not consumer.is_connected)
                raise ZeroDivisionError
        broker.refuses = False
        await broker.until(lambda: requests(broker), seconds=20)
        deliver(broker, [2, 3], epoch=0)
        when_asked(broker, *itertools.repeat(range(4), 3))
        assert await received(consumer, 4) == [*range(4)]


async def test_a_message_of_which_chunks_are_here_is_whole_after_a_request_for_what_is_missing(broker: FakeBroker) -> None:
    """The chunks were dropped, came again, and counted as handed out: their message never came."""

    def answer(_pipe: object, body: object) -> object:
        again = broker.all("redeliverUnacknowledgedMessages")
        broker.deliver(1, 0, b"0", epoch=body.consumer_epoch)  # type: ignore[attr-defined] # a protobuf message
        for chunk in range(len(again)):
            fields = {"uuid": "u", "chunk_id": chunk, "num_chunks_from_msg": 2, "total_chunk_msg_size": 4}
            broker.deliver(1, 1 + chunk, b"%d." % chunk, epoch=body.consumer_epoch, **fields)  # type: ignore[attr-defined]
        return SILENCE

    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0], epoch=0)
        assert await received(consumer, 1) == [0]
        broker.on["redeliverUnacknowledgedMessages"] = answer
        consumer.redeliver_unacknowledged()
        assert [(await consumer.receive(5)).data for _ in range(2)] == [b"0", b"0.1."]
    assert requests(broker) == [1, 2]


async def test_what_an_abort_brings_before_its_answer_is_handed_out_once(broker: FakeBroker) -> None:
    """The conformance suite found it: nobody noted the message, so the request after that brought it once more."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0], epoch=0)
        message = await consumer.receive(5)
        txn = await client.begin_transaction()
        await consumer.acknowledge(message, txn=txn)
        answered = broker.on.get("endTxn") or broker._endTxn

        def overtaken(pipe: object, body: object) -> object:
            deliver(broker, [0], epoch=0)
            return answered(pipe, body)

        broker.on["endTxn"] = overtaken
        when_asked(broker, [0], [0])
        await txn.abort()
        assert await received(consumer, 1) == [0]
        await broker.until(lambda: len(requests(broker)) == 2)
        await asyncio.sleep(0.05)
        assert consumer.queued == 0


async def test_what_comes_before_its_turn_fills_no_hole_that_is_doubted(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0], epoch=0)
        assert await received(consumer, 1) == [0]
        when_asked(broker, [6, 0, 5], range(9))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 9) == [*range(9)]
    assert requests(broker) == [1, 2]


async def test_a_hole_is_asked_about_when_the_broker_is_silent(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that meets a read under way makes the next hole."""
    monkeypatch.setattr(rewinds, "PASSED_OVER_PAUSE", 0.2)
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, [0], epoch=0)
        assert await received(consumer, 1) == [0]
        when_asked(broker, [0, 5], range(50))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 1) == [0]
        for number in range(6, 46):
            deliver(broker, [number], epoch=1)
            await asyncio.sleep(0.01)
        assert requests(broker) == [1]
        assert await received(consumer, 49) == [*range(1, 50)]
    assert requests(broker) == [1, 2]


async def test_the_request_leaves_before_the_permits_of_what_is_dropped(broker: FakeBroker) -> None:
    """The other way round the broker reads for these permits, and meets the request with that read under way."""
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s", receiver_queue_size=2)
        deliver(broker, range(2), epoch=0)
        await broker.until(lambda: consumer.queued == 2)
        said: list[str] = []

        def heard(name: str) -> object:
            said.append(name)
            return SILENCE

        broker.on["redeliverUnacknowledgedMessages"] = lambda *_: heard("request")
        broker.on["flow"] = lambda *_: heard("permits")
        consumer.redeliver_unacknowledged()
        await broker.until(lambda: len(said) == 2)
    assert said == ["request", "permits"]


async def test_what_has_expired_is_not_waited_for_for_ever(broker: FakeBroker) -> None:
    async with fake_client(broker) as client:
        consumer = await client.subscribe("t", "s")
        deliver(broker, range(5), epoch=0)
        assert await received(consumer, 5) == [*range(5)]
        when_asked(broker, *itertools.repeat([3, 4, 5], rewinds.TIMES + 2))
        consumer.redeliver_unacknowledged()
        assert await received(consumer, 3) == [3, 4, 5]
        await asyncio.sleep(0.1)
    assert requests(broker) == [*range(1, rewinds.TIMES + 3)]


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
