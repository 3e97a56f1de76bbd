"""One driver with our client, a process of its own; prints one line of JSON.

    python bench/client/ours.py produce URL --size 100 --warm 1 --seconds 2
    python bench/client/ours.py consume URL --how receive|many --topic T --count N
    echo 1000 | python bench/client/ours.py latency URL
    python bench/client/ours.py txn     URL --in-flight 64 --sends 1 --acks 1
    python bench/client/ours.py units   URL                 plain messages and transactions of 1,000, in turns
    python bench/client/ours.py fill    URL --topic T --count N --size 100 [--single --subscription S]
    python bench/client/ours.py memory  URL --count N       what N messages leave behind; memory-txn: N transactions

On asyncio's own loop; with `--loop uvloop` on uvloop's; with `--sync` the blocking client, where there is a row for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import memory
from measuring import Part, Turn, asked, send_in_turns, tell, topic_name

sys.path.append(str(Path(__file__).resolve().parent.parent))
from feeding import Input

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    ConsumerType,
    InitialPosition,
    Message,
)
from pulsar_txn.client import (
    sync as sync_client,
)
from pulsar_txn.client.encoded import encode_batch
from pulsar_txn.client.errors import ProducerQueueFull

PAYLOAD = bytes(100)
GROUP = 1000


# --- plain messages -------------------------------------------------------------------------------------------------


async def produce(client: AsyncClient, options: Any) -> dict[str, Any]:
    """`send_nowait` until the producer is full, then wait for room; `flush` at the end."""
    payload = bytes(options.size)
    producer = await client.create_producer(topic_name("ours"))

    async def send(seconds: float) -> int:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(GROUP):
                try:
                    producer.send_nowait(payload)
                except ProducerQueueFull:
                    await producer.wait_for_room()
                    producer.send_nowait(payload)
            count += GROUP
            await asyncio.sleep(0)
        await producer.flush()
        return count

    await send(options.warm)
    part = Part()
    return part.end(await send(options.seconds))


def produce_sync(client: sync_client.Client, options: Any) -> dict[str, Any]:
    """The same with the blocking client."""
    payload = bytes(options.size)
    producer = client.create_producer(topic_name("sync"))

    def send(seconds: float) -> int:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(GROUP):
                try:
                    producer.send_nowait(payload)
                except ProducerQueueFull:
                    producer.wait_for_room()
                    producer.send_nowait(payload)
            count += GROUP
        producer.flush()
        return count

    send(options.warm)
    part = Part()
    return part.end(send(options.seconds))


async def fill(client: AsyncClient, options: Any) -> dict[str, Any]:
    """Put messages into a topic, in batches of 1,000, or as many as 128 KiB hold; `--single`: each by itself."""
    part = Part()
    if options.subscription is not None:  # so that nothing of it is trimmed
        consumer = await client.subscribe(options.topic, options.subscription, consumer_type=ConsumerType.SHARED)
        await consumer.close()
    per_batch = max(1, min(1000, (128 << 10) // (options.size + 20)))
    batch = encode_batch([bytes(options.size)] * per_batch)
    left = options.count
    async with client.create_producer(options.topic, batching=not options.single) as producer:
        while left:
            await producer.wait_for_room()
            if left >= per_batch and not options.single:
                producer.send_encoded_nowait(batch)
                left -= per_batch
            else:
                producer.send_nowait(bytes(options.size))
                left -= 1
        await producer.flush()
    return part.end(options.count)


async def consume(client: AsyncClient, options: Any) -> dict[str, Any]:
    """Everything that is in a topic, each message looked at and acknowledged."""
    size, left = 0, options.count
    part = Part()
    consumer = await client.subscribe(
        options.topic,
        f"ours-{time.time_ns()}",
        receiver_queue_size=options.queue,
        initial_position=InitialPosition.EARLIEST,
    )
    if options.how == "many":
        while left:
            messages = await consumer.receive_many(500)
            for message in messages:
                size += len(message.data)
            await consumer.acknowledge(messages)
            left -= len(messages)
    else:
        while left:
            message = await consumer.receive()
            size += len(message.data)
            await consumer.acknowledge(message)
            left -= 1
    result = part.end(options.count, size=size)
    await consumer.close()
    return result


def consume_sync(client: sync_client.Client, options: Any) -> dict[str, Any]:
    """The same with the blocking client."""
    size, left = 0, options.count
    part = Part()
    consumer = client.subscribe(
        options.topic,
        f"sync-{time.time_ns()}",
        receiver_queue_size=options.queue,
        initial_position=InitialPosition.EARLIEST,
    )
    while left and options.how == "many":
        messages = consumer.receive_many(500)
        for message in messages:
            size += len(message.data)
        consumer.acknowledge(messages)
        left -= len(messages)
    while left:
        message = consumer.receive()
        size += len(message.data)
        consumer.acknowledge(message)
        left -= 1
    result = part.end(options.count, size=size)
    consumer.close()
    return result


async def latency(client: AsyncClient, options: Any) -> dict[str, Any]:
    """One send after the other, each waited for, without batching; so many as standard input says, turn by turn."""
    del options
    producer = await client.create_producer(topic_name("ours-latency"), batching=False)
    for count in asked():
        turn = Turn()
        for _ in range(count):
            began = time.perf_counter()
            await producer.send(PAYLOAD)
            turn.took(time.perf_counter() - began)
        turn.end()
    return {}


def latency_sync(client: sync_client.Client, options: Any) -> dict[str, Any]:
    """The same with the blocking client."""
    del options
    producer = client.create_producer(topic_name("sync-latency"), batching=False)
    send_in_turns(lambda: producer.send(PAYLOAD))
    return {}


# --- transactions ---------------------------------------------------------------------------------------------------


class Clock:
    """The warm-up, then the counted seconds."""

    def __init__(self, warm: float, seconds: float) -> None:
        self.end = time.perf_counter() + warm + seconds
        self.over = False
        self.latencies_ms: list[float] = []
        self._warm_until = self.end - seconds
        self._part: Part | None = None
        self.result: dict[str, Any] = {}

    def done(self, began: float) -> None:
        """One transaction has committed."""
        now = time.perf_counter()
        if self.over:
            return
        if self._part is None:
            if now >= self._warm_until:
                self._part = Part()
            return
        self.latencies_ms.append((now - began) * 1e3)
        if now >= self.end:
            self.stop()

    def stop(self) -> None:
        """The counted seconds are over."""
        if not self.over and self._part is not None:
            self.result = self._part.end(len(self.latencies_ms), latencies_ms=sorted(self.latencies_ms))
        self.over = True


async def transactions(client: AsyncClient, options: Any) -> dict[str, Any]:
    """Open, sends and acknowledgements together, commit; so many at a time. As TxnDriver.java does it."""
    name = topic_name("txn")
    async with contextlib.AsyncExitStack() as stack:
        consumer = await client.subscribe(
            f"{name}-in",
            "s",
            consumer_type=ConsumerType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            receiver_queue_size=5000,
        )
        feeder = await stack.enter_async_context(await client.create_producer(f"{name}-in", batching=False))
        for _ in range(options.count):
            await feeder.wait_for_room()
            feeder.send_nowait(PAYLOAD)
        await feeder.flush()
        producer = await stack.enter_async_context(await client.create_producer(f"{name}-out", batching=False))
        inputs, clock = Input(consumer, options.count), Clock(options.warm, options.seconds)

        async def work() -> None:
            while not clock.over:
                messages = await inputs.take(options.acks)
                if not messages:
                    break
                await one(client, producer, inputs.consumer, messages, options.sends, clock)

        await asyncio.gather(*(work() for _ in range(options.in_flight)))
        clock.stop()
    return clock.result


async def one(
    client: AsyncClient,
    producer: AsyncProducer[bytes],
    consumer: AsyncConsumer[bytes],
    messages: list[Message[bytes]],
    sends: int,
    clock: Clock,
) -> None:
    """One transaction."""
    began = time.perf_counter()
    txn = await client.begin_transaction(timeout=60)
    for _ in range(sends):
        producer.send_nowait(PAYLOAD, txn=txn)
    await consumer.acknowledge(messages, txn=txn)
    await txn.commit()  # waits for the sends
    clock.done(began)


async def units(client: AsyncClient, options: Any) -> dict[str, Any]:
    """Units of 1,000 batched messages, several at a time: with their receipts waited for, and as transactions; in turns."""
    payload = bytes(options.size)
    producer = await client.create_producer(topic_name("units"))

    async def plain() -> None:
        for number in range(GROUP):
            ticket = producer.send_nowait(payload)
            if number % 250 == 249:
                await asyncio.sleep(0)
        await ticket  # receipts come in order

    async def in_transaction() -> None:
        async with client.transaction(timeout=60) as txn:
            for number in range(GROUP):
                producer.send_nowait(payload, txn=txn)
                if number % 250 == 249:
                    await asyncio.sleep(0)

    async def run(unit: Any, seconds: float) -> dict[str, Any]:
        end = time.perf_counter() + seconds
        count = 0
        part = Part()

        async def work() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await unit()
                count += GROUP

        await asyncio.gather(*(work() for _ in range(options.in_flight)))
        return part.end(count)

    await run(plain, options.warm / 2)
    await run(in_transaction, options.warm / 2)
    turns = []
    for number in range(8):
        kinds = (plain, in_transaction) if number % 2 == 0 else (in_transaction, plain)
        parts = {kind: await run(kind, options.seconds / 16) for kind in kinds}
        turns.append((parts[plain], parts[in_transaction]))
    return {
        "plain_us": [1e6 * one["cpu"] / one["count"] for one, _ in turns],
        "txn_us": [1e6 * other["cpu"] / other["count"] for _, other in turns],
        "count": sum(one["count"] + other["count"] for one, other in turns),
        "seconds": sum(one["seconds"] + other["seconds"] for one, other in turns),
        "cpu": sum(one["cpu"] + other["cpu"] for one, other in turns),
    }


ASYNC = {
    "produce": produce,
    "fill": fill,
    "consume": consume,
    "latency": latency,
    "txn": transactions,
    "units": units,
    "memory": memory.messages,
    "memory-txn": memory.transactions,
}
SYNC = {"produce": produce_sync, "consume": consume_sync, "latency": latency_sync}


async def with_client(options: Any) -> dict[str, Any]:
    """Connect and measure."""
    async with AsyncClient(options.url) as client:
        return await ASYNC[options.what](client, options)


def main() -> None:
    """Do one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(ASYNC))
    parser.add_argument("url")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--queue", type=int, default=1000)
    parser.add_argument("--how", choices=["receive", "many"], default="many")
    parser.add_argument("--topic")
    parser.add_argument("--single", action="store_true")
    parser.add_argument("--subscription")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--sends", type=int, default=1)
    parser.add_argument("--acks", type=int, default=1)
    options = parser.parse_args()
    if options.sync:
        with sync_client.Client(options.url) as client:
            tell(SYNC[options.what](client, options))
    elif options.loop == "uvloop":
        import uvloop

        tell(uvloop.run(with_client(options)))
    else:
        tell(asyncio.run(with_client(options)))


if __name__ == "__main__":
    main()
