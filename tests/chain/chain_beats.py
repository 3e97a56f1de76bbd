"""What a worker with a transactional id does beside its hops: it takes the id over, and beats.

Beats are small transactions on a topic of the worker's own, and one of them is nearly always open. So each successor finds
something to end, and each predecessor that lives on has something to go on with. Only incarnations of the worker write there:
what a successor reads when it has taken over is what is there for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import threading
from typing import Any, Final

from chain_recorder import TIMEOUT, Transactions, note_sent, position_of
from chain_styles import resolved
from history_format import HistoryWriter, decode_payload, encode_payload, make_payload

from pulsar_txn.client import AsyncClient, AsyncProducer, AsyncTransaction, CommitOutcomeUnknown, PulsarError
from pulsar_txn.client import sync as blocking
from pulsar_txn.client.errors import TransactionFenced

SIZE: Final = 3
"""Messages of a beat."""
PAUSES: Final = (0.05, 0.15, 0.3)
"""Seconds between the steps of a beat."""
ABORTED: Final = 0.15
AGAIN_SECONDS: Final = 0.2
OPEN: Final = "has taken over"
REFUSED: Final = "was refused"
"""What a worker prints, so that the run knows when a predecessor may go."""


async def taken_over(client: AsyncClient, writer: HistoryWriter, name: str, stop: asyncio.Event) -> list[object] | None:
    """Take a transactional id over, until it is answered; the identity, or None when the worker is to stop before.

    Raises TransactionFenced when a successor was quicker.
    """
    while not stop.is_set():
        op = writer.invoke("open", transactional_id=name)
        try:
            epoch = await client.take_over()
        except PulsarError as error:
            _not_opened(writer, op, error)
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return _opened(writer, op, name, epoch)
    return None


def taken_over_by_thread(
    client: blocking.Client, writer: HistoryWriter, name: str, stop: threading.Event
) -> list[object] | None:
    """The same with the blocking client."""
    while not stop.is_set():
        op = writer.invoke("open", transactional_id=name)
        try:
            epoch = client.take_over()
        except PulsarError as error:
            _not_opened(writer, op, error)
            stop.wait(AGAIN_SECONDS)
        else:
            return _opened(writer, op, name, epoch)
    return None


def _opened(writer: HistoryWriter, op: int, name: str, epoch: int) -> list[object]:
    identity = ["transactional_id", name, epoch]
    writer.ok(op, identity=identity)
    print(f"{writer.process} {OPEN} {name}", flush=True)
    return identity


def _not_opened(writer: HistoryWriter, op: int, error: PulsarError) -> None:
    """Note that it is to be asked for again; raise what says that this is of no use."""
    writer.info(op, error=repr(error))
    print(f"{writer.process}: {error!r}", file=sys.stderr, flush=True)
    if isinstance(error, TransactionFenced):
        raise error


async def read_beats(client: AsyncClient, writer: HistoryWriter, topic: str, stop: asyncio.Event) -> None:
    """Read all beats that are there; from the first one again when the broker goes in between."""
    for attempt in itertools.count():
        name = f"{writer.process}.{attempt}"
        op = writer.invoke("final_read", topic=topic, partition=-1, reader=name)
        try:
            async with await client.create_reader(topic) as reader:
                while await reader.has_message_available():
                    message = await reader.read_next(10)
                    where = {"topic": topic, "partition": -1, "subscription": None, "consumer": None, "reader": name}
                    found = {"position": position_of(message.message_id), "payload": decode_payload(message.data)}
                    writer.event("deliver", **where, **found, redeliveries=0)
        except PulsarError as error:
            writer.info(op, error=repr(error))
            if stop.is_set():
                return
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            writer.ok(op)
            return


class Beats:
    """The beats of one incarnation."""

    def __init__(
        self,
        client: AsyncClient,
        writer: HistoryWriter,
        transactions: Transactions,
        topic: str,
        rng: random.Random,
        stop: asyncio.Event,
    ) -> None:
        self._client = client
        self._writer = writer
        self._transactions = transactions
        self._topic = topic
        self._rng = rng
        self._stop = stop
        self._seqs = itertools.count()

    async def run(self) -> None:
        """Until it is to stop; a predecessor as well, to which nothing succeeds."""
        while not self._stop.is_set():
            try:
                async with await self._client.create_producer(self._topic, batching=False) as producer:
                    while not self._stop.is_set():
                        await self._beat(producer)
            except PulsarError as error:
                print(f"{self._writer.process} beats: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _beat(self, producer: AsyncProducer[bytes]) -> None:
        name = self._transactions.begin(TIMEOUT)
        try:
            txn = await self._client.begin_transaction(timeout=TIMEOUT, name=name)
        except PulsarError as error:
            self._transactions.failed(name)
            self._note(error)
            await asyncio.sleep(AGAIN_SECONDS)
            return
        for number in range(SIZE):
            await self._send(producer, txn, name, number)
            await asyncio.sleep(self._rng.choice(PAUSES))
        try:
            await (txn.abort if self._rng.random() < ABORTED else txn.commit)()
        except CommitOutcomeUnknown as unknown:
            await resolved(unknown, self._stop)
        except PulsarError as error:
            self._transactions.gave_up(txn)
            self._note(error)

    async def _send(self, producer: AsyncProducer[bytes], txn: AsyncTransaction, name: str, number: int) -> None:
        """After a failure the next one is sent all the same."""
        source, seq = f"{self._writer.process}.beat", next(self._seqs)
        payload = make_payload(source, seq, txn=name, i=number, n=SIZE, parts=[[self._topic, -1]]) | {"root": [source, seq]}
        where: dict[str, Any] = {"topic": self._topic, "partition": -1, "producer": source, "seq": seq, "txn": name}
        op = self._writer.invoke("send", **where, payload=payload)
        try:
            message_id = await producer.send(encode_payload(payload), txn=txn)
        except PulsarError as error:
            self._writer.info(op, error=repr(error))
            self._note(error)
        else:
            note_sent(self._writer, op, message_id)

    def _note(self, error: PulsarError) -> None:
        if isinstance(error, TransactionFenced):
            print(f"{self._writer.process} {REFUSED}", flush=True)
