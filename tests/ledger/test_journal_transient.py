"""What passes by itself is not damage and not the end: no descriptor, no memory, a read that is cut short or fails once."""

import errno
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore, check, segments
from pulsar_txn.ledger.protocols import LogDamaged, ReadFailed, StorageFailed
from pulsar_txn.ledger.testing import all_entries

PASSING = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EIO]


def failing(operation, code, times=1 << 30):
    """Fails `operation` this many times from now on."""
    left = [times]

    def hook(what):
        if what == operation and left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))

    return hook


async def cold(files, segment_bytes=48 << 10):
    """A started store with a log whose entries are in closed segments, and the entries."""
    store = simulated_store(files, segment_bytes)
    await store.start()
    log, truth = await store.open("a"), []
    for number in range(60):
        truth.append(bytes([number]) * 3000)
        log.append(truth[-1])
        await store.durable()
    await settled(store)
    log.tail.clear()
    opened = store.segment_files.opened
    for segment in opened.segments.values():
        if segment.number < opened.busy_from:
            opened.close(segment)
    return store, log, truth


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["open", "read"])
async def test_a_cold_read_that_cannot_be_done_now_is_retriable_and_damages_nothing(operation, code):
    files = SimulatedFiles()
    store, log, truth = await cold(files)
    files.on_access = failing(operation, code)
    for _ in range(2):
        with pytest.raises(ReadFailed, match="try again") as caught:
            await log.read((log.ledger_id, 3))
        assert (caught.value.log, caught.value.position) == ("a", (log.ledger_id, 3))
        assert "delete" not in str(caught.value)
    files.on_access = None
    assert await all_entries(log) == truth
    await log.close()
    assert await all_entries(await store.open("a")) == truth, "it is not refused when it is opened again"
    await store.close()
    assert await check("/data", files=files) == []


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("operation", ["open", "read", "size"])
async def test_a_read_that_fails_once_or_twice_is_repeated_and_nobody_notices(operation, times):
    files = SimulatedFiles()
    store, log, truth = await cold(files)
    for code in PASSING:
        files.on_access = failing(operation, code, times)
        assert (await log.read((log.ledger_id, 0), max_entries=1))[0][1] == truth[0]
    await store.close()


async def test_a_read_that_is_cut_short_before_the_end_of_the_file_is_not_taken_for_missing_bytes():
    files = SimulatedFiles()
    store, log, truth = await cold(files)
    files.short_read_bytes = 700
    with pytest.raises(ReadFailed, match=r"of .* bytes were read"):
        await log.read((log.ledger_id, 3))
    files.short_read_bytes = None
    assert await all_entries(log) == truth
    await store.close()


async def test_a_file_that_lost_its_end_is_damage():
    files = SimulatedFiles()
    store, log, truth = await cold(files)
    first = min(store.segment_files.opened.segments)
    content = files.files[store.segment_files.opened.segments[first].path].content
    entry = next(number for number, data in enumerate(truth) if data in content)
    del content[content.index(truth[entry]) + 10 :]
    with pytest.raises(LogDamaged, match="delete this log"):
        await log.read((log.ledger_id, entry))
    store.abandon()


async def test_reading_on_a_full_table_of_files_closes_what_was_not_read_lately():
    files = SimulatedFiles()
    store, log, truth = await cold(files)
    for entry in range(0, 60, 5):
        assert (await log.read((log.ledger_id, entry), max_entries=1))[0][1] == truth[entry]
    most = len(files._open)

    def full(operation):
        if operation == "open" and len(files._open) >= most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    files.on_access = full
    await log.read((log.ledger_id, 59))
    opened = store.segment_files.opened
    oldest = next(segment for segment in opened.segments.values() if segment.fd >= 0)
    opened.close(oldest)
    most = len(files._open)
    assert await all_entries(log) == truth
    assert len(files._open) <= most
    await store.close()


@pytest.mark.parametrize("operation", ["open", "create"])
async def test_a_roll_without_a_descriptor_waits_for_one_and_fails_nothing(operation, monkeypatch, caplog):
    monkeypatch.setattr(segments, "FULL_RETRY_SECONDS", 0)
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    await settled(store)
    hook = failing(operation, errno.EMFILE)
    files.on_access, files.on_operation = (hook, None) if operation == "open" else (None, hook)
    appended = []
    for number in range(60):
        appended.append(bytes([number]) * 3000)
        log.append(appended[-1])
    await settled(store)
    assert log.confirmed_entry < 59, "without a file there is nothing to write to"
    assert not store.segment_files.scarce, "this is no full disk"
    files.on_access = files.on_operation = None
    await store.durable()
    assert await all_entries(log) == appended
    assert sum("tried again" in record.message for record in caplog.records) == 1
    await store.close()


@pytest.mark.parametrize("operation", ["unlink", "rename"])
async def test_a_segment_that_cannot_be_recycled_is_left_and_everything_else_goes_on(operation):
    files = SimulatedFiles()
    if operation == "unlink":  # files of another size are removed
        store, _, _ = await cold(files, segment_bytes=64 << 10)
        await store.close()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    await settled(store)
    recycled = []

    def fail(what):
        if what == operation and recycling[0]:
            recycled.append(what)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    recycling = [False]
    recycle = store.segment_files._recycle

    def watched(segment):
        recycling[0] = True
        try:
            recycle(segment)
        finally:
            recycling[0] = False

    store.segment_files._recycle = watched
    files.on_operation = fail
    called, trims = [], 0
    confirmed = store.reclaimer.confirmed
    store.reclaimer.confirmed = lambda change: called.append(change) or confirmed(change)
    for number in range(120):
        position = log.append(bytes([number]) * 3000)
        trims += log.first_entry < position[1]
        log.trim(position)
        await store.durable()
        await settled(store, 5)
    assert recycled
    assert len(called) == trims >= 119
    await store.close()
    again = simulated_store(files)
    await again.start()
    assert await all_entries(await again.open("a")) == [bytes([119]) * 3000]
    await again.close()


CROWDED = textwrap.dedent(
    """
    import asyncio, os, resource, sys
    from pulsar_txn.ledger.journal import JournalStore, segments

    async def main():
        segments.MAX_OPEN_FILES = 4
        store = JournalStore(sys.argv[1], segment_bytes=1 << 20)
        await store.start()
        log = await store.open("a")
        truth = []
        async def write(count):
            for _ in range(count):
                truth.append(os.urandom(40) * 2500)
                log.append(truth[-1])
                await log.flush()
        await write(60)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        crowd = []
        try:
            while True:
                crowd.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        await write(60)
        log.tail.clear()
        position, found = (log.ledger_id, 0), []
        while step := await log.read(position):
            found += [data for _, data in step]
            position = log.next_position(step[-1][0])
        assert found == truth
        assert store.syncer_kind == "process"
        await store.close()
        print("served", len(found), "without a free descriptor", flush=True)

    asyncio.run(main())
    """
)


def test_a_process_whose_clients_hold_every_descriptor_rolls_and_reads(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CROWDED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "served 120 without a free descriptor" in done.stdout, done.stderr


def open_files():
    return sorted(str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())


async def test_held_descriptors_go_with_the_folder(tmp_path):
    before = open_files()
    store = JournalStore(tmp_path, segment_bytes=1 << 20)
    await store.start()
    await store.close()
    await settled(store)
    assert open_files() == before


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM], ids=errno.errorcode.get)
async def test_a_start_that_cannot_read_now_refuses_and_the_next_one_finds_everything(code):
    files = SimulatedFiles()
    store, _, truth = await cold(files)
    await store.close()
    files = files.after_power_loss("none", random.Random(0))
    for operation in ("open", "size", "read"):
        files.on_access = failing(operation, code)
        with pytest.raises(StorageFailed, match="cannot open the journal"):
            await simulated_store(files).start()
        findings = await check("/data", files=files)
        assert [(each.unreadable, each.fatal) for each in findings] == [(True, True)]
    files.on_access = None
    store = simulated_store(files)
    await store.start()
    assert await all_entries(await store.open("a")) == truth
    await store.close()
