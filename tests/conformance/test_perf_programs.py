"""Programs like Pulsar's performance tool, and the tool itself: many transactions at once, and the sums come out even."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest
import stock_install
import targets
from admin import eventually, topic_stats
from rows import row
from subscriptions import subscribed
from targets import Target
from transactions import received, stays_silent, visible

from pulsar_txn.client import AsyncClient, ConsumerType, TransactionState

TOOL_VERSION = "4.0.8"
"""The line that has the tool in its package; it works with servers of all lines."""


async def filled(client: AsyncClient, topic: str, count: int) -> None:
    """Messages for a Shared subscription "sub"."""
    await (await subscribed(client, topic, ConsumerType.SHARED, name="sub")).close()
    producer = await client.create_producer(topic, batching=False)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))


@row(127)
@pytest.mark.parametrize("aborts", [False, True])
async def test_workers_consume_and_produce_in_transactions_that_end_while_the_next_one_begins(
    client: AsyncClient, topic: str, aborts: bool
) -> None:
    """Four threads of `pulsar-perf transaction -nmc 2 -nmp 3`, with `-abort` and without."""
    await filled(client, topic, 80)
    outputs = [f"{topic}-out-{number}" for number in range(2)]
    ends: list[asyncio.Future[None]] = []

    async def worker() -> None:
        producers = [await client.create_producer(output) for output in outputs]
        async with await subscribed(client, topic, ConsumerType.SHARED, name="sub", receiver_queue_size=2) as consumer:
            for _ in range(10):
                txn = await client.begin_transaction()
                for message in await received(consumer, 2):
                    await consumer.acknowledge(message, txn=txn)
                for producer in producers:
                    for _ in range(3):
                        producer.send_nowait(bytes(1024), txn=txn)
                ends.append(asyncio.ensure_future(txn.abort() if aborts else txn.commit()))

    await asyncio.gather(*(worker() for _ in range(4)))
    await asyncio.gather(*ends)
    for output in outputs:
        assert len(await visible(client, output)) == (0 if aborts else 4 * 10 * 3)
    if not aborts:
        async with await subscribed(client, topic, ConsumerType.SHARED, name="sub") as nobody_is_left:
            assert await stays_silent(nobody_is_left)


@row(127)
async def test_a_producer_puts_fifty_messages_into_each_transaction(pulsar: Target, client: AsyncClient, topic: str) -> None:
    """`pulsar-perf produce -txn -nmt 50`."""
    producer = await client.create_producer(topic)
    for _ in range(4):
        txn = await client.begin_transaction()
        tickets = [producer.send_nowait(bytes(1024), txn=txn) for _ in range(50)]
        await txn.commit()
        assert txn.state is TransactionState.COMMITTED
        await asyncio.gather(*tickets)
    assert len(await visible(client, topic)) == 200
    assert (await topic_stats(pulsar, topic))["committedTxnCount"] == 4


@row(127)
async def test_a_consumer_acknowledges_fifty_messages_in_each_transaction(client: AsyncClient, topic: str) -> None:
    """`pulsar-perf consume -txn -nmt 50`."""
    await filled(client, topic, 200)
    consumer = await subscribed(client, topic, ConsumerType.SHARED, name="sub")
    for _ in range(4):
        async with client.transaction() as txn:
            for message in await received(consumer, 50):
                await consumer.acknowledge(message, txn=txn)
    await consumer.close()
    async with await subscribed(client, topic, ConsumerType.SHARED, name="sub") as nobody_is_left:
        assert await stays_silent(nobody_is_left)


@row(127)
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_tool_itself_takes_its_input_and_gives_its_output_in_transactions(
    pulsar: Target, client: AsyncClient, topic: str
) -> None:
    """It goes without waiting for its last commits: what it left open ends by its time-out."""
    if reason := stock_install.missing_tools():
        targets.lacking("pulsar", reason)
    await filled(client, topic, 100)
    tool = await asyncio.to_thread(stock_install.install, TOOL_VERSION)
    options = f"-threads 2 -ntxn 40 -nmc 1 -nmp 2 -tto 5 -u {pulsar.service_url}".split()
    done = await asyncio.to_thread(
        subprocess.run,
        [tool / "bin" / "pulsar-perf", "transaction", "--topics-c", topic, "--topics-p", f"{topic}-out", *options],
        env=os.environ | {"PULSAR_MEM": "-Xmx256m", "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-1000:]

    async def taken_and_given() -> tuple[int, int]:
        left = (await topic_stats(pulsar, topic))["subscriptions"]["sub"]["msgBacklog"]
        return 100 - left, len(await visible(client, f"{topic}-out"))

    def is_even(sums: tuple[int, int]) -> bool:
        return sums[1] == 2 * sums[0] >= 2 * 30

    assert is_even(await eventually(taken_and_given, is_even))
