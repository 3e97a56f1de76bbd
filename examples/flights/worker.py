"""Settles flights: reads `flights`, writes a settlement and a posting for each, acknowledges it; a batch is one unit.

    transactional   sends and acknowledgements in one transaction of 5 s: the unit happens once, whole, whatever is killed
    ack-first       no transactions, acknowledges first: what is killed in between is lost
    send-first      no transactions, sends first: what is killed in between is done again, so it is doubled

In a transaction a worker needs no thought about the outcome of a unit: its messages are acknowledged exactly when its
results exist. So after every failure it does the same thing: it lets go of what it holds and takes what comes.

    python worker.py --url pulsar://… [--mode transactional] [--batch 100] [--units FILE] [--idle SECONDS --published FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crash import POINTS, CrashPoint
from data import Flight
from settle import Refusal, Settlement, settle
from topics import SUBSCRIPTION, Topics

from pulsar_txn.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncProducer,
    AsyncTransaction,
    CommitOutcomeUnknown,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    PulsarError,
    TransactionAborted,
)

TRANSACTION_SECONDS = 5.0
POLL_SECONDS = 0.2


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Worker:
    """One worker. `units`: a file that gets a line for every unit, done or not."""

    def __init__(self, client: AsyncClient, topics: Topics, mode: str, batch: int, units: Path, crash: CrashPoint) -> None:
        self._client = client
        self._topics = topics
        self._mode = mode
        self._batch = batch
        self._units = units.open("a", encoding="utf-8")
        self._crash = crash
        self._consumer: AsyncConsumer[bytes]
        self._settlements: AsyncProducer[bytes]
        self._postings: AsyncProducer[bytes]
        self._refused: AsyncProducer[bytes]
        self.stopping = False

    async def run(self, idle_seconds: float, published: Callable[[], bool]) -> None:
        """Work until `stopping`, or until nothing has come for `idle_seconds` over a working connection.

        Idleness counts only once `published` says that all flights are there.
        """
        self._settlements = await self._client.create_producer(self._topics.settlements, send_timeout=0)
        self._postings = await self._client.create_producer(self._topics.postings, send_timeout=0)
        self._refused = await self._client.create_producer(self._topics.refused, send_timeout=0)
        await self._subscribe()
        idle_since = time.monotonic()
        while not self.stopping and time.monotonic() - idle_since < idle_seconds:
            messages = await self._consumer.receive_many(self._batch, max_wait=POLL_SECONDS)
            if messages:
                await self._unit(messages)
            if messages or not self._consumer.is_connected or not published():
                idle_since = time.monotonic()

    async def _subscribe(self) -> None:
        self._consumer = await self._client.subscribe(
            self._topics.flights,
            SUBSCRIPTION,
            consumer_type=ConsumerType.SHARED,
            initial_position=InitialPosition.EARLIEST,
            receiver_queue_size=1000,
        )

    async def _unit(self, messages: Sequence[Message[bytes]]) -> None:
        settled = [settle(Flight(**json.loads(message.data))) for message in messages]
        line: dict[str, Any] = {"begin_ms": now_ms(), "flights": len(messages), "txn_id": None}
        try:
            if self._mode == "transactional":
                await self._in_transaction(messages, settled, line)
            elif self._mode == "ack-first":
                await self._ack_first(messages, settled, line)
            else:
                await self._send_first(messages, settled, line)
            line["outcome"] = "done"
        except CommitOutcomeUnknown as error:
            line["outcome"] = f"unknown: {error}"
            await self._let_go()
        except TransactionAborted as error:  # a conflict, a timeout, a lost connection: an ordinary abort
            line["outcome"] = f"aborted: {type(error).__name__}: {error}"
            await self._let_go()
        except PulsarError as error:
            line["outcome"] = f"failed: {type(error).__name__}: {error}"
            await self._let_go()
        line["end_ms"] = now_ms()
        self._units.write(json.dumps(line) + "\n")
        self._units.flush()

    async def _in_transaction(
        self, messages: Sequence[Message[bytes]], settled: Sequence[Settlement | Refusal], line: dict[str, Any]
    ) -> None:
        async with self._client.transaction(timeout=TRANSACTION_SECONDS) as txn:
            acknowledging = asyncio.ensure_future(self._consumer.acknowledge(messages, txn=txn))
            try:
                await self._send(settled, line, txn)
            finally:
                line["txn_id"] = None if txn.id is None else str(txn.id)  # it has one since its first operation
                await acknowledging
            self._crash.reached(**_in_flight(settled, line, "sent and acknowledged in it, END_TXN not sent"))

    async def _ack_first(
        self, messages: Sequence[Message[bytes]], settled: Sequence[Settlement | Refusal], line: dict[str, Any]
    ) -> None:
        await self._consumer.acknowledge(messages, receipt=True)
        self._crash.reached(**_in_flight(settled, line, "acknowledged, not sent"))
        await self._send(settled, line, None)

    async def _send_first(
        self, messages: Sequence[Message[bytes]], settled: Sequence[Settlement | Refusal], line: dict[str, Any]
    ) -> None:
        await self._send(settled, line, None)
        self._crash.reached(**_in_flight(settled, line, "sent, not acknowledged"))
        await self._consumer.acknowledge(messages, receipt=True)

    async def _send(self, settled: Sequence[Settlement | Refusal], line: dict[str, Any], txn: AsyncTransaction | None) -> None:
        tickets = []
        for each in settled:
            await self._settlements.wait_for_room()
            if isinstance(each, Refusal):
                self._refused.send_nowait(json.dumps(each.message()).encode(), txn=txn)
                continue
            tickets.append(self._settlements.send_nowait(json.dumps(each.message()).encode(), txn=txn))
            self._postings.send_nowait(json.dumps(each.posting()).encode(), key=each.carrier, txn=txn)
        await asyncio.gather(self._settlements.flush(), self._postings.flush(), self._refused.flush())
        if tickets:
            last: MessageId = await tickets[-1]
            line["stored"] = [last.ledger_id, last.entry_id]
            line["stored_ms"] = now_ms()

    async def _let_go(self) -> None:
        """Close the consumer and subscribe again: what is not acknowledged comes again, and nothing else."""
        await self._consumer.close()
        await self._subscribe()


def _in_flight(settled: Sequence[Settlement | Refusal], line: dict[str, Any], done: str) -> dict[str, Any]:
    known = {key: line[key] for key in ("txn_id", "stored", "stored_ms") if line.get(key) is not None}
    return {**known, "flights": [each.id for each in settled], "done": done}


async def work(given: argparse.Namespace) -> None:
    """From the arguments to the end."""
    async with AsyncClient(given.url, operation_timeout=60.0, max_backoff=1.0) as client:
        crash = CrashPoint(POINTS[given.mode], os.environ)
        worker = Worker(client, Topics(given.prefix), given.mode, given.batch, given.units, crash)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, worker, "stopping", True)
        await worker.run(given.idle, given.published.exists)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--mode", choices=sorted(POINTS), default="transactional")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--units", type=Path, default=Path(os.devnull))
    parser.add_argument("--idle", type=float, default=float("inf"))
    parser.add_argument("--published", type=Path, default=Path(os.devnull))
    asyncio.run(work(parser.parse_args()))
    sys.stdout.write("nothing more to do\n")


if __name__ == "__main__":
    main()
