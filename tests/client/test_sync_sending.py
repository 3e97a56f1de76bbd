"""Sends of the blocking client are left to its own thread: they keep their order, their bounds and their transactions."""

import contextlib
import contextvars
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from insides import partitions_of
from sync_sides import inner, loop_of, pretend_looking, put_inbox, take_inbox

from pulsar_txn.client import InitialPosition, errors, sync
from pulsar_txn.client.sync.loop_thread import LoopThread


@contextlib.contextmanager
def busy(loop):
    """The loop's thread is, until the end of the block."""
    there, over = threading.Event(), threading.Event()
    loop.post(lambda: (there.set(), over.wait(10)))
    assert there.wait(10)
    try:
        yield
    finally:
        over.set()


@pytest.fixture
def interrupt():
    """Interrupts the main thread in so many seconds, as Ctrl-C does."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    yield lambda seconds: threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    signal.signal(signal.SIGUSR1, before)


def test_order_is_kept_whatever_way_a_message_goes(url):
    with sync.Client(url) as client:
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
        tickets = []
        for number in range(3000):
            text = b"%d" % number
            if number % 700 == 3:
                tickets.append(producer.send_nowait(text + bytes(20_000)))  # too large to be left to the other thread
            elif number % 3 == 1:
                tickets.append(producer.send_nowait(text, key="k", properties={"a": "b"}))
            else:
                tickets.append(producer.send_nowait(text))
        producer.flush()
        assert all(ticket.done() for ticket in tickets)
        assert len({ticket.result() for ticket in tickets}) == 3000
        got = [consumer.receive(timeout=10).data.rstrip(b"\0") for _ in range(3000)]
        assert got == [b"%d" % number for number in range(3000)]


def test_a_commit_takes_along_what_was_sent_before_it(url):
    with sync.Client(url) as client:
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
        for _ in range(20):
            with client.transaction(timeout=30) as txn:
                tickets = [producer.send_nowait(b"%d" % number, txn=txn) for number in range(50)]
            assert all(ticket.done() and ticket.exception() is None for ticket in tickets)
        for _ in range(20):
            assert [consumer.receive(timeout=10).data for _ in range(50)] == [b"%d" % number for number in range(50)]
        with pytest.raises(errors.TransactionStateError):
            producer.send_nowait(b"late", txn=txn)


def test_the_bounds_hold_for_what_the_other_thread_has_not_seen_yet(url):
    with sync.Client(url) as client:
        producer = client.create_producer("t", max_pending_messages=100, batching_max_messages=10)
        sent, refused = [], 0
        while refused < 3:
            try:
                sent.append(producer.send_nowait(b"x"))
            except errors.ProducerQueueFull:
                refused += 1
                producer.wait_for_room()
        producer.flush()
        assert all(ticket.exception() is None for ticket in sent)


def test_waiting_for_room_asks_the_clients_thread_only_when_there_is_none(url, monkeypatch):
    handed_over = []
    start = LoopThread.start
    monkeypatch.setattr(LoopThread, "start", lambda self, work: handed_over.append(work) or start(self, work))
    with sync.Client(url) as client:
        producer = client.create_producer("t", max_pending_messages=20, batching_max_messages=5)
        handed_over.clear()
        for _ in range(15):
            producer.wait_for_room()
        assert not handed_over
        producer.send(b"x")
        tickets = []
        for _ in range(200):
            producer.wait_for_room()
            tickets.append(producer.send_nowait(b"x"))  # never refused: nobody else sends
        producer.flush()
        assert all(ticket.exception() is None for ticket in tickets)
        producer.close()
        producer.wait_for_room()  # nobody waits for what never comes


def test_the_call_that_the_loop_is_at_counts_against_the_bounds(url):
    """It had left the inbox and taken no room yet: one message too many was admitted, and its future failed."""
    with sync.Client(url) as client:
        loop = loop_of(client)
        client.create_producer("t")
        there, over, told = threading.Event(), threading.Event(), []
        loop.do_soon(lambda: (there.set(), over.wait(10)))
        assert there.wait(10)
        loop.submit_soon(lambda outer: outer.set_result(None), lambda calls: not told.append(calls))
        over.set()
        assert told == [1]


def test_a_closed_producer_refuses_at_once_and_a_closed_client_leaves_no_future_open(url):
    client = sync.Client(url)
    producer = client.create_producer("t")
    tickets = [producer.send_nowait(b"x") for _ in range(500)]
    producer.close()
    assert all(ticket.done() for ticket in tickets)
    with pytest.raises(errors.AlreadyClosed):
        producer.send_nowait(b"x")
    client.close()
    with pytest.raises(errors.AlreadyClosed):
        producer.send_nowait(b"x")


def test_threads_wait_for_their_own_messages(url):
    with sync.Client(url) as client:
        producer = client.create_producer("t")
        ids = []

        def work():
            ids.extend(producer.send_nowait(b"%d" % number).result(20) for number in range(50))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 200
        done, left = wait([producer.send_nowait(b"x") for _ in range(10)], timeout=20)
        assert len(done) == 10
        assert not left


def test_sends_that_wait_find_room_however_many_threads_send(url):
    with sync.Client(url) as client, ThreadPoolExecutor(8) as pool:
        consumer, producer = client.subscribe("t", "s"), client.create_producer("t", max_pending_messages=2)
        ids = list(pool.map(producer.send, (b"%d" % number for number in range(400))))
        assert len(set(ids)) == 400
        assert {consumer.receive(timeout=10).data for _ in range(400)} == {b"%d" % number for number in range(400)}


def test_a_send_that_is_interrupted_before_the_loop_has_it_is_not_made(url, interrupt):
    with sync.Client(url) as client:
        producer = client.create_producer("t")
        with busy(loop_of(client)):
            interrupt(0.2)
            with pytest.raises(KeyboardInterrupt):
                producer.send(b"interrupted")
        producer.send(b"behind it")
        assert client.subscribe("t", "s", initial_position=InitialPosition.EARLIEST).receive(timeout=10).data == b"behind it"


def test_a_send_that_is_interrupted_later_goes_out_all_the_same(url, interrupt):
    with sync.Client(url) as client:
        producer = client.create_producer("t")
        (partition,) = partitions_of(inner(producer))
        answer, partition.on_receipt = partition.on_receipt, lambda *receipt: late.append(receipt)
        late = []
        interrupt(0.3)
        with pytest.raises(KeyboardInterrupt):
            producer.send(b"interrupted")
        partition.on_receipt = answer
        loop_of(client).call(lambda: answer(*late[0]))
        producer.send(b"behind it")
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.EARLIEST)
        assert [consumer.receive(timeout=10).data for _ in range(2)] == [b"interrupted", b"behind it"]


def test_what_a_send_is_refused_with_is_raised_where_it_was_called(url):
    with sync.Client(url) as client, client.create_producer("t", chunking=False) as producer:
        with pytest.raises(errors.MessageTooLarge):
            producer.send(bytes(6_000_000))
        with client.transaction(timeout=30) as txn:
            producer.send(b"x", txn=txn)
        with pytest.raises(errors.TransactionStateError):
            producer.send(b"late", txn=txn)
        assert producer.stats().in_flight_messages == 0


WAYS_TO_THE_LOOP = {
    "ask": lambda loop: loop.ask(lambda answer: answer.set_result(None)),
    "call": lambda loop: loop.call(lambda: None),
    "post": lambda loop: loop.post(lambda: None),
    "submit_soon": lambda loop: loop.submit_soon(lambda ticket: ticket.set_result(None), lambda waiting: True).result(10),
}


def is_closed(loop):
    loop.stop()


def has_ended(loop):
    """And is not closed yet, so that it takes what it will never do."""
    loop._loop.call_soon_threadsafe(loop._loop.stop)
    loop._thread.join()
    loop.stopped = True


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("end", [is_closed, has_ended])
@pytest.mark.parametrize("way", WAYS_TO_THE_LOOP.values(), ids=WAYS_TO_THE_LOOP)
def test_who_comes_to_a_loop_that_has_ended_meanwhile_is_told(way, end, looks, monkeypatch):
    loop = LoopThread()
    loop.call(lambda: None)
    pretend_looking(loop, looks)
    monkeypatch.setattr(loop, "check", lambda: end(loop))  # it was open when it was looked at
    with pytest.raises(errors.AlreadyClosed):
        way(loop)


def test_a_future_that_was_given_up_does_not_hold_up_the_end_of_the_loop():
    loop = LoopThread()
    loop.call(lambda: None)
    pretend_looking(loop, True)
    given_up, other = (loop.submit_soon(lambda ticket: None, lambda waiting: True) for _ in range(2))
    assert given_up.cancel()
    loop.stop()
    assert given_up.cancelled()
    with pytest.raises(errors.AlreadyClosed):
        other.result(1)


@pytest.mark.parametrize("unit", [False, True])
def test_a_send_that_waits_is_told_when_closing_was_interrupted_before_it_began(url, interrupt, unit):
    """With an open unit the producer is closed by whoever is in a hurry, and the second interruption ends that one as well."""
    client = sync.Client(url)
    producer = client.create_producer("t")
    opened = client.begin_transaction() if unit else None
    (partition,) = partitions_of(inner(producer))
    partition.on_receipt = lambda *receipt: None
    with ThreadPoolExecutor(2) as pool:
        waiting, ticket = pool.submit(producer.send, b"x"), producer.send_nowait(b"y")
        client.stats()
        loop_of(client).post(lambda: time.sleep(0.5))
        interrupt(0.1)
        interrupt(0.2)
        with pytest.raises(KeyboardInterrupt):
            client.close()
        for each in (waiting, ticket):
            with pytest.raises(errors.AlreadyClosed):
                each.result(10)
    del opened  # it was open until here


def test_who_waits_for_a_loop_that_ends_is_told():
    loop = LoopThread()
    loop.call(lambda: None)
    with ThreadPoolExecutor(1) as pool:
        with busy(loop):
            asking = pool.submit(loop.ask, lambda answer: answer.set_result(None))
            while not loop.waiting:
                pass
            inbox = take_inbox(loop)  # it ends before it looks there
        loop.call(lambda: None)
        put_inbox(loop, inbox)
        loop.stop()
        with pytest.raises(errors.AlreadyClosed):
            asking.result(10)


def test_what_threads_have_done_on_the_loop_is_in_nobodys_context():
    """Else a send of one thread could join the ambient transaction of another, which woke the loop for both."""
    loop, whose, seen = LoopThread(), contextvars.ContextVar("whose", default="nobody's"), []
    whose.set("this thread's")
    loop.post(lambda: seen.append(whose.get()))
    loop.do_soon(lambda: seen.append(whose.get()))
    assert loop.ask(lambda answer: answer.set_result(whose.get())) == "nobody's"
    loop.call(lambda: None)
    loop.stop()
    assert seen == ["nobody's"] * 2


def test_a_call_that_fails_behind_its_answer_does_not_stop_those_behind_it():
    loop = LoopThread()

    def answered_and_failed(answer):
        answer.set_result("answered")
        raise RuntimeError("behind it")

    assert loop.ask(answered_and_failed) == "answered"
    assert loop.submit_soon(answered_and_failed, lambda waiting: True).result(10) == "answered"
    assert loop.submit_soon(lambda ticket: ticket.set_result("next"), lambda waiting: True).result(10) == "next"
    loop.stop()
