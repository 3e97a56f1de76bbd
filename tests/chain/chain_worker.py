"""One process of the chain: works on all hops of its chain until SIGTERM, or until it is killed.

    python chain_worker.py PHASE.json WORKER INCARNATION FOLDER SERVICE_URL

What it does is in the history file `<WORKER>.<INCARNATION>.jsonl` of the folder; the sync style has a file of its own.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import random
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from chain_beats import Beats, read_beats, taken_over, taken_over_by_thread
from chain_recorder import SUBSCRIPTION, HopRecorder, Transactions
from chain_schedule import Hop, Worker, batches_by_key, phase_of
from chain_settling import Settling
from chain_styles import CHECK_GROUP, STYLES, Place, blocking_single, outcome_of
from history_format import HistoryWriter

from pulsar_txn.client import AsyncClient, BatchingType, ConsumerType, InitialPosition, PulsarError
from pulsar_txn.client import sync as blocking
from pulsar_txn.client.errors import FeatureUnsupported

LANES: Final = {"single": 2, "interleaved": 1, "batch": 2, "received": 2, "pipeline": 1}
"""How many of a style work at once on one consumer."""
CLIENT: Final[dict[str, Any]] = {"operation_timeout": 10.0}
REOPEN_SECONDS: Final = 0.2
"""Before an Exclusive subscription that somebody else has is asked for again, or a consumer that ended is made again."""
_TYPES: Final = {each.name.lower(): each for each in ConsumerType}


class WorkerProcess:
    """The hops of one process."""

    def __init__(self, worker: Worker, hops: tuple[Hop, ...], incarnation: int, folder: Path, url: str) -> None:
        self._worker = worker
        self._hops = hops
        self._name = f"{worker.name}.{incarnation}"
        self._folder = folder
        self._url = url
        self._rng = random.Random(f"{worker.seed} {incarnation}")
        self._stop = asyncio.Event()
        self._stop_threads = threading.Event()
        self._checks = False

    async def run(self) -> None:
        """Until SIGTERM."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        writer = HistoryWriter(self._folder, self._name)
        transactions = Transactions(writer)
        beats = self._worker.beats
        name = None if beats is None else self._worker.name
        async with AsyncClient(self._url, transactional_id=name, **CLIENT) as client, asyncio.TaskGroup() as group:
            client.add_observer(transactions)
            if beats is not None:
                await self._take_over(client, writer, transactions, beats)
                for kind in (Beats, Settling):
                    own = kind(client, writer, transactions, beats, random.Random(self._rng.random()), self._stop)
                    group.create_task(own.run())
            await self._join(client)
            for hop, style in zip(self._hops, self._worker.styles, strict=True):
                if style == "sync":
                    thread = asyncio.to_thread(self._work_in_thread, hop)
                    group.create_task(thread)
                else:
                    group.create_task(self._work(client, hop, style, writer, transactions))
        writer.ok(writer.invoke("close"))

    async def _join(self, client: AsyncClient) -> None:
        """Become a member of the check group; the broker may be away for longer than one attempt waits."""
        while not (self._checks or self._stop.is_set()):
            try:
                await client.join_check_group(CHECK_GROUP, outcome_of)
                self._checks = True
            except FeatureUnsupported as error:  # stock's own coordinators ask nobody
                print(f"{self._name}: nothing is prepared: {error}", file=sys.stderr, flush=True)
                return
            except PulsarError as error:
                print(f"{self._name}: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(REOPEN_SECONDS)

    async def _take_over(self, client: AsyncClient, writer: HistoryWriter, transactions: Transactions, beats: str) -> None:
        identity = await taken_over(client, writer, self._worker.name, self._stop)
        if identity is not None:
            transactions.identity = {"identity": identity}
            await read_beats(client, writer, beats, self._stop)

    def stop(self) -> None:
        """Finish what is under way, and end."""
        self._stop.set()
        self._stop_threads.set()

    async def _work(self, client: AsyncClient, hop: Hop, style: str, writer: HistoryWriter, transactions: Transactions) -> None:
        lanes = [HopRecorder(writer, hop, f"{hop.source[-1]}{number}") for number in range(LANES[style])]
        while not self._stop.is_set():
            op, joined = lanes[0].subscribing(), False
            try:
                async with await client.subscribe(hop.source, SUBSCRIPTION, **_consumer_options(hop)) as consumer:
                    writer.ok(op)
                    joined = True
                    async with await client.create_producer(hop.target, **_producer_options(hop)) as producer:
                        place = Place(client, consumer, producer, transactions, self._stop, checks=self._checks)
                        await _all(STYLES[style](place, lane, self._rng) for lane in lanes)
            except PulsarError as error:
                if not joined:
                    writer.info(op, error=repr(error))
                print(f"{self._name} {hop.source[-1]} {style}: {error!r}", file=sys.stderr, flush=True)
                await asyncio.sleep(REOPEN_SECONDS)

    def _work_in_thread(self, hop: Hop) -> None:
        writer = HistoryWriter(self._folder, f"{self._name}-{hop.source[-1]}")
        recorder = HopRecorder(writer, hop, f"{hop.source[-1]}0")
        rng = random.Random(self._rng.random())
        name = f"{self._worker.name}-{hop.source[-1]}" if self._worker.beats is not None else None
        with blocking.Client(self._url, transactional_id=name, **CLIENT) as client:
            if name is not None:
                identity = taken_over_by_thread(client, writer, name, self._stop_threads)
                recorder.identity = {"identity": identity} if identity is not None else {}
            while not self._stop_threads.is_set():
                op, joined = recorder.subscribing(), False
                try:
                    with client.subscribe(hop.source, SUBSCRIPTION, **_consumer_options(hop)) as consumer:
                        writer.ok(op)
                        joined = True
                        with client.create_producer(hop.target, **_producer_options(hop)) as producer:
                            blocking_single(client, consumer, producer, recorder, rng, self._stop_threads)
                except PulsarError as error:
                    if not joined:
                        writer.info(op, error=repr(error))
                    print(f"{self._name} {hop.source[-1]} sync: {error!r}", file=sys.stderr, flush=True)
                    self._stop_threads.wait(REOPEN_SECONDS)


async def _all(work: Any) -> None:
    """Run all; when one fails the others are cancelled, and its error is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _consumer_options(hop: Hop) -> dict[str, Any]:
    kind = _TYPES[hop.mode.lower()]
    return {"consumer_type": kind, "initial_position": InitialPosition.EARLIEST, "receiver_queue_size": 50}


def _producer_options(hop: Hop) -> dict[str, Any]:
    by_key = batches_by_key(hop.next_mode)
    return {"batching": hop.batched, "batching_type": BatchingType.KEY_BASED if by_key else BatchingType.DEFAULT}


def main(arguments: list[str]) -> None:
    """The program."""
    phase_file, name, incarnation, folder, url = arguments
    faulthandler.register(signal.SIGUSR1)
    phase = phase_of(json.loads(Path(phase_file).read_text(encoding="utf-8")))
    worker = next(each for each in phase.workers if each.name == name)
    process = WorkerProcess(worker, phase.chain_of(worker).hops, int(incarnation), Path(folder), url)
    work: Coroutine[Any, Any, None] = process.run()
    asyncio.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
