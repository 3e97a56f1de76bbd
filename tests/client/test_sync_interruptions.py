"""An interruption at any place of a sync call: nothing hangs after it, and nothing else is lost."""

import asyncio
import importlib
import itertools

import pytest
from interruptions import interrupted

from pulsar_txn.client import InitialPosition, sync
from pulsar_txn.client.sync import loop_thread

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture(params=["asyncio", "uvloop"])
def loop_of(request, monkeypatch):
    """Interruptions can come inside asyncio's loop as well, which is written in Python."""
    new_loop = asyncio.new_event_loop
    if request.param == "uvloop":
        new_loop = importlib.import_module("uvloop").new_event_loop
    monkeypatch.setattr(loop_thread, "new_loop", new_loop)


def everywhere(call):
    """Call it with 0, 1, 2, …, until it says that it was not interrupted any more; more often than never."""
    for at in itertools.count():
        if call(at) is None:
            assert at > 5
            return


@pytest.mark.usefixtures("loop_of")
@pytest.mark.parametrize("name", ["send", "send_nowait"])
def test_a_send_that_is_interrupted_anywhere_leaves_the_producer_as_good_as_before(url, name):
    def call(at):
        with sync.Client(url) as client:
            producer = client.create_producer(f"{name}-{at}")
            producer.send(b"first")
            send = getattr(producer, name)
            where = interrupted(lambda: send(b"interrupted"), at)
            assert producer.send_nowait(b"next").result(5), where
            producer.send(b"last")
            consumer = client.subscribe(f"{name}-{at}", "s", initial_position=EARLIEST)
            got = [consumer.receive(timeout=5).data for _ in range(3)]
            if b"interrupted" in got:
                assert got.index(b"interrupted") == 1, where
                got = [*(data for data in got if data != b"interrupted"), consumer.receive(timeout=5).data]
            assert got == [b"first", b"next", b"last"], where
            assert producer.stats().in_flight_messages == 0
            return where

    everywhere(call)


@pytest.mark.usefixtures("loop_of")
def test_an_acknowledgement_that_is_interrupted_does_not_stop_those_behind_it(url):
    """The flag that the loop has been told stayed, and nothing was acknowledged any more."""

    def call(at):
        topic = f"acks-{at}"
        with sync.Client(url) as client:
            with client.create_producer(topic, batching=False) as producer:
                for number in range(3):
                    producer.send(b"%d" % number)
            consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
            first, *others = [consumer.receive(timeout=5) for _ in range(3)]
            where = interrupted(lambda: consumer.acknowledge(first), at)
            for message in others:
                consumer.acknowledge(message)
        with sync.Client(url) as client:
            again = client.subscribe(topic, "s").receive_many(5, max_wait=0.1)
        assert [message.data for message in again] in ([], [b"0"]), where
        return where

    everywhere(call)
