"""Units that share a consumer: what one of them gives back is no conflict for the others."""

import asyncio
import random
from collections import Counter

import pytest

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition
from pulsar_txn.client.errors import TransactionAborted

MESSAGES = 2000


@pytest.mark.parametrize("kind", [ConsumerType.SHARED, ConsumerType.KEY_SHARED])
@pytest.mark.parametrize("entry", [1, 7, 100])
async def test_concurrent_batches_conflict_at_most_as_often_as_they_fail(kind, entry):
    """43 failures had made 342 conflicts: an abort brought whole entries back, with messages that others worked on."""
    rnd, failures, conflicts, done = random.Random(entry), 0, 0, Counter()
    async with Standalone(None) as broker, AsyncClient(broker.service_url) as client:
        consumer = await client.subscribe("t", "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)
        out = await client.create_producer("out", batching_max_messages=100)
        source = await client.create_producer(
            "t", batching=entry > 1, batching_max_messages=max(entry, 2), batching_max_delay=60
        )
        tickets = [source.send_nowait(b"%d" % number) for number in range(MESSAGES)]
        await source.flush()
        await asyncio.gather(*tickets)

        async def process(batch):
            nonlocal failures
            for message in batch:
                out.send_nowait(message.data, txn=batch.txn)
            await asyncio.sleep(rnd.random() / 200)
            if len(batch) and rnd.random() < 0.2:
                failures += 1
                raise ZeroDivisionError

        async def work():
            nonlocal conflicts
            while sum(done.values()) < MESSAGES:
                try:
                    async with consumer.transactional_batch(max_messages=10, max_wait=0.05) as batch:
                        await process(batch)
                except ZeroDivisionError:
                    continue
                except TransactionAborted:
                    conflicts += 1
                    continue
                done.update(message.data for message in batch)

        async with asyncio.timeout(120):
            await asyncio.gather(*(work() for _ in range(4)))
        assert done == Counter(b"%d" % number for number in range(MESSAGES))
        assert failures > 20
        assert conflicts <= failures
