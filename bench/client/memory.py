"""Memory of our client over many messages and many transactions: what a run of it holds whenever nothing is under way."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path
from typing import Any

from measuring import Part, topic_name

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition

PAYLOAD = bytes(100)
POINTS = 5
GROUP = 1000


def point(count: int) -> dict[str, float]:
    """What the process holds: MiB of RSS, blocks of Python's allocator, objects that its collector tracks."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    return {"after": count, "rss_mib": rss / 1024, "blocks": sys.getallocatedblocks(), "objects": len(gc.get_objects())}


async def messages(client: AsyncClient, options: Any) -> dict[str, Any]:
    """Produce and consume at the same time, each message with its ticket and acknowledged."""
    topic = topic_name("memory")
    consumer = await client.subscribe(topic, f"s-{time.time_ns()}", initial_position=InitialPosition.EARLIEST)
    producer = await client.create_producer(topic)

    async def send(count: int) -> None:
        for _ in range(count // GROUP):
            await producer.wait_for_room()
            for _ in range(GROUP):
                ticket = producer.send_nowait(PAYLOAD)
            await ticket

    async def receive(count: int) -> None:
        while count:
            received = await consumer.receive_many(min(count, 500))
            await consumer.acknowledge(received)
            count -= len(received)

    part = Part()
    points = []
    per_point = options.count // POINTS // GROUP * GROUP
    for number in range(POINTS + 1):
        if number:
            await asyncio.gather(send(per_point), receive(per_point))
        else:
            await asyncio.gather(send(20 * GROUP), receive(20 * GROUP))  # so that everything was used once
        await asyncio.sleep(0.3)  # the last acknowledgements leave
        points.append(point(number * per_point))
    return part.end(POINTS * per_point, points=points)


async def transactions(client: AsyncClient, options: Any) -> dict[str, Any]:
    """Transactions of one send and one acknowledgement, 128 at a time."""
    topic = topic_name("memory-txn")
    consumer = await client.subscribe(
        f"{topic}-in",
        "s",
        consumer_type=ConsumerType.SHARED,
        initial_position=InitialPosition.EARLIEST,
        receiver_queue_size=1000,
    )
    per_point = options.count // POINTS
    async with client.create_producer(f"{topic}-in", batching=False) as feeder:
        for _ in range(per_point * POINTS + GROUP):
            await feeder.wait_for_room()
            feeder.send_nowait(PAYLOAD)
        await feeder.flush()
    producer = await client.create_producer(f"{topic}-out", batching=False)

    async def work(count: int) -> None:
        for _ in range(count):
            message = await consumer.receive()
            async with client.transaction(timeout=60) as txn:
                producer.send_nowait(PAYLOAD, txn=txn)
                await consumer.acknowledge(message, txn=txn)

    async def run(count: int) -> None:
        await asyncio.gather(*(work(count // 128 + (number < count % 128)) for number in range(128)))

    part = Part()
    points = []
    for number in range(POINTS + 1):
        await run(per_point if number else GROUP)
        await asyncio.sleep(0.3)
        points.append(point(number * per_point))
    return part.end(POINTS * per_point, points=points)
