"""Consistent readers while servers are killed: between two ends of a transaction, and anywhere under load.

The load is recorded as a history (`tests/history`), with what the consistent reader has handed out as its deliveries.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import targets
from admin import eventually
from check_history import judge
from cuts import SOON, is_silent, take
from history_format import HistoryWriter, decode_payload, encode_payload, make_payload
from history_reader import read_history
from history_verdict import VALID
from late_writes import Zombie, zombie
from our_broker import OurBroker
from stock_pulsar import StockPulsar

from pulsar_txn.client import (
    EARLIEST_ID,
    AsyncClient,
    AsyncProducer,
    CommitOutcomeUnknown,
    MessageId,
    OperationTimeout,
    PulsarError,
)
from pulsar_txn.client.cuts import AsyncConsistentReader, Cut, CutPosition
from pulsar_txn.wire.ids import LANE_BIT, TxnAction, TxnId

Server: TypeAlias = OurBroker | StockPulsar

SERVERS = ["ours", *(pytest.param(name, marks=pytest.mark.stock) for name in targets.stock_names())]
SAMPLED_SERVERS = [
    "ours",
    *(pytest.param(name, marks=[pytest.mark.stock, *soak]) for name, soak in targets.sampled_stock_names()),
]
"""Of stock, the newest; the others in `make soak`."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def started(name: str) -> Iterator[Server]:
    server = (
        OurBroker(conf={"externalTransactionCoordinatorsEnabled": "true"})
        if name == "ours"
        else StockPulsar(name.removeprefix("stock-"))
    )
    with server:
        yield server


async def end(zombie: Zombie, topic: str, txn_id: TxnId, action: TxnAction = TxnAction.COMMIT) -> None:
    """What a coordinator tells one participant."""
    connection = await zombie.brokers.owner(topic)
    bits = {"txnid_most_bits": txn_id.most, "txnid_least_bits": txn_id.least, "txnid_least_bits_of_low_watermark": 0}
    await connection.request("endTxnOnPartition", 1, topic=topic, txn_action=int(action), **bits)


@pytest.mark.parametrize("name", SAMPLED_SERVERS)
async def test_a_kill_between_two_ends_of_a_transaction_shows_no_part_of_it(name: str, topic: str) -> None:
    a, b = f"{topic}-a", f"{topic}-b"
    txn_id = TxnId(LANE_BIT | 7 << 8, 3)
    with started(name) as server:
        async with AsyncClient(server.service_url) as client:
            producers = [await client.create_producer(each, batching=False) for each in (a, b)]
            reader = await client.consistent_reader([a, b])
            async with zombie(server.service_url) as coordinator:
                await coordinator.send(a, b"in a", txn_id)
                await coordinator.send(b, b"in b", txn_id)
                await end(coordinator, a, txn_id)
            async with await client.create_reader(a) as alone:
                assert (await alone.read_next(SOON)).data == b"in a"
            assert await is_silent(reader)
            await asyncio.to_thread(server.restart, hard=True)
            assert await is_silent(reader)
            async with zombie(server.service_url) as coordinator:
                await end(coordinator, a, txn_id)  # a coordinator that comes back tells again
                await end(coordinator, b, txn_id)
            assert await take(reader, 2) == [b"in a", b"in b"]
            for producer in producers:
                await producer.send(b"plain")
            assert await take(reader, 2) == [b"plain", b"plain"]


class Load:
    """Writers of transactions over three topics, and consistent readers, with a history of all that they did."""

    def __init__(self, folder: Path, topic: str, seed: int) -> None:
        self.folder = folder
        self.topics = [f"{topic}-{number}" for number in range(3)]
        self.rng = random.Random(seed)
        self.cuts: list[Counter[str]] = []
        self.handed: dict[str, list[MessageId]] = defaultdict(list)
        self.sizes: dict[str, int] = {}
        self.no_more_writing = asyncio.Event()
        self.no_more_reading = asyncio.Event()

    async def write(self, client: AsyncClient, name: str) -> None:
        """Transactions, one after another, until it is told to stop; each writer has producers of its own."""
        history, seq = HistoryWriter(self.folder, name), 0
        producers = [await client.create_producer(topic, batching=self.rng.random() < 0.5) for topic in self.topics]
        number = 0
        while not self.no_more_writing.is_set():
            number += 1
            count = self.rng.randint(1, 6)
            chosen = [self.rng.randrange(3) for _ in range(count)]
            txn = f"{name}/{number}"
            self.sizes[txn] = count
            await self._one(client, history, name, txn, producers, chosen, seq)
            seq += count
            await asyncio.sleep(self.rng.random() * 0.02)
        history.close()

    async def _one(
        self,
        client: AsyncClient,
        history: HistoryWriter,
        name: str,
        txn: str,
        producers: list[AsyncProducer[bytes]],
        chosen: list[int],
        seq: int,
    ) -> None:
        begun = history.invoke("begin", txn=txn)
        ending: int | None = None
        try:
            handle = await client.begin_transaction(timeout=4)
            history.ok(begun)
            begun = -1
            for i, which in enumerate(chosen):
                parts = [[self.topics[each], -1] for each in chosen]
                payload = make_payload(name, seq + i, txn=txn, i=i, n=len(chosen), parts=parts)
                where = {"topic": self.topics[which], "partition": -1, "producer": name, "seq": seq + i}
                sent = history.invoke("send", **where, txn=txn, payload=payload)
                place = await producers[which].send(encode_payload(payload), txn=handle)
                if place.ledger_id < 0:
                    history.info(sent)  # it was sent again and is stored already: the receipt does not say where
                else:
                    history.ok(sent, position=[place.ledger_id, place.entry_id, place.batch_index])
            how = "abort" if self.rng.random() < 0.2 else "commit"
            ending = history.invoke(how, txn=txn)
            await (handle.abort() if how == "abort" else handle.commit())
            history.ok(ending)
        except CommitOutcomeUnknown:
            history.info(ending if ending is not None else begun)
        except PulsarError:
            if ending is not None:
                history.info(ending)

    async def read(self, client: AsyncClient, name: str, start: MessageId | CutPosition) -> CutPosition:
        """Until it is told to stop; the position after the last cut."""
        history = HistoryWriter(self.folder, name)
        async with await client.consistent_reader(self.topics, start) as reader:
            async for cut in self._cuts(reader):
                self.cuts.append(Counter())
                for message in cut:
                    payload = decode_payload(message.data)
                    self.cuts[-1][payload["txn"]] += 1
                    self.handed[message.topic].append(message.message_id)
                    self._delivered(history, name, message, payload)
            history.close()
            return reader.position

    async def _cuts(self, reader: AsyncConsistentReader[bytes]) -> AsyncIterator[Cut[bytes]]:
        while not self.no_more_reading.is_set():
            with contextlib.suppress(OperationTimeout):
                yield await reader.next_cut(1.0)

    def _delivered(self, history: HistoryWriter, name: str, message: Any, payload: dict[str, Any]) -> None:
        place = message.message_id
        history.event(
            "deliver",
            topic=message.topic,
            partition=-1,
            subscription=None,
            consumer=None,
            reader=name,
            position=[place.ledger_id, place.entry_id, place.batch_index],
            payload=payload,
            redeliveries=0,
        )

    async def read_the_rest(self, client: AsyncClient, start: MessageId | CutPosition) -> dict[str, list[MessageId]]:
        """What plain readers find in the end, by topic; a consistent reader takes what is missing."""
        found: dict[str, list[MessageId]] = {}
        history = HistoryWriter(self.folder, "final")
        for topic in self.topics:
            op = history.invoke("final_read", topic=topic, partition=-1, reader=f"final {topic}")
            async with await client.create_reader(topic) as reader:
                found[topic] = []
                while await reader.has_message_available():
                    message = await reader.read_next(SOON)
                    found[topic].append(message.message_id)
                    self._delivered(history, f"final {topic}", message, decode_payload(message.data))
            history.ok(op)
        history.close()
        self.no_more_reading.clear()
        reading = asyncio.ensure_future(self.read(client, "consistent-last", start))
        wanted = sum(map(len, found.values()))
        await eventually(self._handed_out, lambda count: count >= wanted)
        self.no_more_reading.set()
        await reading
        return found

    async def _handed_out(self) -> int:
        return sum(map(len, self.handed.values()))

    def check(self, found: dict[str, list[MessageId]]) -> None:
        """Whole transactions in each cut; everything, in order, once; and the checks of histories."""
        for cut in self.cuts:
            assert all(count == self.sizes[txn] for txn, count in cut.items()), f"a torn transaction: {cut}"
        assert dict(self.handed) == {topic: ids for topic, ids in found.items() if ids}
        assert sum(len(cut) > 0 for cut in self.cuts) > 5, "there was something to see"
        verdicts = judge(read_history(self.folder), ["K1", "K2", "K3", "K4", "K5", "K6", "K11"])
        assert [str(verdict) for verdict in verdicts if verdict.status != VALID] == []


async def under_load(name: str, topic: str, folder: Path, seed: int, kills: int, seconds: float) -> None:
    load = Load(folder, topic, seed)
    with started(name) as server:
        async with AsyncClient(server.service_url, max_backoff=0.5) as writing, AsyncClient(server.service_url) as client:
            writers = [asyncio.ensure_future(load.write(writing, f"writer-{number}")) for number in range(3)]
            position: MessageId | CutPosition = EARLIEST_ID
            for number in range(kills + 1):
                reading = asyncio.ensure_future(load.read(client, f"consistent-{number}", position))
                await asyncio.sleep(seconds * (0.5 + load.rng.random()))
                if number < kills:
                    await asyncio.to_thread(server.restart, hard=True)
                    await asyncio.sleep(seconds)
                load.no_more_reading.set()
                position = await reading
                load.no_more_reading.clear()
            load.no_more_writing.set()
            await asyncio.gather(*writers)
            await asyncio.sleep(6)  # what nobody ended is ended by its timeout
            load.check(await load.read_the_rest(client, position))


async def test_what_is_handed_out_under_kills_is_whole_and_in_order(topic: str, tmp_path: Path) -> None:
    await under_load("ours", topic, tmp_path, seed=1, kills=2, seconds=1.0)


@pytest.mark.soak
@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("seed", range(3))
async def test_what_is_handed_out_under_many_kills_is_whole_and_in_order(
    name: str, seed: int, topic: str, tmp_path: Path
) -> None:
    await under_load(name, topic, tmp_path, seed=100 + seed, kills=6 if name == "ours" else 2, seconds=3.0)
