"""What reads a topic with half messages: delays, seeks, readers, peeks, compaction and counters see committed messages only."""

from __future__ import annotations

from typing import Any

import pytest
from admin_client import admin_of
from raw_client import FULL, RawClient, Received
from topic_views import HOUR_MS, compact, later, now_ms, read

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.ids import TxnId

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
TOPIC = FULL + "a"
ADMIN = "/admin/v2/persistent/public/default/a"


@pytest.fixture
async def bench(benches: Any) -> Any:
    return await benches(transaction_buffer_provider_class_name="half-topic").start()


@pytest.fixture
async def client(bench: Any) -> RawClient:
    client: RawClient = bench.client()
    await client.producer("a", producer_name="p")
    return client


async def opened(client: RawClient) -> TxnId:
    txn = await client.new_txn()
    await client.add_topics(txn, TOPIC)
    return txn


async def again(bench: Any) -> RawClient:
    """A client of the broker after a restart."""
    client: RawClient = bench.client()
    await client.producer("a", producer_name="p")
    await client.request("tcClientConnectRequest", tc_id=0)
    return client


@pytest.mark.seed_rows("A16")
@pytest.mark.parametrize("how", [None, "crash"])
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_committed_half_message_waits_for_its_time_too(
    bench: Any, client: RawClient, kind: int, how: str | None
) -> None:
    txn, dropped = await opened(client), await opened(client)
    at_ms = now_ms(bench) + HOUR_MS
    for payload, owner, time_ms in ((b"later", txn, at_ms), (b"now", txn, 0), (b"never", dropped, at_ms)):
        await client.sent(payload, txn=owner, fields={"deliver_at_time": time_ms} if time_ms else {})
    if how is not None:
        await getattr(bench, how)()
        client = await again(bench)
    await client.subscribe("a", kind=kind)
    later(bench, 2 * HOUR_MS if how is None else 0)
    await client.nothing()
    await client.end(txn)
    await client.abort(dropped)
    if how is None:
        assert sorted(await client.payloads(2)) == [b"later", b"now"], "its time had come while it waited for its commit"
    else:
        assert await client.payloads(1) == [b"now"]
        await client.nothing()
        later(bench, HOUR_MS + 1000)
        assert await client.payloads(1) == [b"later"]
    await client.nothing()


async def test_a_half_message_whose_time_is_refused_is_refused_at_once(benches: Any) -> None:
    bench = await benches(
        transaction_buffer_provider_class_name="half-topic", delayed_delivery_max_delay_in_millis=1000
    ).start()
    client = bench.client()
    await client.producer("a")
    txn = await opened(client)
    client.send(b"x", txn=txn, fields={"deliver_at_time": 1_700_000_000_000 + HOUR_MS})
    await client.until(lambda: client.send_errors, "the refusal")
    assert "max allowed delivery delay" in client.send_errors[0].message


@pytest.mark.seed_rows("A11")
async def test_the_end_of_a_topic_and_its_backlog_do_not_count_what_waits(bench: Any, client: RawClient) -> None:
    await client.subscribe("a", permits=0)
    await client.sent(b"plain")
    txn = await opened(client)

    async def counted() -> tuple[int, int, list[int]]:
        last = (await client.request("getLastMessageId", consumer_id=0)).last_message_id.entryId
        backlog = (await client.request("consumerStats", consumer_id=0)).msgBacklog
        async with admin_of(bench) as admin:
            stats = (await admin("GET", f"{ADMIN}/stats"))[1]
            return last, backlog, [stats["subscriptions"]["s"]["msgBacklog"]]

    before = await counted()
    await client.sent([b"0", b"1"], txn=txn)
    await client.sent(b"2", txn=txn)
    assert await counted() == before == (0, 1, [1])
    await client.end(txn)
    assert await counted() == (2, 3, [3])


@pytest.mark.seed_rows("A11")
async def test_readers_and_peeks_see_what_is_committed_at_its_new_place(bench: Any, client: RawClient) -> None:
    await client.sent(b"plain")
    txn, dropped = await opened(client), await opened(client)
    half = await client.sent(b"half", txn=txn)
    await client.sent(b"dropped", txn=dropped)
    reader = bench.client()
    await reader.subscribe("a", "r", durable=False, start_message_id=pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1))
    await client.subscribe("a", permits=0)
    assert await reader.payloads(1) == [b"plain"]
    await reader.nothing()
    async with admin_of(bench) as admin:
        assert await admin("GET", f"{ADMIN}/subscription/s/position/1") == (200, "plain")
        assert (await admin("GET", f"{ADMIN}/subscription/s/position/2"))[0] == 404
        await client.end(txn)
        await client.abort(dropped)
        message = await reader.receive()
        assert message.payloads == [b"half"]
        assert message.position != half, "the receipt has the place in the half log"
        assert await admin("GET", f"{ADMIN}/subscription/s/position/2") == (200, "half")
        assert await admin("GET", "{}/ledger/{}/entry/{}".format(ADMIN, *message.position)) == (200, "half")
        assert (await admin("GET", f"{ADMIN}/subscription/s/position/3"))[0] == 404
    await reader.nothing()
    from_there = bench.client()
    start = pb.MessageIdData(ledgerId=message.position[0], entryId=message.position[1])
    await from_there.subscribe("a", "r2", durable=False, start_message_id=start)
    assert await from_there.payloads(1) == [b"half"]


async def sought(client: RawClient, **to: Any) -> list[bytes]:
    """What a consumer gets after a seek."""
    await client.request("seek", consumer_id=0, **to)
    await client.until(lambda: any(name == "close_consumer" for name, _ in client.events), "the consumer is closed")
    client.events.clear()
    client.messages[0].clear()
    await client.subscribe("a", earliest=False)
    await client.settle(200)
    return [payload for message in client.messages[0] for payload in message.payloads]


async def test_a_seek_finds_messages_in_the_order_of_commits(bench: Any, client: RawClient) -> None:
    """By time: everything from the first entry on that was sent then, so nothing is missed that was committed later."""

    def sent_at(milliseconds: int) -> dict[str, Any]:
        return {"fields": {"publish_time": milliseconds}}

    await client.subscribe("a", permits=0)
    txn, other = await opened(client), await opened(client)
    await client.sent(b"early half", txn=txn, **sent_at(1000))
    await client.sent(b"plain", **sent_at(2000))
    await client.sent(b"late half", txn=other, **sent_at(3000))
    await client.end(other)
    await client.sent(b"last", **sent_at(4000))
    assert await sought(client, message_publish_time=3000) == [b"late half", b"last"]
    await client.end(txn)
    assert await sought(client, message_publish_time=1000) == [b"plain", b"late half", b"last", b"early half"]
    assert await sought(client, message_publish_time=3500) == [b"last", b"early half"]
    assert await sought(client, message_publish_time=9000) == []
    everything: list[Received] = []
    assert await sought(client, message_publish_time=0)
    everything += client.messages[0]
    ledger, entry = everything[1].position
    place = pb.MessageIdData(ledgerId=ledger, entryId=entry)
    assert await sought(client, message_id=place) == [b"late half", b"last", b"early half"]


async def test_a_seek_into_a_transaction_that_is_being_copied_waits_for_all_of_it(bench: Any, client: RawClient) -> None:
    await client.subscribe("a")
    txn = await opened(client)
    for number in range(300):  # more than are copied at once
        client.send(f"{number}".encode(), txn=txn)
    await client.until(lambda: len(client.receipts) == 300, "receipts")
    ending = client.start("endTxn", txnid_least_bits=txn.least, txnid_most_bits=txn.most, txn_action=0)
    await client.until(lambda: bench.broker.topics[TOPIC].log.last_appended[1] >= 100, "a part is copied")
    client.start("seek", consumer_id=0, message_publish_time=0)
    await client.answer(ending)
    await client.until(lambda: any(name == "close_consumer" for name, _ in client.events), "the consumer is closed")
    client.messages[0].clear()
    await client.subscribe("a")
    assert await client.payloads(300) == [f"{number}".encode() for number in range(300)]


@pytest.mark.seed_rows("C52")
@pytest.mark.parametrize("how", [None, "crash"])
async def test_compaction_takes_commits_in_their_order_and_nothing_that_waits(
    bench: Any, client: RawClient, how: str | None
) -> None:
    for key in ("a", "b", "c"):
        await client.sent(b"plain", key=key)
    txn, other, dropped = [await opened(client) for _ in range(3)]
    await client.sent(b"first sent", key="a", txn=txn)
    await client.sent(b"second sent", key="a", txn=other)
    await client.sent(b"", key="b", txn=other)
    await client.sent(b"", key="c", txn=dropped)
    await compact(bench, client)
    assert await read(bench) == [("a", b"plain"), ("b", b"plain"), ("c", b"plain")]
    await client.end(other)
    await client.abort(dropped)
    if how is not None:
        await getattr(bench, how)()
        client = await again(bench)
    await client.end(txn)
    assert [key for key, _ in await read(bench)][-3:] == ["a", "b", "a"]
    await compact(bench, client)
    assert await read(bench) == [("c", b"plain"), ("a", b"first sent")], "the one that was committed last"


async def test_what_was_copied_leaves_the_half_log(bench: Any, client: RawClient) -> None:
    topic = bench.broker.topics[TOPIC]
    for number in range(5):
        txn = await opened(client)
        await client.sent(f"{number}".encode(), txn=txn)
        await client.end(txn)
    still_open = await opened(client)
    place = await client.sent(b"open", txn=still_open)
    topic.host.take_snapshot("half")
    await client.settle()
    assert topic.host.logs["half"].first == place
    await bench.restart()
    client = await again(bench)
    await client.end(still_open)
    await client.subscribe("a")
    assert await client.payloads(6) == [b"0", b"1", b"2", b"3", b"4", b"open"]
