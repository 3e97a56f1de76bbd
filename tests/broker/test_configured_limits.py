"""Bounds that the configuration sets on topics, subscriptions and the end: each is obeyed, and refusals name their key."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from check_client import UNKNOWN, CheckClient
from manual_runtime import ManualRuntime
from raw_client import FULL, RawClient, Refused
from topic_views import later, now_ms

from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.server import Standalone
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.wire.errors import ServerError

SHARED = 1


@pytest.mark.parametrize("topic", ["a", "non-persistent://public/default/a"])
async def test_a_topic_takes_as_many_producers_as_it_may(benches: Any, topic: str) -> None:
    bench = await benches(max_producers_per_topic=2).start()
    first, second, third = bench.client(), bench.client(), bench.client()
    await first.producer(topic)
    await second.producer(topic)
    with pytest.raises(Refused) as refused:
        await third.producer(topic)
    assert refused.value.code == ServerError.ProducerBusy
    second.drop()
    await third.producer(topic)


@pytest.mark.parametrize("topic", ["a", "non-persistent://public/default/a"])
async def test_a_subscription_takes_as_many_consumers_as_it_may(benches: Any, topic: str) -> None:
    bench = await benches(max_consumers_per_subscription=2).start()
    first, second, third = bench.client(), bench.client(), bench.client()
    await first.subscribe(topic, kind=SHARED)
    await second.subscribe(topic, kind=SHARED)
    with pytest.raises(Refused) as refused:
        await third.subscribe(topic, kind=SHARED)
    assert refused.value.code == ServerError.ConsumerBusy
    await third.subscribe(topic, "another", kind=SHARED)


async def test_a_subscription_with_too_much_unacknowledged_gives_no_consumer_more(benches: Any) -> None:
    bench = await benches(max_unacked_messages_per_subscription=4).start()
    one, two = bench.client(), bench.client()
    await one.producer("a")
    await one.subscribe("a", kind=SHARED)
    await two.subscribe("a", kind=SHARED)
    for number in range(8):
        await one.sent(b"%d" % number)
    await one.settle()
    assert (len(one.messages[0]), len(two.messages[0])) == (2, 2)
    await one.ack(one.messages[0][0])
    await one.settle()
    assert len(one.messages[0]) + len(two.messages[0]) == 5


@pytest.mark.parametrize(
    ("limit", "most"), [({"dispatcher_max_read_batch_size": 2}, 2), ({"dispatcher_max_read_size_bytes": 1}, 1)]
)
async def test_one_read_of_a_dispatcher_has_as_much_as_it_may(
    benches: Any, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int], most: int
) -> None:
    bench = await benches(**limit).start()
    client = bench.client()
    await client.producer("a")
    for number in range(7):
        await client.sent(b"%d" % number)
    log = bench.broker.topics[FULL + "a"].log
    monkeypatch.setattr(type(log), "read_cached", lambda _self, _position: None)
    sizes: list[int] = []
    read = type(log).read

    async def counted(self: Any, *args: Any, **bounds: Any) -> Any:
        found = await read(self, *args, **bounds)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(type(log), "read", counted)
    await client.subscribe("a")
    assert await client.payloads(7) == [b"%d" % number for number in range(7)]
    assert max(sizes) == most


async def test_a_topic_remembers_as_many_names_of_producers_as_it_may(benches: Any) -> None:
    bench = await benches(broker_deduplication_enabled=True, broker_deduplication_max_number_of_producers=2).start()
    client = bench.client()
    for number, name in enumerate("pqr"):
        await client.producer("a", number, producer_name=name)
        await client.sent(b"x", number, name=name, sequence_id=0)
    log = bench.broker.topics[FULL + "a"].log
    await client.sent(b"x", 2, name="r", sequence_id=0)
    assert log.stats().entries == 3, "r is known"
    await client.sent(b"x", 0, name="p", sequence_id=0)
    assert log.stats().entries == 4, "p is not known any more"


@pytest.mark.parametrize(
    ("limit", "minutes", "left"),
    [
        ({}, 2, 3),
        ({"managed_ledger_max_size_per_ledger_mbytes": 1}, 0, 0),
        ({"managed_ledger_max_ledger_rollover_time_minutes": 1}, 2, 0),
        ({"managed_ledger_max_ledger_rollover_time_minutes": 3}, 2, 3),
    ],
)
async def test_what_is_acknowledged_goes_after_so_many_bytes_or_minutes(
    benches: Any, limit: dict[str, int], minutes: int, left: int
) -> None:
    bench = await benches(**limit).start()
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a")
    for _ in range(3):
        last = await client.sent(bytes(400_000))
    await client.ack(last, cumulative=True)
    later(bench, minutes * 60_000)
    topic = bench.broker.topics[FULL + "a"]
    topic.sweep()
    await client.settle()
    assert topic.log.stats().entries == left


async def test_a_pattern_is_as_long_as_it_may_be(benches: Any) -> None:
    bench = await benches(subscription_pattern_max_length=20).start()
    client = bench.client()

    async def watched(pattern: str) -> None:
        await client.request("watchTopicList", watcher_id=7, topics_pattern=pattern, namespace="public/default")

    await watched("public/default/aaaaa")
    with pytest.raises(Refused, match="Pattern longer than maximum: 20"):
        await watched("public/default/aaaaaa")


@pytest.mark.parametrize(("tick_ms", "comes"), [(100, True), (10_000, False)])
async def test_a_delayed_message_comes_at_a_tick(benches: Any, tick_ms: int, comes: bool) -> None:
    bench = await benches(delayed_delivery_tick_time_millis=tick_ms).start()
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    at_ms = (now_ms(bench) // 10_000 + 2) * 10_000 + 1  # one millisecond after a tick of ten seconds
    await client.sent(b"x", fields={"deliver_at_time": at_ms, "publish_time": now_ms(bench)})
    later(bench, at_ms + 5_000 - now_ms(bench))
    await client.settle()
    assert bool(client.messages[0]) is comes
    later(bench, 5_000)
    assert await client.payloads(1) == [b"x"]


@pytest.mark.parametrize(
    ("limit", "key", "code"),
    [
        ("max_pending_ack_bytes_per_transaction", "maxPendingAckBytesPerTransaction", ServerError.NotAllowedError),
        ("max_pending_ack_bytes_per_subscription", "maxPendingAckBytesPerSubscription", ServerError.TooManyRequests),
    ],
)
async def test_acknowledgements_in_transactions_take_as_much_as_they_may(
    benches: Any, limit: str, key: str, code: ServerError
) -> None:
    bench = await benches(**{limit: 2_000}).start()
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    places = [await client.sent(b"x") for _ in range(10)]
    taken = 0
    with pytest.raises(Refused, match=key) as refused:
        for place in places:
            await client.ack(place, txn=txn)
            taken += 1
    assert refused.value.code == code
    assert 1 <= taken < 9
    await client.abort(txn)
    again = await client.new_txn()
    await client.add_subscriptions(again, (FULL + "a", "s"))
    await client.ack(places[-1], txn=again)


@pytest.mark.parametrize(("most", "parked"), [(1, 1), (0, 3)])
async def test_as_many_transactions_are_parked_as_may_be_and_others_stay_open(benches: Any, most: int, parked: int) -> None:
    bench, clock = benches(max_parked_transactions_per_coordinator=most, transaction_check_max=1), ManualRuntime()
    bench.runtime = clock
    await bench.start()
    one = CheckClient(bench.broker)
    await one.join()
    txns = [await one.begin() for _ in range(3)]
    await clock.advance(7)
    for txn in txns:
        await one.says(txn, UNKNOWN)
    await clock.advance(31)
    machine = bench.broker.coordinators.ready(0).coordinator
    assert sum(machine.transaction(txn.least).parked_ms is not None for txn in txns) == parked
    assert {machine.status(txn).name for txn in txns} == {"OPEN"}


async def test_a_store_that_does_not_answer_holds_the_end_up_for_so_long(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.start()
    server = Standalone(store=store, port=0, config=BrokerConfig(broker_shutdown_timeout_ms=400))
    await server.start()
    client = RawClient(server.broker)
    await client.producer("a")
    store.auto_confirm = False
    client.send(b"x")
    await client.settle()
    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        await server.close()
    assert 0.2 <= time.monotonic() - started < 5
    assert "the broker closed with unanswered requests" in caplog.text
    assert not client.receipts
    store.auto_confirm = True
    await store.close()
