"""The official names on both kinds of client have one body: what it promises on each."""

import asyncio
import importlib.metadata

import pytest

from pulsar_txn import compat
from pulsar_txn.client import errors
from pulsar_txn.compat import _arguments


def test_the_version_is_that_of_the_official_package_whose_names_are_here():
    assert compat.__version__ == importlib.metadata.version("pulsar-client")


def test_a_blocking_method_that_would_wait_is_refused_instead_of_hanging():
    async def body():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="has waited"):
        _arguments.blocking(body)()


def test_both_kinds_raise_the_official_name_of_an_error():
    async def body():
        raise errors.OperationTimeout("late")

    with pytest.raises(compat.Timeout):
        _arguments.blocking(body)()
    with pytest.raises(compat.Timeout):
        asyncio.run(_arguments.awaiting(body)())


def test_a_refused_send_async_keeps_a_begun_transaction_from_committing(url):
    client = compat.Client(url)
    told, producer, consumer = [], client.create_producer("t"), client.subscribe("t", "s")
    closed = client.create_producer("u")
    closed.close()
    txn = client.begin_transaction()
    producer.send(b"never", txn=txn)
    closed.send_async(b"x", lambda result, _id: told.append(result), txn=txn)
    assert txn.doomed
    with pytest.raises(compat.PulsarException) as raised:
        txn.commit()
    assert isinstance(raised.value, errors.TransactionOperationFailed)
    assert [type(each) for each in raised.value.failures] == [errors.AlreadyClosed]
    with pytest.raises(compat.Timeout):
        consumer.receive(200)
    client.close()
    assert told == [compat.Result.AlreadyClosed]


def test_flush_waits_for_callbacks_of_what_was_sent_before(url):
    client, told = compat.Client(url), []
    producer = client.create_producer("t", max_pending_messages=50, block_if_queue_full=True)
    for number in range(300):
        producer.send_async(b"x", lambda _result, _id, number=number: told.append(number))
    producer.flush()
    assert told == list(range(300))
    client.close()


def test_what_a_table_view_has_read_stays_when_its_client_is_closed(url):
    client = compat.Client(url)
    producer = client.create_producer("t")
    for key, value in (("a", b"1"), ("b", b"2"), ("gone", b"3"), ("gone", b"")):
        producer.send(value, partition_key=key)
    view, empty = client.create_table_view("t"), client.create_table_view("never")
    client.close()
    client.close()
    listed = []
    view.for_each(lambda key, value: listed.append((key, value)))
    assert (view.get("a"), view.get("gone"), len(view), sorted(listed)) == (b"1", None, 2, [("a", b"1"), ("b", b"2")])
    assert len(empty) == 0
