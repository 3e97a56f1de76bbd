"""Snapshots in parts in the journal: of any size, finished or not there, and never more room than they need."""

import random

import pytest
from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore, check
from pulsar_txn.ledger.protocols import LogDamaged, Snapshot

PARTS = tuple(bytes([number % 251]) * 2500 for number in range(100))


async def write(log, parts, every=3):
    writer = log.write_snapshot(log.last_confirmed)
    for number, part in enumerate(parts):
        writer.write(part)
        if number % every == 0:
            await log.flush()
    return writer


async def test_a_snapshot_larger_than_several_segments_comes_back_after_a_crash():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("a")
        log.append(b"x")
        await log.flush()
        (await write(log, PARTS)).finish()
        await log.flush()
        left = files.after_power_loss("all", random.Random(1))
    async with simulated_store(left) as again:
        log = await again.open("a")
        assert await log.latest_snapshot() == Snapshot(log.last_confirmed, PARTS)
    assert await check("/data", files=left) == []


async def test_parts_of_snapshots_that_were_never_finished_take_no_room():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("a")
        log.put_snapshot(Snapshot(log.last_confirmed, (b"old",)))
        await log.flush()
        for _ in range(3):
            (await write(log, PARTS)).abandon()
        await write(log, PARTS)
        await log.flush()
        left = files.after_power_loss("all", random.Random(1))
    async with simulated_store(left) as again:
        log = await again.open("a")
        assert await log.latest_snapshot() == Snapshot(log.last_confirmed, (b"old",))
        for _ in range(40):  # a new segment, so that all before it are sealed
            log.append(bytes(2000))
            await log.flush()
        log.trim((log.ledger_id, log.next_entry))
        await settled(again, 200)
        assert len(again.state.usage.segments) <= 3
        assert sum(use.bytes for use in again.state.usage.segments.values()) < 10_000
    assert await check("/data", files=left) == []


async def test_a_part_is_copied_out_of_a_segment_that_hardly_anybody_needs():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("a")
        log.put_snapshot(Snapshot(log.last_confirmed, (b"a" * 500, b"b" * 500)))
        busy = await store.open("busy")
        for _ in range(200):
            busy.append(bytes(2000))
            await busy.flush()
            busy.trim((busy.ledger_id, busy.next_entry))
        await settled(store, 200)
        assert len(store.state.usage.segments) <= 4
        assert await log.latest_snapshot() == Snapshot(log.last_confirmed, (b"a" * 500, b"b" * 500))
        left = files.after_power_loss("all", random.Random(1))
    async with simulated_store(left) as again:
        log = await again.open("a")
        assert await log.latest_snapshot() == Snapshot(log.last_confirmed, (b"a" * 500, b"b" * 500))


async def test_a_snapshot_without_one_of_its_parts_is_damage_and_refuses_the_log_alone():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log, other = await store.open("a"), await store.open("b")
        (await write(log, PARTS)).finish()
        other.append(b"x")
        await other.flush()
        place = store.state.logs[log.ledger_id].snapshots[0].places[3]
    files.unlink(f"/data/segment-{place >> 32:010d}.journal")
    async with simulated_store(files) as again:
        with pytest.raises(LogDamaged, match="snapshot"):
            await again.open("a")
        assert len(await (await again.open("b")).read((1, 0))) == 1


async def test_forty_megabytes_of_state_are_written_read_and_replaced_in_a_store_of_usual_size(tmp_path):
    parts = tuple(number.to_bytes(4, "little") * (64 << 10) for number in range(160))
    async with JournalStore(tmp_path) as store:
        log = await store.open("a")
        for _ in range(2):
            writer = log.write_snapshot(log.last_confirmed)
            for number, part in enumerate(parts):
                writer.write(part)
                if number % 8 == 7:
                    await log.flush()
                    assert store.bytes_in_flight == 0
            writer.finish()
            await log.flush()
    async with JournalStore(tmp_path) as store:
        log = await store.open("a")
        assert await log.latest_snapshot() == Snapshot(log.last_confirmed, parts)
        assert sum(use.bytes for use in store.state.usage.segments.values()) < 41 << 20
