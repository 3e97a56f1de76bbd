"""The driver of ends on stock Pulsar: every kind of participant, unloads and a killed broker; the official client judges."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from late_writes import Zombie, zombie
from official_reading import read_officially
from stock_pulsar import StockPulsar
from targets import Target

from pulsar_txn.client import AsyncClient, ConsumerType
from pulsar_txn.client.inside import Settings
from pulsar_txn.ledger.machine import TellParticipant
from pulsar_txn.tc_service.cluster.admin import open_admin
from pulsar_txn.tc_service.cluster.attempts import BrokerAttempts
from pulsar_txn.tc_service.cluster.ends import EndDriver
from pulsar_txn.tc_service.cluster.participants import ClusterRefused, ParticipantRefused, verify_cluster, verify_participant
from pulsar_txn.wire.ids import Participant, TxnAction, TxnId

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

LANES = 1 << 62


class Telling:
    """A driver, and who was told."""

    def __init__(self, dead: Zombie) -> None:
        self.told: list[TxnId] = []
        attempts = BrokerAttempts(dead.brokers)
        self.driver = EndDriver("test", attempts, dead.brokers.runtime, repeat_after_seconds=2)

    def tell(self, topic: str, txn_id: TxnId, action: TxnAction, subscription: str | None = None) -> None:
        effect = TellParticipant(txn_id, Participant(topic, subscription), action, txn_id.least)
        self.driver.tell(effect, lambda held, _attempts: self.told.append(held.txn_id))

    async def until(self, count: int) -> None:
        while len(self.told) < count:  # noqa: ASYNC110 - the broker's time
            await asyncio.sleep(0.05)

    async def until_repeated(self) -> None:
        """A broker that recovers a topic may answer "ok" to an end and forget it; the same end once more cures that."""
        while self.driver.to_repeat or self.driver.waiting:  # noqa: ASYNC110 - the broker's time
            await asyncio.sleep(0.05)


@asynccontextmanager
async def telling(pulsar: Target) -> AsyncIterator[tuple[Telling, Zombie]]:
    async with zombie(pulsar) as dead:
        found = Telling(dead)
        try:
            yield found, dead
        finally:
            await found.driver.close()


@pytest.mark.seed_rows("D72")
async def test_messages_and_acknowledgements_in_lanes_are_committed_and_aborted(stock_pulsar: Target, topic: str) -> None:
    async with telling(stock_pulsar) as (ends, dead), AsyncClient(stock_pulsar.service_url) as client:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        ids = [(await producer.send(b"plain %d" % number)).position for number in range(2)]
        await consumer.close()
        commit, abort = TxnId(LANES + 1, 1), TxnId(LANES + 2, 1)
        for txn_id, position in zip((commit, abort), ids, strict=True):
            await dead.send(topic, b"in a lane %d" % (txn_id.most - LANES), txn_id)
            await dead.ack(topic, "s", [position], txn_id)
        for subscription in (None, "s"):
            ends.tell(topic, commit, TxnAction.COMMIT, subscription)
            ends.tell(topic, abort, TxnAction.ABORT, subscription)
        await ends.until(4)
        assert sorted(ends.told) == [commit, commit, abort, abort]
        expected = [b"plain 0", b"plain 1", b"in a lane 1"]
        assert await asyncio.to_thread(read_officially, stock_pulsar.service_url, topic, 3) == expected
        again = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED)
        assert sorted([(await again.receive(timeout=10)).data for _ in range(2)]) == [b"in a lane 1", b"plain 1"]


async def write(dead: Zombie, topics: Iterable[str], transactions: int) -> list[tuple[str, TxnId]]:
    """Each transaction, in a lane of its own, sends its number to every topic."""
    found = []
    for number in range(transactions):
        txn_id = TxnId(LANES + 100 + number, 1)
        for topic in topics:
            await dead.send(topic, b"%d" % number, txn_id)
            found.append((topic, txn_id))
    return found


def outcome(txn_id: TxnId) -> TxnAction:
    return TxnAction.ABORT if txn_id.most % 3 == 0 else TxnAction.COMMIT


async def judge(service_url: str, topics: Iterable[str], transactions: int) -> None:
    """Every topic has what was committed, once and in order, and nothing else."""
    numbers = [b"%d" % each for each in range(transactions) if outcome(TxnId(LANES + 100 + each, 1)) is TxnAction.COMMIT]
    for topic in topics:
        assert await asyncio.to_thread(read_officially, service_url, topic, len(numbers)) == numbers


async def test_topics_that_are_unloaded_under_a_storm_of_ends_get_each_outcome_once(stock_pulsar: Target, topic: str) -> None:
    topics = [f"{topic}-{index}" for index in range(4)]
    async with telling(stock_pulsar) as (ends, dead):
        written = await write(dead, topics, 12)
        for number, (each, txn_id) in enumerate(written):
            ends.tell(each, txn_id, outcome(txn_id))
            if number % 12 == 5:
                await asyncio.to_thread(unload, stock_pulsar, each)
        await ends.until(len(written))
        await ends.until_repeated()
        assert ends.driver.alarms == 0
    await judge(stock_pulsar.service_url, topics, 12)


def unload(pulsar: Target, topic: str) -> None:
    path = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/unload"
    with urllib.request.urlopen(urllib.request.Request(path, method="PUT"), timeout=30):
        pass


@pytest.mark.stock
@pytest.mark.soak
@pytest.mark.parametrize("version", ["4.0.8", "4.2.4"])
async def test_a_broker_killed_with_ends_under_way_gets_every_end_after_its_restart(version: str) -> None:
    server = await asyncio.to_thread(StockPulsar(version).start)
    try:
        target = Target("stock", version, server.service_url, server.admin_url)
        topics = [f"persistent://public/default/killed-{index}" for index in range(6)]
        async with telling(target) as (ends, dead):
            written = await write(dead, topics, 10)
            for each, txn_id in written[:20]:
                ends.tell(each, txn_id, outcome(txn_id))
            await ends.until(20)
            for each, txn_id in written[20:]:
                ends.tell(each, txn_id, outcome(txn_id))
            await asyncio.sleep(0)  # they leave, and the broker dies before it can answer all of them
            server.kill()
            restart = asyncio.create_task(asyncio.to_thread(server.start))
            await ends.until(len(written))
            await ends.until_repeated()
            await restart
            assert ends.driver.failed_attempts > 0
        await judge(server.service_url, topics, 10)
    finally:
        await asyncio.to_thread(server.stop)


# ---- checks


async def test_a_cluster_with_transactions_may_take_part_and_its_topics_are_checked(stock_pulsar: Target, topic: str) -> None:
    async with AsyncClient(stock_pulsar.service_url) as client, zombie(stock_pulsar) as dead:
        await verify_cluster(dead.brokers, BrokerAttempts(dead.brokers))
        await client.create_producer(topic)
        await (await client.subscribe(topic, "s")).close()
        parts = f"{topic}-parts"
        request = urllib.request.Request(
            f"{stock_pulsar.admin_url}/admin/v2/{parts.replace('://', '/')}/partitions",
            b"2",
            {"Content-Type": "application/json"},
            method="PUT",
        )
        await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).close())
        async with open_admin(stock_pulsar.admin_url, Settings()) as admin:
            for fine in (Participant(topic), Participant(topic, "s"), Participant(f"{parts}-partition-1")):
                await verify_participant(dead.brokers, fine, admin)
            for bad, words in (
                (Participant(parts), "has 2 partitions"),
                (Participant(f"{parts}-partition-2"), "there is no topic"),
                (Participant(f"{topic}-none"), "there is no topic"),
                (Participant(f"{topic}-none-partition-0"), "there is no topic"),
                (Participant("persistent://public/nowhere/t"), "nowhere"),
                (Participant(topic, "none"), "no subscription 'none'"),
            ):
                with pytest.raises(ParticipantRefused, match=words):
                    await verify_participant(dead.brokers, bad, admin)


async def test_a_cluster_that_is_not_there_cannot_take_part() -> None:
    async with zombie(Target("stock", "", "pulsar://127.0.0.1:1", "")) as dead:
        with pytest.raises(ClusterRefused, match="check that the brokers"):
            await verify_cluster(dead.brokers, BrokerAttempts(dead.brokers))
