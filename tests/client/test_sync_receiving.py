"""The blocking client takes messages, and leaves acknowledgements, in the program's thread: each once, in order, none lost."""

import contextlib
import itertools
import os
import sys
import threading
import time

import pytest
from sync_sides import inner, loop_of

from pulsar_txn.client import ConsumerType, InitialPosition, errors, sync
from pulsar_txn.client.errors import ConnectionLost
from pulsar_txn.client.receive.consumer import reception_of
from pulsar_txn.client.receive.reader import consumer_of
from pulsar_txn.client.txn.transactions import core_of

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
def client(url):
    with sync.Client(url) as client:
        yield client


@pytest.fixture
def switching():
    """Threads take turns as often as they can, so that a race between two statements shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def fill(client, topic, count, *, batching=True):
    with client.create_producer(topic, batching=batching, max_pending_messages=10_000) as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number)
        producer.flush()


def numbers(messages):
    return [int(message.data) for message in messages]


def hand_overs(client, monkeypatch):
    """How often the loop's thread was asked and waited for."""
    asked, start = [], loop_of(client).start
    monkeypatch.setattr(loop_of(client), "start", lambda work: (asked.append(work), start(work))[1])
    return asked


@pytest.mark.parametrize("queue", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("batching", [True, False])
def test_all_messages_come_in_order_whatever_the_queue_holds(client, queue, batching):
    fill(client, "t", 300, batching=batching)
    with client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=queue) as consumer:
        received = []
        for number in range(300):
            message = consumer.receive(10) if number % 7 else consumer.receive_many(1, max_wait=10)[0]
            received.append(message)
            consumer.acknowledge(message)
        assert numbers(received) == list(range(300))
        assert consumer.stats().received == consumer.stats().acknowledged == 300
        assert consumer.receive_nowait() == []


def test_what_is_queued_is_taken_and_acknowledged_without_a_hand_over(client, monkeypatch):
    fill(client, "t", 400)
    with client.subscribe("t", "s", initial_position=EARLIEST) as consumer, client.create_reader("t") as reader:
        while consumer.queued < 400 or consumer_of(inner(reader)).queued < 400:
            time.sleep(0.01)
        asked = hand_overs(client, monkeypatch)
        for _ in range(100):
            consumer.acknowledge(consumer.receive())
            consumer.acknowledge_cumulative(consumer.receive())
        consumer.acknowledge(consumer.receive_many(100))
        consumer.acknowledge(consumer.receive_nowait(100))
        assert len(reader.read_many(200)) == 200
        assert int(reader.read_next().data) == 200
        assert int(next(reader).data) == 201
        assert asked == []
    with client.subscribe("t", "s") as again, pytest.raises(errors.OperationTimeout):
        again.receive(0.3)


@pytest.mark.usefixtures("switching")
def test_threads_that_share_a_consumer_get_each_message_once(client):
    consumer = client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=20)
    got = [[] for _ in range(6)]

    def work(mine, ways):
        for way in ways:
            try:
                messages = [consumer.receive(1)] if way else consumer.receive_many(3, max_wait=1)
            except errors.OperationTimeout:
                return
            mine += messages
            consumer.acknowledge(messages)
            if not messages:
                return

    threads = [threading.Thread(target=work, args=(mine, itertools.cycle([True, True, False]))) for mine in got]
    for thread in threads:
        thread.start()
    with client.create_producer("t") as producer:
        for number in range(4000):
            producer.send_nowait(b"%d" % number)
            if number % 100 == 0:
                time.sleep(0.005)  # so that they wait in between
        producer.flush()
    for thread in threads:
        thread.join()
    assert sorted(number for mine in got for number in numbers(mine)) == list(range(4000))
    assert all(numbers(mine) == sorted(numbers(mine)) for mine in got)
    consumer.close()


@contextlib.contextmanager
def breaking(client):
    """Meanwhile the connections break again and again, on the loop's thread."""
    stop, broken = threading.Event(), []

    def break_all():
        for connection in core_of(inner(client)).pool.current():
            connection.close(ConnectionLost("broken by the test"))
            broken.append(connection)

    def work():
        while not stop.wait(0.005):
            loop_of(client).post(break_all)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()
    assert len(broken) > 3


@pytest.mark.usefixtures("switching")
def test_a_reader_reads_each_message_once_while_its_connection_breaks(url):
    with sync.Client(url, initial_backoff=0.001, max_backoff=0.01) as client:
        fill(client, "t", 10_000)
        with client.create_reader("t", receiver_queue_size=50) as reader, breaking(client):
            read = [reader.read_next(20) for _ in range(10_000)]
        assert numbers(read) == list(range(10_000))


@pytest.mark.usefixtures("switching")
def test_a_consumer_loses_nothing_while_its_connection_breaks(url):
    with sync.Client(url, initial_backoff=0.001, max_backoff=0.01) as client:
        fill(client, "t", 8000)
        with client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=50) as consumer:
            seen = set()
            with breaking(client):
                while len(seen) < 8000:
                    message = consumer.receive(20)
                    seen.add(int(message.data))
                    consumer.acknowledge(message)
        assert seen == set(range(8000))


def test_a_message_received_by_itself_is_not_acknowledged_by_the_batch_behind_it(client):
    fill(client, "t", 4, batching=False)
    with client.subscribe("t", "s", initial_position=EARLIEST) as consumer:
        while consumer.queued < 4:
            time.sleep(0.01)
        assert consumer.receive().data == b"0"
        with consumer.transactional_batch(max_messages=3, max_wait=5) as batch:
            assert numbers(batch) == [1, 2, 3]
    with client.subscribe("t", "s") as consumer:
        assert consumer.receive(10).data == b"0"
        with pytest.raises(errors.OperationTimeout):
            consumer.receive(0.3)


def test_an_acknowledgement_is_there_before_what_is_asked_for_later(client):
    fill(client, "t", 20, batching=False)
    with client.subscribe("t", "s", initial_position=EARLIEST, ack_group_delay=60) as consumer:
        first = [consumer.receive(10) for _ in range(10)]
        for message in first:
            consumer.acknowledge(message)
        consumer.redeliver_unacknowledged()
        assert numbers(consumer.receive(10) for _ in range(10)) == list(range(10, 20))


def test_what_cannot_be_acknowledged_is_refused_at_once(client):
    fill(client, "t", 3, batching=False)
    consumer = client.subscribe("t", "s", initial_position=EARLIEST, consumer_type=ConsumerType.SHARED)
    other = client.subscribe("u", "s", initial_position=EARLIEST)
    mine = consumer.receive(10)
    with pytest.raises(errors.InvalidConfiguration, match="does not receive from"):
        other.acknowledge(mine)
    with pytest.raises(errors.InvalidConfiguration, match="does not receive from"):
        other.acknowledge([mine])
    with pytest.raises(errors.InvalidConfiguration, match="cumulative"):
        consumer.acknowledge_cumulative(mine)
    with pytest.raises(errors.InvalidConfiguration, match="at least 1"):
        consumer.receive_many(0)
    consumer.acknowledge([])
    consumer.close()
    with pytest.raises(errors.AlreadyClosed):
        consumer.acknowledge(mine)
    with pytest.raises(errors.AlreadyClosed):
        consumer.receive()
    assert list(consumer) == []


def test_a_forked_child_takes_nothing_of_what_is_queued(client):
    fill(client, "t", 3)
    with client.subscribe("t", "s", initial_position=EARLIEST) as consumer:
        message = consumer.receive(10)
        pid = os.fork()
        if not pid:
            refused = 0
            for call in (consumer.receive, consumer.receive_many, lambda: consumer.acknowledge(message)):
                try:
                    call()
                except errors.ForkedClientError:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_a_seek_moves_the_next_message_that_is_taken(client):
    fill(client, "t", 50, batching=False)
    with client.subscribe("t", "s", initial_position=EARLIEST) as consumer, client.create_reader("t") as reader:
        third = [consumer.receive(10) for _ in range(20)][3]
        consumer.seek(third.message_id)
        assert consumer.receive(10).data == b"4"
        for _ in range(20):
            reader.read_next(10)
        reader.seek(third.message_id)
        assert reader.read_next(10).data == b"4"


def test_acknowledgements_behind_each_other_leave_in_one_command(client):
    fill(client, "t", 500, batching=False)
    with client.subscribe("t", "s", initial_position=EARLIEST) as consumer:
        sent = []
        part = reception_of(inner(consumer)).partitions.all[0]
        write = part.channel.connection.write
        part.channel.connection.write = lambda buffers: (sent.append(buffers), write(buffers))[1]
        for _ in range(500):
            consumer.acknowledge(consumer.receive(10))
        consumer.close()
        assert len(sent) < 50
    with client.subscribe("t", "s") as consumer, pytest.raises(errors.OperationTimeout):
        consumer.receive(0.3)
