"""Transactional ids over stock brokers: zombies are refused by the brokers, recovery goes on, and the last epoch is no trap."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any, Final

import pytest
from crashing_coordinator import PROGRAM, environment
from late_writes import zombie
from our_coordinator import OurCoordinator
from real_clusters import RealClusters, new_topic

from pulsar_txn.client import AsyncClient, CommitOutcomeUnknown, TransactionState
from pulsar_txn.client.errors import NotAllowedError, PulsarError, TransactionAborted
from pulsar_txn.ledger.journal import JournalStore

pytestmark = [pytest.mark.stock, pytest.mark.timeout(300)]

LAST_EPOCH: Final = (1 << 63) - 1


async def test_the_broker_refuses_what_an_old_epoch_sends_once_a_new_one_is_in(clusters: RealClusters) -> None:
    topic = new_topic()
    names = clusters.spread(topic, 4)
    with clusters.coordinator() as beside:
        async with worker(clusters, beside) as old, worker(clusters, beside) as new:
            producer = await old.create_producer(topic, batching=False)
            stale = await old.begin_transaction()
            await asyncio.gather(*(producer.send(b"of the zombie", txn=stale) for _ in range(8)))
            async with new.transaction() as txn:
                output = await new.create_producer(topic, batching=False)
                await asyncio.gather(*(output.send(b"of the successor", txn=txn) for _ in range(8)))
            assert stale.id is not None
            async with zombie(clusters.east.service_url, clusters.east.settings()) as late:
                for each in names:  # with bare frames: our client would not send it
                    with pytest.raises(NotAllowedError, match="has been ended"):
                        await late.send(each, b"late", stale.id)
            with pytest.raises(PulsarError):
                await stale.commit()
            async with new.transaction() as txn:  # nothing hangs
                await asyncio.gather(*(output.send(b"of the successor", txn=txn) for _ in range(8)))
    found = await asyncio.to_thread(clusters.east.read, *names)
    assert found == [b"of the successor"] * 16


async def test_ends_that_recovery_repeats_are_accepted_while_a_new_epoch_waits_for_them(
    clusters: RealClusters, tmp_path: Path
) -> None:
    """KAFKA-19999: there a check of the epoch refused the coordinator's own repeated markers, and it hung for ever."""
    topic, log = new_topic(), tmp_path / "crash.log"
    names = clusters.spread(topic, 4)
    with clusters.coordinator(environment=environment(log), program=PROGRAM) as beside:
        async with worker(clusters, beside) as old, worker(clusters, beside) as new:
            producer = await old.create_producer(topic, batching=False)
            txn = await old.begin_transaction(timeout=120)
            await asyncio.gather(*(producer.send(b"of the old epoch", txn=txn) for _ in range(8)))
            commit = asyncio.create_task(outcome(txn))
            assert await asyncio.to_thread(beside.wait_for_end, 60) == -9
            assert json.loads(log.read_text(encoding="utf-8"))["not_told"]
            beside.start()
            async with new.transaction() as txn:
                output = await new.create_producer(topic, batching=False)
                await asyncio.gather(*(output.send(b"of the new epoch", txn=txn) for _ in range(8)))
            assert await commit is TransactionState.COMMITTED
    found = await asyncio.to_thread(clusters.east.read, *names)
    assert sorted(found) == [b"of the new epoch"] * 8 + [b"of the old epoch"] * 8


async def test_the_last_epoch_of_all_ends_what_the_one_before_it_left_and_there_is_none_after_it(
    clusters: RealClusters, tmp_path: Path
) -> None:
    """KAFKA-19367: at the highest epoch the abort of an open transaction took one epoch too many, and locked its owner out."""
    topic, data = new_topic(), tmp_path / "decisions"
    names = clusters.spread(topic, 4)
    async with JournalStore(data) as store:
        store.metadata.counters["/counters/transactional-epoch"] = LAST_EPOCH - 2
        await store.metadata.increment("/counters/transactional-epoch")
    with clusters.coordinator(data_dir=data) as beside:
        async with worker(clusters, beside) as last_but_one, worker(clusters, beside) as last:
            left = await last_but_one.begin_transaction()
            await (await last_but_one.create_producer(topic, batching=False)).send(b"left open", txn=left)
            output = await last.create_producer(topic, batching=False)
            async with last.transaction() as txn:
                await output.send(b"of the last epoch", txn=txn)
            with pytest.raises(PulsarError):
                await left.commit()
            beside.restart(hard=True)
            async with last.transaction() as txn:  # its epoch is taken up again
                await output.send(b"of the last epoch", txn=txn)
            async with worker(clusters, beside) as one_more:
                with pytest.raises(NotAllowedError, match="no epoch is left"):
                    await one_more.begin_transaction()
            async with last.transaction() as txn:
                await output.send(b"of the last epoch", txn=txn)
    found = await asyncio.to_thread(clusters.east.read, *names)
    assert found == [b"of the last epoch"] * 3


def worker(clusters: RealClusters, beside: OurCoordinator) -> contextlib.AbstractAsyncContextManager[AsyncClient]:
    """An incarnation of a program that has a transactional id."""
    return clusters.east.client(beside.service_url, transactional_id="worker")


async def outcome(txn: Any) -> TransactionState:
    """Commit, and ask what came of it."""
    try:
        await txn.commit()
    except CommitOutcomeUnknown as unknown:
        state: TransactionState = await unknown.resolve()
        return state
    except TransactionAborted:
        return TransactionState.ABORTED
    return TransactionState.COMMITTED
