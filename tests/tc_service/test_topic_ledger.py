"""Logs in topics, led by one instance each: takeovers, strangers, trims, and metadata of several instances."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
from targets import Target
from topic_stores import LEASE_MS, TopicStores, break_connections

from pulsar_txn.client import AsyncClient
from pulsar_txn.ledger.protocols import LeaseLost, LogClosed, LogExists, NameRefused, Snapshot, StorageFailed, VersionConflict
from pulsar_txn.ledger.testing import Recorder, all_entries
from pulsar_txn.tc_service.topic_ledger import log as log_module
from pulsar_txn.tc_service.topic_ledger.frames import Frame, Kind, Record, encode
from pulsar_txn.tc_service.topic_ledger.store import TopicStore, check_namespace, dangers
from pulsar_txn.tc_service.topic_ledger.topic import LogTopicRefused
from pulsar_txn.wire.ids import EARLIEST

pytestmark = pytest.mark.timeout(120)

NAME = "pulsar/system/persistent/__transaction_log_0"


@pytest.fixture
async def stores(pulsar: Target) -> AsyncIterator[TopicStores]:
    made = TopicStores(pulsar.service_url, "public/default" if pulsar.is_ours else "pulsar/system")
    yield made
    await made.close()


async def waiting(store: TopicStore, name: str = NAME) -> asyncio.Task[Any]:
    """An instance in the broker's queue, that knows who leads."""
    task = asyncio.ensure_future(store.open(name))
    async with asyncio.timeout(30):
        while store.leader_of(name) is None:  # noqa: ASYNC110 - the broker's time
            await asyncio.sleep(0.01)
    return task


async def taken_over(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(30):
        return await task


# ---- who leads


async def test_a_leader_that_closes_hands_its_log_over_at_once(stores: TopicStores) -> None:
    a, b = await stores.new(advertised="pulsar://a"), await stores.new(advertised="pulsar://b")
    log = await a.open(NAME)
    positions = [log.append(b"%d" % number) for number in range(100)]
    task = await waiting(b)
    with pytest.raises(LogExists):
        await b.open(NAME)
    assert (a.leader_of(NAME), b.leader_of(NAME), task.done()) == ("pulsar://a", "pulsar://a", False)
    await log.close()
    successor = await taken_over(task)
    assert await successor.read(EARLIEST) == [(position, b"%d" % number) for number, position in enumerate(positions)]
    assert successor.epoch > log.epoch
    assert (a.leader_of(NAME), b.leader_of(NAME)) == (None, "pulsar://b")


async def test_a_leader_whose_connection_breaks_is_followed_and_believes_nothing_more(stores: TopicStores) -> None:
    a, b = await stores.new(), await stores.new()
    log = await a.open(NAME)
    log.listen(recorder := Recorder())
    task = await waiting(b)
    for number in range(200):
        log.append(b"%d" % number)
        if number % 20 == 19:
            await log.flush()
    for number in range(200, 300):
        log.append(b"%d" % number)
    await asyncio.sleep(0)  # its frame is written, and nobody has answered
    break_connections(a)
    successor = await taken_over(task)
    kept = await all_entries(successor)
    assert kept == [b"%d" % number for number in range(len(kept))], "a prefix"
    assert len(kept) >= 200, "nothing confirmed is lost"
    with pytest.raises(LeaseLost):
        await log.flush()
    with pytest.raises(LeaseLost, match="may be in the log or not"):
        log.append(b"of a leader that is none")
    assert [type(error) for error in recorder.failures] == [LeaseLost]
    assert not isinstance(recorder.failures[0], StorageFailed)
    assert not log.fresh
    assert recorder.confirmed[-1][1] < len(kept)
    successor.append(b"on")
    await successor.flush()
    assert successor.last_confirmed[1] == len(kept)
    again = await waiting(a)
    await successor.close()
    assert await all_entries(await taken_over(again)) == [*kept, b"on"]


async def test_a_leader_that_goes_on_without_its_beats_is_sent_away(stores: TopicStores) -> None:
    a, b, c = await stores.new(), await stores.new(), await stores.new()
    log = await a.open(NAME)
    log.listen(recorder := Recorder())
    log.append(b"old")
    await log.flush()
    log._timer.cancel()  # hangs, with its connection open
    tasks = [await waiting(b), await waiting(c)]
    loop = asyncio.get_running_loop()
    since = loop.time()
    done, others = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert LEASE_MS / 1000 * 0.8 < loop.time() - since < LEASE_MS / 1000 + 8
    successor = done.pop().result()
    assert await all_entries(successor) == [b"old"]
    with contextlib.suppress(LeaseLost):
        log.append(b"too late")
        await log.flush()
    assert [type(error) for error in recorder.failures] == [LeaseLost]
    successor.append(b"new")
    await successor.close()
    for other in others:
        last = await taken_over(other)
        assert await all_entries(last) == [b"old", b"new"]


async def test_an_open_that_is_cancelled_keeps_nobody_out(stores: TopicStores) -> None:
    a, b = await stores.new(), await stores.new()
    log = await a.open(NAME)
    task = await waiting(b)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b.leader_of(NAME) is None
    task = await waiting(b)
    task.cancel()
    await log.close()
    async with asyncio.timeout(20):
        await (await a.open(NAME)).close()
        await (await b.open(NAME)).close()


async def test_a_log_is_fresh_while_its_frames_are_confirmed(stores: TopicStores) -> None:
    log = await (await stores.new()).open(NAME)
    assert log.fresh
    position = log.append(b"1")
    nothing = log.refresh()
    assert nothing == (position[0], position[1] + 1)
    last = log.append(b"2")
    await log.flush()
    assert await log.read(EARLIEST) == [(position, b"1"), (last, b"2")]
    log._timer.cancel()
    await asyncio.sleep(LEASE_MS / 1000 + 0.1)
    assert not log.fresh, "no frame was confirmed for a lease"
    log.refresh()
    await log.flush()
    assert log.fresh
    await log.close()
    with pytest.raises(LogClosed):
        log.refresh()


async def test_positions_taken_for_nothing_stay_so(stores: TopicStores) -> None:
    store = await stores.new()
    log = await store.open(NAME)
    log.refresh()
    first = log.append(b"1")
    last = log.refresh()
    store = await stores.reopened(store)
    log = await store.open(NAME)
    assert await log.read(EARLIEST) == [(first, b"1")]
    assert log.last_confirmed == last
    assert await log.read(last) == []


# ---- what is in the topic


async def test_what_strangers_write_is_not_in_the_log(stores: TopicStores) -> None:
    store = await stores.new()
    log = await store.open(NAME)
    log.append(b"ours")
    topic = store.topic_of(NAME)
    await log.close()
    claim = encode(Frame(0, 0, 0, 0, 0, (Record(Kind.CLAIM, 0, b"pulsar://nobody"),)))
    forged = encode(Frame(0, 2, 1, 0, 0, (Record(Kind.ENTRY, 0, b"forged"),)))
    async with AsyncClient(stores.url) as client:
        for batching in (True, False):
            async with await client.create_producer(topic, batching=batching) as producer:
                for payload in (b"", b"text", claim, forged, forged[:-1], bytes(70_000)):
                    producer.send_nowait(payload)
    log = await store.open(NAME)
    log.append(b"ours again")
    await log.flush()
    store = await stores.reopened(store)
    assert await all_entries(await store.open(NAME)) == [b"ours", b"ours again"]


async def test_a_topic_with_partitions_and_a_bad_name_are_refused(stores: TopicStores, pulsar: Target) -> None:
    store = await stores.new()
    with pytest.raises(NameRefused, match="1 to 512"):
        await store.open("n" * 513)
    if pulsar.is_ours:
        return
    path = f"/admin/v2/persistent/pulsar/system/{stores.prefix}-log-0-log/partitions"
    request = urllib.request.Request(pulsar.admin_url + path, b"2", {"Content-Type": "application/json"}, method="PUT")
    await asyncio.to_thread(urllib.request.urlopen, request, timeout=30)
    with pytest.raises(LogTopicRefused, match="has 2 partitions, and a log needs a topic without"):
        await store.open("a/log")


def test_policies_that_lose_logs_are_named_with_what_to_do() -> None:
    policies = {
        "message_ttl_in_seconds": 60,
        "backlog_quota_map": {"destination_storage": {"policy": "consumer_backlog_eviction"}},
        "subscription_expiration_time_minutes": 5,
        "inactive_topic_policies": {"deleteWhileInactive": True},
        "schema_validation_enforced": True,
        "encryption_required": True,
        "replication_clusters": ["a", "b"],
    }
    assert len(list(dangers("public/default", policies))) == len(policies)
    assert list(dangers("public/default", {"replication_clusters": ["a"], "message_ttl_in_seconds": 0})) == []


async def test_a_namespace_that_expires_messages_is_refused(stock_pulsar: Target) -> None:
    stores = TopicStores(stock_pulsar.service_url)
    settings, url = stores.make()._settings, stock_pulsar.admin_url
    namespace = f"public/{stores.prefix}"

    def put(path: str, body: Any, method: str) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/admin/v2/namespaces/{path}", json.dumps(body).encode(), headers, method=method)
        urllib.request.urlopen(request, timeout=30).close()

    await asyncio.to_thread(put, namespace, {}, "PUT")
    await check_namespace(namespace, url, settings)
    await asyncio.to_thread(put, f"{namespace}/messageTTL", 3600, "POST")
    with pytest.raises(LogTopicRefused, match="messages expire; pulsar-admin namespaces remove-message-ttl"):
        await check_namespace(namespace, url, settings)
    with pytest.raises(LogTopicRefused, match="cannot be used for logs"):
        await check_namespace("public/is-not-there", url, settings)


# ---- size


def backlog_of(pulsar: Target, topic: str) -> int:
    with urllib.request.urlopen(f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/stats", timeout=30) as answer:
        return int(json.load(answer)["subscriptions"]["pulsar-txn"]["msgBacklog"])


async def test_a_hundred_thousand_records_are_given_back_after_a_snapshot(stock_pulsar: Target) -> None:
    stores = TopicStores(stock_pulsar.service_url)
    store = await stores.new()
    log = await store.open(NAME)
    for number in range(100_000):
        position = log.append(b"a record of about fifty bytes, as most of them are %d" % number)
        if number % 50 == 49:
            await asyncio.sleep(0)
    await log.flush()
    before = backlog_of(stock_pulsar, store.topic_of(NAME) or "")
    log.put_snapshot(Snapshot(position, (b"state" * 20_000, b"more")))
    log.trim(position)
    await log.flush()
    async with asyncio.timeout(30):
        while (left := backlog_of(stock_pulsar, store.topic_of(NAME) or "")) > 50:
            log.refresh()  # frames come in, as they do in life
            await asyncio.sleep(0.2)
    assert left < before / 4
    await store.close()
    store = await stores.new()
    loop = asyncio.get_running_loop()
    since = loop.time()
    log = await store.open(NAME)
    assert loop.time() - since < 5
    assert log._fold.frames < 100, "a start reads what is needed, and nothing before it"
    assert await log.latest_snapshot() == Snapshot(position, (b"state" * 20_000, b"more"))
    assert (await log.read(EARLIEST))[0][0] == position
    await stores.close()


async def test_a_log_that_only_beats_does_not_grow(stock_pulsar: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_REWRITE_FRAMES", 40)
    monkeypatch.setattr(log_module, "_TRIM_SECONDS", 0.1)
    stores = TopicStores(stock_pulsar.service_url, lease_ms=100)
    store = await stores.new()
    log = await store.open(NAME)
    positions = [log.append(b"%d" % number) for number in range(5)]
    await log.flush()
    log.put_snapshot(Snapshot(positions[2], (b"state", b"")))
    log.trim(positions[3])
    log.refresh()
    async with asyncio.timeout(60):
        while log._fold.frames < 150:  # noqa: ASYNC110 - beats are time
            await asyncio.sleep(0.05)
    assert log._fold.frame_count < 100
    assert backlog_of(stock_pulsar, store.topic_of(NAME) or "") < 120
    store = await stores.reopened(store)
    log = await store.open(NAME)
    assert log._fold.frames < 120
    assert await log.read(EARLIEST) == [(positions[3], b"3"), (positions[4], b"4")]
    assert await log.latest_snapshot() == Snapshot(positions[2], (b"state", b""))
    assert log.append(b"next")[1] == positions[4][1] + 2
    await stores.close()


# ---- metadata of several instances


async def test_one_of_several_wins_each_compare_and_set(stores: TopicStores) -> None:
    all_of_them = [await stores.new() for _ in range(3)]

    async def win(store: TopicStore, round_: int) -> bool:
        try:
            await store.metadata.put(f"/round/{round_}", store.advertised.encode(), expected_version=-1)
        except VersionConflict:
            return False
        return True

    for round_ in range(20):
        won = await asyncio.gather(*(win(store, round_) for store in all_of_them))
        assert sum(won) == 1
    numbers = await asyncio.gather(*(store.metadata.increment("/c") for store in all_of_them for _ in range(30)))
    assert sorted(numbers) == list(range(90))
    late = await stores.new()
    assert len(await late.metadata.children("/round")) == 20
    assert await late.metadata.increment("/c") == 90


async def test_instances_that_make_a_log_at_once_mean_the_same_one(stores: TopicStores) -> None:
    a, b = await stores.new(), await stores.new()
    tasks = [asyncio.ensure_future(store.open(NAME)) for store in (a, b)]
    async with asyncio.timeout(30):
        done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert a.topic_of(NAME) == b.topic_of(NAME)
        log = done.pop().result()
        log.append(b"1")
        await log.close()
        assert await all_entries(await others.pop()) == [b"1"]
    assert a.names() == b.names() == [NAME]


async def test_metadata_start_from_a_snapshot(stores: TopicStores) -> None:
    store = await stores.new()
    for start in range(0, 3000, 500):
        await asyncio.gather(
            *(store.metadata.put(f"/ids/{number % 700}", b"%d" % number) for number in range(start, start + 500))
        )
    await store.metadata.delete("/ids/0")
    await asyncio.gather(*(store.metadata.increment("/c") for _ in range(10)))
    trimming = store._shared._trimming
    if trimming is not None:
        await trimming
    other = await stores.new()
    assert other._shared._fold.values == store._shared._fold.values
    assert other._shared._fold.counters == {"/c": 10}
    assert len(await other.metadata.children("/ids")) == 699
    await store.metadata.put("/later", b"x")
    assert await other.metadata.increment("/c") == 10
    assert await other.metadata.get("/later") is not None
