"""For how long the broker's loop is held by work on very many objects: CPU of its thread in the longest turn.

    python bench/broker/held_loop.py                 all scenarios
    python bench/broker/held_loop.py shared lists    those whose names begin so
    python bench/broker/held_loop.py --scale 0.1     with a tenth of the objects

In one process over a memory store, with a client of bare frames in the same loop; what the client parses counts as well.
The collector is off. Ten milliseconds are the broker's own limit.
"""

# ruff: noqa: SLF001, ASYNC110 - it looks into the broker, and waits turn by turn
from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from loop_blocks import HeldLoop, held_loop
from raw_client import FULL, RawClient

from pulsar_txn.broker.admin.metrics import exposition
from pulsar_txn.broker.base.runtime import AsyncioRuntime
from pulsar_txn.broker.base.settings import BrokerConfig
from pulsar_txn.broker.broker import Broker
from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.wire.frames import command
from pulsar_txn.wire.topics import TopicName

SHARED, KEY_SHARED = 1, 3

Scenario = Callable[["World", int], Awaitable[HeldLoop]]
SCENARIOS: dict[str, tuple[int, Scenario]] = {}


def scenario(count: int) -> Callable[[Scenario], Scenario]:
    """Register a scenario with its number of objects."""

    def register(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = count, function
        return function

    return register


class World:
    """A broker and a client."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.broker: Broker

    async def start(self) -> World:
        """An empty broker."""
        await self.store.start()
        config = BrokerConfig(
            number_of_transaction_coordinators=1,
            max_active_transactions_per_coordinator=10_000_000,
            max_unacked_messages_per_consumer=0,
            max_unacked_messages_per_subscription=0,
            max_message_size=64 << 20,
        )
        self.broker = Broker(config, self.store, AsyncioRuntime())
        await self.broker.start()
        return self

    def client(self) -> RawClient:
        """One more connection."""
        return RawClient(self.broker)

    def topic(self, name: str = "a") -> Any:
        """An open topic."""
        return self.broker.topics[FULL + name]

    async def publish(self, client: RawClient, count: int, **options: Any) -> None:
        """So many messages to "a"."""
        await client.producer("a")
        for start in range(0, count, 500):
            for number in range(start, min(count, start + 500)):
                client.send(b"", **({"key": f"k{number % 5000}"} | options))
            while len(client.receipts) < min(500, count - start):
                await asyncio.sleep(0)
            client.receipts.clear()

    async def topics(self, count: int) -> None:
        """So many open topics."""
        names = (TopicName.parse(f"t{number}") for number in range(count))
        await self.broker.turn.budget.for_all(names, self.broker.topic)


async def received(client: RawClient, count: int, consumer_id: int = 0) -> None:
    """Wait for so many messages."""
    while len(client.messages[consumer_id]) < count:
        await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Give the loop so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


@scenario(300)
async def key_shared_consumers_of_a_connection_leave(world: World, count: int) -> HeldLoop:
    """So many Key_Shared consumers leave with one connection."""
    client, other = world.client(), world.client()
    await other.subscribe("a", kind=KEY_SHARED, consumer_name="stays")
    for number in range(count):
        await client.subscribe("a", consumer_id=number, kind=KEY_SHARED, consumer_name=f"c{number}")
    async with held_loop() as held:
        client.drop()
        await turns(50)
    return held


@scenario(100_000)
async def key_shared_entries_come_back(world: World, count: int) -> HeldLoop:
    """A Key_Shared consumer leaves with so many entries unacknowledged; another takes them one by one."""
    client, other = world.client(), world.client()
    await client.subscribe("a", kind=KEY_SHARED, permits=count, consumer_name="one")
    await world.publish(client, count)
    await received(client, count)
    await other.subscribe("a", kind=KEY_SHARED, permits=10, consumer_name="two")
    async with held_loop() as held:
        client.drop()
        for _ in range(100):
            other.flow(1)
            await turns(3)
    return held


@scenario(100_000)
async def shared_entries_come_back(world: World, count: int) -> HeldLoop:
    """A Shared consumer leaves with so many entries unacknowledged."""
    client, other = world.client(), world.client()
    await client.subscribe("a", kind=SHARED, permits=count)
    await world.publish(client, count)
    await received(client, count)
    await other.subscribe("a", kind=SHARED, permits=10)
    async with held_loop() as held:
        client.drop()
        await turns(300)
    return held


@scenario(100_000)
async def shared_redelivery_of_all(world: World, count: int) -> HeldLoop:
    """A Shared consumer asks for so many entries again."""
    client = world.client()
    await client.subscribe("a", kind=SHARED, permits=count)
    await world.publish(client, count)
    await received(client, count)
    async with held_loop() as held:
        client.raw(command("redeliverUnacknowledgedMessages", consumer_id=0))
        await turns(300)
    return held


@scenario(1000)
async def shared_acks_with_many_consumers(world: World, count: int) -> HeldLoop:
    """One of so many Shared consumers acknowledges 20,000 entries, a thousand at a time."""
    client, other = world.client(), world.client()
    for number in range(count - 1):
        await other.subscribe("a", consumer_id=number, kind=SHARED, permits=0)
    await client.subscribe("a", kind=SHARED, permits=20_000)
    await world.publish(client, 20_000)
    await received(client, 20_000)
    positions = [each.position for each in client.messages[0]]
    async with held_loop() as held:
        for start in range(0, 20_000, 1000):
            await client.ack(*positions[start : start + 1000])
    return held


@scenario(1000)
async def connection_of_many_channels_breaks(world: World, count: int) -> HeldLoop:
    """A connection with so many consumers and as many producers breaks."""
    client = world.client()
    for number in range(count):
        await client.subscribe(f"t{number % 50}", f"s{number % 20}", consumer_id=number, kind=SHARED)
        await client.producer(f"t{number % 50}", number)
    async with held_loop() as held:
        client.drop()
        await turns(50)
    return held


@scenario(100_000)
async def cursor_with_holes_is_asked_for_its_backlog(world: World, count: int) -> HeldLoop:
    """The backlog of a cursor with so many holes, 50 times."""
    client = world.client()
    await client.subscribe("a", kind=SHARED, permits=0)
    await world.publish(client, 2 * count)
    cursor = world.topic().subscriptions["s"].cursor
    for start in range(0, count, 1000):
        cursor.delete([(world.topic().log.last_appended[0], 2 * number + 1) for number in range(start, start + 1000)])
        await turns(2)
    async with held_loop() as held:
        for _ in range(50):
            await client.request("consumerStats", consumer_id=0)
    return held


@scenario(100_000)
async def reader_acks_cumulatively_over_holes(world: World, count: int) -> HeldLoop:
    """A reader with so many entries moves on by cumulative acknowledgements, with holes ahead."""
    client = world.client()
    await client.subscribe("a", durable=False, permits=count)
    await world.publish(client, count)
    await received(client, count)
    positions = [each.position for each in client.messages[0]]
    for start in range(1, count - 1000, 1000):
        await client.ack(*positions[start : start + 999 : 2])
    async with held_loop() as held:
        for number in range(0, 200, 2):
            await client.ack(positions[number], cumulative=True)
    return held


@scenario(20_000)
async def topics_are_swept(world: World, count: int) -> HeldLoop:
    """The regular look at so many topics."""
    await world.topics(count)
    async with held_loop() as held:
        await world.broker.sweep()
    return held


@scenario(20_000)
async def metrics_of_many_topics(world: World, count: int) -> HeldLoop:
    """One /metrics with so many topics."""
    await world.topics(count)
    async with held_loop() as held:
        async for _ in exposition(world.broker):
            pass
    return held


@scenario(100_000)
async def metrics_of_many_subscriptions(world: World, count: int) -> HeldLoop:
    """One /metrics with so many subscriptions of ten topics."""
    await world.topics(10)
    for topic in world.broker.topics.values():
        for number in range(count // 10):
            await topic.subscribe(f"s{number}", durable=False, initial=(-1, -1))
    async with held_loop() as held:
        async for _ in exposition(world.broker):
            pass
    return held


@scenario(10_000)
async def subscriptions_of_a_topic_and_a_publish(world: World, count: int) -> HeldLoop:
    """Publishing to a topic with so many subscriptions that nobody reads."""
    client = world.client()
    await client.producer("a")
    for number in range(count):
        await world.topic().subscribe(f"s{number}", durable=False, initial=(-1, -1))
    async with held_loop() as held:
        for _ in range(20):
            await client.sent(b"x")
    return held


@scenario(100_000)
async def slow_transactions(world: World, count: int) -> HeldLoop:
    """The list of so many open transactions."""
    from admin_client import admin_of

    client = world.client()
    await client.new_txn()
    for start in range(0, count, 1000):
        requests = [client.start("newTxn", tc_id=0, txn_ttl_millis=600_000) for _ in range(1000)]
        await client.answer(requests[-1])
        client._answers.clear()
        del start
    async with admin_of(world) as admin:
        await admin("GET", "/admin/v3/transactions/coordinators")
        async with held_loop() as held, admin._client.get("/admin/v3/transactions/slowTransactions/0") as response:
            async for _ in response.content.iter_any():
                pass
    return held


@scenario(50_000)
async def lists_of_topics(world: World, count: int) -> HeldLoop:
    """Twenty lists of so many topics, asked for at once."""
    client = world.client()
    await client.producer("a")
    await world.broker.catalog.index.load([f"public/default/persistent/t{n}" for n in range(count)], world.broker.turn.budget)
    async with held_loop() as held:
        requests = [client.start("getTopicsOfNamespace", namespace="public/default") for _ in range(20)]
        for request in requests:
            while not client._answers.pop(request, None):
                await asyncio.sleep(0)
    return held


@scenario(10_000)
async def partitions_are_made(world: World, count: int) -> HeldLoop:
    """A topic of so many partitions is made."""
    from admin_client import admin_of

    async with admin_of(world) as admin:
        await admin("GET", "/admin/v2/tenants")
        async with held_loop() as held:
            assert (await admin("PUT", "/admin/v2/persistent/public/default/p/partitions", count))[0] == 204
    return held


@scenario(5000)
async def namespace_is_deleted(world: World, count: int) -> HeldLoop:
    """A namespace of so many topics is deleted."""
    await world.topics(count)
    async with held_loop() as held:
        await world.broker.delete_namespace("public", "default")
    return held


@scenario(200_000)
async def topic_is_compacted(world: World, count: int) -> HeldLoop:
    """A topic of so many entries is compacted."""
    await world.publish(world.client(), count)
    topic = world.topic()
    async with held_loop() as held:
        topic.compaction.start()
        while topic.compaction.status == "RUNNING":
            await asyncio.sleep(0)
    return held


@scenario(300)
async def seeks_by_time_at_once(world: World, count: int) -> HeldLoop:
    """So many seeks by time over 20,000 entries, asked for at once."""
    client = world.client()
    await world.publish(client, 20_000)
    for number in range(count):
        await client.subscribe("a", f"s{number}", consumer_id=number, permits=0)
    async with held_loop() as held:
        requests = [client.start("seek", consumer_id=number, message_publish_time=2**53) for number in range(count)]
        for request in requests:
            while not client._answers.pop(request, None):
                await asyncio.sleep(0)
    return held


@scenario(1_000_000)
async def seek_by_time_in_a_long_topic(world: World, count: int) -> HeldLoop:
    """One seek by time over so many entries."""
    client = world.client()
    await world.publish(client, count)
    await client.subscribe("a", permits=0)
    async with held_loop() as held:
        request = client.start("seek", consumer_id=0, message_publish_time=2**53)
        while not client._answers.pop(request, None):
            await asyncio.sleep(0)
    return held


@scenario(100_000)
async def delayed_messages_fall_due_together(world: World, count: int) -> HeldLoop:
    """So many delayed messages are due at the same time."""
    client = world.client()
    await client.subscribe("a", kind=SHARED, permits=count)
    due = int(time.time() * 1000) + 3_600_000
    await world.publish(client, count, fields={"deliver_at_time": due})
    await turns(500)
    async with held_loop() as held:
        world.broker.clock.observe(due + 200)
        world.topic().subscriptions["s"].dispatcher.wake()
        await received(client, count)
    return held


@scenario(100_000)
async def aborted_entries_are_passed(world: World, count: int) -> HeldLoop:
    """A new subscription passes so many aborted entries."""
    client = world.client()
    await client.producer("a")
    txn = await client.new_txn()
    await client.request("addPartitionToTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, partitions=[FULL + "a"])
    for start in range(0, count, 500):
        for _ in range(500):
            client.send(b"", txn=txn)
        while len(client.receipts) < 500:
            await asyncio.sleep(0)
        client.receipts.clear()
        del start
    await client.request("endTxn", txnid_most_bits=txn.most, txnid_least_bits=txn.least, txn_action=1)
    await client.sent(b"last")
    async with held_loop() as held:
        await client.subscribe("a", kind=SHARED, permits=1000)
        await received(client, 1)
    return held


@scenario(10_000)
async def clients_are_pinged(world: World, count: int) -> HeldLoop:
    """The keep-alive of so many connections."""
    clients = [world.client() for _ in range(count)]
    await turns(10)
    async with held_loop() as held:
        await world.broker.keep_alive()
        await turns(200)
    assert len(clients) == count
    return held


async def run(name: str, scale: float) -> None:
    """Run one scenario and print its line."""
    count, function = SCENARIOS[name]
    count = max(1, int(count * scale))
    world = await World().start()
    gc.collect()
    gc.disable()
    began = time.monotonic()
    try:
        held = await function(world, count)
        print(f"{name:55} {count:9,} {held.longest_seconds * 1000:9.1f} ms {held.total_seconds * 1000:9.0f} ms", flush=True)
    except Exception as error:  # noqa: BLE001 - the others go on
        print(f"{name:55} {count:9,} {type(error).__name__}: {error} after {time.monotonic() - began:.1f} s", flush=True)
    gc.enable()


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    print(f"{'scenario':55} {'objects':>9} {'longest turn':>12} {'all turns':>12}")
    for name in SCENARIOS:
        if not options.names or any(name.startswith(each) for each in options.names):
            asyncio.run(run(name, options.scale))


if __name__ == "__main__":
    main()
