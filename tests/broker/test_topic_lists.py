"""Lists of topics by pattern, and those who watch them; answers as stock 4.2.4 gives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from admin_client import Admin
from keeping import kept_by
from raw_client import FULL, RawClient, Refused
from topic_hashes import hash_of

from pulsar_txn.broker.catalog import lists as topic_lists
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.topics import TopicName

TOPICS = "/admin/v2/persistent/public/default"


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling rests after a list that took long; on a busy machine a short list may take long, and a test would wait."""
    monkeypatch.setattr(topic_lists, "_SHORT_SECONDS", float("inf"))


async def watch(client: RawClient, pattern: str = "public/default/(a|p).*", watcher_id: int = 7, **fields: Any) -> Any:
    names = {"namespace": "public/default", **fields}
    return await client.request("watchTopicList", watcher_id=watcher_id, topics_pattern=pattern, **names)


def updates(client: RawClient) -> list[tuple[int, list[str], list[str], str]]:
    found = [body for name, body in client.events if name == "watchTopicUpdate"]
    client.events.clear()
    return [(each.watcher_id, list(each.new_topics), list(each.deleted_topics), each.topics_hash) for each in found]


def full(*names: str) -> list[str]:
    return [FULL + name for name in names]


def test_the_hash_of_a_list_is_stock_pulsars() -> None:
    names = ["aa", "p-partition-0", "p-partition-1"]
    listed = [f"persistent://public/hw455b05/{name}" for name in names]
    assert hash_of(reversed(listed)) == "572b5d76"  # as 4.2.4 answered
    assert hash_of([]) == "00000000"


async def test_whoever_watches_hears_of_topics_that_come_and_go(admin: Admin, client: RawClient) -> None:
    await client.producer("aa")
    await admin("PUT", f"{TOPICS}/p/partitions", 2)
    await admin("PUT", f"{TOPICS}/other")
    answer = await watch(client)
    assert list(answer.topic) == full("aa", "p-partition-0", "p-partition-1")
    assert answer.topics_hash == hash_of(answer.topic)
    await client.producer("ab", 1)  # made by being used
    await admin("PUT", f"{TOPICS}/another")
    await admin("PUT", f"{TOPICS}/b")
    await client.settle()
    known = [*answer.topic, *full("ab")]
    assert updates(client) == [
        (7, full("ab"), [], hash_of(known)),
        (7, full("another"), [], hash_of([*known, *full("another")])),
    ]
    await admin("DELETE", f"{TOPICS}/another")
    await client.settle()
    assert updates(client) == [(7, [], full("another"), hash_of(known))]
    await admin("POST", f"{TOPICS}/p/partitions", 3)
    await client.settle()
    assert [(new, gone) for _, new, gone, _ in updates(client)] == [(full("p-partition-2"), [])]


async def test_partitions_are_told_before_anybody_opens_them(admin: Admin, client: RawClient) -> None:
    await watch(client)
    await admin.broker.catalog.create_partitioned(TopicName.parse(f"{FULL}p2"), 2)
    await client.settle()
    assert [new for _, new, _, _ in updates(client)] == [full("p2-partition-0", "p2-partition-1")]


async def test_a_list_that_the_client_has_is_not_sent_again(client: RawClient) -> None:
    await client.producer("aa")
    answer = await watch(client)
    again = await watch(client, topics_hash=answer.topics_hash)
    assert (list(again.topic), again.topics_hash) == ([], answer.topics_hash)
    listed = await client.request("getTopicsOfNamespace", namespace="public/default", topics_hash=answer.topics_hash)
    assert (list(listed.topics), listed.changed) == ([], False)


async def test_a_pattern_may_name_the_scheme_and_matches_whole_names(client: RawClient) -> None:
    for number, name in enumerate(("aa", "aab", "b")):
        await client.producer(name, number)
    for pattern in ("persistent://public/default/aa", "public/default/aa"):
        assert list((await watch(client, pattern)).topic) == full("aa")
    listed = await client.request("getTopicsOfNamespace", namespace="public/default", topics_pattern="public/default/aa.*")
    assert (list(listed.topics), listed.filtered) == (full("aa", "aab"), True)


@pytest.mark.parametrize(
    ("pattern", "code", "text"),
    [
        ("(((", ServerError.InvalidTopicName, "Invalid topics pattern: missing )"),
        ("x" * 51, ServerError.NotAllowedError, "Pattern longer than maximum: 50"),
        ("(?=a)a", ServerError.InvalidTopicName, "Invalid topics pattern"),
        ("(((a{1000}){1000}){1000})", ServerError.InvalidTopicName, "Invalid topics pattern"),
    ],
)
async def test_a_pattern_that_is_none_is_refused_and_its_client_gets_whole_lists(
    client: RawClient, pattern: str, code: int, text: str
) -> None:
    await client.producer("aa")
    with pytest.raises(Refused) as refused:
        await watch(client, pattern)
    assert refused.value.code == code
    assert text in str(refused.value)
    listed = await client.request("getTopicsOfNamespace", namespace="public/default", topics_pattern=pattern)
    assert (list(listed.topics), listed.filtered) == (full("aa"), False)


async def test_a_pattern_that_runs_wild_elsewhere_takes_no_time(client: RawClient) -> None:
    await client.producer("a" * 200)
    async with asyncio.timeout(60):
        assert not (await watch(client, "public/default/(a*)*(a*)*(a*)*b")).topic


async def test_a_watcher_that_is_closed_or_whose_connection_is_gone_hears_nothing(client: RawClient, bench: Any) -> None:
    other, before = bench.client(), kept_by(bench.broker.topic_lists)
    await watch(client)
    await watch(client, watcher_id=8)
    await watch(other)
    await client.request("watchTopicListClose", watcher_id=7)
    await client.request("watchTopicListClose", watcher_id=99)
    other.drop()
    await client.producer("aa")
    await client.settle()
    assert [watcher_id for watcher_id, *_ in updates(client)] == [8]
    client.drop()
    assert kept_by(bench.broker.topic_lists) == before


async def test_watching_can_be_switched_off(benches: Any) -> None:
    bench = await benches(enable_broker_side_subscription_pattern_evaluation=False).start()
    client = bench.client()
    with pytest.raises(Refused) as refused:
        await watch(client)
    assert refused.value.code == ServerError.NotAllowedError
    connected = dict(client.events)["connected"]
    assert not connected.feature_flags.supports_topic_watchers


async def test_a_connection_watches_as_many_lists_as_its_key_says_also_while_they_are_made(benches: Any) -> None:
    bench = await benches(max_topic_list_watchers_per_connection=3, max_topic_list_watchers=5).start()
    for granted, key in ((3, "maxTopicListWatchersPerConnection"), (2, "maxTopicListWatchers")):
        client = bench.client()
        fields = {"namespace": "public/default", "topics_pattern": "public/default/.*"}
        requests = [client.start("watchTopicList", watcher_id=each, **fields) for each in range(10)]
        refusals = [each for each in [await client.refusal(request_id) for request_id in requests] if each is not None]
        assert len(refusals) == 10 - granted
        assert {each.code for each in refusals} == {ServerError.TooManyRequests}
        assert all(key in str(each) for each in refusals)
    assert bench.broker.topic_lists.count == 5
    client.drop()
    assert bench.broker.topic_lists.count == 3


async def test_a_topic_that_is_made_while_a_list_is_made_is_told(benches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    matching = topic_lists.matching

    async def slowly(*arguments: Any) -> Any:
        found = await matching(*arguments)
        for _ in range(15):
            await asyncio.sleep(0)
        return found

    monkeypatch.setattr(topic_lists, "matching", slowly)
    for turns in range(30):
        bench = await benches().start()
        client, other = bench.client(), bench.client()
        request_id = client.start(
            "watchTopicList", watcher_id=7, namespace="public/default", topics_pattern="public/default/.*"
        )
        await client.settle(turns)
        await other.producer("new")
        known = set((await client.answer(request_id)).topic)
        await client.settle()
        for name, body in client.events:
            known |= set(body.new_topics) if name == "watchTopicUpdate" else set()
        assert known == {f"{FULL}new"}
