"""CPU of our broker and of our client per message and per transaction, beside an earlier commit, in turns.

    python bench/broker/beside_commit.py COMMIT [--rounds 5] [--scale 0.1]

Broker and client are processes of their own on loopback. In a round each side runs every row once; first and second change
places from round to round. For the broker's figures the client is of this tree, for the client's figures the broker is. CPU is
user and system time of the process, without its start. A figure is the median of the rounds; on a machine that does other
things as well, ratios below 1.05 and above 0.95 say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "support")]

from earlier_build import earlier_environment  # noqa: E402 - a helper of the tests
from our_broker import OurBroker  # noqa: E402
from processes import cpu_of  # noqa: E402 - in the folder above

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition  # noqa: E402 - after the path

Row = Callable[[AsyncClient, str, int], Coroutine[Any, Any, None]]


# --- the rows, run by a client of either side ---------------------------------------------------------------------------


async def messages(client: AsyncClient, topic: str, count: int, *, kind: ConsumerType, batching: bool = False) -> None:
    """Messages that are sent, received and acknowledged."""
    producer = await client.create_producer(topic, batching=batching)
    consumer = await client.subscribe(topic, "s", consumer_type=kind, initial_position=InitialPosition.EARLIEST)
    for number in range(count):
        await producer.wait_for_room()
        producer.send_nowait(b"x" * 100, key=str(number % 50))
    received = 0
    while received < count:
        for message in await consumer.receive_many(500):
            await consumer.acknowledge(message)
            received += 1


async def transactions(client: AsyncClient, topic: str, count: int, *, lanes: int) -> None:
    """Transactions of one message received and one sent, so many at a time."""
    source, target = await client.create_producer(topic), await client.create_producer(f"{topic}-out")
    consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.SHARED, initial_position=InitialPosition.EARLIEST)
    for _ in range(count):
        await source.wait_for_room()
        source.send_nowait(b"x" * 100)
    await source.flush()

    async def lane() -> None:
        for _ in range(count // lanes):
            async with client.transaction() as txn:
                message = await consumer.receive(txn=txn)
                await target.send(message.data, txn=txn)

    await asyncio.gather(*(lane() for _ in range(lanes)))


ROWS: Final[dict[str, tuple[int, Row]]] = {
    "exclusive": (20_000, partial(messages, kind=ConsumerType.EXCLUSIVE)),
    "shared": (20_000, partial(messages, kind=ConsumerType.SHARED)),
    "key_shared": (20_000, partial(messages, kind=ConsumerType.KEY_SHARED)),
    "batches": (60_000, partial(messages, kind=ConsumerType.SHARED, batching=True)),
    "1 + 1": (2_000, partial(transactions, lanes=1)),
    "1 + 1 at 64": (6_400, partial(transactions, lanes=64)),
}


async def _run_rows(url: str, broker_pid: int, scale: float) -> None:
    """Print microseconds of CPU by row, of the broker and of this process."""
    found: dict[str, tuple[float, float]] = {}
    async with AsyncClient(url) as client:
        for name, (most, row) in ROWS.items():
            await row(client, f"persistent://public/default/warm-{name.replace(' ', '')}", max(64, most // 10))
            count = max(64, int(most * scale))
            broker, mine = cpu_of([broker_pid]), time.process_time()
            await row(client, f"persistent://public/default/{name.replace(' ', '')}", count)
            found[name] = (cpu_of([broker_pid]) - broker) / count * 1e6, (time.process_time() - mine) / count * 1e6
    print(json.dumps(found))


# --- both sides in turns ------------------------------------------------------------------------------------------------


def _round(broker: Mapping[str, str], client: Mapping[str, str], scale: float) -> dict[str, tuple[float, float]]:
    with OurBroker(environment=dict(broker)) as server:
        command = [sys.executable, __file__, "--rows-of", server.service_url, str(server.pid), "--scale", str(scale)]
        done = subprocess.run(command, env={**os.environ, **client}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="the commit to stand beside")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of messages and transactions")
    parser.add_argument("--rows-of", nargs=2, metavar=("URL", "PID"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rows_of:
        asyncio.run(_run_rows(given.rows_of[0], int(given.rows_of[1]), given.scale))
        return 0
    if not given.commit:
        parser.error("name a commit")
    named = ["git", "rev-parse", "--verify", "--short=12", f"{given.commit}^{{commit}}"]  # its files are kept by its hash
    commit = subprocess.run(named, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    before = earlier_environment(commit)
    sides = {("broker", "now"): ({}, {}), ("broker", "before"): (before, {}), ("client", "before"): ({}, before)}
    found: dict[tuple[str, str], list[dict[str, tuple[float, float]]]] = {side: [] for side in sides}
    for number in range(given.rounds):
        for side in list(sides) if number % 2 else list(reversed(sides)):
            found[side].append(_round(*sides[side], given.scale))
    print(f"microseconds of CPU, this tree beside {commit}, median of {given.rounds} rounds\n")
    print("| | broker | before | ratio | client | before | ratio |\n|---|---|---|---|---|---|---|")
    for name in ROWS:
        now = found["broker", "now"]
        cells = []
        for at, part in enumerate(("broker", "client")):
            mine = statistics.median(each[name][at] for each in now)
            theirs = statistics.median(each[name][at] for each in found[part, "before"])
            cells += [f"{mine:.1f}", f"{theirs:.1f}", f"{mine / theirs:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
