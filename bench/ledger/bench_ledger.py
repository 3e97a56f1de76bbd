"""Repeats the table by which the journal was chosen, for the journal as it was built.

    python bench/ledger/bench_ledger.py [--folder DIR] [--seconds 1.0] [--only NAME ...]

An operation is three dependent 200-byte records on three of 96 logs; 64 clients. `bare` is one process that writes
12 KiB and syncs, over and over: what the disk gave in the same minute. CPU is of this process, not of the helper.
"""

# ruff: noqa: D102, D103 - rows are named by what they measure

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.journal.files import RealFiles, Syncer, ThreadSyncer
from pulsar_txn.wire.ids import Position

CLIENTS, LOGS, RECORD_BYTES = 64, 96, 200


class Waiting:
    """Futures by position, resolved by the log's confirmations."""

    def __init__(self, log) -> None:
        self.log = log
        self.waiting: list[tuple[Position, asyncio.Future[None]]] = []
        log.listen(self)

    def append(self, data: bytes) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((self.log.append(data), future))
        return future

    def log_confirmed(self, position: Position) -> None:
        done = 0
        for at, future in self.waiting:
            if at > position:
                break
            done += 1
            if not future.done():
                future.set_result(None)
        del self.waiting[:done]

    def log_failed(self, error: Exception) -> None:
        raise SystemExit(f"storage failed: {error}")


class Stalls:
    """How late a 1 ms timer comes."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + 0.001
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        self.late_ms.append((now - self._due) * 1e3)
        self._due = now + 0.001
        self._handle = self._loop.call_at(self._due, self._tick)

    def p99(self) -> float:
        self._handle.cancel()
        return percentile(self.late_ms, 99)


class Busy:
    """Other work on the loop: slices of `low_us`..`high_us`, `share` of the time."""

    def __init__(self, share: float, low_us: float, high_us: float) -> None:
        self._share, self._low, self._high = share, low_us / 1e6, high_us / 1e6
        self._loop = asyncio.get_running_loop()
        self._rng = random.Random(3)
        self._idle = 0.0
        self._done = False
        self.worked = 0.0
        self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        if self._done:
            return
        length = self._rng.uniform(self._low, self._high)
        end = time.perf_counter() + length
        while time.perf_counter() < end:
            pass
        self.worked += length
        self._idle += length * (1 - self._share) / self._share
        if self._idle > 0.002:  # timers of the loop are not finer than a millisecond
            self._idle, pause = 0.0, self._idle
            self._loop.call_later(pause, self._slice)
        else:
            self._loop.call_soon(self._slice)

    def stop(self) -> None:
        self._done = True


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def bare_sync_ms(folder: Path, count: int = 300) -> float:
    """Median of writing 12 KiB into a zero-filled file and syncing it."""
    path = folder / "bare"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, bytes(16 << 20))
    os.fsync(fd)
    data, times = os.urandom(12 << 10), []
    for number in range(count):
        start = time.perf_counter()
        os.pwrite(fd, data, number * (12 << 10))
        os.fdatasync(fd)
        times.append((time.perf_counter() - start) * 1e3)
    os.close(fd)
    path.unlink()
    return statistics.median(times)


class ThreadFiles(RealFiles):
    """Real files, synced by a thread: what happens where no process can be started."""

    def start_syncer(self, on_death: Callable[[], None]) -> Syncer:
        return ThreadSyncer(on_death)


class Bench:
    """One store in a fresh folder per row."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds

    async def fresh(self, **options) -> JournalStore:
        shutil.rmtree(self.folder / "journal", ignore_errors=True)
        store = JournalStore(self.folder / "journal", **options)
        await store.start()
        while store.segment_files.ready_count < 2:  # noqa: ASYNC110 - the files are made by another process
            await asyncio.sleep(0.02)
        return store

    async def operations(self, name: str, busy: tuple[float, float, float] | None = None, **options) -> str:
        store = await self.fresh(**options)
        logs = [Waiting(await store.open(f"log-{number}")) for number in range(LOGS)]
        record, times, rng = os.urandom(RECORD_BYTES), [], random.Random(1)
        loop = asyncio.get_running_loop()
        stop = loop.time() + 0.3 + self.seconds
        begin = loop.time() + 0.3

        async def client() -> None:
            while (start := loop.time()) < stop:
                for log in rng.sample(logs, 3):
                    await log.append(record)
                if start >= begin:
                    times.append((loop.time() - start) * 1e3)

        work = Busy(*busy) if busy else None
        tasks = [asyncio.ensure_future(client()) for _ in range(CLIENTS)]
        await asyncio.sleep(0.3)
        syncs, cpu, worked, stalls = store.sync_count, time.process_time(), work.worked if work else 0.0, Stalls()
        start = loop.time()
        await asyncio.sleep(max(0, stop - start))
        elapsed = loop.time() - start
        cpu = time.process_time() - cpu - ((work.worked - worked) if work else 0)
        syncs = store.sync_count - syncs
        stall = stalls.p99()
        if work:
            work.stop()
        await asyncio.gather(*tasks)
        await store.close()
        ops = len(times) / elapsed
        return (
            f"{name:34} {ops:9.0f} ops/s  {ops * 3:9.0f} records/s  p50 {percentile(times, 50):6.2f} ms  "
            f"p99 {percentile(times, 99):7.2f} ms  stall p99 {stall:6.2f} ms  {syncs / elapsed:6.0f} syncs/s  "
            f"{cpu / max(1, len(times)) * 1e6:5.1f} us CPU/op"
        )

    async def idle(self) -> str:
        return await self.operations("idle loop")

    async def busy_70(self) -> str:
        return await self.operations("70 % busy, 50-200 us", (0.7, 50, 200))

    async def busy_95(self) -> str:
        return await self.operations("95 % busy, 50-200 us", (0.95, 50, 200))

    async def busy_95_fine(self) -> str:
        return await self.operations("95 % busy, 15-35 us", (0.95, 15, 35))

    async def busy_95_thread(self) -> str:
        return await self.operations("95 % busy, 50-200 us, thread", (0.95, 50, 200), files=ThreadFiles())

    async def sequential(self) -> str:
        store = await self.fresh()
        log, record, times = Waiting(await store.open("a")), os.urandom(RECORD_BYTES), []
        stop = time.perf_counter() + self.seconds
        while (start := time.perf_counter()) < stop:
            await log.append(record)
            times.append((time.perf_counter() - start) * 1e3)
        await store.close()
        return f"{'sequential append':34} p50 {percentile(times, 50):.3f} ms  p99 {percentile(times, 99):.3f} ms"

    async def thousand_logs(self) -> str:
        store = await self.fresh()
        logs = [await store.open(f"log-{number}") for number in range(1000)]
        record, count, cpu, start = os.urandom(RECORD_BYTES), 0, time.process_time(), time.perf_counter()
        while time.perf_counter() - start < self.seconds:
            for log in logs:
                log.append(record)
            await store.durable()
            count += len(logs)
        rate, cpu = count / (time.perf_counter() - start), time.process_time() - cpu
        await store.close()
        return f"{'1,000 logs round robin':34} {rate:9.0f} records/s  {cpu / count * 1e6:5.2f} us CPU/record"

    async def append_cost(self) -> str:
        store = await self.fresh()
        log, record = await store.open("a"), os.urandom(RECORD_BYTES)
        cpu, count = time.process_time(), 0
        for _ in range(1500):
            for _ in range(60):
                log.append(record)
            await store.durable()
            count += 60
        append = (time.process_time() - cpu) / count * 1e6
        cursor = await log.open_cursor("sub")
        positions = [((log.ledger_id, entry),) for entry in range(log.next_entry)]
        cpu = time.process_time()
        for position in positions:
            cursor.delete(position)
        delete = (time.process_time() - cpu) / len(positions) * 1e6
        await store.close()
        return f"{'append + confirm, groups of 60':34} {append:5.2f} us CPU/append   Cursor.delete {delete:5.2f} us"

    async def bulk(self, size: int, in_flight: int, name: str) -> str:
        store = await self.fresh()
        log, data = Waiting(await store.open("a")), os.urandom(size)
        total, stalls, start = 0, Stalls(), time.perf_counter()
        waiting = [log.append(data) for _ in range(in_flight)]
        while time.perf_counter() - start < self.seconds:
            await waiting.pop(0)
            total += size
            waiting.append(log.append(data))
            log.log.trim((log.log.ledger_id, max(0, log.log.next_entry - 1 - (48 << 20) // size)))
        elapsed = time.perf_counter() - start
        await asyncio.gather(*waiting)
        stall = stalls.p99()
        await store.close()
        return f"{'bulk, ' + name:34} {total / elapsed / 1e6:7.0f} MB/s  stall p99 {stall:6.2f} ms"

    async def bulk_10k(self) -> str:
        return await self.bulk(10_000, 256, "10 KB entries")

    async def bulk_100k(self) -> str:
        return await self.bulk(100_000, 64, "100 KB entries")

    async def bulk_5m(self) -> str:
        return await self.bulk(5 << 20, 8, "5 MiB entries")

    async def trim(self) -> str:
        store = await self.fresh()
        log, data = await store.open("a"), os.urandom(2000)
        window = 100_000_000 // len(data)
        rates, longest = [], 0.0
        for _ in range(20):
            start = time.perf_counter()
            for number in range(window):
                log.append(data)
                if number % 256 == 255:
                    if log.next_entry > window:
                        began = time.perf_counter()
                        log.trim((log.ledger_id, log.next_entry - window))
                        longest = max(longest, time.perf_counter() - began)
                    await store.durable()
            rates.append(100 / (time.perf_counter() - start))
        size = sum(path.stat().st_size for path in (self.folder / "journal").iterdir())
        await store.close()
        first, last = statistics.median(rates[1:5]), statistics.median(rates[-4:])
        return (
            f"{'trim, 100 MB live x 20':34} {first:5.0f} -> {last:5.0f} MB/s  files {size / 1e6:5.0f} MB  "
            f"longest trim call {longest * 1e3:.2f} ms"
        )

    async def recovery(self, name: str, count: int, size: int) -> str:
        store = await self.fresh()
        logs, data = [await store.open(f"log-{number}") for number in range(96)], os.urandom(size)
        for number in range(count):
            logs[number % 96].append(data)
            if store.bytes_in_flight > 2 << 20 if size > 5000 else number % 64 == 63:
                await store.durable()
        await store.close()
        start = time.perf_counter()
        store = JournalStore(self.folder / "journal")
        await store.start()
        warm = time.perf_counter() - start
        entries = sum(log.next_entry for log in store.state.logs.values())
        await store.close()
        for path in (self.folder / "journal").iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        start = time.perf_counter()
        store = JournalStore(self.folder / "journal")
        await store.start()
        cold = time.perf_counter() - start
        await store.close()
        assert entries == count
        return f"{'recovery, ' + name:34} warm {warm:5.2f} s  cold {cold:5.2f} s"

    async def recovery_small(self) -> str:
        return await self.recovery("1 M x 200 B", 1_000_000, 200)

    async def recovery_large(self) -> str:
        return await self.recovery("1 GiB of 10 KB", 107_000, 10_000)

    async def reads(self) -> str:
        store = await self.fresh(cache_bytes=0)
        logs = [await store.open(f"log-{number}") for number in range(8)]
        for number in range(80_000):
            logs[number % 8].append(os.urandom(RECORD_BYTES))
            if number % 512 == 511:
                await store.durable()
        await store.durable()
        rng, count, start = random.Random(2), 0, time.perf_counter()
        while time.perf_counter() - start < self.seconds:
            log = rng.choice(logs)
            count += len(await log.read((log.ledger_id, rng.randrange(9_800)), max_entries=100))
        rate = count / (time.perf_counter() - start)
        await store.close()
        return f"{'reads from segments, 100 a call':34} {rate:9.0f} entries/s"


ROWS = [
    "append_cost", "sequential", "idle", "busy_70", "busy_95", "busy_95_fine", "busy_95_thread", "thousand_logs",
    "bulk_10k", "bulk_100k", "bulk_5m", "trim", "reads", "recovery_small", "recovery_large",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("bench-ledger-data"))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=ROWS, default=ROWS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.folder, arguments.seconds)
    try:
        for name in arguments.only:
            row: Callable[[], Awaitable[str]] = getattr(bench, name)
            bare, load = bare_sync_ms(arguments.folder), os.getloadavg()[0]
            print(f"{asyncio.run(row())}   [bare {bare:.2f} ms, load {load:.1f}]", flush=True)  # type: ignore[arg-type]
    finally:
        shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
