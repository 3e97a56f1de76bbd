"""The rate of one hot key on Key_Shared: units of `receive(txn=)` and a send, by one consumer and several workers.

    python bench/client/hot_key.py               on our broker, in a process of its own, with its journal
    python bench/client/hot_key.py --url URL     on another server

While a unit holds a key, its client gives the key to no other unit, so units of one key follow each other: their rate is
that of one worker, however many there are. With as many keys as messages all workers work.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "tests" / "support")]

from our_broker import OurBroker  # noqa: E402 - the fixtures of the tests

from pulsar_txn.client import AsyncClient, ConsumerType  # noqa: E402

UNITS: Final = 600
WARM_UP: Final = 60


async def rate(url: str, keys: int, workers: int) -> float:
    """Units a second."""
    topic = f"hot-{uuid.uuid4().hex[:8]}"
    async with AsyncClient(url) as client:
        consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.KEY_SHARED)
        into = await client.create_producer(topic, batching=False)
        out = await client.create_producer(f"{topic}-out")
        await asyncio.gather(*(into.send(b"%d" % number, key=f"k{number % keys}") for number in range(UNITS + WARM_UP)))
        left = UNITS + WARM_UP
        begun = 0.0

        async def work() -> None:
            nonlocal left, begun
            while left > 0:
                left -= 1
                if left == UNITS:
                    begun = time.perf_counter()
                async with client.transaction() as txn:
                    message = await consumer.receive(timeout=30, txn=txn)
                    await out.send(message.data, txn=txn)

        await asyncio.gather(*(work() for _ in range(workers)))
        return UNITS / (time.perf_counter() - begun)


async def measure(url: str) -> None:
    """Print the rows."""
    for keys, workers in ((1, 1), (1, 8), (8, 8), (UNITS + WARM_UP, 8)):
        print(f"{keys:4} keys, {workers} workers: {await rate(url, keys, workers):7.0f} units a second", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="service URL of another server")
    url = parser.parse_args().url
    if url is not None:
        asyncio.run(measure(url))
        return
    with OurBroker() as broker:
        asyncio.run(measure(broker.service_url))


if __name__ == "__main__":
    main()
