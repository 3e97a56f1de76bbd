"""Lists of very many topics: whole and right, made in slices, and in pages over HTTP."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from admin_client import Admin
from hypothesis import given
from hypothesis import strategies as st
from loop_blocks import LONGEST_SECONDS, held_loop
from raw_client import FULL, RawClient, Refused
from topic_hashes import hash_of

from pulsar_txn.broker.base.sorted_names import SortedNames, count_of
from pulsar_txn.broker.catalog.index import TopicIndex
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.topics import TopicName

TOPICS = "/admin/v2/persistent/public/default"


async def know(bench: Any, count: int, namespace: str = "public/default") -> list[str]:
    """Let the broker know so many topics; returns their full names, sorted."""
    logs = [f"{namespace}/persistent/topic-{number}" for number in range(count)]
    await bench.broker.catalog.index.load(logs, bench.broker.turn.budget)
    return sorted(f"persistent://{namespace}/topic-{number}" for number in range(count))


async def until_real_time(condition: Any) -> None:
    """Wait for what takes timers: long lists are told with rests in between."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is a frame of the broker
            await asyncio.sleep(0.01)


# ---- the set of names


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 60), max_size=12))))
def test_sorted_names_are_a_sorted_set(changes: list[tuple[bool, list[int]]]) -> None:
    names, model = SortedNames(), set[str]()
    for adds, numbers in changes:
        some = [f"n{number}" for number in numbers]
        before, taken = names.pieces(), sorted(model)
        if adds:
            assert names.add_all(some) == sorted(set(some) - model)
            model |= set(some)
        else:
            assert [names.discard(name) for name in dict.fromkeys(some)] == [name in model for name in dict.fromkeys(some)]
            model -= set(some)
        assert [name for piece in before for name in piece] == taken  # who took it before sees what was then
        assert [name for piece in names.pieces() for name in piece] == sorted(model)
        assert len(names) == len(model)
        assert all(names.pieces())
        middle = sorted(model)[len(model) // 2] if model else "n"
        assert [name for piece in names.pieces(middle) for name in piece] == [name for name in sorted(model) if name > middle]


def test_a_change_among_very_many_names_touches_one_piece() -> None:
    every = [f"topic-{number:06}" for number in range(100_000)]
    names = SortedNames(random.Random(3).sample(every, len(every)))
    before = names.pieces()
    assert names.add("topic-050000x")
    assert names.discard("topic-000001")
    after = names.pieces()
    assert count_of(after) == 100_000
    assert sum(piece not in before for piece in after) <= 3


# ---- the index


async def test_the_index_after_a_restart_is_the_one_before(bench: Any, admin: Admin) -> None:
    for name in ("aa", "b%20c", "p-partition-7"):
        assert (await admin("PUT", f"{TOPICS}/{name}"))[0] == 204
    assert (await admin("PUT", f"{TOPICS}/p/partitions", 3))[0] == 204
    assert (await admin("PUT", "/admin/v2/persistent/t/n/q/partitions", 2))[0] == 204
    assert (await admin("DELETE", f"{TOPICS}/p-partition-1"))[0] == 204
    assert (await admin("DELETE", f"{TOPICS}/aa"))[0] == 204
    client = bench.client()
    await client.subscribe("p-partition-7")
    txn = await client.new_txn()
    await client.request("addPartitionToTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, partitions=[f"{FULL}z"])

    def seen(index: TopicIndex) -> Any:
        return [
            [
                tuple(name for piece in pieces for name in piece)
                for pieces in (index.topics(*name), index.topics_and_partitions(*name), index.partitioned(*name))
            ]
            for name in (("public", "default"), ("t", "n"), ("pulsar", "system"))
        ]

    before = seen(bench.broker.catalog.index)
    assert before[0][1] == tuple(
        f"{FULL}{name}" for name in ("b c", "p-partition-0", "p-partition-1", "p-partition-2", "p-partition-7")
    )
    assert f"{FULL}p-partition-1" not in before[0][0]
    await bench.crash()
    assert seen(bench.broker.catalog.index) == before


async def test_what_is_deleted_is_in_no_list_and_its_namespace_neither(bench: Any, admin: Admin) -> None:
    await admin("PUT", "/admin/v2/persistent/t/n/p/partitions", 2)
    assert (await admin("GET", "/admin/v2/namespaces/t")) == (200, ["t/n"])
    assert (await admin("DELETE", "/admin/v2/persistent/t/n/p/partitions"))[0] == 204
    assert not bench.broker.catalog.index.has("t", "n")
    assert (await admin("GET", "/admin/v2/namespaces/t"))[0] == 404


# ---- over the wire


async def test_many_lists_of_many_topics_asked_at_once_leave_the_loop_to_others(client: RawClient, bench: Any) -> None:
    names = await know(bench, 20_000)
    async with held_loop() as held:
        requests = [client.start("getTopicsOfNamespace", namespace="public/default") for _ in range(30)]
        for request in requests[:-1]:
            await client.until(lambda request=request: client._answers.pop(request, None), turns=100_000)
    answer = await client.answer(requests[-1])
    assert list(answer.topics) == names
    assert answer.topics_hash == hash_of(names)
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_a_list_with_a_pattern_looks_at_many_names_in_slices(client: RawClient, bench: Any) -> None:
    names = await know(bench, 100_000)
    async with held_loop() as held:
        request = client.start("getTopicsOfNamespace", namespace="public/default", topics_pattern="public/default/topic-9.*0")
        await client.until(lambda: client._answers.get(request), turns=100_000)
    assert list((await client.answer(request)).topics) == [name for name in names if "topic-9" in name and name.endswith("0")]
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_a_list_that_fits_in_no_frame_is_refused_with_what_to_do(client: RawClient, bench: Any) -> None:
    await know(bench, 130_000)
    request = client.start("getTopicsOfNamespace", namespace="public/default")
    await client.until(lambda: client._answers.get(request), turns=100_000)
    with pytest.raises(Refused, match=r"130000 topics of public/default have .* ask with a pattern") as refused:
        await client.answer(request)
    assert refused.value.code == ServerError.NotAllowedError
    request = client.start("watchTopicList", namespace="public/default", watcher_id=1, topics_pattern="public/default/.*")
    await client.until(lambda: client._answers.get(request), turns=100_000)
    with pytest.raises(Refused, match="ask with a pattern"):
        await client.answer(request)
    assert bench.broker.topic_lists.count == 0


async def test_a_watcher_of_very_many_topics_hears_of_each_change_and_costs_no_long_turn(client: RawClient, bench: Any) -> None:
    names = await know(bench, 80_000)
    async with held_loop() as held:
        request = client.start("watchTopicList", namespace="public/default", watcher_id=1, topics_pattern="public/default/t.*")
        await client.until(lambda: client._answers.get(request), turns=100_000)
        for number in range(20):
            bench.broker.catalog.index.created(TopicName.parse(f"t-new-{number}"))
            await asyncio.sleep(0)
        bench.broker.catalog.index.deleted(TopicName.parse("topic-5"))

        def known() -> list[str]:
            return [name for event, body in client.events if event == "watchTopicUpdate" for name in body.deleted_topics]

        await until_real_time(known)
    updates = [body for event, body in client.events if event == "watchTopicUpdate"]
    new = sorted(name for body in updates for name in body.new_topics)
    assert new == sorted(f"{FULL}t-new-{number}" for number in range(20))
    assert updates[-1].topics_hash == hash_of({*names, *new} - {f"{FULL}topic-5"})
    assert held.longest_seconds < LONGEST_SECONDS, held


# ---- over HTTP


async def test_a_list_over_http_comes_whole_or_in_pages(admin: Admin, bench: Any) -> None:
    names = await know(bench, 5000)
    assert await admin("GET", TOPICS) == (200, names)
    found: list[str] = []
    while True:
        status, page = await admin("GET", f"{TOPICS}?limit=700&after={found[-1] if found else ''}")
        assert status == 200
        found += page
        if len(page) < 700:
            break
    assert found == names
    assert (await admin("GET", f"{TOPICS}?limit=0"))[0] == 400
    assert (await admin("GET", f"{TOPICS}?limit=x"))[0] == 400
    assert await admin("GET", f"{TOPICS}?after=z") == (200, [])
    assert await admin("GET", f"/admin/v2/namespaces/public/default/topics?after={names[-2]}") == (200, names[-1:])


async def test_a_very_long_list_over_http_holds_the_loop_for_no_long_turn(admin: Admin, bench: Any) -> None:
    names = await know(bench, 100_000)
    async with held_loop() as held, admin._client.get(TOPICS) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
    assert response.status == 200
    assert body.decode().count("persistent://") == len(names)
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_partitions_are_made_and_deleted_many_at_a_time(admin: Admin, bench: Any) -> None:
    under_way, most = 0, 0

    def counted(of: Any) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await of(*arguments, **options)
            finally:
                under_way -= 1

        return call

    bench.broker.store.open = counted(bench.broker.store.open)
    bench.broker.store.delete = counted(bench.broker.store.delete)
    async with held_loop() as held:
        assert (await admin("PUT", f"{TOPICS}/p/partitions", 1000))[0] == 204
    assert most > 20
    assert held.longest_seconds < LONGEST_SECONDS, held
    assert len((await admin("GET", TOPICS))[1]) == 1000
    most = 0
    async with held_loop() as held:
        assert (await admin("DELETE", f"{TOPICS}/p/partitions"))[0] == 204
    assert most > 20
    assert held.longest_seconds < LONGEST_SECONDS, held
    assert (await admin("GET", TOPICS)) == (200, [])
