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
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from earlier_build import earlier_environment  # noqa: E402 - a helper of the tests
from our_broker import OurBroker  # noqa: E402

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition  # noqa: E402 - after the path

_TICK: Final = os.sysconf("SC_CLK_TCK")
Row = Callable[[AsyncClient, str, int], Coroutine[Any, Any, None]]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


# --- the rows, run by a client of either side ---------------------------------------------------------------------------


async def _messages(client: AsyncClient, topic: str, count: int, kind: ConsumerType, *, batching: bool) -> None:
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


async def exclusive(client: AsyncClient, topic: str, count: int) -> None:
    """Messages one by one on Exclusive."""
    await _messages(client, topic, count, ConsumerType.EXCLUSIVE, batching=False)


async def shared(client: AsyncClient, topic: str, count: int) -> None:
    """Messages one by one on Shared."""
    await _messages(client, topic, count, ConsumerType.SHARED, batching=False)


async def key_shared(client: AsyncClient, topic: str, count: int) -> None:
    """Messages one by one on Key_Shared."""
    await _messages(client, topic, count, ConsumerType.KEY_SHARED, batching=False)


async def batches(client: AsyncClient, topic: str, count: int) -> None:
    """Messages in batches on Shared."""
    await _messages(client, topic, count, ConsumerType.SHARED, batching=True)


async def _transactions(client: AsyncClient, topic: str, count: int, lanes: int) -> None:
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


async def one_plus_one(client: AsyncClient, topic: str, count: int) -> None:
    """Transactions of one message received and one sent, one after the other."""
    await _transactions(client, topic, count, 1)


async def one_plus_one_at_64(client: AsyncClient, topic: str, count: int) -> None:
    """Transactions of one message received and one sent, 64 at a time."""
    await _transactions(client, topic, count, 64)


ROWS: Final[dict[str, tuple[int, Row]]] = {
    "exclusive": (20_000, exclusive),
    "shared": (20_000, shared),
    "key_shared": (20_000, key_shared),
    "batches": (60_000, batches),
    "1 + 1": (2_000, one_plus_one),
    "1 + 1 at 64": (6_400, one_plus_one_at_64),
}


async def _run_rows(url: str, broker_pid: int, scale: float) -> None:
    """Print microseconds of CPU by row, of the broker and of this process."""
    found: dict[str, tuple[float, float]] = {}
    async with AsyncClient(url) as client:
        for name, (most, row) in ROWS.items():
            await row(client, f"persistent://public/default/warm-{name.replace(' ', '')}", max(64, most // 10))
            count = max(64, int(most * scale))
            broker, mine = cpu_seconds(broker_pid), time.process_time()
            await row(client, f"persistent://public/default/{name.replace(' ', '')}", count)
            found[name] = (cpu_seconds(broker_pid) - broker) / count * 1e6, (time.process_time() - mine) / count * 1e6
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
    before = earlier_environment(given.commit)
    sides = {("broker", "now"): ({}, {}), ("broker", "before"): (before, {}), ("client", "before"): ({}, before)}
    found: dict[tuple[str, str], list[dict[str, tuple[float, float]]]] = {side: [] for side in sides}
    for number in range(given.rounds):
        for side in list(sides) if number % 2 else list(reversed(sides)):
            found[side].append(_round(*sides[side], given.scale))
    print(f"microseconds of CPU, this tree beside {given.commit}, median of {given.rounds} rounds\n")
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
