"""Random lives of three instances, in virtual time: everybody who hears the outcome of a transaction hears the same.

Instances are killed, ended in order, cut off from the cluster with the log while their clients still reach them, and fenced.
Clients commit and abort the same transactions at the same time, over all that; participants answer late.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from insides import coordinators_of
from instances import Instance, World
from memory_network import MemoryNetwork, run_virtual
from raw_client import RawClient

from pulsar_txn.client import AsyncCoordinator
from pulsar_txn.client.errors import InvalidTransactionStatus, PulsarError, TransactionNotFound
from pulsar_txn.wire.errors import ServerError
from pulsar_txn.wire.ids import TxnAction, TxnId

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
OTHER = {COMMIT: "ABORT", ABORT: "COMMIT"}
TOPICS = [f"east|persistent://public/default/t{number}" for number in range(3)]


def bits(txn_id: TxnId) -> dict[str, int]:
    return {"txnid_least_bits": txn_id.least, "txnid_most_bits": txn_id.most}


class Life:
    """One run."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.heard: dict[TxnId, set[str]] = {}
        self.is_over = False
        self.asked = 0
        self.forgotten: list[TxnId] = []
        """Transactions that an instance said it did not know."""

    async def run(self, seconds: float) -> None:
        """Everything at once; then peace, and everybody asks again."""
        for each in self.world.instances:
            each.cluster.answers = False
        coordinators = [self.world.coordinator(operation_timeout=60) for _ in range(3)]
        work = [asyncio.create_task(self.works(each, coordinators)) for each in coordinators for _ in range(2)]
        background = [asyncio.create_task(each) for each in (self.participants(), *map(self.gossip, self.world.instances))]
        faults = asyncio.create_task(self.faults(seconds))
        await asyncio.gather(*work, faults)
        for each in coordinators:
            await each.close()
        async with self.world.coordinator(operation_timeout=120) as judge:
            for txn_id in self.heard:
                await self.end(judge, txn_id, COMMIT)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        assert self.asked > 20
        assert not self.forgotten

    async def works(self, mine: AsyncCoordinator, everybody: list[AsyncCoordinator]) -> None:
        while not self.is_over:
            ask = coordinators_of(mine)
            try:
                txn_id = await ask.new_txn(60_000)
                self.heard[txn_id] = set()
                await ask.add_partitions(txn_id, self.random.sample(TOPICS, self.random.randint(1, 3)))
            except PulsarError:
                continue
            ends = [(mine, self.random.choice((COMMIT, COMMIT, ABORT)))]
            if self.random.random() < 0.3:
                ends.append((self.random.choice(everybody), self.random.choice((COMMIT, ABORT))))
            await asyncio.gather(*(self.end(client, txn_id, action) for client, action in ends))
            await asyncio.sleep(self.random.random() * 0.5)

    async def end(self, client: AsyncCoordinator, txn_id: TxnId, action: TxnAction) -> None:
        """Note what the client hears; one that hears nothing notes nothing."""
        try:
            await coordinators_of(client).end_txn(txn_id, action)
        except InvalidTransactionStatus:
            self.heard[txn_id].add(OTHER[action])
        except TransactionNotFound as error:
            raise AssertionError(f"{txn_id} is not known any more") from error
        except PulsarError:
            return
        else:
            self.heard[txn_id].add(action.name)

    async def participants(self) -> None:
        while True:
            await asyncio.sleep(self.random.random() * 0.02)
            self.random.choice(self.world.instances).cluster.answer()

    async def gossip(self, first: Instance) -> None:
        """Somebody who stays with an instance, whatever it leads, and asks it about the newest transactions."""
        while True:
            await asyncio.sleep(self.random.random() * 0.2)
            client = RawClient(self.world.instances[first.number].service)  # type: ignore[arg-type]  # it wants connections only
            for txn_id in list(self.heard)[-4:]:
                action = self.random.choice((COMMIT, ABORT))
                asked = client.start("endTxn", **bits(txn_id), txn_action=int(action))
                for _ in range(400):
                    await asyncio.sleep(0.01)
                    if client._answers.get(asked) or client.pipe.closed:
                        break
                self.note(txn_id, action, client._answers.get(asked))

    def note(self, txn_id: TxnId, action: TxnAction, answers: list[Any] | None) -> None:
        if not answers:
            return
        self.asked += 1
        error = answers[0].error if answers[0].HasField("error") else None
        if error is None:
            self.heard[txn_id].add(action.name)
        elif error == ServerError.InvalidTxnStatus:
            self.heard[txn_id].add(OTHER[action])
        elif error == ServerError.TransactionNotFound:
            self.forgotten.append(txn_id)

    async def faults(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(self.random.random())
            victim = self.random.choice(self.world.instances)
            fault = self.random.choice((self.kill, self.stop, self.cut, self.cut, self.lose))
            await fault(victim)
        self.is_over = True

    async def kill(self, victim: Instance) -> None:
        await victim.kill()
        await self.again(victim)

    async def stop(self, victim: Instance) -> None:
        await victim.stop()
        await self.again(victim)

    async def again(self, victim: Instance) -> None:
        await asyncio.sleep(self.random.random())
        successor = await self.world.replace(victim)
        successor.cluster.answers = False

    async def cut(self, victim: Instance) -> None:
        victim.store.cut()
        await asyncio.sleep(self.random.random() * 8)
        victim.store.mend()

    async def lose(self, victim: Instance) -> None:
        victim.store.lose()


def live(seed: int, seconds: float) -> tuple[dict[TxnId, set[str]], World]:
    async def main(network: MemoryNetwork) -> tuple[dict[TxnId, set[str]], World]:
        world = await World(network, 3, coordinators=3, transaction_client_lease_in_seconds=30).start()
        life = Life(world, seed)
        await life.run(seconds)
        return life.heard, world

    return run_virtual(main, seed)[0]


def check(seed: int, seconds: float) -> None:
    heard, world = live(seed, seconds)
    told = world.told()
    assert len(heard) > 20, "nothing happened"
    assert world.logs.takeovers > 6, "nobody took over"
    torn = {txn_id: (heard[txn_id], told.get(txn_id)) for txn_id in heard if len(heard[txn_id] | told.get(txn_id, set())) != 1}
    assert not torn
    assert {"COMMIT"} in heard.values()
    assert {"ABORT"} in heard.values()


@pytest.mark.parametrize("seed", range(2))
def test_whoever_hears_an_outcome_hears_the_same(seed: int) -> None:
    check(seed, 60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_whoever_hears_an_outcome_hears_the_same_in_long_lives(seed: int) -> None:
    check(seed, 120)
