"""Topics that nobody uses take no memory for long, and lose nothing; how many things a namespace and a topic may have."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError

FLEETING = "non-persistent://public/default/f"


async def swept(bench: Any, times: int = 3) -> None:
    """What the broker does every `retentionCheckIntervalInSeconds`."""
    for _ in range(times):
        await bench.broker.sweep()
        for _ in range(20):
            await asyncio.sleep(0)


async def idle_bench(benches: Any, **config: object) -> Any:
    return await benches(retention_check_interval_in_seconds=100, idle_topic_unload_seconds=200, **config).start()


async def test_topics_that_nobody_uses_are_closed_and_leave_no_memory(benches: Any) -> None:
    bench = await idle_bench(benches)
    client = bench.client()
    kept = []
    for each in range(200):
        await client.producer(f"t-{each}", each)
        await client.subscribe(f"non-persistent://public/default/f-{each}", consumer_id=each)
    kept = [weakref.ref(each) for each in bench.broker.topics.values()]
    assert len(kept) == 400
    await swept(bench)
    assert len(bench.broker.topics) == 400, "they are in use"
    client.drop()
    await swept(bench, 1)
    assert len(bench.broker.topics) == 400, "not for long enough"
    await swept(bench)
    assert not bench.broker.topics
    assert bench.broker.idle_topics_unloaded == 400
    assert not [each for each in kept if each() is not None]


async def test_a_topic_that_was_closed_goes_on_where_it_was(benches: Any) -> None:
    bench = await idle_bench(benches, broker_deduplication_enabled=True)
    client = bench.client()
    await client.producer("t", producer_name="p", producer_access_mode=1)
    await client.subscribe("t", "s", kind=1)
    places = [await client.sent(b"%d" % each, name="p", sequence_id=each) for each in range(5)]
    await client.ack(places[1], places[3])
    client.drop()
    await swept(bench, 5)
    assert not bench.broker.topics
    client = bench.client()
    answer = await client.producer("t", producer_name="p", producer_access_mode=1)
    assert (answer.last_sequence_id, answer.topic_epoch) == (4, 1)
    await client.subscribe("t", "s", kind=1)
    assert sorted(await client.payloads(3)) == [b"0", b"2", b"4"]
    await client.nothing()


@pytest.mark.parametrize("what", ["waiting producer", "consumer", "open transaction", "pending acknowledgement"])
async def test_a_topic_that_something_waits_for_stays_open(benches: Any, what: str) -> None:
    bench = await idle_bench(benches)
    client, other = bench.client(), bench.client()
    await client.producer("t", producer_access_mode=1 if what == "waiting producer" else 0)
    place = await client.sent(b"x")
    topic = bench.broker.topics[f"{FULL}t"]
    await client.subscribe("t", "s", kind=1)
    if what == "waiting producer":
        request_id = other.start("producer", topic="t", producer_id=0, producer_access_mode=2)
        assert not (await other.answer(request_id)).producer_ready
        await client.request("close_consumer", consumer_id=0)
        topic.producers.by_name.clear()  # between the holder's end and the promotion of the next one
    elif what != "consumer":
        await client.receive()
        txn = await client.new_txn()
        if what == "open transaction":
            await client.add_topics(txn, f"{FULL}t")
            await client.sent(b"y", txn=txn)
        else:
            await client.add_subscriptions(txn, (f"{FULL}t", "s"))
            await client.ack(place, txn=txn)
        client.drop()
    await swept(bench, 5)
    assert bench.broker.topics.get(f"{FULL}t") is topic


async def test_what_is_acknowledged_goes_from_the_disk_before_a_topic_is_closed(benches: Any) -> None:
    bench = await idle_bench(benches)
    client = bench.client()
    await client.producer("t")
    await client.subscribe("t", "s", kind=1)
    for _ in range(5):
        await client.ack(await client.sent(b"x"))
    log = bench.broker.topics[f"{FULL}t"].log
    client.drop()
    await swept(bench, 5)
    assert not bench.broker.topics
    assert log.stats().entries == 0


async def test_what_is_kept_for_a_time_keeps_its_topic_open(benches: Any) -> None:
    bench = await idle_bench(benches, default_retention_time_in_minutes=5)
    client = bench.client()
    await client.producer("t")
    await client.sent(b"x")
    client.drop()
    await swept(bench, 5)
    assert len(bench.broker.topics) == 1


async def test_closing_idle_topics_can_be_switched_off(benches: Any) -> None:
    bench = await benches(idle_topic_unload_seconds=0).start()
    client = bench.client()
    await client.producer("t")
    client.drop()
    await swept(bench, 5)
    assert len(bench.broker.topics) == 1


async def test_somebody_who_comes_while_a_topic_is_closed_is_served(benches: Any) -> None:
    for turns in range(25):
        bench = await idle_bench(benches)
        client = bench.client()
        await client.producer("t")
        await client.producer(FLEETING, 1)
        client.drop()
        await swept(bench, 1)
        other = bench.client()
        sweep = asyncio.create_task(bench.broker.sweep())
        await other.settle(turns)
        for topic, producer_id in (("t", 0), (FLEETING, 1)):
            refused = await other.refusal(other.start("producer", topic=topic, producer_id=producer_id))
            if refused is not None:
                assert refused.code == ServerError.ServiceNotReady
                await other.producer(topic, producer_id)
        await sweep
        for topic, producer_id in (("t", 0), (FLEETING, 1)):
            await other.sent(b"x", producer_id)
            found = bench.broker.topics[topic if ":" in topic else FULL + topic]
            assert found.producers.in_use


# ---- how many


async def test_a_topic_has_as_many_subscriptions_as_its_key_says(benches: Any) -> None:
    bench = await benches(max_subscriptions_per_topic=3).start()
    client = bench.client()
    for topic, first_id in (("t", 0), (FLEETING, 10)):
        requests = [
            client.start("subscribe", topic=topic, subscription=f"s-{each}", subType=1, consumer_id=first_id + each)
            for each in range(6)
        ]
        refusals = [each for each in [await client.refusal(request_id) for request_id in requests] if each is not None]
        assert len(refusals) == 3
        assert all("maxSubscriptionsPerTopic" in str(each) for each in refusals)
    await client.subscribe("t", "s-0", 100, kind=1)  # there already


async def test_a_namespace_has_as_many_topics_as_its_key_says(benches: Any) -> None:
    bench = await benches(max_topics_per_namespace=3).start()
    client = bench.client()
    for each in range(3):
        await client.producer(f"t-{each}", each)
    with pytest.raises(Refused, match="maxTopicsPerNamespace"):
        await client.producer("t-3", 3)
    await client.producer("a/b/t-3", 3)
    await bench.client().producer("t-2")


async def test_a_topic_has_a_thousand_versions_of_its_schema_and_1_mib_at_most(client: RawClient) -> None:
    def schema(data: bytes) -> Any:
        return pb.Schema(name="s", schema_data=data, type=2)  # type: ignore[arg-type] # a number of the protocol

    for each in range(1000):
        await client.request("getOrCreateSchema", topic="t", schema=schema(b"%d" % each))
    with pytest.raises(Refused, match="1000 versions"):
        await client.request("getOrCreateSchema", topic="t", schema=schema(b"more"))
    await client.request("getOrCreateSchema", topic="t", schema=schema(b"7"))
    with pytest.raises(Refused, match="1048576"):
        await client.request("getOrCreateSchema", topic="u", schema=schema(bytes(1 << 20)))


async def test_deduplication_keeps_no_endless_names(benches: Any) -> None:
    bench = await benches(broker_deduplication_enabled=True).start()
    client = bench.client()
    await client.producer("t")
    with pytest.raises(Refused, match="2048"):
        await client.sent(b"x", name="p" * 2049)
    await client.sent(b"x", name="p" * 2048)
