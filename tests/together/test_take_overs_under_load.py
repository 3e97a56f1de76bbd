"""Successors that take a transactional id over while their predecessors send and commit, seed after seed, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from memory_network import run_virtual

from pulsar_txn.broker.server import Standalone
from pulsar_txn.client import AsyncClient, PulsarError
from pulsar_txn.client.transactions import PreparedToken

INSTANCES = 5
SIZE = 4


class Life:
    """What one instance did: its transactions, and those whose commit was answered, each with the time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun: list[str] = []
        self.committed: dict[str, float] = {}
        self.sent_at: list[float] = []
        self.prepared: dict[str, PreparedToken] = {}


async def work(client: AsyncClient, life: Life, lane: int, rng: random.Random) -> None:
    """Transactions, one after the other; a zombie still sends and commits in the one that it has, and ends at the next."""
    loop = asyncio.get_running_loop()
    async with await client.create_producer("t", batching=bool(lane % 2)) as producer:
        for number in range(40):
            name = f"{life.number}.{lane}.{number}"
            try:
                txn = await client.begin_transaction(timeout=600)
            except PulsarError:
                return
            life.begun.append(name)
            for index in range(SIZE):
                began = loop.time()
                try:
                    await producer.send(f"{name} {index}".encode(), txn=txn)
                except PulsarError:
                    continue
                life.sent_at.append(began)
                await asyncio.sleep(rng.choice((0, 0.0003, 0.002)))
            try:
                await txn.commit()
            except PulsarError:
                continue
            life.committed[name] = loop.time()


async def prepare(client: AsyncClient, life: Life) -> None:
    """Transactions that are prepared, and wait for whoever has their tokens."""
    async with await client.create_producer("prepared") as producer:
        for number in range(20):
            name = f"{life.number}.{number}"
            try:
                txn = await client.begin_transaction(timeout=600)
                await asyncio.gather(*(producer.send(f"{name} {index}".encode(), txn=txn) for index in range(SIZE)))
                life.prepared[name] = await txn.prepare()
            except PulsarError:
                return
            await asyncio.sleep(0.002)


async def read_all(client: AsyncClient, topic: str = "t") -> list[bytes]:
    """Everything that a reader may see now."""
    found = []
    async with await client.create_reader(topic) as reader:
        while await reader.has_message_available():
            found.append((await reader.read_next(10)).data)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_what_predecessors_began_is_over_when_a_successor_has_taken_over(seed: int) -> None:
    async def story(network: Any) -> tuple[int, int, int]:
        rng, loop, lives = random.Random(seed), asyncio.get_running_loop(), list[Life]()
        snapshots: list[tuple[float, list[bytes]]] = []
        async with (
            Standalone(None, port=6650, runtime=network) as broker,
            AsyncClient(broker.service_url, runtime=network) as plain,
            asyncio.TaskGroup() as group,
        ):
            clients = []
            for number in range(INSTANCES):
                client = AsyncClient(broker.service_url, runtime=network, transactional_id="app")
                clients.append(client)
                await client.take_over()
                snapshots.append((loop.time(), await read_all(plain)))
                lives.append(Life(number))
                for lane in range(3):
                    group.create_task(work(client, lives[-1], lane, rng))
                group.create_task(prepare(client, lives[-1]))
                await asyncio.sleep(rng.uniform(0.005, 0.08))
            last = AsyncClient(broker.service_url, runtime=network, transactional_id="app")
            await last.take_over()
            end = await read_all(plain)
            tokens = {name: token for life in lives for name, token in life.prepared.items()}
            for token in tokens.values():
                await (await plain.attach_prepared(token)).commit()
            expected = sorted(f"{name} {index}".encode() for name in tokens for index in range(SIZE))
            assert sorted(await read_all(plain, "prepared")) == expected, "a successor spares what is prepared"
            for each in [*clients, last]:
                await each.close()
        judge(lives, snapshots, end)
        return sum(len(x.begun) for x in lives), sum(len(x.committed) for x in lives), sum(len(x.prepared) for x in lives)

    (begun, committed, prepared), _ = run_virtual(story, seed)
    assert begun > committed > 0, "some were fenced, and some were not"
    assert prepared, "some wait for their tokens"


def judge(lives: list[Life], snapshots: list[tuple[float, list[bytes]]], end: list[bytes]) -> None:
    """`snapshots`: when each take-over was answered, and what a reader saw after that."""
    assert len(set(end)) == len(end), "nothing is doubled"
    whole = {name for life in lives for name in life.begun if f"{name} 0".encode() in end}
    assert sorted(end) == sorted(f"{name} {index}".encode() for name in whole for index in range(SIZE)), "nothing is torn"
    assert whole >= {name for life in lives for name in life.committed}, "what was committed is there"
    for life, (answered, seen) in zip(lives, snapshots[1:], strict=False):  # the last one has no successor here
        own = f"{life.number}.".encode()
        final = [value for value in end if value.startswith(own)]
        assert [value for value in seen if value.startswith(own)] == final, "nothing of a predecessor comes or goes any more"
        assert max(life.sent_at, default=0.0) <= answered, "nothing that it sends later is taken"
        assert max(life.committed.values(), default=0.0) <= answered + 0.01, "nor is a commit"
