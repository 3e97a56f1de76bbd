"""Producers that wait for a topic, and clients that leave in the middle: nobody who is gone holds anything."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from raw_client import FULL, RawClient, Refused

from pulsar_txn.broker.topics.producers import AccessMode
from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.wire import pulsar_pb2 as pb
from pulsar_txn.wire.errors import ServerError

EXCLUSIVE, WAIT, FENCING = AccessMode.Exclusive, AccessMode.WaitForExclusive, AccessMode.ExclusiveWithFencing
TURNS = 40
"""More loop turns than the creation of a producer or a consumer takes with `Slow` metadata."""


class Slow:
    """A metadata store whose every call takes a few turns before and after it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        async def slow(*args: Any, **options: Any) -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
            found = await call(*args, **options)
            for _ in range(3):
                await asyncio.sleep(0)
            return found

        return slow


async def slow_bench(benches: Callable[..., Any], **config: object) -> Any:
    bench = benches(**config)
    bench.store.metadata = Slow(bench.store.metadata)
    return await bench.start()


def wait(client: RawClient, producer_id: int = 0) -> int:
    """Ask to be the next exclusive producer; the request's id."""
    return client.start("producer", topic="a", producer_id=producer_id, producer_access_mode=int(WAIT))


async def is_waiting(client: RawClient, request_id: int) -> None:
    assert not (await client.answer(request_id)).producer_ready


def producers_of(bench: Any) -> Any:
    return bench.broker.topics[f"{FULL}a"].producers


async def test_a_waiting_producer_whose_connection_broke_is_never_given_the_topic(client: RawClient, bench: Any) -> None:
    await client.producer("a", producer_access_mode=EXCLUSIVE)
    dead, living = bench.client(), bench.client()
    await is_waiting(dead, wait(dead))
    request_id = wait(living)
    await is_waiting(living, request_id)
    dead.drop()
    client.drop()
    assert (await living.answer(request_id)).producer_ready
    await living.sent(b"x")


async def test_a_waiting_producer_that_was_closed_is_never_given_the_topic(client: RawClient, bench: Any) -> None:
    await client.producer("a", producer_access_mode=EXCLUSIVE)
    other = bench.client()
    await is_waiting(other, wait(other))
    await other.request("close_producer", producer_id=0)
    await client.request("close_producer", producer_id=0)
    await other.settle()
    assert not producers_of(bench).in_use
    await bench.client().producer("a")


async def test_a_producer_that_leaves_while_it_is_given_the_topic_passes_it_on(benches: Any) -> None:
    for turns in range(TURNS):
        bench = await slow_bench(benches)
        holder, leaving, last = bench.client(), bench.client(), bench.client()
        await holder.producer("a", producer_access_mode=EXCLUSIVE)
        await is_waiting(leaving, wait(leaving))
        request_id = wait(last)
        await is_waiting(last, request_id)
        holder.drop()
        await leaving.settle(turns)
        leaving.drop()
        assert (await last.answer(request_id)).producer_ready
        assert [each.owner for each in producers_of(bench).by_name.values()] == [last.connection.session]


async def test_a_wait_whose_epoch_cannot_be_stored_ends_with_a_retry_and_the_next_one_is_served(benches: Any) -> None:
    bench = await slow_bench(benches)
    holder, first, second = bench.client(), bench.client(), bench.client()
    await holder.producer("a", producer_access_mode=EXCLUSIVE)
    requests = []
    for client in (first, second):
        requests.append(wait(client))
        await is_waiting(client, requests[-1])
    producers = producers_of(bench)
    write, broken = producers._epochs.write, [True]

    async def write_once_broken(epoch: int) -> None:
        if broken and broken.pop():
            raise LedgerError("no room")
        await write(epoch)

    producers._epochs.write = write_once_broken
    holder.drop()
    with pytest.raises(Refused) as refused:
        await first.answer(requests[0])
    assert refused.value.code == ServerError.ServiceNotReady
    assert (await second.answer(requests[1])).producer_ready


async def test_of_two_that_fence_at_the_same_time_one_holds_the_topic_and_the_other_knows(benches: Any) -> None:
    for turns in range(TURNS):
        bench = await slow_bench(benches)
        clients = [bench.client(), bench.client()]
        requests = []
        for client in clients:
            requests.append(client.start("producer", topic="a", producer_id=0, producer_access_mode=int(FENCING)))
            await client.settle(turns)
        await clients[1].settle(200)
        ready = []
        for client, request_id in zip(clients, requests, strict=True):
            refused = await client.refusal(request_id)
            if refused is None:
                ready.append(client)
            else:
                assert refused.code == ServerError.ProducerFenced
        (holder,) = producers_of(bench).by_name.values()
        assert holder.owner is ready[-1].connection.session
        assert holder.topic_epoch >= len(ready) - 1  # each that held it has an epoch of its own
        for client in ready[:-1]:
            assert "close_producer" in [name for name, _ in client.events]


async def test_fencing_tells_those_that_wait(client: RawClient, bench: Any) -> None:
    await client.producer("a", producer_access_mode=EXCLUSIVE)
    other, fencing = bench.client(), bench.client()
    request_id = wait(other)
    await is_waiting(other, request_id)
    await fencing.producer("a", producer_access_mode=FENCING)
    with pytest.raises(Refused) as refused:
        await other.answer(request_id)
    assert refused.value.code == ServerError.ProducerFenced
    assert not other.connection.session.waiting_producers


async def test_a_producer_that_asks_again_while_it_waits_is_answered_under_its_new_request(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a", producer_access_mode=EXCLUSIVE)
    other = bench.client()
    await is_waiting(other, wait(other))
    request_id = wait(other)
    await is_waiting(other, request_id)
    assert len(producers_of(bench).waiting) == 1
    client.drop()
    assert (await other.answer(request_id)).producer_ready


async def test_a_topic_has_as_many_waiting_producers_as_its_key_says(benches: Any) -> None:
    bench = await benches(max_waiting_producers_per_topic=3).start()
    client = bench.client()
    await client.producer("a", producer_access_mode=EXCLUSIVE)
    for producer_id in range(1, 4):
        await is_waiting(client, wait(client, producer_id))
    with pytest.raises(Refused) as refused:
        await client.answer(wait(client, 4))
    assert refused.value.code == ServerError.ProducerBusy
    assert "maxWaitingProducersPerTopic" in str(refused.value)


@pytest.mark.parametrize("mode", [AccessMode.Shared, WAIT])
async def test_producers_of_a_connection_are_counted_while_they_are_created_and_while_they_wait(
    client: RawClient, bench: Any, mode: AccessMode
) -> None:
    if mode is WAIT:
        await bench.client().producer("a", producer_access_mode=EXCLUSIVE)
    requests = [client.start("producer", topic="a", producer_id=each, producer_access_mode=int(mode)) for each in range(5000)]
    refused = [each for each in [await client.refusal(request_id) for request_id in requests] if each is not None]
    assert len(refused) == 4000
    assert {each.code for each in refused} == {ServerError.TooManyRequests}
    assert all("maxProducersPerConnection" in str(each) for each in refused)
    held = client.connection.session
    assert len(held.producers) + len(held.waiting_producers) == 1000


async def test_producers_of_topics_that_are_still_opened_are_counted(benches: Any) -> None:
    bench = await benches(max_producers_per_connection=5).start()
    client = bench.client()
    requests = [client.start("producer", topic=f"t{each}", producer_id=each) for each in range(20)]
    refused = [each for each in [await client.refusal(request_id) for request_id in requests] if each is not None]
    assert len(refused) == 15
    assert len(client.connection.session.producers) == 5


async def test_consumers_of_a_connection_are_counted_while_they_are_created(client: RawClient) -> None:
    requests = [client.start("subscribe", topic="a", subscription="s", subType=1, consumer_id=each) for each in range(5000)]
    refused = [each for each in [await client.refusal(request_id) for request_id in requests] if each is not None]
    assert len(refused) == 4000
    assert {each.code for each in refused} == {ServerError.TooManyRequests}
    assert all("maxConsumersPerConnection" in str(each) for each in refused)
    assert len(client.connection.session.consumers) == 1000


async def test_a_connection_that_ends_leaves_no_waiting_producers_in_memory(client: RawClient, bench: Any) -> None:
    await client.producer("a", producer_access_mode=EXCLUSIVE)
    other = bench.client()
    for producer_id in range(1000):
        wait(other, producer_id)
    await other.until(lambda: len(producers_of(bench).waiting) == 1000)
    kept = weakref.ref(other.connection)
    other.drop()
    await other.settle()
    assert not producers_of(bench).waiting
    del other
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("mode", list(AccessMode))
async def test_a_client_that_leaves_at_any_moment_of_making_a_producer_holds_nothing(benches: Any, mode: AccessMode) -> None:
    for turns in range(TURNS):
        bench = await slow_bench(benches)
        client = bench.client()
        client.start(
            "producer",
            topic="a",
            producer_id=0,
            producer_name="p",
            producer_access_mode=int(mode),
            initial_subscription_name="first",
        )
        await client.settle(turns)
        client.drop()
        await client.settle(100)
        other = bench.client()
        await other.producer("a", producer_name="p", producer_access_mode=EXCLUSIVE)
        assert [each.owner for each in producers_of(bench).by_name.values()] == [other.connection.session]
        await other.sent(b"x", name="p")


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("topic", ["a", "non-persistent://public/default/a"])
@pytest.mark.parametrize("kind", range(4))
async def test_a_client_that_leaves_at_any_moment_of_subscribing_holds_nothing(
    benches: Any, kind: int, topic: str, durable: bool
) -> None:
    for turns in range(TURNS):
        bench = await slow_bench(benches)
        client = bench.client()
        client.start("subscribe", topic=topic, subscription="s", subType=kind, consumer_id=0, durable=durable)
        await client.settle(turns)
        client.drop()
        await client.settle(100)
        found = bench.broker.topics.get(topic if ":" in topic else FULL + topic)
        if found is not None:
            assert all(not each.consumers for each in found.subscriptions.values())
            if topic == "a":
                known = {name for name, each in found.subscriptions.items() if each.durable}
                assert set(found.log.cursor_names()) == known
            if not durable or topic != "a":
                assert not found.subscriptions
        other = bench.client()
        await other.subscribe(topic, "s", kind=0, durable=durable)


async def test_a_refused_consumer_leaves_no_subscription_that_is_not_durable(client: RawClient, bench: Any) -> None:
    meta = pb.KeySharedMeta(keySharedMode=1, hashRanges=[])  # type: ignore[arg-type] # a number of the protocol
    for first_id, topic in ((10, "a"), (20, "non-persistent://public/default/a")):
        await client.subscribe(topic, "other", first_id, kind=1)
        with pytest.raises(Refused):
            await client.subscribe(topic, "other", first_id + 1, kind=0)
        if topic == "a":
            with pytest.raises(Refused):
                await client.subscribe(topic, "s", first_id + 2, kind=3, durable=False, keySharedMeta=meta)
        found = bench.broker.topics[topic if ":" in topic else FULL + topic]
        assert set(found.subscriptions) == {"other"}


@pytest.mark.parametrize("mode", list(AccessMode))
async def test_a_producer_that_is_closed_at_any_moment_of_its_making_is_closed(benches: Any, mode: AccessMode) -> None:
    bench = await slow_bench(benches)
    holder = bench.client()
    if mode is WAIT:
        await holder.producer("a", producer_access_mode=EXCLUSIVE)
    client = bench.client()
    for turns in range(TURNS):
        made = client.start("producer", topic="a", producer_id=turns, producer_access_mode=int(mode))
        await client.settle(turns)
        await client.request("close_producer", producer_id=turns)
        await client.refusal(made)
        found = client.connection.session
        assert not found.producers
        assert not found.waiting_producers
        assert not found.opening_producers
        assert len(producers_of(bench).by_name) == (mode is WAIT)
        assert not producers_of(bench).waiting


@pytest.mark.parametrize("topic", ["a", "non-persistent://public/default/a"])
@pytest.mark.parametrize("kind", range(4))
async def test_a_consumer_that_is_closed_at_any_moment_of_its_making_is_closed(benches: Any, kind: int, topic: str) -> None:
    bench = await slow_bench(benches)
    client = bench.client()
    for turns in range(TURNS):
        name = f"s{turns}"
        made = client.start("subscribe", topic=topic, subscription=name, subType=kind, consumer_id=turns)
        await client.settle(turns)
        await client.request("close_consumer", consumer_id=turns)
        await client.refusal(made)
        assert not client.connection.session.consumers
        assert not client.connection.session.opening_consumers
        found = bench.broker.topics[topic if ":" in topic else FULL + topic].subscriptions
        assert not any(each.consumers for each in found.values())
        assert (name in found) == (topic == "a")
