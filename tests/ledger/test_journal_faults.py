"""Failing calls, a full disk, a dead helper: nothing is confirmed that is not durable, and nothing is tried again."""

import asyncio
import errno
import os
import random
import signal
import struct

import pytest
from insides import syncer_of
from journal_world import Workload, check_against, seen, settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore, segments
from pulsar_txn.ledger.journal.checkpoint import Checkpoint
from pulsar_txn.ledger.journal.files import HelperSyncer
from pulsar_txn.ledger.journal.writer import JournalGroup
from pulsar_txn.ledger.protocols import DiskFull, LogClosed, NameRefused, Snapshot, StateTooLarge, StorageFailed
from pulsar_txn.ledger.testing import Recorder, all_entries


class FailNth:
    """Makes the Nth operation fail, once."""

    def __init__(self, number, code):
        self.left = number
        self.code = code
        self.hit = None

    def __call__(self, operation):
        self.left -= 1
        if self.left == -1:
            self.hit = operation
            raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
async def test_a_failure_of_any_operation_loses_nothing_acknowledged(code, monkeypatch):
    monkeypatch.setattr(segments, "FULL_RETRY_SECONDS", 0)
    hits, failed = set(), []
    for number in range(10_000):
        files = SimulatedFiles()
        store = simulated_store(files)
        workload = Workload(store, 5)
        files.on_operation = fail = FailNth(number, code)
        try:
            await store.start()
            await workload.run(120)
            await workload.flush()
        except StorageFailed:
            failed.append(fail.hit)
        except DiskFull:  # no spare could be made: the run ends here
            assert fail.hit in ("create", "truncate", "fill", "rename")
        if fail.hit is None:
            break
        hits.add(fail.hit)
        for loss in ("all", "none", "torn"):
            left, acknowledged = files.after_power_loss(loss, random.Random(number)), workload.acknowledged
            again = simulated_store(left)
            await again.start()
            await check_against(await seen(again), workload.states, acknowledged)
            again.abandon()
        store.abandon()
    assert number > 60
    assert set(failed) >= {"write", "sync"}
    assert hits >= {"write", "sync", "fill", "rename", "create"}
    await store.close()


async def test_after_a_failed_sync_nothing_is_written_synced_or_confirmed():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log, other = await store.open("a"), await store.open("b")
    log.listen(heard := Recorder())
    other.listen(other_heard := Recorder())
    await settled(store)
    operations = []

    def fail_syncs(operation):
        operations.append(operation)
        if operation == "sync":
            raise OSError(errno.EIO, "input/output error")

    files.on_operation = fail_syncs
    log.append(b"x")
    with pytest.raises(StorageFailed, match="restart"):
        await log.flush()
    assert operations == ["write", "sync"]
    for closed in (log, other):
        with pytest.raises(StorageFailed):
            closed.append(b"y")
    with pytest.raises(StorageFailed):
        await store.open("c")
    with pytest.raises(StorageFailed):
        await store.metadata.put("/a", b"")
    await settled(store)
    assert (heard.confirmed, len(heard.failures), len(other_heard.failures)) == ([], 1, 1)
    await store.close()
    assert operations == ["write", "sync"]


async def test_a_full_disk_refuses_new_data_only_and_service_resumes_by_itself(monkeypatch):
    monkeypatch.setattr(segments, "FULL_RETRY_SECONDS", 0)
    files = SimulatedFiles()
    files.free_bytes = 5 * (48 << 10)
    store = simulated_store(files)
    await store.start()
    log, idle = await store.open("a"), await store.open("idle")
    cursor = await log.open_cursor("sub")
    idle.append(b"needed for ever")
    appended = 0
    assert not store.disk_full
    with pytest.raises(DiskFull, match="no room"):
        while True:
            log.append(bytes(2000))
            appended += 1
            await store.durable()
            await settled(store, 10)
    assert appended > 20
    assert store.disk_full
    for _ in range(5):
        log.append(b"the end of a transaction", reserve=True)
        cursor.delete([(log.ledger_id, _)])
        await store.durable()
    log.put_snapshot(Snapshot(log.last_confirmed, (b"state",)))
    await store.metadata.put("/a", b"value")
    log.trim(log.last_confirmed)
    await store.durable()
    for _ in range(20):
        await settled(store)
        await asyncio.sleep(0)
    log.append(b"goes on")
    assert not store.disk_full
    await store.durable()
    await store.close()
    again = simulated_store(files)
    await again.start()
    found = (await seen(again)).logs
    assert found["a"].entries[found["a"].next - 1] == b"goes on"
    assert found["idle"].entries == {0: b"needed for ever"}
    again.abandon()


async def test_service_resumes_when_somebody_else_makes_room(monkeypatch):
    monkeypatch.setattr(segments, "FULL_RETRY_SECONDS", 0)
    files = SimulatedFiles()
    files.free_bytes = 4 * (48 << 10)
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    with pytest.raises(DiskFull):
        while True:
            log.append(bytes(2000))
            await store.durable()
            await settled(store, 10)
    files.free_bytes = 10 << 20
    for _ in range(20):
        await settled(store)
    log.append(bytes(2000))
    await store.close()


async def test_the_reserve_is_not_endless_but_acknowledgements_are_never_refused(monkeypatch):
    monkeypatch.setattr(segments, "FULL_RETRY_SECONDS", 0)
    files = SimulatedFiles()
    files.free_bytes = 4 * (48 << 10)
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    cursor = await log.open_cursor("sub")
    written = 0
    with pytest.raises(DiskFull):
        while True:
            log.append(bytes(1000), reserve=True)
            await store.durable()
            written += 1
    ticket = cursor.delete([(log.ledger_id, 0)])
    await store.durable()
    assert cursor.confirmed_ticket == ticket
    assert written > 20
    await store.close()


class ShortWrites(SimulatedFiles):
    """Writes at most 700 bytes a call."""

    def write(self, fd, buffers, offset):
        return super().write(fd, [b"".join(buffers)[:700]], offset)


async def test_short_writes_are_continued():
    files = ShortWrites()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    data = [random.Random(n).randbytes(3000) for n in range(10)]
    for entry in data:
        log.append(entry)
    await store.close()
    again = simulated_store(files)
    await again.start()
    assert list((await seen(again)).logs["a"].entries.values()) == data
    again.abandon()


async def test_a_killed_helper_fails_the_store_and_recovery_finds_everything_confirmed(tmp_path):
    store = JournalStore(tmp_path, segment_bytes=1 << 20)
    await store.start()
    log = await store.open("a")
    log.listen(heard := Recorder())
    log.append(b"confirmed")
    await log.flush()
    os.kill(syncer_of(store).pid, signal.SIGKILL)
    with pytest.raises(StorageFailed, match="helper"):
        while True:
            log.append(b"perhaps")
            await log.flush()
    await asyncio.sleep(0)
    assert [type(error) for error in heard.failures] == [StorageFailed]
    await store.close()
    async with JournalStore(tmp_path, segment_bytes=1 << 20) as again:
        log = await again.open("a")
        entries = await log.read((log.ledger_id, 0))
        assert [data for _, data in entries][:1] == [b"confirmed"]
        assert len(entries) >= len(heard.confirmed)


async def test_an_idle_store_notices_a_killed_helper(tmp_path):
    store = JournalStore(tmp_path, segment_bytes=1 << 20)
    await store.start()
    log = await store.open("a")
    failed = asyncio.get_running_loop().create_future()
    recorder = Recorder()
    recorder.log_failed = failed.set_result
    log.listen(recorder)
    os.kill(syncer_of(store).pid, signal.SIGKILL)
    assert isinstance(await asyncio.wait_for(failed, 10), StorageFailed)
    await store.close()


async def test_without_a_helper_process_a_thread_syncs_and_the_choice_is_logged(tmp_path, monkeypatch, caplog):
    def refuse(_):
        raise PermissionError(errno.EPERM, "no new processes")

    monkeypatch.setattr(HelperSyncer, "_start", staticmethod(refuse))
    caplog.set_level("WARNING", logger="pulsar_txn")  # whatever a program that ran here before has set
    store = JournalStore(tmp_path, segment_bytes=1 << 20)
    await store.start()
    assert store.syncer_kind == "thread"
    assert "its helper process did not start" in caplog.text
    log = await store.open("a")
    for number in range(50):
        log.append(b"%d" % number)
    await log.flush()
    await store.close()
    monkeypatch.undo()
    async with JournalStore(tmp_path, segment_bytes=1 << 20) as again:
        assert again.syncer_kind == "process"
        log = await again.open("a")
        assert len(await log.read((log.ledger_id, 0))) == 50


async def test_calls_that_wait_when_storage_fails_raise_and_a_listener_that_raises_stops_nobody():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log, other = await store.open("a"), await store.open("b")

    class Broken(Recorder):
        def log_confirmed(self, position):
            raise ValueError("my own mistake")

    log.listen(Broken())
    other.listen(heard := Recorder())
    log.append(b"x")
    position = other.append(b"y")
    await store.durable()
    assert heard.confirmed == [position]
    waiting = asyncio.ensure_future(store.metadata.put("/a", b"1"))
    log.append(b"z")
    await asyncio.sleep(0)
    files.syncers[0].die()
    with pytest.raises(StorageFailed):
        await waiting
    with pytest.raises((StorageFailed, LogClosed)):
        await log.flush()
    await store.close()


async def _filled(store, *, upto):
    """Entries until the plan is in segment `upto`; what was confirmed."""
    log, confirmed = await store.open("a"), []
    while store.writer.planned_segment < upto:
        log.append(b"%d" % len(confirmed) + bytes(1500))
        await log.flush()
        confirmed.append(b"%d" % len(confirmed))
    return confirmed


async def test_a_name_too_long_for_a_record_is_refused_and_segments_roll_behind_it():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    innocent = await store.open("innocent")
    innocent.append(b"in the same group")
    with pytest.raises(NameRefused, match="choose a shorter one"):
        await store.open("x" * 70_000)
    with pytest.raises(NameRefused, match="choose a shorter one"):
        await innocent.open_cursor("s" * 70_000)
    with pytest.raises(NameRefused, match="choose a shorter one"):
        await store.metadata.put("/" + "p" * 70_000, b"")
    confirmed = await _filled(store, upto=4)
    again = simulated_store(files.after_power_loss("all", random.Random(1)))
    await again.start()
    assert await all_entries(await again.open("innocent")) == [b"in the same group"]
    assert [entry.rstrip(b"\0") for entry in await all_entries(await again.open("a"))] == confirmed
    for each in (store, again):
        await each.close()


async def test_names_beyond_the_limit_of_the_state_are_refused_one_by_one():
    files = SimulatedFiles()
    store = simulated_store(files, max_state_bytes=100_000)
    await store.start()
    first, made = await store.open("0-" + "n" * 1000), 1
    with pytest.raises(StateTooLarge, match=r"at most 100000 are kept: delete .* or raise maxStoreStateBytes"):
        while True:
            await store.open(f"{made}-" + "n" * 1000)
            made += 1
    with pytest.raises(StateTooLarge, match="at most 100000 are kept"):
        await first.open_cursor("c" * 2000)
    await store.delete("1-" + "n" * 1000)
    await store.delete("2-" + "n" * 1000)
    await store.open("again-" + "n" * 995)
    confirmed = await _filled(store, upto=3)
    await store.close()
    again = simulated_store(files)
    await again.start()
    assert len(again.names()) == made
    assert [entry.rstrip(b"\0") for entry in await all_entries(await again.open("a"))] == confirmed
    await again.close()


@pytest.mark.parametrize("part", ["group", "checkpoint"])
async def test_a_group_or_a_checkpoint_that_cannot_be_encoded_fails_the_store_for_good(part, monkeypatch):
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log, other = await store.open("a"), await store.open("b")
    confirmed = []

    def cannot(*_):
        raise struct.error("ushort format requires 0 <= number <= 65535")

    monkeypatch.setattr(*((JournalGroup, "sealed_records") if part == "group" else (Checkpoint, "take")), cannot)
    with pytest.raises(StorageFailed, match="cannot be encoded: error: ushort"):
        while True:
            log.append(b"%d" % len(confirmed) + bytes(1500))
            await log.flush()
            confirmed.append(b"%d" % len(confirmed))
    with pytest.raises(StorageFailed):
        other.append(b"nothing is confirmed any more")
    with pytest.raises(StorageFailed):
        await store.open("c")
    await store.close()
    monkeypatch.undo()
    again = simulated_store(files.after_power_loss("all", random.Random(1)))
    await again.start()
    assert [entry.rstrip(b"\0") for entry in await all_entries(await again.open("a"))] == confirmed
    assert bool(confirmed) is (part == "checkpoint")
    await again.close()
