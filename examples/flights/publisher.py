"""Publishes the flights, each with its place in the input as sequence id.

The broker remembers the highest sequence id per producer name (deduplication) and tells a producer that comes back,
so a publisher that was killed goes on after the last flight that is stored, and what it sends twice is stored once.

With a rate it is a source that never ends by itself: it slows down as the flights get fewer, so that some are always left,
and sends the rest when the file `--finish` appears.

    python publisher.py --url pulsar://… --flights jan [--prefix …] [--entry 40] [--rate 400 --finish FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import attrs
from data import read_flights
from topics import Topics

from pulsar_txn.client import AsyncClient

NAME = "publisher"
_TICK_SECONDS: Final = 0.1
_SLOWING_SECONDS: Final = 8
"""With a rate: when a share f of all flights is left, f² of them come in this time. So the last ones never quite come."""


@attrs.frozen
class Pace:
    """`rate` flights a second while there are many; all that are left once the file `finish` exists."""

    rate: float
    finish: Path

    def portion(self, left: int, total: int) -> tuple[int, float]:
        """How many of the flights that are left (of `total`) to send now, and how many seconds they are to last."""
        if self.finish.exists():
            return left, 0.0
        speed = min(self.rate, left * left / (total * _SLOWING_SECONDS))
        count = max(1, int(speed * _TICK_SECONDS))
        return count, count / speed

    async def wait(self, seconds: float) -> None:
        """Wait, but not longer than until `finish` exists."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until and not self.finish.exists():  # noqa: ASYNC110 - a file sets no event
            await asyncio.sleep(min(_TICK_SECONDS, until - now))


async def publish(url: str, topics: Topics, selection: str, entry: int, pace: Pace | None = None) -> int:
    """Send what is not stored yet, `entry` flights to a stored entry; returns how many were sent."""
    async with AsyncClient(url, operation_timeout=60.0, max_backoff=1.0) as client:
        producer = await client.create_producer(
            topics.flights, producer_name=NAME, batching=entry > 1, batching_max_messages=entry, send_timeout=0
        )
        known = list(enumerate(read_flights(selection)))
        flights = known[producer.last_sequence_id + 1 :]
        sent = 0
        while sent < len(flights):
            count, seconds = (len(flights), 0.0) if pace is None else pace.portion(len(flights) - sent, len(known))
            for number, flight in flights[sent : sent + count]:
                await producer.wait_for_room()
                producer.send_nowait(json.dumps(attrs.asdict(flight)).encode(), sequence_id=number)
            sent += count
            if pace is not None:
                await pace.wait(seconds)
        await producer.flush()
    return sent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--flights", default="jan")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--entry", type=int, default=40)
    parser.add_argument("--rate", type=float, help="flights a second, until --finish exists; all at once without it")
    parser.add_argument("--finish", type=Path, default=Path("published"))
    given = parser.parse_args()
    pace = None if given.rate is None else Pace(given.rate, given.finish)
    sent = asyncio.run(publish(given.url, Topics(given.prefix), given.flights, given.entry, pace))
    sys.stdout.write(f"{sent} flights sent\n")


if __name__ == "__main__":
    main()
