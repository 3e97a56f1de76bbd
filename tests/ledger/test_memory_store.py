"""The memory provider's own promises: when things are confirmed, and what a crash leaves."""

import asyncio

import pytest

from pulsar_txn.ledger.memory import MemoryStore
from pulsar_txn.ledger.protocols import DiskFull, LogClosed, Snapshot, StorageFailed
from pulsar_txn.ledger.testing import Recorder


async def test_confirmations_arrive_in_the_next_loop_turn():
    store = MemoryStore()
    log = await store.open("a")
    log.listen(heard := Recorder())
    position = log.append(b"x")
    assert heard.confirmed == []
    await asyncio.sleep(0)
    assert heard.confirmed == [position]


async def test_without_auto_confirm_nothing_is_confirmed_until_the_test_says_so():
    store = MemoryStore(auto_confirm=False)
    log = await store.open("a")
    log.listen(heard := Recorder())
    positions = [log.append(b"x"), log.append(b"y")]
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0.01)
    assert heard.confirmed == []
    assert not flushing.done()
    assert log.read_cached(positions[0]) is None
    store.confirm()
    await flushing
    assert heard.confirmed == [positions[1]]
    assert log.read_cached(positions[0]) == b"x"


async def test_a_crash_leaves_what_was_confirmed_and_nothing_else():
    store = MemoryStore(auto_confirm=False)
    log = await store.open("a")
    cursor = await log.open_cursor("sub")
    first = log.append(b"kept")
    cursor.delete([first])
    store.confirm()
    log.put_snapshot(Snapshot(first, (b"lost",)))
    cursor.delete([log.append(b"lost")])
    log.trim(log.next_position(first))
    left = store.crash()
    with pytest.raises(LogClosed):
        log.append(b"dead")
    again = await left.open("a")
    assert await again.read(first) == [(first, b"kept")]
    assert again.last_appended == first
    assert await again.latest_snapshot() is None
    assert (await again.open_cursor("sub")).mark_delete == first
    assert again.epoch > log.epoch


async def test_calls_in_flight_at_a_failure_raise_and_listeners_hear_of_it():
    store = MemoryStore(auto_confirm=False)
    log = await store.open("a")
    log.listen(heard := Recorder())
    log.append(b"x")
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0)
    store.fail()
    with pytest.raises(StorageFailed):
        await flushing
    with pytest.raises(StorageFailed):
        log.append(b"y")
    with pytest.raises(StorageFailed):
        await store.metadata.put("/a", b"")
    assert [type(error) for error in heard.failures] == [StorageFailed]
    assert heard.confirmed == []


async def test_a_full_disk_refuses_new_data_only():
    store = MemoryStore()
    log = await store.open("a")
    store.disk_full = True
    with pytest.raises(DiskFull):
        log.append(b"x")
    assert log.append(b"marker", reserve=True) == (0, 0)
    store.disk_full = False
    assert log.append(b"x") == (0, 1)


async def test_a_snapshot_of_what_is_not_confirmed_is_refused():
    store = MemoryStore(auto_confirm=False)
    log = await store.open("a")
    position = log.append(b"x")
    with pytest.raises(ValueError, match="not confirmed"):
        log.put_snapshot(Snapshot(position, (b"",)))
