"""Threads take messages beside the loop (`Inbox.take_in_thread`): whatever the loop does in between two of their statements."""

import asyncio
import threading
from collections import deque

import pytest
from fake_broker import fake_client

from pulsar_txn.client import EARLIEST_ID, ConsumerType
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.receive.holder import Holder


class Interrupted(deque):
    """A queue in which something else is done, once, before it gives something away."""

    def __init__(self, messages, between):
        super().__init__(messages)
        self._between = between

    def _once(self):
        between, self._between = self._between, None
        if between is not None:
            between()

    def clear(self):
        self._once()
        super().clear()

    def popleft(self):
        self._once()
        return super().popleft()


def beside(function, *, wait=0.2):
    """Begun by another thread, which has a moment for it; `join` waits for its end."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(wait)
    return thread


def posted(function):
    raise AssertionError(f"{function} was posted")


async def filled(broker, client, count, **options):
    consumer = await client.subscribe("t", "s", **options)
    for index in range(count):
        broker.deliver(1, index, b"%d" % index)
    await broker.until(lambda: consumer.queued == count)
    reception_of(consumer).share_queue()
    return consumer


def datas(messages):
    return [message.data for message in messages]


@pytest.mark.parametrize("most", [2, 10])
async def test_what_comes_while_a_thread_takes_stays_in_the_queue(broker, most):
    async with fake_client(broker) as client:
        consumer = await filled(broker, client, 3)
        inbox = reception_of(consumer).inbox
        last = inbox.queue.pop()
        threads = []
        inbox.queue = Interrupted(inbox.queue, lambda: threads.append(beside(lambda: inbox.put([last]))))
        assert datas(reception_of(consumer).take_in_thread(most, 1, posted)) == [b"0", b"1"]
        threads[0].join()
        assert datas(inbox.queue) == [b"2"]


async def test_a_thread_takes_nothing_between_where_a_reader_goes_on_and_the_end_of_its_queue(broker):
    async with fake_client(broker) as client:
        reader = await client.create_reader("t", EARLIEST_ID)
        consumer = reader._consumer
        reception_of(consumer).share_queue()
        for index in range(3):
            broker.deliver(1, index, b"%d" % index)
        await broker.until(lambda: consumer.queued == 3)
        taken = reception_of(consumer).take_in_thread(1, 1, posted)
        inbox, threads = reception_of(consumer).inbox, []
        drop = inbox.drop

        def take():
            taken.extend(reception_of(consumer).take_in_thread(1, 1, posted) or [])

        def dropped(part):
            threads.append(beside(take))
            return drop(part)

        inbox.drop = dropped
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("subscribe")) == 2)
        threads[0].join()
        start = broker.all("subscribe")[1].start_message_id
        assert (start.ledgerId, start.entryId) == (1, int(taken[-1].data))


async def test_what_a_thread_takes_is_in_front_of_a_batch_or_behind_it_and_never_a_gap_in_it(broker):
    async with fake_client(broker) as client:
        consumer = await filled(broker, client, 4)
        inbox, taken, threads = reception_of(consumer).inbox, [], []
        take = inbox.take

        def interrupted(max_messages):
            threads.append(beside(lambda: taken.extend(reception_of(consumer).take_in_thread(1, 1, posted) or [])))
            return take(max_messages)

        inbox.take = interrupted
        handed = await Holder(reception_of(consumer)).take(3, None)
        threads[0].join()
        assert datas(handed) == [b"0", b"1", b"2"]
        assert datas(taken) == [b"3"]


async def test_dropping_counts_what_it_drops_and_not_what_a_thread_takes_meanwhile(broker):
    async with fake_client(broker) as client:
        consumer = await filled(broker, client, 4, receiver_queue_size=10)
        part, inbox, taken, threads = reception_of(consumer).partitions.all[0], reception_of(consumer).inbox, [], []
        take = lambda: taken.extend(reception_of(consumer).take_in_thread(1, 1, posted) or [])  # noqa: E731 - a few lines of a test
        inbox.queue = Interrupted(inbox.queue, lambda: threads.append(beside(take)))
        part.drop_queued()
        threads[0].join()
        part.flush_permits()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        assert (taken, broker.all("flow")[1].messagePermits) == ([], 4)


async def test_permits_of_what_threads_take_are_asked_for_on_the_loop_at_half(broker):
    async with fake_client(broker) as client:
        consumer = await filled(broker, client, 10, receiver_queue_size=10)
        asked = []
        for expected in (0, 0, 0, 0, 1, 1, 1):
            reception_of(consumer).take_in_thread(1, 1, asked.append)
            assert len(asked) == expected
        asked[0]()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        assert broker.all("flow")[1].messagePermits == 7
        assert datas([await consumer.receive()]) == [b"7"]


async def test_permits_of_before_a_reconnect_are_not_given_twice(broker):
    async with fake_client(broker) as client:
        consumer = await filled(broker, client, 4, receiver_queue_size=10)
        reception_of(consumer).take_in_thread(4, 1, posted)
        broker.pipe.cut()
        await broker.until(lambda: len(broker.all("flow")) == 2)
        reception_of(consumer).partitions.all[0].flush_permits()
        await asyncio.sleep(0.01)
        assert [body.messagePermits for body in broker.all("flow")] == [10, 10]


async def test_the_loop_is_asked_where_a_thread_may_not_take(broker):
    async with fake_client(broker) as client:
        consumer = await filled(broker, client, 2, consumer_type=ConsumerType.SHARED)
        assert reception_of(consumer).take_in_thread(5, 3, posted) is None
        assert datas(reception_of(consumer).take_in_thread(5, 2, posted)) == [b"0", b"1"]
        assert reception_of(consumer).take_in_thread(1, 1, posted) is None
        watched = await client.subscribe("t", "watched", ack_timeout=20)
        broker.deliver(2, 0, b"x")
        await broker.until(lambda: watched.queued == 1)
        assert reception_of(watched).take_in_thread(1, 1, posted) is None
    assert reception_of(consumer).take_in_thread(1, 0, posted) is None
