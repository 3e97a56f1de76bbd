"""Consistent readers on every server: no part of a transaction without the rest, in order, with progress."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from admin import eventually, get_json, post, put, topic_path
from crypto_samples import rsa_pair
from cuts import SOON, is_silent, producers_of, send_in_one, take
from late_writes import zombie
from targets import Target

from pulsar_txn.client import (
    EARLIEST_ID,
    LATEST_ID,
    AlreadyClosed,
    AsyncClient,
    Client,
    ConnectionLost,
    InvalidConfiguration,
    MessageId,
)
from pulsar_txn.client.cuts import CutPosition
from pulsar_txn.client.encryption import PemKeys
from pulsar_txn.client.errors import CutTooLarge, MessagesMissing
from pulsar_txn.client.txn.transactions import core_of


@pytest.fixture
def topics(topic: str) -> list[str]:
    return [f"{topic}-a", f"{topic}-b", f"{topic}-c"]


@pytest.mark.seed_rows("B36")
async def test_a_transaction_is_seen_in_all_topics_or_in_none(client: AsyncClient, topics: list[str]) -> None:
    a, b, c = await producers_of(client, topics)
    async with await client.consistent_reader(topics) as reader:
        await send_in_one(client, (a, b"1a"), (b, b"1b"))
        cut = await reader.next_cut(SOON)
        assert sorted(message.data for message in cut) == [b"1a", b"1b"]
        holds_b_back = await client.begin_transaction()
        await b.send(b"open", txn=holds_b_back)
        await send_in_one(client, (a, b"2a"), (b, b"2b"))
        await a.send(b"plain")
        assert await is_silent(reader), "2a can be read, 2b cannot"
        await send_in_one(client, (a, b"3a"), commit=False)
        await holds_b_back.abort()
        assert await take(reader, 3) == [b"2a", b"2b", b"plain"]
        await c.send(b"c")
        assert await take(reader, 1) == [b"c"]


async def test_what_is_open_elsewhere_or_began_later_holds_up_nothing(client: AsyncClient, topics: list[str]) -> None:
    a, b, c = await producers_of(client, topics)
    async with await client.consistent_reader(topics[:2]) as reader:
        elsewhere, before, later = [await client.begin_transaction() for _ in range(3)]
        await c.send(b"open in c", txn=elsewhere)
        await send_in_one(client, (a, b"1a"), (b, b"1b"), (c, b"1c"))
        assert await take(reader, 2) == [b"1a", b"1b"]
        await b.send(b"before", txn=before)
        await send_in_one(client, (a, b"2a"), (b, b"2b"))
        assert await is_silent(reader)
        await a.send(b"later", txn=later)
        await b.send(b"later", txn=later)
        await before.abort()
        assert await take(reader, 2) == [b"2a", b"2b"]
        assert await is_silent(reader)
        await later.commit()
        assert await take(reader, 2) == [b"later", b"later"]
        await elsewhere.abort()


async def test_a_part_that_waits_behind_another_transaction_is_not_missed(client: AsyncClient, topics: list[str]) -> None:
    a, b, _ = await producers_of(client, topics)
    async with await client.consistent_reader(topics[:2]) as reader:
        txn, between = await client.begin_transaction(), await client.begin_transaction()
        await a.send(b"first", txn=txn)
        await b.send(b"other", txn=txn)
        await a.send(b"between", txn=between)
        await a.send(b"last", txn=txn)
        await txn.commit()
        assert await is_silent(reader), "a shows the first message of the transaction, and not the last"
        await between.abort()
        assert await take(reader, 3) == [b"first", b"last", b"other"]


async def test_a_reader_goes_on_after_the_position_of_a_cut(client: AsyncClient, topics: list[str]) -> None:
    a, b, _ = await producers_of(client, topics)
    for number in range(20):
        await send_in_one(client, (a, b"%02da" % number), (b, b"%02db" % number))
    found: list[bytes] = []
    position: MessageId | CutPosition = EARLIEST_ID
    while len(found) < 40:
        async with await client.consistent_reader(topics[:2], position) as reader:
            cut = await reader.next_cut(SOON, max_messages=6)
            assert len(cut) % 2 == 0
            found += [message.data for message in cut]
            position = CutPosition.parse(cut.position.text())
    assert sorted(found) == sorted(b"%02d%s" % (number, name) for number in range(20) for name in (b"a", b"b"))
    async with await client.consistent_reader(topics[:2], position) as reader:
        assert await is_silent(reader)
        await send_in_one(client, (a, b"last"), (b, b"last"))
        assert await take(reader, 2) == [b"last", b"last"]


async def test_a_reader_that_begins_at_the_end_leaves_out_what_had_begun_before(client: AsyncClient, topics: list[str]) -> None:
    a, b, _ = await producers_of(client, topics)
    await send_in_one(client, (a, b"before"), (b, b"before"))
    begun = await client.begin_transaction()
    await a.send(b"begun before", txn=begun)
    async with await client.consistent_reader(topics[:2], LATEST_ID) as reader:
        await b.send(b"after, of what had begun", txn=begun)
        await b.send(b"plain")
        await begun.commit()
        await send_in_one(client, (a, b"1a"), (b, b"1b"))
        assert await take(reader, 3) == [b"1a", b"1b", b"plain"]
        assert await is_silent(reader)


async def test_new_partitions_are_read_and_belong_to_transactions(client: AsyncClient, topic: str, pulsar: Target) -> None:
    await put(pulsar, f"{topic_path(topic)}/partitions", 1)
    other = f"{topic}-other"
    async with await client.consistent_reader([topic, other]) as reader:
        assert len(reader.topics) == 2
        await post(pulsar, f"{topic_path(topic)}/partitions", 3)
        first, last, beside = await producers_of(client, [f"{topic}-partition-0", f"{topic}-partition-2", other])
        await send_in_one(client, (first, b"0"), (last, b"2"), (beside, b"x"))
        cut = await reader.next_cut(SOON)
        assert sorted(message.data for message in cut) == [b"0", b"2", b"x"]
        assert len(reader.topics) == 4


def test_the_blocking_reader_is_the_same(pulsar: Target, topics: list[str]) -> None:
    with Client(pulsar.service_url) as client, client.consistent_reader(topics) as reader:
        producers = [client.create_producer(topic) for topic in topics]
        with client.transaction() as txn:
            for producer in producers:
                producer.send(b"x", txn=txn)
        cut = next(reader)
        assert [message.topic for message in cut] == topics
        assert cut.position == reader.position
        producers[0].send(b"y")
        assert next(reader.messages()).data == b"y"


async def test_batches_and_chunks_are_whole(client: AsyncClient, topics: list[str]) -> None:
    batched = await client.create_producer(topics[0], batching_max_delay=10.0)
    chunked = await client.create_producer(topics[1], batching=False, chunking=True)
    large = bytes(7 * 1024 * 1024)
    async with await client.consistent_reader(topics[:2]) as reader:
        txn = await client.begin_transaction()
        sends = [batched.send_nowait(b"%d" % number, txn=txn) for number in range(10)]
        await chunked.send(large, txn=txn)
        await chunked.send(b"small", txn=txn)
        await batched.flush()
        await asyncio.gather(*sends)
        await txn.commit()
        cut = await reader.next_cut(SOON)
        assert [message.data for message in cut] == [*(b"%d" % number for number in range(10)), large, b"small"]


async def compacted(pulsar: Target, topic: str) -> None:
    await put(pulsar, f"{topic_path(topic)}/compaction")
    status = await eventually(
        lambda: get_json(pulsar, f"{topic_path(topic)}/compaction"), lambda found: found["status"] != "RUNNING"
    )
    assert status["status"] == "SUCCESS"


@pytest.mark.seed_rows("C48")
async def test_a_compacted_copy_has_a_part_of_a_transaction_and_the_topic_has_all_of_it(
    client: AsyncClient, topics: list[str], pulsar: Target
) -> None:
    """Of each key the copy keeps the newest message: of the transaction that of the other key is left."""
    topic = topics[0]
    producer = await client.create_producer(topic, batching=False)
    async with client.transaction() as txn:
        await producer.send(b"k1 in the transaction", key="k1", txn=txn)
        await producer.send(b"k2 in the transaction", key="k2", txn=txn)
    await producer.send(b"k1 later", key="k1")
    await compacted(pulsar, topic)
    async with await client.create_reader(topic, read_compacted=True) as copy:
        seen = [(await copy.read_next(SOON)).data for _ in range(2)]
    assert sorted(seen) == [b"k1 later", b"k2 in the transaction"]
    with pytest.raises(InvalidConfiguration, match="read_compacted"):
        await client.consistent_reader(topic, read_compacted=True)
    async with await client.consistent_reader(topic) as reader:
        assert await take(reader, 3) == [b"k1 in the transaction", b"k1 later", b"k2 in the transaction"]


async def test_a_topic_that_is_unloaded_is_read_on(client: AsyncClient, topics: list[str], pulsar: Target) -> None:
    a, b, _ = await producers_of(client, topics)
    async with await client.consistent_reader(topics[:2]) as reader:
        await send_in_one(client, (a, b"1a"), (b, b"1b"))
        assert await take(reader, 2) == [b"1a", b"1b"]
        txn = await client.begin_transaction()
        await a.send(b"2a", txn=txn)
        await put(pulsar, f"{topic_path(topics[0])}/unload")
        await b.send(b"2b", txn=txn)
        await put(pulsar, f"{topic_path(topics[1])}/unload")
        await txn.commit()
        assert await take(reader, 2) == [b"2a", b"2b"]


async def test_a_message_that_cannot_be_read_is_an_error_and_no_torn_transaction(pulsar: Target, topics: list[str]) -> None:
    pair, other = rsa_pair(), rsa_pair()
    with_key, without = [PemKeys(public=pair.public, private=each.private) for each in (pair, other)]
    async with AsyncClient(pulsar.service_url, operation_timeout=2.0) as client:
        plain = await client.create_producer(topics[0], batching=False)
        secret = await client.create_producer(topics[1], batching=False, crypto_keys=with_key, encryption_keys=["key"])
        await send_in_one(client, (plain, b"1"), (secret, b"1"))
        async with await client.consistent_reader(topics[:2], crypto_keys=with_key) as reader:
            assert await take(reader, 2) == [b"1", b"1"]
        async with await client.consistent_reader(topics[:2], crypto_keys=without) as reader:
            for _ in range(2):
                with pytest.raises(MessagesMissing, match=topics[1]):
                    await reader.next_cut(SOON)


async def test_a_call_that_is_cancelled_or_times_out_loses_nothing(client: AsyncClient, topics: list[str]) -> None:
    a, b, _ = await producers_of(client, topics)
    async with await client.consistent_reader(topics[:2]) as reader:
        found: list[bytes] = []
        for number in range(30):
            await send_in_one(client, (a, b"%02da" % number), (b, b"%02db" % number))
            waiting = asyncio.ensure_future(reader.next_cut())
            await asyncio.sleep(0.007 * (number % 8))
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found += [message.data for message in await waiting]
        found += await take(reader, 60 - len(found))
        assert sorted(found) == sorted(b"%02d%s" % (number, name) for number in range(30) for name in (b"a", b"b"))
        assert await is_silent(reader)


async def test_a_closed_reader_says_so_and_leaves_nothing(client: AsyncClient, topics: list[str]) -> None:
    a, b, _ = await producers_of(client, topics)
    before = len(asyncio.all_tasks())
    reader = await client.consistent_reader(topics[:2])
    await send_in_one(client, (a, b"a"), (b, b"b"))
    assert await take(reader, 2) == [b"a", b"b"]
    waiting = asyncio.ensure_future(reader.next_cut())
    await asyncio.sleep(0.1)
    await reader.close()
    await reader.close()
    with pytest.raises(AlreadyClosed, match="consistent reader"):
        await waiting
    assert [cut async for cut in reader] == []
    assert [message async for message in reader.messages()] == []
    await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) <= before


async def test_a_transaction_that_is_too_large_is_refused_and_a_larger_limit_takes_it(
    client: AsyncClient, topics: list[str]
) -> None:
    a, b, _ = await producers_of(client, topics)
    await send_in_one(client, (a, b"small"), (b, b"small"))
    await send_in_one(client, *[(producer, b"%d" % number) for number in range(15) for producer in (a, b)])
    async with await client.consistent_reader(topics[:2], max_cut_messages=20) as reader:
        assert await take(reader, 2) == [b"small", b"small"]
        position = reader.position
        with pytest.raises(CutTooLarge, match="max_cut_messages=20"):
            await reader.next_cut(SOON)
    async with await client.consistent_reader(topics[:2], position, max_cut_messages=30) as reader:
        assert len(await reader.next_cut(SOON)) == 30


async def test_what_arrives_beside_an_open_transaction_is_bounded_and_a_reader_at_the_position_goes_on(
    client: AsyncClient, topics: list[str]
) -> None:
    a, b, _ = await producers_of(client, topics)
    await send_in_one(client, (a, b"before"), (b, b"before"))
    async with await client.consistent_reader(topics[:2], max_ahead=5) as reader:
        assert await take(reader, 2) == [b"before", b"before"]
        position = reader.position
        stays_open = await client.begin_transaction()
        await b.send(b"open", txn=stays_open)
        for number in range(6):
            await send_in_one(client, (a, b"%d" % number))
        with pytest.raises(CutTooLarge, match="max_ahead=5"):
            await reader.next_cut(SOON)
    async with await client.consistent_reader(topics[:2], position) as reader:
        assert await is_silent(reader)
        await stays_open.commit()
        assert await take(reader, 7) == [b"0", b"1", b"2", b"3", b"4", b"5", b"open"]


@pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topics": []}, "no topic"),
        ({"start": MessageId(3, 4)}, "a place in one partition"),
        ({"start": "yesterday"}, "start must be"),
        ({"topics": ["non-persistent://public/default/x"]}, "keeps nothing"),
        ({"max_ahead": 0}, "max_ahead"),
        ({"max_cut_bytes": 0}, "max_cut_bytes"),
        ({"check_interval": 0}, "check_interval"),
        ({"auto_update_partitions": 5}, "auto_update_partitions"),
        ({"consumer_name": "x"}, "consumer_name"),
        ({"start": CutPosition({})}, "in other topics"),
    ],
)
async def test_what_cannot_work_is_refused_at_once(client: AsyncClient, topic: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        await client.consistent_reader(**({"topics": [topic]} | given))


async def test_chunks_of_two_messages_that_are_mixed_outlive_a_reconnect(pulsar: Target, topic: str) -> None:
    """The first chunk of the second message is before the first message, which was handed out already."""
    async with AsyncClient(pulsar.service_url) as client, zombie(pulsar) as writer:
        reader = await client.create_reader(topic)
        consistent = await client.consistent_reader(topic)
        for uuid, number in (("A", 0), ("B", 0), ("A", 1)):
            await writer.send_chunk(topic, uuid, number, 2, uuid.encode())
        assert (await reader.read_next(SOON)).data == b"AA"
        cut = await consistent.next_cut(SOON)
        assert [message.data for message in cut] == [b"AA"]
        for _ in range(2):  # the second time before anything has come again, perhaps
            for connection in core_of(client).pool.current():
                connection.close(ConnectionLost("as if the network had failed"))
            await asyncio.sleep(0.05)
        await writer.send_chunk(topic, "B", 1, 2, b"B")
        await writer.send_chunk(topic, "C", 0, 1, b"C")
        assert (await reader.read_next(SOON)).data == b"BB"
        assert await take(consistent, 2) == [b"BB", b"C"]
        async with await client.consistent_reader(topic, CutPosition.parse(cut.position.text())) as again:
            assert await take(again, 2) == [b"BB", b"C"]
