"""Table views: the newest value of each key, committed, kept up to date."""

import asyncio

import pytest

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import JsonSchema, StringSchema, sync
from pulsar_txn.client.client import view_of
from pulsar_txn.client.errors import AlreadyClosed, PulsarError, SchemaMismatch
from pulsar_txn.client.sync.loop_thread import LoopThread

STRING = StringSchema()


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


async def test_a_schema_that_raises_anything_ends_no_view_and_is_told_where_the_program_looks(client, caplog):
    def decode(document):
        return document["k"]

    producer = await client.create_producer("t")
    await producer.send(b"{}", key="a")
    await producer.send(b'{"k": 1}', key="b")
    view = await asyncio.wait_for(client.create_table_view("t", schema=JsonSchema(from_json=decode)), 5)
    with pytest.raises(SchemaMismatch, match="KeyError"):
        view.get("a")
    assert (view.snapshot(), "a" in view) == ({"b": 1}, False)
    await producer.send(b"{}", key="b")
    await producer.send(b'{"k": 2}', key="a")
    await view.refresh(5)
    assert view.get("a") == 2
    with pytest.raises(SchemaMismatch, match="KeyError"):
        view.get("b")
    assert view.snapshot() == {"a": 2}  # and not what b was before
    await producer.send(None, key="b")
    await view.refresh(5)
    assert view.get("b") is None
    assert "is left out" in caplog.text


async def test_whatever_ends_the_reading_of_a_view_is_raised_where_the_program_looks(client, caplog):
    producer = await client.create_producer("t", schema=STRING)
    view = await client.create_table_view("t", schema=STRING)

    async def fails(*_args):
        raise ValueError("of our own")

    view._read_values = fails
    refreshing = asyncio.create_task(view.refresh(5))
    await producer.send("1", key="a")
    for waiting in (refreshing, view.refresh(5)):
        with pytest.raises(PulsarError, match="of our own"):
            await waiting
    for looking in (view.snapshot, view.keys, lambda: view.get("a")):
        with pytest.raises(PulsarError, match="has ended"):
            looking()
    assert "has failed; create a new one" in caplog.text
    with pytest.raises(PulsarError, match="of our own"):
        await asyncio.wait_for(view_of(client, "t", STRING, {}, fails), 5)


async def test_what_is_there_and_then_every_change_is_told_in_order(client):
    producer = await client.create_producer("t", schema=STRING)
    await producer.send("1", key="a")
    told, slow, entered, gone = [], asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def action(key, value):
        entered.set()
        await slow.wait()
        told.append((key, value))
        if value is None:
            gone.set()

    def fails(key, value):
        raise ValueError(key)

    async with await client.create_table_view("t", schema=STRING) as view:
        telling = asyncio.ensure_future(view.for_each_and_listen(action))
        await entered.wait()
        await producer.send("2", key="a")  # while it is told of what was there
        await producer.send("3", key="b")
        slow.set()
        await telling
        assert told[0] == ("a", "1")
        with pytest.raises(ValueError, match="a"):
            await view.for_each_and_listen(fails)
        await producer.send(None, key="a")
        await producer.send("no key")
        await view.refresh(5)
        seen = []
        await view.for_each(lambda key, value: seen.append((key, value)))
        assert seen == [("b", "3")]
        await asyncio.wait_for(gone.wait(), 5)
    assert told == [("a", "1"), ("a", "2"), ("b", "3"), ("a", None)]


async def test_a_listener_that_fails_on_a_change_is_logged_and_told_of_the_next(client, caplog):
    producer = await client.create_producer("t", schema=STRING)
    told, second = [], asyncio.Event()

    def action(key, value):
        told.append(value)
        if value == "2":
            second.set()
        if value == "1":
            raise ValueError("cannot take it")

    async with await client.create_table_view("t", schema=STRING) as view:
        await view.for_each_and_listen(action)
        await producer.send("1", key="a")
        await producer.send("2", key="a")
        await asyncio.wait_for(second.wait(), 5)
    assert told == ["1", "2"]
    assert "cannot take it" in caplog.text


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
