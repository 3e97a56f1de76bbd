"""Publishes the flights, each with its place in the input as sequence id.

The broker remembers the highest sequence id per producer name (deduplication) and tells a producer that comes back,
so a publisher that was killed goes on after the last flight that is stored, and what it sends twice is stored once.

    python publisher.py --url pulsar://… --flights jan [--prefix …] [--entry 40]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import attrs
from data import read_flights
from topics import Topics

from pulsar_txn.client import AsyncClient

NAME = "publisher"


async def publish(url: str, topics: Topics, selection: str, entry: int) -> int:
    """Send what is not stored yet, `entry` flights to a stored entry; returns how many were sent."""
    sent = 0
    async with AsyncClient(url, operation_timeout=60.0, max_backoff=1.0) as client:
        producer = await client.create_producer(
            topics.flights, producer_name=NAME, batching=entry > 1, batching_max_messages=entry, send_timeout=0
        )
        stored = producer.last_sequence_id
        for number, flight in enumerate(read_flights(selection)):
            if number > stored:
                await producer.wait_for_room()
                producer.send_nowait(json.dumps(attrs.asdict(flight)).encode(), sequence_id=number)
                sent += 1
        await producer.flush()
    return sent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--flights", default="jan")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--entry", type=int, default=40)
    given = parser.parse_args()
    sent = asyncio.run(publish(given.url, Topics(given.prefix), given.flights, given.entry))
    sys.stdout.write(f"{sent} flights sent\n")


if __name__ == "__main__":
    main()
