"""Sends of the sync client are left to its own thread: they keep their order, their bounds and their transactions."""

import threading
from concurrent.futures import wait

import pytest

from pulsar_txn.client import errors, sync


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
