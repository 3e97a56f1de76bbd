"""One driver: our client as a process of its own, against whatever server it is told; prints one line of JSON.

    python bench/driver.py txn   URL --in-flight 64 --sends 1 --acks 1 --pids PID …
    python bench/driver.py plain URL --size 100 --pids PID …

`txn`: transactions of so many 100-byte sends (batching off) and acknowledgements. One in flight: open, send, acknowledge,
commit, each waited for. More: sends and acknowledgements of a transaction leave together, then it commits. The input lies
there before, and receiving it is in no timed step. `plain`: batched sends, each with its own receipt; with `--encoded` batches
of 1,000 that were built before, which shows the server and not the client.

CPU is user and system time of the processes in `--pids` over the counted seconds, per transaction or message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from feeding import Input

from pulsar_txn.client import AsyncClient, AsyncProducer, ConsumerType, InitialPosition
from pulsar_txn.client.encoded import encode_batch

PAYLOAD = bytes(100)
PRODUCER_QUEUE = 20_000
CHUNK = 500


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of processes, nanoseconds where the kernel counts them."""
    total = 0.0
    for pid in pids:
        tasks = Path(f"/proc/{pid}/task")
        for task in list(tasks.iterdir()) if tasks.exists() else []:  # a helper may have ended meanwhile
            try:
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:  # a thread that ended meanwhile
                continue
    return total


def syncs(metrics_url: str | None) -> float | None:
    """Commit groups synced so far, as the server's metrics say; None when they do not."""
    if metrics_url is None:
        return None
    with urllib.request.urlopen(metrics_url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(("pulsar_txn_ledger_syncs_total", "bookie_journal_JOURNAL_SYNC_count")):
                return float(line.split()[-1])
    return None


class Window:
    """The counted seconds: begins when the warm-up is over."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.count = 0
        self.errors: list[str] = []
        self.latencies_ms: list[float] = []
        self.warm_until = time.perf_counter() + arguments.warm
        self.end = self.warm_until + arguments.seconds
        self.counting = False
        self.over = False
        self._start: tuple[float, float, float, float | None] = (0, 0, 0, None)
        self.result: dict[str, Any] = {}

    def _now(self) -> tuple[float, float, float, float | None]:
        made = syncs(self.arguments.metrics)
        return time.perf_counter(), cpu_seconds(self.arguments.pids), time.process_time(), made

    def done(self, count: int = 1, began: float | None = None, error: BaseException | None = None) -> None:
        """Something was carried out."""
        now = time.perf_counter()
        if error is not None:
            self.errors.append(repr(error))
            self.over = self.over or len(self.errors) > 100
        if not self.counting:
            if now >= self.warm_until:
                self.counting = True
                self._start = self._now()
                self.end = self._start[0] + self.arguments.seconds
            return
        if self.over:
            return
        self.count += count
        if began is not None:
            self.latencies_ms.append((now - began) * 1e3)
        if now >= self.end:
            self.stop()

    def stop(self) -> None:
        """The window is over: note what it cost."""
        if self.over or not self.counting:
            self.over = True
            return
        self.over = True
        end = self._now()
        seconds = end[0] - self._start[0]
        self.result = {
            "count": self.count,
            "seconds": seconds,
            "server_cpu": end[1] - self._start[1],
            "driver_cpu": end[2] - self._start[2],
            "syncs": None if end[3] is None or self._start[3] is None else end[3] - self._start[3],
        }


async def prefill(client: AsyncClient, topic: str, count: int) -> None:
    """Put `count` messages of one entry each into a topic."""
    async with client.create_producer(topic, batching=False, max_pending_messages=PRODUCER_QUEUE) as producer:
        for _ in range(count):
            await producer.wait_for_room()
            producer.send_nowait(PAYLOAD)
        await producer.flush()


async def one_transaction(
    client: AsyncClient, producer: AsyncProducer[bytes], inputs: Input, arguments: Any, window: Window
) -> bool:
    """One transaction; False when the input is used up."""
    messages = await inputs.take(arguments.acks)
    if arguments.acks and not messages:
        return False
    began = time.perf_counter()
    txn = await client.begin_transaction(timeout=60)
    if arguments.in_flight == 1:
        for _ in range(arguments.sends):
            await producer.send(PAYLOAD, txn=txn)
        if messages:
            await inputs.consumer.acknowledge(messages, txn=txn)
    else:
        tickets = [producer.send_nowait(PAYLOAD, txn=txn) for _ in range(arguments.sends)]
        if messages:
            await inputs.consumer.acknowledge(messages, txn=txn)
        for ticket in tickets:
            await ticket
    await txn.commit()
    window.done(1, began)
    return True


async def worker(client: AsyncClient, producer: AsyncProducer[bytes], inputs: Input, arguments: Any, window: Window) -> None:
    """One transaction after the other until the window is over."""
    try:
        while not window.over and await one_transaction(client, producer, inputs, arguments, window):
            pass
    except Exception as error:  # noqa: BLE001 - the run goes on and fails at its end
        window.done(error=error)


async def run_transactions(client: AsyncClient, arguments: argparse.Namespace) -> Window:
    """`txn`."""
    name = f"bench-{time.time_ns()}"
    consumer = await client.subscribe(
        f"{name}-in",
        "s",
        consumer_type=ConsumerType.SHARED,
        initial_position=InitialPosition.EARLIEST,
        receiver_queue_size=5000,
    )
    await prefill(client, f"{name}-in", arguments.input)
    producer = await client.create_producer(f"{name}-out", batching=False)
    window = Window(arguments)
    inputs = Input(consumer, arguments.input)
    await asyncio.gather(*(worker(client, producer, inputs, arguments, window) for _ in range(arguments.in_flight)))
    window.stop()
    return window


async def run_plain(client: AsyncClient, arguments: argparse.Namespace) -> Window:
    """`plain`."""
    payload = bytes(arguments.size)
    producer = await client.create_producer(f"bench-{time.time_ns()}-plain", max_pending_messages=2 * PRODUCER_QUEUE)
    per_batch = max(1, min(1000, (128 << 10) // (arguments.size + 20)))
    batch = encode_batch([payload] * per_batch)
    window = Window(arguments)

    room = asyncio.Semaphore(PRODUCER_QUEUE // CHUNK)
    count = per_batch if arguments.encoded else CHUNK  # receipts come in order: the last one of a chunk represents all

    def settled(ticket: asyncio.Future[Any]) -> None:
        room.release()
        window.done(count, error=None if ticket.cancelled() else ticket.exception())

    while not window.over:
        if arguments.encoded:
            await producer.wait_for_room()
            producer.send_encoded_nowait(batch).add_done_callback(settled)
        else:
            await room.acquire()
            for _ in range(CHUNK):
                ticket = producer.send_nowait(payload)
            ticket.add_done_callback(settled)
    await producer.flush()
    return window


async def run(arguments: argparse.Namespace) -> Window:
    """Connect and measure."""
    async with AsyncClient(arguments.url) as client:
        return await (run_transactions if arguments.what == "txn" else run_plain)(client, arguments)


def main() -> int:
    """Exit code 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["txn", "plain"])
    parser.add_argument("url")
    parser.add_argument("--pids", type=int, nargs="*", default=[])
    parser.add_argument("--metrics", help="the server's metrics, for syncs")
    parser.add_argument("--warm", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--sends", type=int, default=1)
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument("--input", type=int, default=50_000, help="messages to be acknowledged")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--encoded", action="store_true")
    arguments = parser.parse_args()
    try:
        import uvloop

        window = uvloop.run(run(arguments))
    except ImportError:
        window = asyncio.run(run(arguments))
    window.latencies_ms.sort()
    json.dump(window.result | {"errors": window.errors[:5], "latencies_ms": window.latencies_ms}, sys.stdout)
    return 1 if window.errors or not window.result else 0


if __name__ == "__main__":
    sys.exit(main())
