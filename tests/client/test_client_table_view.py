"""Table views: the newest value of each key, committed, kept up to date."""

import pytest

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import Client, JsonSchema, StringSchema, sync
from pulsar_txn.client.errors import AlreadyClosed
from pulsar_txn.client.runtime import LoopThread

STRING = StringSchema()


@pytest.fixture
async def client():
    async with Standalone(None) as broker, Client(broker.service_url) as connected:
        yield connected


async def test_a_view_has_the_newest_value_of_each_key_and_follows(client):
    producer = await client.create_producer("t", schema=STRING)
    for key, value in (("a", "1"), ("b", "2"), ("a", "3"), (None, "lost")):
        await producer.send(value, key=key)
    async with await client.create_table_view("t", schema=STRING) as view:
        assert (view.snapshot(), view.size, "b" in view, view.get("c")) == ({"a": "3", "b": "2"}, 2, True, None)
        await producer.send("4", key="c")
        await producer.send(None, key="a")
        await view.refresh(5)
        assert (sorted(view.keys()), view.get("c"), len(view)) == (["b", "c"], "4", 2)
        await view.refresh(5)
    with pytest.raises(AlreadyClosed):
        view.get("c")


async def test_a_view_shows_what_is_committed_only_and_begins_inside_an_ambient_transaction(client):
    producer = await client.create_producer("t", schema=STRING)
    await producer.send("old", key="a")
    async with client.transaction() as txn:
        await producer.send("never", key="a", txn=txn)
        await txn.rollback()
    async with client.transaction(ambient=True):
        view = await client.create_table_view("t", schema=STRING)
        await producer.send("new", key="a")
        assert view.get("a") == "old"
    await view.refresh(5)
    assert view.get("a") == "new"


async def test_an_empty_topic_has_an_empty_view_and_what_cannot_be_read_is_left_out(client):
    view = await client.create_table_view("t", schema=JsonSchema())
    assert view.snapshot() == {}
    producer = await client.create_producer("t")
    await producer.send(b"not json", key="a")
    await producer.send(b"[1]", key="b")
    await view.refresh(5)
    assert view.snapshot() == {"b": [1]}
    await view.close()
    await view.close()


def test_the_sync_client_has_it_too():
    thread = LoopThread()
    broker = Standalone(None)
    thread.run(broker.__aenter__)
    try:
        with sync.Client(broker.service_url) as client:
            producer = client.create_producer("t")
            producer.send(b"1", key="a")
            with client.create_table_view("t") as view:
                assert view.get("a") == b"1"
                producer.send(b"2", key="a")
                view.refresh(5)
                assert view.snapshot() == {"a": b"2"}
            assert producer.stats().answered == 2
    finally:
        thread.run(lambda: broker.__aexit__(None, None, None))
        thread.stop()
