"""The blocking client: messages that are received in a transaction, and the queue that threads take from."""

import pytest

from pulsar_txn.client import Client, ConsumerType, InitialPosition
from pulsar_txn.client.errors import OperationTimeout, TransactionConflict, TransactionStateError

EARLIEST = InitialPosition.EARLIEST


@pytest.fixture
def client(url):
    with Client(url) as made:
        yield made


def filled(client, count, **options):
    with client.create_producer("t", batching_max_messages=count) as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number)
        producer.flush()
    return client.subscribe("t", "s", initial_position=EARLIEST, **options)


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_commit_acknowledges_and_an_abort_brings_back(client, kind):
    consumer = filled(client, 4, consumer_type=kind)
    with pytest.raises(ZeroDivisionError), client.transaction() as txn:
        assert [message.data for message in consumer.receive_many(2, max_wait=5, txn=txn)] == [b"0", b"1"]
        raise ZeroDivisionError
    seen = []
    with client.transaction() as txn:
        for message in consumer.messages(txn=txn):
            seen.append(message.data)
            if len(seen) == 4:
                break
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]
    consumer.close()
    again = client.subscribe("t", "s", consumer_type=kind)
    with pytest.raises(OperationTimeout):
        again.receive(0.3)


def test_each_way_to_receive_joins(client):
    consumer = filled(client, 3)
    with client.transaction() as txn:
        first = consumer.receive(5, txn=txn)
        consumer.receive_many(1, txn=txn)
        consumer.receive_nowait(1, txn=txn)
        with pytest.raises(TransactionStateError, match="leave_out"):
            consumer.acknowledge(first)
        with client.transaction() as other:
            with pytest.raises(TransactionConflict):
                consumer.acknowledge(first, txn=other)
            other.abort()
    assert consumer.stats().received == 3
    consumer.close()
    with pytest.raises(OperationTimeout):
        client.subscribe("t", "s").receive(0.3)


def test_in_an_ambient_block_what_the_thread_receives_joins(client):
    consumer = filled(client, 1)
    with pytest.raises(ZeroDivisionError), client.transaction(ambient=True):
        assert consumer.receive(5).data == b"0"
        raise ZeroDivisionError
    assert consumer.receive(5).data == b"0"
