"""Messages that name a time come at that time, on Shared and Key_Shared; whatever happens to the broker meanwhile."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest
from admin_client import Admin
from hypothesis import given
from hypothesis import strategies as st
from keeping import kept_by
from raw_client import FULL, RawClient, Refused
from topic_views import HOUR_MS, later, now_ms

from pulsar_txn.broker.dispatch import delayed
from pulsar_txn.broker.dispatch.delayed import DelayedPositions
from pulsar_txn.wire.errors import ServerError

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)
DELAYS = "/admin/v2/namespaces/public/default/delayedDelivery"


async def sent(client: RawClient, payload: bytes, at_ms: int, **options: Any) -> Any:
    fields = {"deliver_at_time": at_ms, "publish_time": max(0, at_ms - HOUR_MS)}
    return await client.sent(payload, fields=fields, **options)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_message_waits_for_its_time_and_holds_nobody_up(client: RawClient, bench: Any, kind: int) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await sent(client, b"in two hours", now_ms(bench) + 2 * HOUR_MS)
    await sent(client, b"in an hour", now_ms(bench) + HOUR_MS)
    await client.sent(b"now")
    await sent(client, b"long ago", now_ms(bench) - HOUR_MS)
    assert await client.payloads(2) == [b"now", b"long ago"]
    await client.nothing()
    later(bench, HOUR_MS + 1000)
    assert await client.payloads(1) == [b"in an hour"]
    await client.nothing()
    later(bench, HOUR_MS)
    message = await client.receive()
    assert (message.payloads, message.redelivery_count) == ([b"in two hours"], 0)
    await client.ack(message)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_where_order_counts_nothing_waits(client: RawClient, bench: Any, kind: int) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=kind)
    await sent(client, b"1", now_ms(bench) + HOUR_MS)
    assert await client.payloads(1) == [b"1"]


async def test_the_timer_brings_it_by_itself(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    at_ms = now_ms(bench) + 150
    await sent(client, b"soon", at_ms)
    await client.nothing()
    for _ in range(1000):
        if client.messages[0]:
            break
        await asyncio.sleep(0.01)
    assert client.messages[0]
    assert now_ms(bench) >= at_ms


@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_a_message_waits_through_a_restart(bench: Any, how: str) -> None:
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await sent(client, b"later", now_ms(bench) + HOUR_MS)
    await client.sent(b"now")
    await client.ack(await client.receive())
    await getattr(bench, how)()
    client = bench.client()
    await client.subscribe("a", kind=SHARED)
    await client.nothing()
    later(bench, 2 * HOUR_MS)
    assert await client.payloads(1) == [b"later"]


async def test_what_is_sent_in_a_transaction_waits_for_its_commit_and_for_its_time(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    kept, dropped, early = [await client.new_txn() for _ in range(3)]
    for txn in (kept, dropped, early):
        await client.add_topics(txn, FULL + "a")
    await sent(client, b"kept", now_ms(bench) + HOUR_MS, txn=kept)
    await sent(client, b"dropped", now_ms(bench) + HOUR_MS, txn=dropped)
    await sent(client, b"early", now_ms(bench) + HOUR_MS, txn=early)
    await client.end(kept)
    await client.abort(dropped)
    await client.nothing()
    later(bench, HOUR_MS + 1000)
    assert await client.payloads(1) == [b"kept"]
    await client.nothing()
    await client.end(early)
    assert await client.payloads(1) == [b"early"]


async def test_an_acknowledgement_that_a_transaction_gave_back_does_not_wait_again(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await sent(client, b"x", now_ms(bench) + HOUR_MS)
    await client.settle()
    later(bench, HOUR_MS + 1000)
    txn = await client.new_txn()
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.ack(await client.receive(), txn=txn)
    await client.abort(txn)
    message = await client.receive()
    assert (message.payloads, message.redelivery_count) == ([b"x"], 1)


async def test_without_consumers_nothing_is_remembered_and_nothing_is_lost(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    other = bench.client()
    await other.subscribe("a", kind=SHARED)
    await sent(client, b"x", now_ms(bench) + HOUR_MS)
    await client.settle()
    machine = bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher.machine
    assert len(machine.delayed) == 1
    other.drop()
    assert machine.delayed is None
    later(bench, HOUR_MS + 1000)
    await client.subscribe("a", kind=SHARED)
    assert await client.payloads(1) == [b"x"]


async def test_what_is_due_goes_out_as_consumers_ask_and_twice_never(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED, permits=0)
    for number in range(1500):
        client.send(b"%d" % number, fields={"deliver_at_time": now_ms(bench) + HOUR_MS})
    client.flow(1)  # nothing comes, but the dispatcher reads them all
    await client.until(lambda: len(client.receipts) == 1500)
    await client.nothing()
    later(bench, HOUR_MS + 1000)
    seen = [await client.receive()]
    await client.nothing()
    while len(seen) < 1500:
        client.flow(100)
        seen += [await client.receive() for _ in range(min(100, 1500 - len(seen)))]
    await client.nothing()
    assert sorted(int(each.payloads[0]) for each in seen) == list(range(1500))
    assert bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher.machine.delayed is None


@pytest.mark.parametrize("same_time", [True, False])
async def test_more_than_is_remembered_is_found_in_the_log_again(
    client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch, same_time: bool
) -> None:
    monkeypatch.setattr(delayed, "MAX_DELAYED", 40)
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    start_ms = now_ms(bench) + HOUR_MS
    for number in range(300):
        await sent(client, b"%d" % number, start_ms + (0 if same_time else 1000 * (299 - number)))
    await client.sent(b"now")
    assert await client.payloads(1) == [b"now"]
    await client.nothing()
    held = bench.broker.topics[FULL + "a"].subscriptions["s"].dispatcher.machine.delayed
    assert 0 < len(held) <= 40
    later(bench, HOUR_MS + 300_000)
    seen = [await client.receive() for _ in range(300)]
    await client.nothing()
    assert sorted(int(each.payloads[0]) for each in seen) == list(range(300))


@given(
    st.lists(st.integers(0, 400), max_size=120),
    st.integers(2, 30),
    st.integers(1, 50),
    st.lists(st.integers(1, 30), min_size=60, max_size=60),
)
def test_positions_come_in_their_ticks_never_early_and_those_that_are_forgotten_are_known_to_be(
    times: list[int], limit: int, tick_ms: int, takes: list[int]
) -> None:
    waiting = DelayedPositions(tick_ms, limit)
    missing = {(7, index): at_ms for index, at_ms in enumerate(times)}
    for position, at_ms in missing.items():
        waiting.add(position, at_ms)
        assert len(waiting) <= limit
    for step, most in enumerate(takes):
        now = step * 10
        for position in waiting.take_due(now, most):
            assert missing.pop(position) <= now
        if waiting.must_look(now):
            waiting.clear()
            for position, at_ms in missing.items():
                waiting.add(position, at_ms)
        assert bool(waiting) == bool(missing)
        if missing:
            next_ms = waiting.next_ms()
            assert next_ms is not None
            assert next_ms <= -(-min(missing.values()) // tick_ms) * tick_ms


def test_when_there_is_no_more_room_a_small_part_is_forgotten_at_a_time_and_what_is_kept_stays_bounded() -> None:
    waiting = DelayedPositions(1, 10_000)
    chance = random.Random(5)
    kept = []
    for number in range(60_000):
        waiting.add((7, number), 1000 + chance.randrange(50_000))
        kept.append(len(waiting))
        if number % 5 == 0:
            waiting.take_due(number // 10, 3)
        if number % 997 == 0:  # two heaps of ticks, each of which may be half out of date, and what waits in each tick
            assert kept_by(waiting) <= 5 * len(waiting) + 2 * 64
    assert max(kept) == 10_000
    assert max(before - after for before, after in pairwise(kept)) <= 10_000 // 100


# ---- limits and policies


async def test_a_longer_delay_than_the_broker_allows_is_refused_and_the_producer_goes_on(benches: Any) -> None:
    bench = await benches(delayed_delivery_max_delay_in_millis=5000).start()
    client = bench.client()
    await client.producer("a")
    fields = {"publish_time": 1000, "deliver_at_time": 6000}
    await client.sent(b"just so", fields=fields)
    with pytest.raises(Refused) as refused:
        await client.sent(b"too late", fields=fields | {"deliver_at_time": 6001})
    assert refused.value.code == ServerError.NotAllowedError
    assert "Exceeds max allowed delivery delay of 5000 milliseconds" in str(refused.value)
    await client.sent(b"plain")


async def test_a_longer_delay_than_allowed_is_refused_in_a_transaction_too(admin: Admin, client: RawClient) -> None:
    assert await admin("POST", DELAYS, {"active": True, "tickTime": 10, "maxDeliveryDelayInMillis": 1000}) == (204, "")
    await client.producer("a")
    txn = await client.new_txn()
    await client.add_topics(txn, FULL + "a")
    with pytest.raises(Refused) as refused:
        await client.sent(b"x", txn=txn, fields={"publish_time": 0, "deliver_at_time": 1001})
    assert refused.value.code == ServerError.NotAllowedError
    await client.sent(b"y", txn=txn, fields={"publish_time": 0, "deliver_at_time": 1000})
    await client.end(txn)


async def test_a_policy_of_delays_holds_for_open_topics_and_is_kept(admin: Admin, client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    assert await admin("GET", DELAYS) == (200, "")
    await sent(client, b"x", now_ms(bench) + HOUR_MS)
    await client.nothing()
    policy = {"active": False, "tickTime": 0, "maxDeliveryDelayInMillis": 0}
    assert await admin("POST", DELAYS, {"active": False}) == (204, "")
    assert await client.payloads(1) == [b"x"]
    await sent(client, b"y", now_ms(bench) + HOUR_MS)
    assert await client.payloads(1) == [b"y"]
    await bench.restart()
    client = bench.client()
    await client.subscribe("a", kind=SHARED)
    assert sorted(await client.payloads(2)) == [b"x", b"y"]
    assert await bench.broker.namespaces.policies("public", "default") == {"delayed_delivery_policies": policy}


async def test_without_the_policy_the_broker_decides_again(admin: Admin, client: RawClient, bench: Any) -> None:
    assert (await admin("POST", DELAYS, {"active": False}))[0] == 204
    assert await admin("DELETE", DELAYS) == (204, "")
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await sent(client, b"x", now_ms(bench) + HOUR_MS)
    await client.nothing()


async def test_delays_can_be_switched_off(benches: Any) -> None:
    bench = await benches(delayed_delivery_enabled=False).start()
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await sent(client, b"x", now_ms(bench) + HOUR_MS)
    assert await client.payloads(1) == [b"x"]


async def test_the_stats_say_how_many_wait(admin: Admin, client: RawClient, bench: Any) -> None:
    await client.producer("a")
    await client.subscribe("a", kind=SHARED)
    await sent(client, b"x", now_ms(bench) + HOUR_MS)
    await client.settle()
    _, stats = await admin("GET", "/admin/v2/persistent/public/default/a/stats")
    assert stats["subscriptions"]["s"]["msgDelayed"] == 1
    assert stats["subscriptions"]["s"]["msgBacklog"] == 1
