"""The blocking client's pipeline: the handler computes in the program's threads, the client goes on meanwhile."""

import threading
import time

import pytest
from sync_sides import loop_of

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import ConsumerType, InitialPosition, Poison, errors, sync
from pulsar_txn.client.receive.dead_letters import letter_topic
from pulsar_txn.client.sync.loop_thread import LoopThread

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
def client():
    """A client of our broker, which is in memory, on a loop of its own."""
    thread = LoopThread()
    broker = Standalone(None)
    thread.run(broker.__aenter__)
    with sync.Client(broker.service_url, keep_alive_interval=0.2, initial_backoff=0.01) as client:
        yield client
    thread.run(lambda: broker.__aexit__(None, None, None))
    thread.stop()


def feed(client, topic, values, **options):
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value, **options)


def test_batches_are_handled_in_the_callers_thread_and_each_is_one_transaction(client):
    threads, events, stop = set(), [], threading.Event()
    feed(client, "in", [b"%d" % number for number in range(20)])
    consumer = client.subscribe("in", "s", initial_position=EARLIEST)
    target, reader = client.create_producer("out"), client.subscribe("out", "r")

    def handler(batch):
        threads.add(threading.current_thread())
        for message in batch:
            target.send(message.data + b"!", txn=batch.txn)
        if batch[-1].data == b"19":
            stop.set()

    result = client.pipeline(consumer, handler, max_messages=5, stop=stop, observer=events.append)
    assert (result.messages, result.aborted) == (20, 0)
    assert threads == {threading.current_thread()}
    assert [reader.receive(10).data for _ in range(20)] == [b"%d!" % number for number in range(20)]
    loop_of(client).callbacks.drain(30)
    assert {event.kind for event in events} == {"committed"}


def test_receipts_receiving_and_keep_alive_go_on_while_the_handler_computes(client):
    stop, seen = threading.Event(), []
    feed(client, "in", [b"1"])
    consumer = client.subscribe("in", "s", initial_position=EARLIEST)
    producer = client.create_producer("in")

    def handler(batch):
        ticket = producer.send_nowait(b"2") if batch[0].data == b"1" else None
        until = time.monotonic() + 1.0  # several keep-alive intervals
        while time.monotonic() < until:
            sum(range(1000))
        if ticket is None:
            stop.set()
        else:
            seen.append((ticket.done(), consumer.queued, consumer.is_connected))

    result = client.pipeline(consumer, handler, stop=stop)
    assert result.committed == 2
    assert seen == [(True, 1, True)]


def test_lanes_work_side_by_side_in_threads_of_their_own(client):
    stop, both = threading.Event(), threading.Barrier(2, timeout=30)
    for key in ("a", "b", "c", "d", "e", "f"):
        feed(client, "in", [key.encode()], key=key)
    consumer = client.subscribe("in", "s", initial_position=EARLIEST, consumer_type=ConsumerType.KEY_SHARED)
    threads = set()

    def handler(batch):
        threads.add(threading.current_thread().name)
        if not stop.is_set():
            both.wait()  # two handlers at once, or never
            stop.set()

    result = client.pipeline(consumer, handler, concurrency=2, max_messages=6, stop=stop)
    assert result.committed >= 2
    assert threads == {threading.current_thread().name, "pulsar-txn-handler-1"}


def test_what_the_handler_raises_aborts_and_poison_goes_to_the_dead_letters(client):
    stop = threading.Event()
    feed(client, "in", [b"good", b"bad", b"fine"])
    consumer = client.subscribe("in", "s", initial_position=EARLIEST)
    letters = client.subscribe(letter_topic(consumer.topic, "s"), "r", initial_position=EARLIEST)

    def handler(batch):
        if any(message.data == b"bad" for message in batch):
            raise ValueError("cannot read this")
        if batch[-1].data == b"fine":
            stop.set()

    result = client.pipeline(consumer, handler, max_aborts=2, on_poison=Poison.DEAD_LETTER, stop=stop)
    assert (result.messages, result.dead_lettered) == (2, 1)
    letter = letters.receive(10)
    assert (letter.data, letter.properties["EXCEPTION"]) == (b"bad", "ValueError: cannot read this")


def test_the_handlers_error_of_a_poison_message_is_raised_when_asked_for(client):
    feed(client, "in", [b"bad"])
    consumer = client.subscribe("in", "s", initial_position=EARLIEST)
    with pytest.raises(ZeroDivisionError):
        client.pipeline(consumer, lambda batch: 1 / 0, max_aborts=1, on_poison=Poison.RAISE)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_is_no_exception_ends_the_pipeline_and_its_messages_come_again(client, concurrency):
    feed(client, "in", [b"x"])
    consumer = client.subscribe("in", "s", initial_position=EARLIEST)

    def handler(batch):
        raise SystemExit(3)

    with pytest.raises(SystemExit) as raised:
        client.pipeline(consumer, handler, concurrency=concurrency)
    assert raised.value.code == 3
    assert consumer.receive(10).data == b"x"
    assert client.create_producer("in").send(b"the client lives")


def test_arguments_that_make_no_sense_are_refused_and_nothing_hangs(client):
    consumer = client.subscribe("in", "s")
    for wrong in ({"concurrency": 0}, {"max_messages": 0}, {"timeout": 0}, {"max_aborts": 0}):
        with pytest.raises(errors.InvalidConfiguration):
            client.pipeline(consumer, print, **wrong)


def test_the_end_of_the_client_ends_its_pipeline(client):
    consumer = client.subscribe("in", "s")
    ended = []

    def run():
        with pytest.raises(errors.AlreadyClosed):
            client.pipeline(consumer, print)
        ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    consumer.close()
    thread.join(20)
    assert ended == [True]
