"""`client.transaction(ambient=True)` of the blocking client: what the block's thread does without `txn=` is part of it."""

import contextlib
import threading

import pytest
from sync_sides import loop_of, pretend_looking

from pulsar_txn.client import InitialPosition, sync
from pulsar_txn.client.client import AsyncClient as AsyncioClient
from pulsar_txn.client.errors import TransactionStateError
from pulsar_txn.client.send.batching import encode_batch


class UndoError(Exception):
    """Ends a block with an abort."""


WAYS = {
    "send": lambda producer: producer.send(b"x"),
    "send with a key": lambda producer: producer.send(b"x", key="k"),
    "send_nowait": lambda producer: producer.send_nowait(b"x"),
    "send_nowait with a key": lambda producer: producer.send_nowait(b"x", key="k"),
    "send_nowait of much": lambda producer: producer.send_nowait(b"x" * 20_000),
    "send_encoded": lambda producer: producer.send_encoded(encode_batch([b"x"])),
    "send_encoded_nowait": lambda producer: producer.send_encoded_nowait(encode_batch([b"x"])),
}


@pytest.fixture
def client(url):
    with sync.Client(url) as client:
        yield client


def seen(client, topic):
    """How many messages of the topic are committed."""
    with client.create_reader(topic) as reader:
        count = 0
        while reader.has_message_available():
            reader.read_next(5)
            count += 1
        return count


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_is_sent_in_the_block_is_part_of_it(client, way):
    producer = client.create_producer("t")
    with pytest.raises(UndoError), client.transaction(ambient=True) as txn:
        way(producer)
        assert sum(each.sent for each in txn.stats().partitions) == 1
        raise UndoError
    assert seen(client, "t") == 0
    with client.transaction(ambient=True):
        way(producer)
    assert seen(client, "t") == 1
    way(producer)
    producer.flush()
    assert seen(client, "t") == 2


def test_what_is_acknowledged_in_the_block_is_part_of_it(client):
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s", initial_position=InitialPosition.EARLIEST)
    for number in range(3):
        producer.send(b"%d" % number)
    with pytest.raises(UndoError), client.transaction(ambient=True):
        consumer.acknowledge(consumer.receive(5))
        consumer.acknowledge_cumulative(consumer.receive(5))
        raise UndoError
    assert [consumer.receive(5).data for _ in range(3)] == [b"0", b"1", b"2"]


def test_another_thread_is_not_in_the_block(client):
    producer = client.create_producer("t")
    with pytest.raises(UndoError), client.transaction(ambient=True):
        for _ in range(20):  # both wait for the loop's thread together, whoever has woken it
            beside = threading.Thread(target=producer.send_nowait, args=(b"plain",), kwargs={"key": "k"})
            producer.send_nowait(b"in it", key="k")
            beside.start()
            beside.join()
        raise UndoError
    producer.flush()
    assert seen(client, "t") == 20


def test_blocks_within_blocks(client):
    producer = client.create_producer("t")
    with client.transaction(ambient=True) as outer:
        producer.send(b"1")
        with contextlib.suppress(UndoError), client.transaction(ambient=True):
            producer.send(b"2")
            raise UndoError
        with client.transaction(eager=True):
            producer.send(b"3")  # of no transaction: the inner one is not ambient, and hides the outer one
        producer.send(b"4")
        assert sum(each.sent for each in outer.stats().partitions) == 2
    assert seen(client, "t") == 3


def test_a_block_that_does_not_begin_leaves_nothing_behind(client):
    producer = client.create_producer("t")
    block = client.transaction(ambient=True)
    with block:
        pass
    with pytest.raises(Exception, match="entered once"):
        block.__enter__()
    producer.send(b"x")
    assert seen(client, "t") == 1


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_sync_producer_inside_an_asyncio_block_is_told_that_it_cannot_take_part(client, url, way):
    producer = client.create_producer("t")
    async with AsyncioClient(url) as other:
        with contextlib.suppress(UndoError):
            async with other.transaction(ambient=True):
                with pytest.raises(TransactionStateError, match="another client"):
                    ticket = way(producer)
                    ticket.result(5)
                raise UndoError
    assert seen(client, "t") == 0


@pytest.mark.parametrize("asks", [lambda client, _: client.stats(), lambda _, producer: producer.send(b"its own", key="k")])
def test_what_another_thread_has_left_to_the_loop_is_not_part_of_the_block_that_asks_it_next(client, asks):
    """It left in the context of whoever emptied the inbox, and was lost with that transaction's abort."""
    producer = client.create_producer("t")
    loop, tickets = loop_of(client), []
    with pytest.raises(UndoError), client.transaction(ambient=True):
        pretend_looking(loop, True)  # as in the millisecond in which the loop is going to look again by itself
        beside = threading.Thread(target=lambda: tickets.append(producer.send_nowait(b"plain", key="k")))
        beside.start()
        beside.join()
        asks(client, producer)
        pretend_looking(loop, False)
        raise UndoError
    assert tickets[0].result(5)
    assert seen(client, "t") == 1
