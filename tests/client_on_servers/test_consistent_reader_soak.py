"""Consistent readers for minutes, while brokers and the reading programs are killed: `make soak` runs this.

Two programs (`cut_follower.py`) follow three topics with seven partitions. One is killed again and again, and goes on after its
last position; the other one lives. The broker is killed as well. In the end the official client reads each partition: that is
what must have been handed out, in its order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cut_follower
import pytest
import targets
from admin import put, topic_path
from official_reading import read_officially
from our_broker import OurBroker
from stock_pulsar import StockPulsar

from pulsar_txn.client import AsyncClient, AsyncProducer, CommitOutcomeUnknown, PulsarError

SERVERS = ["ours", *(pytest.param(name, marks=pytest.mark.stock) for name in targets.stock_names())]
pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1500)]

SECONDS = float(os.environ.get("CUT_SOAK_SECONDS", "300"))
SEED = int(os.environ.get("CUT_SOAK_SEED", "1"))
BETWEEN_KILLS = {OurBroker: (3.0, 15.0), StockPulsar: (15.0, 40.0)}
"""Seconds that a broker lives: a stock one needs ten to start."""
TIMEOUT_SECONDS = 5
REST_SECONDS = 240


@contextmanager
def started(name: str) -> Iterator[OurBroker | StockPulsar]:
    with OurBroker() if name == "ours" else StockPulsar(name.removeprefix("stock-")) as server:
        yield server


class Writer:
    """Transactions of one to six messages, plain messages between them; each knows what became of its transactions."""

    def __init__(self, name: str, topics: list[str], rng: random.Random) -> None:
        self.outcomes: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self._name = name
        self._topics = topics
        self._rng = rng

    async def write(self, client: AsyncClient, until: asyncio.Event) -> None:
        """One transaction after another, until it is told to stop."""
        producers = [await client.create_producer(topic, batching=self._rng.random() < 0.5) for topic in self._topics]
        number = 0
        while not until.is_set():
            number += 1
            await self._one(client, producers, f"{self._name}/{number}")
            if self._rng.random() < 0.2:
                with contextlib.suppress(PulsarError):
                    value = json.dumps([f"{self._name}/{number}/plain", 0, 0])
                    await self._rng.choice(producers).send(value.encode())
            await asyncio.sleep(self._rng.random() * 0.03)

    async def _one(self, client: AsyncClient, producers: list[AsyncProducer[bytes]], name: str) -> None:
        self.sizes[name] = size = self._rng.randint(1, 6)
        self.outcomes[name] = "aborted"
        try:
            txn = await client.begin_transaction(timeout=TIMEOUT_SECONDS)
            values = [json.dumps([name, number, size]).encode() for number in range(size)]
            await asyncio.gather(*(self._rng.choice(producers).send(value, txn=txn) for value in values))
            if self._rng.random() < 0.2:
                await txn.abort()
                return
            self.outcomes[name] = "unknown"
            await txn.commit()
            self.outcomes[name] = "committed"
        except CommitOutcomeUnknown:
            self.outcomes[name] = "unknown"
        except PulsarError:
            if self.outcomes[name] == "unknown":
                self.outcomes[name] = "aborted"


class Follower:
    """The reading program, started again whenever it has ended."""

    def __init__(self, output: Path, service_url: str, topics: list[str]) -> None:
        self.output = output
        self.kills = 0
        self.away = 0
        self._arguments = [cut_follower.__file__, service_url, str(output), *topics]

    async def run(self, until: asyncio.Event, killing: Callable[[], float | None]) -> None:
        """Until it is told to stop; killed `killing()` seconds after the first cut of each start, when that is a number."""
        stopping = asyncio.ensure_future(until.wait())
        while not until.is_set():
            process = await asyncio.create_subprocess_exec(sys.executable, *self._arguments, stderr=asyncio.subprocess.PIPE)
            ended = asyncio.ensure_future(process.communicate())
            dying = asyncio.ensure_future(self._live(self._size(), killing))
            await asyncio.wait([ended, dying, stopping], return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if process.returncode is None:
                process.kill()
                self.kills += 1
            _, said = await ended
            assert process.returncode in (-9, cut_follower.AWAY), said.decode()
            self.away += process.returncode == cut_follower.AWAY

    async def _live(self, size: int, killing: Callable[[], float | None]) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self._size() > size and (seconds := killing()) is not None:
                await asyncio.sleep(seconds)
                return

    def _size(self) -> int:
        return self.output.stat().st_size if self.output.exists() else 0

    def count(self) -> int:
        """How many messages it has handed out."""
        return sum(len(cut.messages) for cut in cut_follower.kept_cuts(self.output))


def check(follower: Follower, stored: dict[str, list[str]]) -> Counter[str]:
    """What it has handed out is what is stored, in its order, and each cut has whole transactions."""
    sizes = Counter(json.loads(value)[0] for values in stored.values() for value in values)
    cuts = cut_follower.kept_cuts(follower.output)
    handed: dict[str, list[str]] = defaultdict(list)
    for cut in cuts:
        for topic, value in cut.messages:
            handed[topic].append(value)
        parts = Counter(json.loads(value)[0] for _, value in cut.messages)
        torn = {name: (count, sizes[name]) for name, count in parts.items() if count != sizes[name] and "plain" not in name}
        assert not torn, f"handed out, of all: {torn}"
    assert dict(handed) == {topic: values for topic, values in stored.items() if values}
    return Counter(cuts=len(cuts), messages=sum(map(len, handed.values())), transactions=len(sizes))


def check_stored(writers: list[Writer], stored: dict[str, list[str]]) -> None:
    """What the server keeps of transactions: all of the committed ones, once, and nothing of the others."""
    found = Counter(value for values in stored.values() for value in values)
    parts = Counter(json.loads(value)[0] for value in found)
    for writer in writers:
        for name, outcome in writer.outcomes.items():
            expected = {"committed": {writer.sizes[name]}, "aborted": {0}, "unknown": {0, writer.sizes[name]}}[outcome]
            assert parts[name] in expected, f"{name} is {outcome}, of {writer.sizes[name]} there are {parts[name]}"
    assert [value for value, count in found.items() if count > 1 and "plain" not in value] == []


async def read_all(server: OurBroker | StockPulsar, partitions: list[str]) -> dict[str, list[str]]:
    """Each partition as the official client reads it."""
    stored = {}
    for partition in partitions:
        values = await asyncio.to_thread(read_officially, server.service_url, partition, 0)
        stored[partition] = [value.decode() for value in values]
    return stored


async def kill_again_and_again(server: OurBroker | StockPulsar, rng: random.Random) -> int:
    """For as long as the soak takes; how often."""
    until, kills = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        await asyncio.sleep(rng.uniform(*BETWEEN_KILLS[type(server)]))
        await asyncio.to_thread(server.restart, hard=True)
        kills += 1
    return kills


@pytest.mark.parametrize("name", SERVERS)
async def test_what_is_handed_out_over_minutes_of_kills_is_whole_and_in_order(name: str, topic: str, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    topics = [f"{topic}-{number}" for number in range(3)]
    partitions = [f"{each}-partition-{number}" for each in topics[:2] for number in range(3)] + topics[2:]
    stop_writing, stop_reading = asyncio.Event(), asyncio.Event()
    with started(name) as server:
        for each in topics[:2]:
            await put(server, f"{topic_path(each)}/partitions", 3)
        killed, lives = (Follower(tmp_path / each, server.service_url, topics) for each in ("killed", "lives"))
        writers = [Writer(f"w{number}", topics, random.Random(rng.random())) for number in range(3)]
        async with asyncio.TaskGroup() as following:
            following.create_task(killed.run(stop_reading, lambda: None if stop_writing.is_set() else 5 * rng.random()))
            following.create_task(lives.run(stop_reading, lambda: None))
            async with AsyncClient(server.service_url, max_backoff=0.5) as client, asyncio.TaskGroup() as writing:
                for writer in writers:
                    writing.create_task(writer.write(client, stop_writing))
                kills = await kill_again_and_again(server, rng)
                stop_writing.set()
            await asyncio.sleep(2 * TIMEOUT_SECONDS)  # what nobody ended is ended by its timeout
            stored = await read_all(server, partitions)
            wanted = sum(map(len, stored.values()))
            for _ in range(REST_SECONDS):  # after that `check` says what is missing
                if min(killed.count(), lives.count()) >= wanted:
                    break
                await asyncio.sleep(1)
            stop_reading.set()
    outcomes = Counter(outcome for writer in writers for outcome in writer.outcomes.values())
    print(f"{name}: {kills} kills of the broker, {killed.kills} of the program, {outcomes}")
    for follower in (killed, lives):
        print(follower.output.name, check(follower, stored), f"away {follower.away} times")
    check_stored(writers, stored)
    assert kills > 2
    assert killed.kills > 5
