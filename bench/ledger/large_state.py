"""What a large state costs the embedded journal: checkpoints beside commits, restarts, snapshots, the space on disk.

    python bench/ledger/large_state.py [FOLDER]

Prints a line for each measurement: the longest time the loop was held, the latency of commits beside a checkpoint,
bytes and seconds.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.protocols import Snapshot

MIB = 1 << 20


class Block:
    """The longest time between two turns of the loop, in CPU seconds of this process, and in seconds."""

    def __init__(self) -> None:
        self.longest = self.longest_cpu = 0.0
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Block:
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    def __exit__(self, *exc: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        before, before_cpu = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0)
            now, now_cpu = time.perf_counter(), time.process_time()
            self.longest, self.longest_cpu = max(self.longest, now - before), max(self.longest_cpu, now_cpu - before_cpu)
            before, before_cpu = now, now_cpu


@contextmanager
def told(what: str) -> Iterator[None]:
    """Print how long it took."""
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.2f} s", flush=True)


def disk_bytes(folder: Path) -> int:
    """What the segments take, spares left out."""
    return sum(path.stat().st_size for path in folder.glob("segment-*"))


async def commits(store: JournalStore, until: asyncio.Event) -> list[float]:
    """Single records, each waited for: their latencies in seconds."""
    log = await store.open("commits")
    latencies: list[float] = []
    while not until.is_set():
        start = time.perf_counter()
        log.append(b"x" * 200)
        await log.flush()
        latencies.append(time.perf_counter() - start)
    await log.close()
    return sorted(latencies)


def say(name: str, latencies: list[float]) -> None:
    """Median, 99 % and longest."""
    middle, high = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    text = f"{middle * 1e3:.2f} ms, 99 % {high * 1e3:.2f} ms, longest {latencies[-1] * 1e3:.2f} ms"
    print(f"{name}: {len(latencies)} commits, median {text}", flush=True)


async def roll(store: JournalStore) -> None:
    """Fill what is left of the segment, so that the next one begins."""
    log = await store.open("filler")
    before = store.writer.planned_segment
    while store.writer.planned_segment == before:
        log.append(bytes(MIB))
        await log.flush()
    log.trim((log.ledger_id, log.next_entry))
    await log.close()


async def checkpoint_beside_commits(store: JournalStore, what: str) -> None:
    """One checkpoint from its beginning to its end, with commits all the time."""
    over = asyncio.Event()
    while not store.writer.checkpointing:  # the one before was long ago enough for another
        await roll(store)
    start, began = time.perf_counter(), store.writer.planned_segment
    with Block() as block:
        task = asyncio.ensure_future(commits(store, over))
        while store.state.usage.replay_from < began:  # noqa: ASYNC110 - a measurement from outside
            await asyncio.sleep(0.005)
        over.set()
        latencies = await task
    took = time.perf_counter() - start
    print(f"{what}: {took:.2f} s, {store.writer.checkpoint_bytes / MIB:.0f} MiB written meanwhile", flush=True)
    print(f"{what}: loop held {block.longest * 1e3:.1f} ms at most, {block.longest_cpu * 1e3:.1f} ms of CPU", flush=True)
    say(what, latencies)


async def large_state(folder: Path) -> None:
    """200 MB: ack sets of 1 KB, four million ranges, and small values."""
    store = JournalStore(folder)
    await store.start()
    over = asyncio.Event()
    task = asyncio.ensure_future(commits(store, over))
    await asyncio.sleep(2)
    over.set()
    say("no checkpoint", await task)
    log = await store.open("a")
    for _ in range(8_000_000 // 1000):
        for _ in range(1000):
            log.append(b"")
        await log.flush()
    with told("4,000,000 ranges acknowledged one by one"):
        ranges = await log.open_cursor("ranges")
        for first in range(1, 8_000_000, 2000):
            ranges.delete([(log.ledger_id, entry) for entry in range(first, first + 2000, 2)])
            await log.flush()
    print(f"their state: {ranges.state_bytes()} bytes, backlog {ranges.backlog()}", flush=True)
    with told("190,000 ack sets of 1 KB"):
        for number in range(190):
            cursor = await log.open_cursor(f"sets {number}")
            for entry in range(1, 1001):
                cursor.delete_indexes((log.ledger_id, entry), 1 << 7999, 8000)
            await log.flush()
    for number in range(0, 100_000, 1000):
        await asyncio.gather(*(store.metadata.put(f"/small/{number + more}", b"value" * 4) for more in range(1000)))
    await checkpoint_beside_commits(store, "checkpoint of about 200 MB")
    print(f"on disk: {disk_bytes(folder) / MIB:.0f} MiB, live {live(store) / MIB:.0f} MiB", flush=True)
    await store.close()
    with told("restart with that state"):
        store = JournalStore(folder)
        await store.start()
    assert (await (await store.open("a")).open_cursor("ranges")).backlog() == 4_000_000
    await store.close()


def live(store: JournalStore) -> int:
    """What is needed of the segments beside the checkpoint."""
    return sum(use.bytes for use in store.state.usage.segments.values())


async def snapshots(folder: Path) -> None:
    """40 MB in parts of 256 KiB, read again."""
    store = JournalStore(folder)
    await store.start()
    log = await store.open("a")
    parts = tuple(number.to_bytes(4, "little") * (64 << 10) for number in range(160))
    over = asyncio.Event()
    with Block() as block, told("snapshot of 40 MiB written beside commits"):
        task = asyncio.ensure_future(commits(store, over))
        writer = log.write_snapshot(log.last_confirmed)
        for part in parts:
            writer.write(part)
            await log.flush()
        writer.finish()
        await log.flush()
        over.set()
        say("snapshot of 40 MiB", await task)
    print(f"snapshot: loop held {block.longest * 1e3:.1f} ms at most, {block.longest_cpu * 1e3:.1f} ms of CPU", flush=True)
    await store.close()
    store = JournalStore(folder)
    with told("restart"):
        await store.start()
    log = await store.open("a")
    with Block() as block, told("snapshot of 40 MiB read"):
        assert await log.latest_snapshot() == Snapshot((log.ledger_id, -1), parts)
    print(f"reading it: loop held {block.longest * 1e3:.1f} ms at most", flush=True)
    await store.close()


async def a_million_records(folder: Path) -> None:
    """Recovery after 10**6 records on 100 logs."""
    store = JournalStore(folder)
    await store.start()
    logs = [await store.open(f"log {number}") for number in range(100)]
    for _ in range(10_000):
        for log in logs:
            log.append(b"x" * 200)
        await logs[0].flush()
    await store.close()
    with told("restart with 1,000,000 records of 200 bytes"):
        store = JournalStore(folder)
        await store.start()
    await store.close()


async def main() -> None:
    """All of it, each in a folder of its own."""
    parent = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="large-state-"))
    for number, measure in enumerate((snapshots, a_million_records, large_state)):
        folder = parent / str(number)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
        await measure(folder)
        shutil.rmtree(folder)


asyncio.run(main())
