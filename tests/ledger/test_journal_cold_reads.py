"""A read of what is not in memory does not hold the loop: it is fetched, and asked for again."""

import asyncio
import os
import random
from itertools import pairwise

import pytest
from journal_world import simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal.files import RealFiles
from pulsar_txn.ledger.protocols import LogClosed, LogDamaged

ALWAYS = 1 << 60


async def filled(store, count=20):
    log = await store.open("a")
    for number in range(count):
        log.append(b"%d" % number)
    await log.flush()
    return log


async def test_others_go_on_while_something_is_fetched():
    files, turns = SimulatedFiles(), 0
    async with simulated_store(files, cache_bytes=0) as store:
        log = await filled(store)
        files.misses = 5
        reading = asyncio.create_task(log.read((log.ledger_id, 3), max_entries=4))
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert [data for _, data in await reading] == [b"3", b"4", b"5", b"6"]
        assert turns > 5
        assert not files.misses


async def test_a_disk_that_takes_long_is_waited_for():
    files = SimulatedFiles()
    async with simulated_store(files, cache_bytes=0) as store:
        log = await filled(store)
        files.misses = ALWAYS
        assert await log.read((log.ledger_id, 19)) == [((log.ledger_id, 19), b"19")]
        files.misses = 0


async def test_what_is_trimmed_while_it_is_fetched_is_passed_over_and_no_damage():
    files = SimulatedFiles()
    async with simulated_store(files, cache_bytes=0) as store:
        log = await filled(store)
        files.misses = ALWAYS
        reading = asyncio.create_task(log.read((log.ledger_id, 3), max_entries=2))
        await asyncio.sleep(0)
        log.trim((log.ledger_id, 10))
        files.misses = 0
        assert [position[1] for position, _ in await reading] == [10, 11]
        assert log.state.damage is None
        files.misses = ALWAYS
        reading = asyncio.create_task(log.read((log.ledger_id, 12)))
        await asyncio.sleep(0)
        log.trim((log.ledger_id, 20))
        files.misses = 0
        assert await reading == []


async def test_a_log_that_is_closed_while_something_is_fetched_says_so():
    files = SimulatedFiles()
    async with simulated_store(files, cache_bytes=0) as store:
        log = await filled(store)
        files.misses = ALWAYS
        reading = asyncio.create_task(log.read((log.ledger_id, 3)))
        await asyncio.sleep(0)
        files.misses = 0
        await log.close()
        with pytest.raises(LogClosed):
            await reading


async def test_damage_is_found_in_what_was_fetched_too():
    files = SimulatedFiles()
    async with simulated_store(files, cache_bytes=0) as store:
        log = await store.open("a")
        log.append(b"something to be found on the disk")
        await log.flush()
        for file in files.files.values():
            at = bytes(file.content).find(b"something to be found")
            if at >= 0:
                file.content[at] ^= 1
        files.misses = 3
        with pytest.raises(LogDamaged):
            await log.read((log.ledger_id, 0))


@pytest.mark.parametrize("seed", range(20))
async def test_reads_beside_appends_and_trims_give_what_was_written(seed):
    rng, files = random.Random(seed), SimulatedFiles()
    async with simulated_store(files, cache_bytes=0) as store:
        log = await filled(store)
        written = 20

        async def read_some():
            start, most = rng.randrange(written), rng.randint(1, 30)
            entries = await log.read((log.ledger_id, start), max_entries=most, max_bytes=rng.choice([1, 50, 10_000]))
            assert all(data == b"%d" % position[1] for position, data in entries)
            numbers = [position[1] for position, _ in entries]
            assert all(number >= start for number in numbers)
            assert all(later == number + 1 for number, later in pairwise(numbers))

        for _ in range(60):
            files.misses = rng.choice([0, 0, 1, 2, 7])
            reads = [asyncio.create_task(read_some()) for _ in range(rng.randint(1, 4))]
            for _ in range(rng.randint(0, 5)):
                log.append(b"%d" % written)
                written += 1
            if rng.random() < 0.3:
                log.trim((log.ledger_id, rng.randint(0, written)))
            await asyncio.gather(*reads)
            if rng.random() < 0.5:
                await log.flush()
        assert log.state.damage is None


async def test_real_files_say_what_is_not_in_memory_and_fetch_it(tmp_path):
    files, content = RealFiles(), os.urandom(1 << 20)
    path = tmp_path / "file"
    path.write_bytes(content)
    fd = files.open(str(path))
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for offset, size in [(0, 4096), (5000, 300_000), ((1 << 20) - 100, 100), ((1 << 20) - 100, 16_384), (1 << 20, 10)]:
            for _ in range(5_000):
                data = files.read_cached(fd, size, offset)
                if data is not None:
                    break
                await asyncio.sleep(0.001)
            assert data == content[offset : offset + size]
    finally:
        files.close(fd)
