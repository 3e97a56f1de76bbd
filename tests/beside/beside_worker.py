"""One process of a fault run: works on all hops until SIGTERM, or until it is killed.

    python beside_worker.py PLAN.json PLACES.json NUMBER INCARNATION FOLDER

What it does is in the history file `worker-NUMBER.INCARNATION.jsonl` of the folder. Workers of even numbers have a
transactional id, so that their next incarnation ends what they left; that of the others ends when their lease is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from beside_plan import ABORTED, LANES, MESSAGES_OF_A_TRANSACTION, TXN_SECONDS, Hop, Plan, Topic, plan_of
from chain_recorder import Transactions, note_sent, position_of
from history_format import HistoryWriter, decode_payload, encode_payload, make_payload

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncCoordinator,
    AsyncProducer,
    AsyncTransaction,
    BatchingType,
    CommitOutcomeUnknown,
    ConsumerType,
    InitialPosition,
    Message,
    PulsarError,
    TokenAuthentication,
    TransactionState,
)

SUBSCRIPTION: Final = "workers"
WAIT: Final = 0.3
AFTER_A_FAILURE: Final = 0.1
_TYPES: Final = {each.name.lower(): each for each in ConsumerType}


class Place:
    """Where the work is: the coordinator, a client of each cluster, and the history."""

    def __init__(
        self, plan: Plan, writer: HistoryWriter, coordinator: AsyncCoordinator, clients: Mapping[str, AsyncClient]
    ) -> None:
        self.plan = plan
        self.writer = writer
        self.coordinator = coordinator
        self.clients = clients
        self.transactions = Transactions(writer)
        self.stop = asyncio.Event()
        coordinator.add_observer(self.transactions)


class HopWork:
    """One hop in this process: its consumer, and a producer for each partition of each target."""

    def __init__(self, place: Place, hop: Hop, rng: random.Random) -> None:
        self._place = place
        self._hop = hop
        self._rng = rng
        self._source = place.plan.topics[hop.source]
        self._targets = [place.plan.topics[name] for name in hop.targets]
        self._name = f"{place.writer.process}.{hop.source}"
        self._seqs: dict[str, itertools.count[int]] = {}
        self._consumer: AsyncConsumer[bytes]
        self._producers: dict[tuple[str, str], AsyncProducer[bytes]] = {}

    async def run(self) -> None:
        """Until it is to stop."""
        while not self._place.stop.is_set():
            try:
                async with contextlib.AsyncExitStack() as opened:
                    await self._open(opened)
                    await _all(self._lane(number) for number in range(LANES))
            except PulsarError as error:
                print(f"{self._name}: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(AFTER_A_FAILURE)

    async def _open(self, opened: contextlib.AsyncExitStack) -> None:
        writer, client = self._place.writer, self._place.clients[self._source.cluster]
        joining = [
            writer.invoke("subscribe", **self._at(noted), mode=self._hop.mode, initial="earliest")
            for noted in self._source.noted
        ]
        options: dict[str, Any] = {"consumer_type": _TYPES[self._hop.mode.lower()], "receiver_queue_size": 50}
        try:
            consumer = await client.subscribe(
                self._source.name, SUBSCRIPTION, initial_position=InitialPosition.EARLIEST, **options
            )
        except PulsarError as error:
            for op in joining:
                writer.info(op, error=repr(error))
            raise
        self._consumer = await opened.enter_async_context(consumer)
        for op in joining:
            writer.ok(op)
        for target in self._targets:
            for part in target.parts:
                self._producers[target.cluster, part] = await opened.enter_async_context(await self._producer(target, part))

    async def _producer(self, target: Topic, part: str) -> AsyncProducer[bytes]:
        client = self._place.clients[target.cluster]
        return await client.create_producer(part, batching=self._hop.batched, batching_type=BatchingType.KEY_BASED)

    def _at(self, noted: str) -> dict[str, Any]:
        return {"topic": noted, "partition": -1, "subscription": SUBSCRIPTION, "consumer": self._name}

    # --- one lane

    async def _lane(self, lane: int) -> None:
        while not self._place.stop.is_set():
            messages = await self._consumer.receive_many(self._rng.choice(MESSAGES_OF_A_TRANSACTION), max_wait=WAIT)
            if messages and not await self._copied(lane, messages):
                self._consumer.give_back(messages)
                await asyncio.sleep(AFTER_A_FAILURE)

    async def _copied(self, lane: int, messages: Sequence[Message[bytes]]) -> bool:
        """One transaction; whether it is committed."""
        inputs = [self._delivered(each) for each in messages]
        transactions = self._place.transactions
        name = transactions.begin(TXN_SECONDS)
        txn: AsyncTransaction | None = None
        try:
            txn = await self._place.coordinator.begin_transaction(timeout=TXN_SECONDS, name=name)
            await _gathered(self._send(txn, noted, part, payload) for noted, part, payload in self._outputs(lane, name, inputs))
            await self._acknowledge(txn, name, messages)
            if self._rng.random() < ABORTED:
                await txn.abort()
                return False
            await txn.commit()
        except CommitOutcomeUnknown as unknown:
            return await self._resolved(unknown)
        except PulsarError as error:
            await self._given_up(txn, name, error)
            return False
        return True

    async def _given_up(self, txn: AsyncTransaction | None, name: str, error: PulsarError) -> None:
        print(f"{self._name} {name}: {error!r}", file=sys.stderr, flush=True)
        if txn is None:
            self._place.transactions.failed(name)
            return
        try:
            await txn.abort()
        except PulsarError as again:  # the coordinator aborts it at its timeout, or has done so
            print(f"{self._name} {name}: {again!r}", file=sys.stderr, flush=True)
        self._place.transactions.gave_up(txn)

    async def _resolved(self, unknown: CommitOutcomeUnknown) -> bool:
        while True:
            try:
                state = await unknown.resolve()
            except PulsarError as error:
                print(f"{self._name}: {error!r}", file=sys.stderr, flush=True)
            else:
                if state is not TransactionState.UNKNOWN:
                    return state is TransactionState.COMMITTED
            await asyncio.sleep(AFTER_A_FAILURE)

    def _delivered(self, message: Message[bytes]) -> dict[str, Any]:
        payload = decode_payload(message.data)
        at = {**self._at(f"{self._source.cluster}|{message.topic}"), "reader": None}
        position = position_of(message.message_id)
        self._place.writer.event("deliver", **at, position=position, payload=payload, redeliveries=message.redelivery_count)
        return payload

    def _outputs(
        self, lane: int, txn: str, inputs: Sequence[dict[str, Any]]
    ) -> list[tuple[str, tuple[str, str], dict[str, Any]]]:
        """For each input a message to some partition of each target."""
        chosen = [(each, target, self._rng.choice(target.parts)) for target in self._targets for each in inputs]
        parts = [[f"{target.cluster}|{part}", -1] for _, target, part in chosen]
        found = []
        for number, (source, target, part) in enumerate(chosen):
            noted, key = f"{target.cluster}|{part}", source["key"]
            # Order is kept within a key, for batches are by key, and within a transaction.
            producer = f"{self._name}.{lane}.{noted.rpartition('/')[2]}.{key}"
            seq = next(self._seqs.setdefault(producer, itertools.count()))
            came_from = [[source["producer"], source["seq"]]]
            payload = make_payload(producer, seq, txn=txn, i=number, n=len(chosen), parts=parts, inputs=came_from)
            found.append((noted, (target.cluster, part), payload | {"key": key}))
        return found

    async def _send(self, txn: AsyncTransaction, noted: str, to: tuple[str, str], payload: dict[str, Any]) -> None:
        writer = self._place.writer
        where = {name: payload[name] for name in ("producer", "seq", "txn")}
        op = writer.invoke("send", topic=noted, partition=-1, payload=payload, **where)
        try:
            message_id = await self._producers[to].send(encode_payload(payload), key=payload["key"], txn=txn)
        except BaseException as error:
            writer.info(op, error=repr(error))
            raise
        note_sent(writer, op, message_id)

    async def _acknowledge(self, txn: AsyncTransaction, name: str, messages: Sequence[Message[bytes]]) -> None:
        writer = self._place.writer
        by_part: dict[str, list[list[int]]] = {}
        for each in messages:
            by_part.setdefault(f"{self._source.cluster}|{each.topic}", []).append(position_of(each.message_id))
        ops = [
            writer.invoke("ack", **self._at(noted), positions=positions, kind="individual", txn=name)
            for noted, positions in by_part.items()
        ]
        try:
            await self._consumer.acknowledge(messages, txn=txn)
        except BaseException as error:
            for op in ops:
                writer.info(op, error=repr(error))
            raise
        for op in ops:
            writer.ok(op)


async def _gathered(work: Any) -> None:
    """All of them; then the first error."""
    for answer in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def _all(work: Any) -> None:
    """Run all; when one fails the others are cancelled, and its error is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run(plan: Plan, places: Mapping[str, Any], number: int, incarnation: int, folder: str) -> None:
    """Until SIGTERM."""
    writer = HistoryWriter(folder, f"worker-{number}.{incarnation}")
    rng = random.Random(f"{plan.seed} {number} {incarnation}")
    identity = {"transactional_id": f"run-{plan.seed}-{number}"} if number % 2 == 0 else {}
    op = writer.invoke("open")
    async with contextlib.AsyncExitStack() as opened:
        urls = places["coordinators"]
        coordinator = AsyncCoordinator(urls[number % len(urls)], max_backoff=1.0, **identity)
        await opened.enter_async_context(coordinator)
        clients = {
            name: await opened.enter_async_context(_client(name, places["clusters"][name], coordinator))
            for name in places["clusters"]
        }
        place = Place(plan, writer, coordinator, clients)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, place.stop.set)
        writer.ok(op)
        await _all(HopWork(place, hop, rng).run() for hop in plan.hops)
    writer.ok(writer.invoke("close"))


def _client(name: str, cluster: Mapping[str, str], coordinator: AsyncCoordinator) -> AsyncClient:
    options: dict[str, Any] = {"coordinator": coordinator, "cluster": name, "max_backoff": 1.0}
    if "token" in cluster:
        options |= {"authentication": TokenAuthentication(cluster["token"]), "tls_trust_certs_file": cluster["authority"]}
    return AsyncClient(cluster["url"], **options)


def main(arguments: Sequence[str]) -> None:
    """The program."""
    plan_file, places_file, number, incarnation, folder = arguments
    plan = plan_of(json.loads(Path(plan_file).read_text(encoding="utf-8")))
    places = json.loads(Path(places_file).read_text(encoding="utf-8"))
    asyncio.run(run(plan, places, int(number), int(incarnation), folder))


if __name__ == "__main__":
    main(sys.argv[1:])
