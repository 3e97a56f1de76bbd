"""SIGKILL of everything that takes part: brokers, a whole cluster, the coordinator at each of its records, and all at once."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from crashing_coordinator import PROGRAM, environment
from our_coordinator import OurCoordinator
from real_clusters import RealClusters, Side, new_topic

from pulsar_txn.client import AsyncClient, AsyncCoordinator, CommitOutcomeUnknown, PulsarError, TransactionState
from pulsar_txn.client.errors import TransactionAborted

pytestmark = [pytest.mark.stock, pytest.mark.timeout(400)]

PARTITIONS: Final = 8
PATIENCE: Final = 150.0
DYING: Final = str(Path(__file__).parents[1] / "support" / "dying_coordinator.py")


@contextlib.asynccontextmanager
async def clients(clusters: RealClusters, beside: OurCoordinator) -> AsyncIterator[tuple[Any, AsyncClient, AsyncClient]]:
    """The coordinator, and a client of each cluster."""
    patient = {"operation_timeout": PATIENCE}
    async with (
        AsyncCoordinator(beside.service_url, max_backoff=1.0, **patient) as coordinator,
        clusters.east.client(coordinator, **patient) as east,
        clusters.west.client(coordinator, **patient) as west,
    ):
        yield coordinator, east, west


async def read(side: Side, *topics: str) -> list[bytes]:
    return sorted(await asyncio.to_thread(side.read, *topics))


@pytest.mark.seed_rows("D34", "D72")
async def test_a_commit_reaches_the_partitions_of_a_broker_that_was_killed_when_another_one_serves_them(
    clusters: RealClusters,
) -> None:
    """Until its session ends at ZooKeeper the survivor goes on naming the dead broker."""
    topic, numbers = new_topic(), [b"%d" % number for number in range(40)]
    names = clusters.spread(topic, PARTITIONS)
    with clusters.coordinator() as beside:
        async with clients(clusters, beside) as (coordinator, east, _):
            producer = await east.create_producer(topic)
            async with coordinator.transaction(timeout=PATIENCE) as txn:
                await asyncio.gather(*(producer.send(each, txn=txn) for each in numbers))
                aborted = await coordinator.begin_transaction(timeout=PATIENCE)
                await asyncio.gather(*(producer.send(b"aborted", txn=aborted) for _ in numbers))
                assert {clusters.east_cluster.owner(each) for each in names} == {"br1", "br2"}
                clusters.east_cluster.kill("br1")
                await aborted.abort()
    assert await read(clusters.east, *names) == sorted(numbers)
    assert {clusters.east_cluster.owner(each) for each in names} == {"br2"}


async def test_a_cluster_that_is_away_between_two_ends_gets_its_own_when_it_is_back(clusters: RealClusters) -> None:
    """The other one shows its part meanwhile; commit and abort alike."""
    topic = new_topic()
    with clusters.coordinator() as beside:
        async with clients(clusters, beside) as (coordinator, east, west):
            here, there = await east.create_producer(topic), await west.create_producer(topic)
            committed = await coordinator.begin_transaction(timeout=PATIENCE)
            aborted = await coordinator.begin_transaction(timeout=PATIENCE)
            for txn, data in ((committed, b"committed"), (aborted, b"aborted")):
                await here.send(data, txn=txn)
                await there.send(data, txn=txn)
            clusters.west_server.kill()
            ends = asyncio.gather(committed.commit(), aborted.abort())
            reader = await east.create_reader(topic)
            assert (await reader.read_next(timeout=30)).data == b"committed"
            assert not ends.done()
            await asyncio.to_thread(clusters.west_server.start)
            await ends
            async with coordinator.transaction() as txn:
                await there.send(b"later", txn=txn)
    assert await read(clusters.west, topic) == [b"committed", b"later"]


@pytest.mark.soak  # the fault run kills them as well, one at a time
async def test_coordinator_and_both_clusters_are_killed_amid_a_commit_and_it_is_whole_when_they_are_back(
    clusters: RealClusters, tmp_path: Path
) -> None:
    """The decision is durable, and one participant was told of it."""
    topic, crashed = new_topic(), tmp_path / "crash.log"
    names = clusters.spread(topic, PARTITIONS)
    with clusters.coordinator(environment=environment(crashed), program=PROGRAM) as beside:
        async with clients(clusters, beside) as (coordinator, east, west):
            here, there = await east.create_producer(topic), await west.create_producer(topic)
            open_ = await coordinator.begin_transaction(timeout=PATIENCE)
            committed = await coordinator.begin_transaction(timeout=PATIENCE)
            for txn, data in ((committed, b"committed"), (open_, b"open")):
                await asyncio.gather(*(here.send(data, txn=txn) for _ in range(PARTITIONS * 2)), there.send(data, txn=txn))
            commit = asyncio.create_task(outcome(committed))
            assert await asyncio.to_thread(beside.wait_for_end, 60) == -9
            clusters.east_cluster.kill_all()
            clusters.west_server.kill()
            assert crashed.read_text(encoding="utf-8")
            beside.start()  # it serves without them
            await asyncio.to_thread(clusters.east_cluster.up)
            await asyncio.to_thread(clusters.west_server.start)
            assert await commit is TransactionState.COMMITTED
            with contextlib.suppress(PulsarError):
                await open_.abort()
            async with coordinator.transaction() as txn:
                await there.send(b"later", txn=txn)
    assert await read(clusters.east, *names) == [b"committed"] * PARTITIONS * 2
    assert await read(clusters.west, topic) == [b"committed", b"later"]


@pytest.mark.soak  # the fault run kills it as well, where it happens to be
@pytest.mark.parametrize("how", ["before", "after"])
async def test_the_coordinator_is_killed_at_each_record_and_no_transaction_is_torn(clusters: RealClusters, how: str) -> None:
    """A program that tries again what failed; what it was told is what the clusters show."""
    source, target, names = new_topic(), new_topic(), []
    names = clusters.spread(target, PARTITIONS)
    seen: list[bytes] = []
    with clusters.coordinator(program=(DYING,)) as beside:
        async with clients(clusters, beside) as (coordinator, east, west):
            consumer = await west.subscribe(source, "s")
            feed, output = await west.create_producer(source), await east.create_producer(target)
            record = 0
            while True:
                beside.kill()
                beside.environment |= {"DIE_AT": str(record), "DIE_HOW": how}
                beside.start()
                data = b"%s %d" % (how.encode(), record)
                await feed.send(data)
                ends = beside.ends_itself()
                revival = asyncio.create_task(asyncio.to_thread(revived, beside, ends))
                seen += [data] * await copied(coordinator, consumer, output)
                ends.terminate()  # does nothing to one that is dead
                if await revival == 0:
                    break  # there are not so many records
                record += 1
    assert record >= 5  # begin, two participants, the decision, the end
    assert sorted(seen) == await read(clusters.east, *names)
    assert len(seen) == len(set(seen)) == record + 1


def revived(beside: OurCoordinator, ends: subprocess.Popen[bytes]) -> int:
    """Wait until it has ended, and start it again; it lives on then. How it ended."""
    code = ends.wait(60)
    assert code in (0, -9)
    beside.environment.pop("DIE_AT")
    beside.start()
    return code


async def copied(coordinator: Any, consumer: Any, output: Any) -> int:
    """Take one message, write it twice, until that is committed once; 1."""
    while True:
        txn = await coordinator.begin_transaction(timeout=PATIENCE)
        (message,) = await consumer.receive_many(1, max_wait=60, txn=txn)
        try:
            await asyncio.gather(output.send(message.data, txn=txn), output.flush())
        except PulsarError:
            await txn.abort()
            continue
        if await outcome(txn) is TransactionState.COMMITTED:
            return 1


async def outcome(txn: Any) -> TransactionState:
    """Commit, and ask until it is known what came of it."""
    try:
        await txn.commit()
    except CommitOutcomeUnknown as unknown:
        state = await unknown.resolve()
        assert state is not TransactionState.UNKNOWN
        return state
    except TransactionAborted:
        return TransactionState.ABORTED
    return TransactionState.COMMITTED
