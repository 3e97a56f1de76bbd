"""Unchanged clients on stock brokers through the front: Java's transactions, and the official Python client without any."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pulsar as official
import pytest
from front_probe import check_stories, probe, said
from official_reading import read_officially
from our_coordinator import OurCoordinator
from stock_pulsar import free_port
from targets import Target

pytestmark = [pytest.mark.stock, pytest.mark.timeout(240)]

COORDINATORS = 4


class Fronted(OurCoordinator):
    """A coordinator with a front, whose port survives a restart. A cluster has one front, so each test ends its own."""

    def __init__(self, pulsar: Target, **conf: str) -> None:
        self.front_port = free_port()
        super().__init__({"east": pulsar.service_url}, conf={"frontServicePort": str(self.front_port), **conf})

    @property
    def front_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.front_port}"


async def test_java_commits_aborts_conflicts_and_times_out_as_with_the_brokers_own_coordinators(
    stock_pulsar: Target, topic: str
) -> None:
    with Fronted(stock_pulsar) as coordinator:
        async with probe(stock_pulsar.version, "stories", coordinator.front_url, topic) as output:
            lines = [line async for line in said(output)]
    check_stories(lines, COORDINATORS)


@pytest.mark.soak
@pytest.mark.parametrize("kills", [2, 12])
async def test_java_moves_each_message_once_whenever_the_coordinator_is_killed(
    stock_pulsar: Target, topic: str, kills: int
) -> None:
    count = 50 * kills
    before, after = f"{topic}-in", f"{topic}-out"
    with Fronted(stock_pulsar) as coordinator:
        fill(stock_pulsar.service_url, before, count)
        async with probe(stock_pulsar.version, "relay", coordinator.front_url, before, after) as output:
            done = failed = 0
            async for line in said(output):
                done += line.startswith("done")
                failed += line.startswith("failed")
                if line.startswith("done") and done % 40 == 20 and done // 40 < kills:
                    await asyncio.to_thread(coordinator.restart, hard=True)
        assert done + failed >= count
    moved = await asyncio.to_thread(read_officially, stock_pulsar.service_url, after, count)
    twice = [each for each, times in Counter(moved).items() if times > 1]
    assert (twice, sorted(set(range(count)) - set(map(int, moved)))) == ([], [])


def fill(service_url: str, topic: str, count: int) -> None:
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        client.subscribe(topic, "relay", consumer_type=official.ConsumerType.Shared).close()
        producer = client.create_producer(topic, block_if_queue_full=True)
        for number in range(count):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
    finally:
        client.close()


@pytest.mark.parametrize("stays", [False, True])
def test_the_official_client_sends_and_receives_small_and_large(stock_pulsar: Target, topic: str, stays: bool) -> None:
    big = os.urandom(3 << 20)
    with Fronted(stock_pulsar, frontKeepsProxyThroughServiceUrl=str(stays).lower()) as coordinator:
        client = official.Client(coordinator.front_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
        try:
            consumer = client.subscribe(topic, "s")
            producer = client.create_producer(topic, block_if_queue_full=True)
            for number in range(500):
                producer.send_async(b"%d" % number, lambda *_: None)
            for _ in range(5):
                producer.send(big)
            received = [consumer.receive(20_000) for _ in range(505)]
            assert [each.data() for each in received] == [*(b"%d" % number for number in range(500)), *[big] * 5]
            for each in received:
                consumer.acknowledge(each)
        finally:
            client.close()
