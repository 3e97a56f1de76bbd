"""The official Java client sends again what a lost connection left unanswered: in a transaction each message is stored once.

It sends through a proxy: a message reaches the broker, its receipt is lost, and the connection is reset, again and again. Then
another official client reads the topic directly from the broker. The tests of transactions fail here with the patch
the mutant `what_a_transaction_has_is_stored_again`.
"""

from __future__ import annotations

import asyncio
import random
from itertools import groupby

import pytest
import stock_install
import targets
from frame_proxy import Fault, FrameProxy
from front_probe import probe, said
from official_reading import read_officially
from our_broker import OurBroker
from targets import Target

pytestmark = pytest.mark.timeout(240)

STOCK = [pytest.param(name, marks=[pytest.mark.stock, pytest.mark.soak]) for name in targets.stock_names()]
ours = pytest.mark.parametrize("pulsar", ["ours"], indirect=True)
CUTS = 6
MANY_CUTS = 60


class Cuts:
    """Loses the receipt of one of the next sends after each new connection of the producer, `cuts` times."""

    def __init__(self, cuts: int, rng: random.Random) -> None:
        self.connected = 0
        self._cuts = cuts
        self._rng = rng
        self._sends_left = 0

    def __call__(self, command: str) -> Fault | None:
        """Judge a frame of the client."""
        if command == "producer":
            self.connected += 1
            self._sends_left = self._rng.randint(2, 40) if self.connected <= self._cuts else 0
        elif command == "send":
            self._sends_left -= 1
            return Fault.RESET_AFTER if not self._sends_left else None
        return None


async def sent_by_java(
    service_url: str, topic: str, cuts: int, *, batching: bool, transactions: bool = True, seed: int = 0
) -> tuple[int, list[bytes]]:
    """How many messages the Java client sent over connections that were cut, and which of them it committed."""
    count = cuts * (500 if batching else 60)
    how = topic, str(count), str(batching).lower(), str(transactions).lower()
    async with FrameProxy(service_url, apart=True) as proxy:  # the connections of coordinators stay
        proxy.judge = judge = Cuts(cuts, random.Random(seed))
        async with probe(stock_install.VERSIONS[-1], "resend", proxy.service_url, *how) as output:
            (line,) = [line async for line in said(output)]
    assert judge.connected == cuts + 1, "each cut is followed by a new connection of the producer"
    return count, line.removeprefix("committed ").encode().split(b",")


async def check_once(service_url: str, topic: str, cuts: int, *, batching: bool, seed: int = 0) -> None:
    """Each committed message is there once, in its place, and no aborted one is."""
    count, committed = await sent_by_java(service_url, topic, cuts, batching=batching, seed=seed)
    assert count // 2 < len(committed) < count
    assert await asyncio.to_thread(read_officially, service_url, topic, len(committed)) == committed


@pytest.mark.seed_rows("B10")
@ours
@pytest.mark.parametrize("batching", [False, True])
async def test_what_java_sends_again_in_transactions_is_there_once(pulsar: Target, topic: str, batching: bool) -> None:
    await check_once(pulsar.service_url, topic, CUTS, batching=batching)


@pytest.mark.soak
@ours
@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_what_java_sends_again_over_many_connections_is_there_once(
    pulsar: Target, topic: str, batching: bool, seed: int
) -> None:
    await check_once(pulsar.service_url, topic, MANY_CUTS, batching=batching, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("batching", [False, True])
async def test_what_java_sends_again_is_there_once_when_transactions_wait_beside_the_topic(topic: str, batching: bool) -> None:
    with OurBroker(conf={"transactionBufferProviderClassName": "half-topic"}) as broker:
        _, committed = await sent_by_java(broker.service_url, topic, MANY_CUTS, batching=batching)
        found = await asyncio.to_thread(read_officially, broker.service_url, topic, len(committed))
    by_commit = [list(each) for _, each in groupby(map(int, found), key=lambda number: (number // 80, number // 10 % 4))]
    assert by_commit == [sorted(each) for each in by_commit], "a transaction is in one piece, in its order"
    assert sorted(map(int, found)) == [int(number) for number in committed]


@pytest.mark.parametrize("pulsar", ["ours", *STOCK], indirect=True)
async def test_without_transactions_a_topic_that_does_not_look_for_duplicates_gets_some(pulsar: Target, topic: str) -> None:
    """As on stock Pulsar. It shows as well that the cuts of these tests make the client send again what is stored."""
    count, _ = await sent_by_java(pulsar.service_url, topic, CUTS, batching=False, transactions=False)
    found = await asyncio.to_thread(read_officially, pulsar.service_url, topic, count)
    assert sorted({*found}, key=int) == [b"%d" % number for number in range(count)]
    assert len(found) >= count + CUTS
