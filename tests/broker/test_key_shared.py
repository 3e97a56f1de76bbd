"""Key_Shared: order and ownership of keys under joins, leaves and redelivery; and what that costs with many of each."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest
from loop_blocks import LONGEST_SECONDS, held_loop
from raw_client import FULL, RawClient

from pulsar_txn.broker.dispatch import key_ring, key_shared
from pulsar_txn.broker.dispatch.consumers import Consumer
from pulsar_txn.broker.dispatch.key_ring import HashRing, StickyRanges
from pulsar_txn.broker.dispatch.key_shared import sticky_slot
from pulsar_txn.broker.dispatch.waiting import SlotReplay
from pulsar_txn.wire.errors import Refusal
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.hashing import KEY_SLOTS, murmur3_32
from pulsar_txn.wire.ids import TxnAction, TxnId

KEY_SHARED = 3


def consumer(name: str, number: int = 0, ranges: tuple[tuple[int, int], ...] | None = None) -> Consumer:
    return Consumer(None, None, number, name, key_ranges=ranges)  # type: ignore[arg-type] # no connection is needed


# ---- who owns what


def owners_as_stock_finds_them(consumers: list[Consumer]) -> list[tuple[int, str]]:
    return sorted(
        (murmur3_32(f"{each.name}-{each.consumer_id}-{point}".encode()) % KEY_SLOTS, each.name)
        for each in consumers
        for point in range(100)
    )


def test_the_ring_gives_each_slot_to_the_next_point_whoever_came_and_went_before() -> None:
    chance = random.Random(7)
    ring, living = HashRing(), list[Consumer]()
    for step in range(60):
        if living and chance.random() < 0.45:
            ring.remove(living.pop(chance.randrange(len(living))))
        else:
            living.append(consumer(f"c{step}", step))
            ring.add(living[-1])
        points = owners_as_stock_finds_them(living)
        for slot in chance.sample(range(KEY_SLOTS), 200):
            expected = next((name for point, name in points if point >= slot), points[0][1] if points else None)
            found = ring.owner(slot)
            assert (None if found is None else found.name) == expected


def test_a_consumer_that_comes_or_goes_costs_its_own_points_only(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0

    def counted(data: bytes) -> int:
        nonlocal hashed
        hashed += 1
        return murmur3_32(data)

    monkeypatch.setattr(key_ring, "murmur3_32", counted)
    ring, many = HashRing(), [consumer(f"c{number}", number) for number in range(300)]
    for each in many:
        ring.add(each)
    for each in many:
        ring.remove(each)
    assert hashed == 300 * key_ring.POINTS
    assert ring.owner(5) is None


def test_sticky_ranges_are_free_again_when_their_consumer_has_left() -> None:
    ranges = StickyRanges()
    first, second = consumer("first", 1, ((0, 100), (50, 200))), consumer("second", 2, ((201, 65535),))
    ranges.add(first)
    ranges.add(second)
    assert [ranges.owner(slot) for slot in (0, 200, 201)] == [first, first, second]
    with pytest.raises(Refusal, match="belongs to consumer 'first'"):
        ranges.add(consumer("third", 3, ((200, 200),)))
    ranges.remove(first)
    assert ranges.owner(100) is None
    third = consumer("third", 3, ((0, 200),))
    ranges.add(third)
    assert ranges.owner(100) is third
    assert ranges.owner(300) is second


def test_sticky_ranges_of_one_consumer_are_bounded() -> None:
    many = tuple((2 * number, 2 * number) for number in range(key_ring.MAX_RANGES + 1))
    with pytest.raises(Refusal, match="one consumer may have 4096"):
        StickyRanges().add(consumer("greedy", 1, many))
    ranges, some = StickyRanges(), consumer("some", 2, many[:-1])
    ranges.add(some)
    assert [ranges.owner(slot) for slot in (4, 5, 6)] == [some, None, some]


# ---- what waits


def test_what_waits_is_offered_to_its_owner_in_the_order_of_the_log() -> None:
    slots = {(1, number): number % 4 for number in range(40)}
    owners = [consumer("even"), consumer("odd")]

    class ByTwos:
        def owner(self, slot: int) -> Consumer:
            return owners[slot % 2]

    replay = SlotReplay(slots, ByTwos())  # type: ignore[arg-type] # no consumer comes or goes
    for position in random.Random(1).sample(sorted(slots), 40):
        replay.add(position)
    replay.discard((1, 0))
    replay.hold(2)
    found = []
    while (first := replay.first_of(owners[0])) is not None:
        found.append(first[0])
        replay.discard(first[0])
    assert found == [(1, number) for number in range(4, 40, 4)]
    replay.release(2)
    assert replay.first_of(owners[0]) == ((1, 2), 2)
    owners.reverse()
    replay.owners_changed()
    while replay.regroup(1):
        assert len(replay) == 30
    assert replay.first_of(owners[0]) == ((1, 2), 2)
    assert replay.first_of(owners[1]) == ((1, 1), 1)


# ---- in the broker


class Watch:
    """Checks every entry that a Key_Shared subscription sends: its key is with one consumer, and nothing is before it."""

    def __init__(self, dispatcher: Any) -> None:
        self.cursor = dispatcher.cursor
        self.machine = dispatcher.machine
        self.slots: dict[Any, int] = {}
        self.sent: Counter[Any] = Counter()
        self._offer = self.machine.offer
        self.machine.offer = self._checked

    def _checked(self, position: Any, *facts: Any) -> Any:
        delivery = self._offer(position, *facts)
        if delivery is None:
            return None
        taker, slot = delivery[0], self.slots.setdefault(position, sticky_slot(facts[-1]))
        for other in self.machine.consumers:
            held = [each for each in other.unacked if self.slots[each] == slot]
            assert other is taker or not held, f"{position} goes to {taker.name}, {other.name} holds {held} of its slot"
        for earlier, its_slot in self.slots.items():
            if its_slot == slot and earlier < position:
                assert self.cursor.is_deleted(earlier) or earlier in taker.unacked, f"{position} overtakes {earlier}"
        self.sent[position] += 1
        return delivery


class Story:
    """Random things that clients do to one subscription."""

    def __init__(self, seed: int, client: RawClient) -> None:
        self.chance = random.Random(seed)
        self.client = client
        self.consumers = {0: None}
        self.published = 0

    def held(self, consumer_id: int) -> list[Any]:
        return list(self.client.connection.session.consumers[consumer_id].unacked)

    async def step(self) -> None:
        what = self.chance.choice([self.send, self.send, self.flow, self.ack, self.ack, self.join, self.leave, self.redeliver])
        await what(self.chance.choice(sorted(self.consumers)))
        await self.client.settle(3)

    async def send(self, _: int) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            self.client.send(b"%d" % self.published, key=f"k{self.chance.randrange(12)}")
            self.published += 1

    async def flow(self, consumer_id: int) -> None:
        self.client.flow(self.chance.randrange(1, 6), consumer_id)

    async def join(self, _: int) -> None:
        number = max(self.consumers) + 1
        if len(self.consumers) < 6:
            options = {"consumer_name": f"c{number}", "permits": self.chance.randrange(4)}
            await self.client.subscribe("a", consumer_id=number, kind=KEY_SHARED, **options)
            self.consumers[number] = None

    async def leave(self, consumer_id: int) -> None:
        if len(self.consumers) > 1:
            await self.client.request("close_consumer", consumer_id=consumer_id)
            del self.consumers[consumer_id]

    async def redeliver(self, consumer_id: int) -> None:
        self.client.raw(command("redeliverUnacknowledgedMessages", consumer_id=consumer_id))

    async def ack(self, consumer_id: int) -> None:
        held = self.held(consumer_id)
        if held:
            some = self.chance.sample(held, self.chance.randrange(1, len(held) + 1))
            await self.client.ack(*some, consumer_id=consumer_id)

    async def take_all(self) -> None:
        for consumer_id in sorted(self.consumers):
            self.client.flow(50, consumer_id)
            if held := self.held(consumer_id):
                await self.client.ack(*held, consumer_id=consumer_id)
        await self.client.settle(5)


@pytest.mark.parametrize(("seed", "slots_per_turn"), [*((seed, 2000) for seed in range(12)), *((seed, 1) for seed in range(6))])
async def test_a_key_is_with_one_consumer_and_in_order_whoever_comes_and_goes(
    seed: int, slots_per_turn: int, client: RawClient, bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "_SLOTS_PER_TURN", slots_per_turn)
    await client.producer("a")
    await client.subscribe("a", kind=KEY_SHARED, consumer_name="first", permits=3)
    subscription = bench.broker.topics[FULL + "a"].subscriptions["s"]
    watch, story = Watch(subscription.dispatcher), Story(seed, client)
    for _ in range(150):
        await story.step()
    for _ in range(200):
        await story.take_all()
        if subscription.cursor.backlog() == 0:
            break
    assert subscription.cursor.backlog() == 0
    assert len(watch.sent) == story.published
    assert not watch.machine._slot_holders
    assert len(watch.machine.replay) == 0


async def test_three_hundred_consumers_of_a_connection_that_breaks_stall_nobody(client: RawClient, bench: Any) -> None:
    await client.producer("a")
    other = bench.client()
    await other.subscribe("a", consumer_id=1, kind=KEY_SHARED, consumer_name="stays", permits=0)
    async with held_loop() as held:
        for number in range(300):
            await client.subscribe("a", consumer_id=number, kind=KEY_SHARED, consumer_name=f"c{number}", permits=100)
        client.drop()
        other.flow(1000, 1)
        await other.producer("a", producer_name="q")
        await other.sent(b"x", key="k", name="q")
        assert await other.payloads(1, 1) == [b"x"]
    assert held.longest_seconds < LONGEST_SECONDS, held


async def test_twenty_thousand_entries_that_come_back_are_offered_without_looking_at_all_of_them_each_time(
    client: RawClient, bench: Any
) -> None:
    await client.producer("a")
    other = bench.client()
    await client.subscribe("a", consumer_id=1, kind=KEY_SHARED, consumer_name="leaves", permits=20_000)
    for number in range(20_000):
        client.send(b"", key=f"k{number % 3000}")
    await client.until(lambda: len(client.messages[1]) == 20_000, turns=20_000)
    for number in range(20):
        await other.subscribe("a", consumer_id=number, kind=KEY_SHARED, consumer_name=f"c{number}", permits=1)
    async with held_loop() as held:
        await client.request("close_consumer", consumer_id=1)
        for _ in range(30):
            for number in range(20):
                other.flow(2, number)
            await other.settle(4)
    assert sum(map(len, other.messages.values())) >= 1000
    assert held.longest_seconds < LONGEST_SECONDS, held


# --- keys of open transactions ----------------------------------------------------------------------------------------


async def pending(bench: Any) -> tuple[RawClient, TxnId]:
    """A client whose consumer acknowledged the first message of a key in an open transaction, and the transaction."""
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=KEY_SHARED, consumer_name="one")
    txn = await client.new_txn(timeout_ms=600_000)
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.sent(b"0", key="k")
    await client.ack(await client.receive(), txn=txn)
    return client, txn


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("how", ["leaves", "leaves another", "crash"])
async def test_a_key_waits_for_the_transaction_that_acknowledged_its_first_message(bench: Any, how: str, commits: bool) -> None:
    """PIP-282: the key is draining until the acknowledgement is decided, also when its consumer is gone."""
    client, txn = await pending(bench)
    other = bench.client()
    if how == "leaves another":
        await other.subscribe("a", kind=KEY_SHARED, consumer_name="two")
    if how == "crash":
        await bench.crash()
    else:
        client.drop()
    client = bench.client()
    await client.request("tcClientConnectRequest", tc_id=txn.most)
    if how != "leaves another":
        other = bench.client()
        await other.subscribe("a", kind=KEY_SHARED, consumer_name="two")
    await client.producer("a")
    for payload in (b"1", b"2"):
        await client.sent(payload, key="k")
    await client.sent(b"x", key="another key")
    assert await other.payloads(1) == [b"x"]
    await other.nothing()
    await client.end(txn, TxnAction.COMMIT if commits else TxnAction.ABORT)
    wanted = [b"1", b"2"] if commits else [b"0", b"1", b"2"]
    assert await other.payloads(len(wanted)) == wanted


async def test_a_key_waits_for_the_part_of_a_batch_that_a_transaction_has_whatever_becomes_of_the_rest(bench: Any) -> None:
    """The rest of the batch came again and was acknowledged: that decided nothing of what the transaction has."""
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=KEY_SHARED, consumer_name="one")
    txn = await client.new_txn(timeout_ms=600_000)
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    await client.sent([b"0", b"1", b"2"], key="k")
    await client.ack(await client.receive(), left=0b011, txn=txn)
    client.raw(command("redeliverUnacknowledgedMessages", consumer_id=0))
    rest = await client.receive()
    await client.sent(b"3", key="k")
    await client.ack(rest, left=0b100)
    await client.nothing()
    await client.end(txn, TxnAction.COMMIT)
    assert await client.payloads(1) == [b"3"]


async def test_a_key_goes_on_at_once_after_a_commit_that_the_cursor_has_not_stored_yet(bench: Any) -> None:
    """The pending acknowledgement stays until the cursor is durable; the key waited for it, and nobody woke it."""
    client, txn = await pending(bench)
    other = bench.client()
    await other.producer("a")
    await other.sent(b"1", key="k")
    await client.end(txn)
    bench.store.auto_confirm = False
    client.drop()
    await other.subscribe("a", kind=KEY_SHARED, consumer_name="two")
    bench.store.auto_confirm = True
    bench.store.wake()
    assert await other.payloads(1) == [b"1"]


async def test_ten_thousand_messages_of_a_key_that_waits_are_not_looked_at_each_time(bench: Any) -> None:
    client = bench.client()
    await client.producer("a")
    await client.subscribe("a", kind=KEY_SHARED, consumer_name="one", permits=100_000)
    txn = await client.new_txn(timeout_ms=600_000)
    await client.add_subscriptions(txn, (FULL + "a", "s"))
    for _ in range(10_000):
        client.send(b"x", key="k")
    held = [await client.receive() for _ in range(10_000)]
    await client.ack(*held, txn=txn)
    client.drop()
    other = bench.client()
    await other.subscribe("a", kind=KEY_SHARED, consumer_name="two", permits=100_000)
    await other.request("tcClientConnectRequest", tc_id=txn.most)
    await other.producer("a")
    begun = time.perf_counter()
    for _ in range(1000):
        other.send(b"after", key="k")
    await other.settle()
    await other.nothing()
    await other.abort(txn)
    assert await other.payloads(11_000) == [b"x"] * 10_000 + [b"after"] * 1000
    assert time.perf_counter() - begun < 20
