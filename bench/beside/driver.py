"""Transactions with our client, turn by turn; a process of its own.

    python bench/beside/driver.py URL [--coordinator URL] --pids '{"broker": [1], "coordinator": [2, 3]}'

Each line on standard input is one turn, `{"in_flight": 64, "acks": 1, "warm": 1, "seconds": 1.5}`; its answer is one line of
JSON. With `--coordinator` that one decides, without it the cluster's own. Topics and transactions are the same in both cases: a
topic that is not partitioned for the output, 100-byte messages, no batches, input that lies ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "client"), str(HERE.parent)]

from measuring import cpu_seconds, topic_name  # noqa: E402 - in the folder beside this one
from processes import cpu_of  # noqa: E402 - in the folder above

from pulsar_txn.client import AsyncClient, AsyncConsumer, AsyncProducer, ConsumerType, InitialPosition, Message  # noqa: E402

PAYLOAD = bytes(100)
ENOUGH_PER_SECOND = 2500
"""Messages of input for each second."""


class Driver:
    """A client with a producer and an input that is filled before each turn."""

    def __init__(self, client: AsyncClient, pids: Mapping[str, list[int]]) -> None:
        self._client = client
        self._pids = pids
        self._name = topic_name("beside")
        self._producer: AsyncProducer[bytes]
        self._feeder: AsyncProducer[bytes]
        self._consumer: AsyncConsumer[bytes]
        self._ready: deque[Message[bytes]] = deque()

    async def start(self) -> None:
        """Make the topics."""
        self._consumer = await self._client.subscribe(
            f"{self._name}-in",
            "s",
            consumer_type=ConsumerType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            receiver_queue_size=10_000,
        )
        self._feeder = await self._client.create_producer(f"{self._name}-in", batching=False)
        self._producer = await self._client.create_producer(f"{self._name}-out", batching=False)

    async def turn(self, *, in_flight: int, acks: int, warm: float, seconds: float) -> dict[str, Any]:
        """So many transactions at a time, for so long; after `warm` seconds that do not count."""
        if acks:
            await self._fill(int((warm + seconds) * ENOUGH_PER_SECOND))
        await self._run(in_flight, acks, warm)
        before = self._cpu()
        began = time.perf_counter()
        latencies = await self._run(in_flight, acks, seconds)
        took = time.perf_counter() - began
        cpu = {name: seconds_used - before[name] for name, seconds_used in self._cpu().items()}
        return {"count": len(latencies), "seconds": took, "cpu": cpu, "latencies_ms": sorted(latencies)}

    async def _run(self, in_flight: int, acks: int, seconds: float) -> list[float]:
        until = time.perf_counter() + seconds
        latencies: list[float] = []
        await asyncio.gather(*(self._work(acks, until, latencies) for _ in range(in_flight)))
        return latencies

    async def _fill(self, count: int) -> None:
        """Have so many messages here, so that receiving is in no timed step."""
        for _ in range(len(self._ready), count):
            await self._feeder.wait_for_room()
            self._feeder.send_nowait(PAYLOAD)
        while len(self._ready) < count:
            self._ready += await self._consumer.receive_many(1000)

    async def _work(self, acks: int, until: float, latencies: list[float]) -> None:
        while (began := time.perf_counter()) < until and len(self._ready) >= acks:
            await self._one([self._ready.popleft() for _ in range(acks)])
            latencies.append((time.perf_counter() - began) * 1e3)

    async def _one(self, messages: list[Message[bytes]]) -> None:
        async with self._client.transaction(timeout=60) as txn:
            self._producer.send_nowait(PAYLOAD, txn=txn)
            if messages:
                await self._consumer.acknowledge(messages, txn=txn)

    def _cpu(self) -> dict[str, float]:
        return {name: cpu_of(pids) for name, pids in self._pids.items()} | {"client": cpu_seconds()}


async def main() -> None:
    """All turns that standard input asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--coordinator")
    parser.add_argument("--pids", type=json.loads, default={})
    options = parser.parse_args()
    async with AsyncClient(options.url, coordinator=options.coordinator) as client:
        driver = Driver(client, options.pids)
        await driver.start()
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            result = await driver.turn(**json.loads(line))
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
