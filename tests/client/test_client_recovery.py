"""However often and however long a broker was away: once it serves, everything of a client works again within a bound.

On a virtual clock, with a scripted broker: times are exact, and an outage of an hour takes no time.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from fake_broker import SILENCE, FakeBroker, FakeRuntime
from insides import coordinators_of
from memory_network import VirtualLoop

from pulsar_txn.client import AsyncClient, ConsumerType
from pulsar_txn.client.net.pauses import HEALTHY_SECONDS
from pulsar_txn.wire.frames import command

pytestmark = pytest.mark.quick

INITIAL, LONGEST = 0.1, 5.0
"""Seconds: the defaults of a client."""
BOUND = LONGEST + INITIAL  # a pause of the pool, and the spread after the sign of life
RESOURCES = 8


def run(story):
    """Run `story()` to its end on a virtual clock, whatever it waits for."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(story())
    finally:
        loop.close()


def now():
    return asyncio.get_running_loop().time()


class World:
    """A client with producers, consumers, a reader, a pattern, and sessions with coordinators, on one broker."""

    def __init__(self, broker, **options):
        self.broker = broker
        self.runtime = FakeRuntime({broker.address: broker})
        self.client = AsyncClient(f"pulsar://{broker.address}", runtime=self.runtime, **options)
        broker.partitions["persistent://pulsar/system/transaction_coordinator_assign"] = 4
        self.topics = ["persistent://public/default/p-1"]
        broker.on["getTopicsOfNamespace"] = lambda _pipe, body: command(
            "getTopicsOfNamespaceResponse", request_id=body.request_id, topics=self.topics
        )

    async def __aenter__(self):
        client = self.client
        producers = [await client.create_producer(f"t{number}") for number in range(RESOURCES)]
        consumers = [
            await client.subscribe(f"t{number}", "s", consumer_type=ConsumerType.SHARED) for number in range(RESOURCES)
        ]
        self.pattern = await client.subscribe(re.compile("public/default/p-.*"), "s")
        consumers += [self.pattern]
        reader = await client.create_reader("t0")
        await (await client.begin_transaction()).abort()
        sessions = coordinators_of(client)._sessions
        self.resources = [*producers, *consumers, reader, *sessions]
        return self

    async def __aexit__(self, *exc):
        self.broker.refuses = False
        await self.client.close()

    def works(self):
        return all(resource.is_connected for resource in self.resources)

    def goes_down(self):
        self.broker.refuses = True
        for pipe in self.broker.pipes:
            pipe.cut()

    async def recovers(self):
        """How long it takes from now until everything works again."""
        begin = now()
        while not self.works():  # noqa: ASYNC110 - that it works is no event
            await asyncio.sleep(0.001)
        return now() - begin


@pytest.mark.parametrize("seconds_up", [0.05, 0.5, HEALTHY_SECONDS * 2], ids=["a moment", "half a second", "two seconds"])
@pytest.mark.parametrize(("seconds_down", "kills"), [(0.3, 40), (3.0, 20), (31.0, 5), (600.0, 1)])
def test_after_many_kills_everything_works_again_within_the_bound(seconds_up, seconds_down, kills):
    async def story():
        async with World(FakeBroker()) as world:
            for _ in range(kills):
                world.goes_down()
                await asyncio.sleep(seconds_down)
                world.broker.refuses = False
                await asyncio.sleep(seconds_up)
            if world.works():
                world.goes_down()
                await asyncio.sleep(seconds_down)
                world.broker.refuses = False
            assert await world.recovers() <= BOUND

    run(story)


def test_a_short_outage_after_a_healthy_time_is_over_in_a_moment():
    async def story():
        async with World(FakeBroker()) as world:
            await asyncio.sleep(60)
            world.goes_down()
            world.broker.refuses = False
            assert await world.recovers() <= 2 * INITIAL

    run(story)


def test_a_broker_that_is_away_is_asked_by_the_client_once_per_pause_however_much_it_has_open():
    async def story():
        async with World(FakeBroker()) as world:
            world.goes_down()
            before = len(world.runtime.connects)
            await asyncio.sleep(600)
            assert 600 / LONGEST <= len(world.runtime.connects) - before <= 600 / (LONGEST * 0.9) + 10

    run(story)


def test_a_broker_that_takes_connections_and_ends_them_is_not_hammered():
    async def story():
        async with World(FakeBroker()) as world:
            world.broker.on["lookupTopic"] = lambda pipe, _body: (pipe.cut(), SILENCE)[1]
            world.goes_down()
            world.broker.refuses = False
            before = len(world.runtime.connects)
            await asyncio.sleep(600)
            assert len(world.runtime.connects) - before <= 600 / (LONGEST * 0.9) + 10
            del world.broker.on["lookupTopic"]
            assert await world.recovers() <= BOUND

    run(story)


def not_ready(_pipe, body):
    return command("error", request_id=body.request_id, error=6, message="the topic is being recovered")


@pytest.mark.parametrize("name", ["producer", "subscribe", "lookupTopic", "tcClientConnectRequest"])
def test_a_broker_that_is_there_and_not_ready_for_long_gets_everything_back_within_the_bound(name):
    async def story():
        async with World(FakeBroker()) as world:
            world.goes_down()
            world.broker.refuses = False
            world.broker.on[name] = not_ready
            before = len(world.broker.all(name))
            await asyncio.sleep(600)
            asked = len(world.broker.all(name)) - before
            assert asked <= len(world.resources) * (600 / (LONGEST * 0.9) + 10)  # each has pauses of its own
            del world.broker.on[name]
            assert await world.recovers() <= BOUND

    run(story)


def test_a_new_connection_is_a_sign_of_life_for_everything_that_was_refused():
    async def story():
        async with World(FakeBroker(), max_backoff=3600) as world:
            await asyncio.sleep(60)
            world.broker.on["producer"] = not_ready
            world.goes_down()
            world.broker.refuses = False
            await asyncio.sleep(900)  # the next attempts are far away
            del world.broker.on["producer"]
            world.goes_down()
            world.broker.refuses = False
            assert await world.recovers() <= 3 * INITIAL

    run(story)


def test_a_topic_that_comes_to_match_a_pattern_while_the_broker_is_away_is_found_soon_after_it_is_back():
    async def story():
        async with World(FakeBroker()) as world:
            world.goes_down()
            await asyncio.sleep(200)  # longer than the period in which it looks, and than an operation may take
            world.topics.append("persistent://public/default/p-2")
            world.broker.refuses = False
            begin = now()
            await world.broker.until(lambda: len(world.pattern.topics) == 2, seconds=3600)
            assert now() - begin <= 2 * BOUND  # a look that is under way ends before the next begins

    run(story)


def test_an_operation_begun_while_the_broker_is_away_ends_soon_after_it_is_back():
    async def story():
        async with World(FakeBroker()) as world:
            world.goes_down()
            await asyncio.sleep(100)
            opening = asyncio.create_task(world.client.create_producer("new"))
            beginning = asyncio.create_task(world.client.begin_transaction())
            await asyncio.sleep(20)
            world.broker.refuses = False
            begin = now()
            await opening
            await (await beginning).abort()
            assert now() - begin <= BOUND

    run(story)


def test_of_several_hosts_one_that_is_there_is_not_kept_waiting_by_one_that_is_away():
    async def story():
        down, up = FakeBroker("down:6650"), FakeBroker("up:6650")
        down.refuses = True
        runtime = FakeRuntime({"down:6650": down, "up:6650": up})
        async with AsyncClient("pulsar://down:6650,up:6650", runtime=runtime) as client:
            producer = await client.create_producer("t")
            for _ in range(10):
                begin = now()
                for pipe in up.pipes:
                    pipe.cut()
                await asyncio.sleep(HEALTHY_SECONDS * 2)
                await producer.send(b"x")
                assert now() - begin <= HEALTHY_SECONDS * 2 + INITIAL

    run(story)


def test_a_lane_of_a_pipeline_that_has_failed_often_goes_on_with_the_first_sign_of_life():
    async def story():
        broker = FakeBroker()
        async with AsyncClient(
            f"pulsar://{broker.address}", runtime=FakeRuntime({broker.address: broker}), max_backoff=3600
        ) as client:
            consumer = await client.subscribe("t", "s", consumer_type=ConsumerType.SHARED)
            calls = []
            stop = asyncio.Event()

            async def handle(batch):
                calls.append(now())
                if len(calls) < 12:
                    raise RuntimeError("not yet")
                stop.set()

            pipeline = asyncio.create_task(client.pipeline(consumer, handle, stop=stop, max_aborts=1000))
            broker.deliver(1, 0, b"x")
            await asyncio.sleep(120)  # the next attempt is more than a minute away
            assert len(calls) == 11
            broker.pipe.cut()
            begin = now()
            await pipeline
            assert calls[-1] - begin <= 3 * INITIAL

    run(story)
