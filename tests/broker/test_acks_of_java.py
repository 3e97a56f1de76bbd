"""The official Java client works on several messages in each transaction and aborts: each message is worked on once.

An abort on Exclusive and Failover rewinds the subscription, so what waits in the client's receiver queue comes a second time.
A program that works on both copies in one transaction acknowledges both, and the second one must be refused, as on stock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import stock_install
import targets
from front_probe import probe, said
from official_reading import read_officially
from targets import Target

from pulsar_txn.client import AsyncClient

pytestmark = pytest.mark.timeout(240)

PROBE = Path(__file__).parents[1] / "support" / "AckProbe.java"
STOCK = [pytest.param(name, marks=[pytest.mark.stock, pytest.mark.soak]) for name in targets.stock_names()]
everywhere = pytest.mark.parametrize("pulsar", ["ours", *STOCK], indirect=True)
COUNT = 300
SEED = "3"
"""With it, the broker of febdd5f doubles 9 of them on Exclusive, and 8 on Failover."""


async def lines(*arguments: str) -> list[str]:
    """What the probe says."""
    async with probe(stock_install.VERSIONS[-1], *arguments, program=PROBE) as output:
        return [line async for line in said(output)]


async def trickle(service_url: str, topic: str, *, batching: bool) -> None:
    """Send some messages at a time: those of one transaction are then all that waits, and come twice after its abort."""
    async with AsyncClient(service_url) as client:
        producer = await client.create_producer(topic, batching=batching)
        for first in range(0, COUNT, 10):
            await asyncio.gather(*(producer.send(b"%d" % number) for number in range(first, first + 10)))
            await asyncio.sleep(0.05)


@everywhere
async def test_java_is_refused_a_second_acknowledgement_of_a_message(pulsar: Target, topic: str) -> None:
    assert await lines("twice", pulsar.service_url, topic) == [
        "one done TransactionConflictException",
        "cumulative done TransactionConflictException",
        "after a plain one TransactionConflictException",
        "copies true TransactionHasOperationFailedException",
    ]


@everywhere
@pytest.mark.soak
@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
async def test_a_java_worker_with_several_messages_in_each_transaction_doubles_none(
    pulsar: Target, topic: str, kind: str, batching: bool
) -> None:
    async with probe(
        stock_install.VERSIONS[-1], "worker", pulsar.service_url, topic, f"{topic}-out", kind, SEED, program=PROBE
    ) as output:
        talk = said(output)
        assert await anext(talk) == "ready"
        await trickle(pulsar.service_url, topic, batching=batching)
        (counts,) = [line async for line in talk]
    committed, aborted, _ = map(int, counts.split())
    assert committed
    assert aborted, "without an abort nothing comes twice"
    found = Counter(await asyncio.to_thread(read_officially, pulsar.service_url, f"{topic}-out", COUNT))
    assert found == Counter(b"%d" % number for number in range(COUNT))
