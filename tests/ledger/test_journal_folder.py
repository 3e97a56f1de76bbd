"""What the data folder says before anything of it is read: a sentence each."""

import asyncio
import errno
import random

import pytest
from journal_world import simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore, check
from pulsar_txn.ledger.journal.files import RealFiles, is_network
from pulsar_txn.ledger.journal.folder import FORMAT_VERSION, read_format
from pulsar_txn.ledger.protocols import (
    LogDamaged,
    StorageFailed,
    StoreInUse,
    StoreReadOnly,
    StoreTooNew,
    StoreUnsupported,
)

SMALL = {"segment_bytes": 256 << 10}


async def test_a_folder_says_durably_that_its_store_was_started_before_anything_is_confirmed():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    left = files.after_power_loss("all", random.Random(1))
    assert read_format(left, "/data").started
    store.abandon()


async def test_a_folder_in_use_is_refused_until_it_is_closed(tmp_path):
    async with JournalStore(tmp_path / "data", **SMALL):
        with pytest.raises(StoreInUse, match="in use by another process"):
            await JournalStore(tmp_path / "data", **SMALL).start()
        with pytest.raises(StoreInUse):
            await check(tmp_path / "data")
    async with JournalStore(tmp_path / "data", **SMALL) as store:
        assert store.names() == []


async def test_a_folder_whose_owner_is_just_ending_is_waited_for(tmp_path):
    first = JournalStore(tmp_path, **SMALL)
    await first.start()
    second = JournalStore(tmp_path, **SMALL)
    starting = asyncio.ensure_future(second.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    await first.close()
    await starting
    await second.close()


async def test_a_newer_format_is_refused(tmp_path):
    async with JournalStore(tmp_path, **SMALL):
        pass
    form = tmp_path / "FORMAT"
    form.write_text(form.read_text().replace(f"version {FORMAT_VERSION}", f"version {FORMAT_VERSION + 1}"))
    with pytest.raises(StoreTooNew, match=f"format {FORMAT_VERSION + 1}"):
        await JournalStore(tmp_path, **SMALL).start()


@pytest.mark.parametrize("text", ["", "something else", "pulsar-txn journal\nversion 1\nuuid zz\nend\n"])
async def test_a_damaged_or_missing_format_file_is_damage(tmp_path, text):
    async with JournalStore(tmp_path, **SMALL):
        pass
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(LogDamaged, match="FORMAT' is damaged: "):
        await JournalStore(tmp_path, **SMALL).start()
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(LogDamaged, match="FORMAT"):
        await JournalStore(tmp_path, **SMALL).start()


async def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreUnsupported, match="a folder of its own"):
        await JournalStore(tmp_path, **SMALL).start()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


async def test_a_read_only_folder_is_refused():
    files = SimulatedFiles()
    files.read_only = True
    with pytest.raises(StoreReadOnly, match="make it writable"):
        await simulated_store(files).start()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"])
async def test_a_network_file_system_is_refused(kind):
    files = SimulatedFiles()
    files.file_system_type = kind
    with pytest.raises(StoreUnsupported, match=f"{kind} file system.*local disk"):
        await simulated_store(files).start()


async def test_the_file_system_of_a_folder_is_known(tmp_path):
    assert RealFiles().file_system("/proc") == "proc"
    assert RealFiles().file_system(str(tmp_path)) != ""
    assert not is_network("ext4")


async def test_other_errors_at_start_say_where():
    files = SimulatedFiles()

    def fail(operation):
        raise OSError(errno.EIO, "input/output error")

    files.on_operation = fail
    with pytest.raises(StorageFailed, match="/data"):
        await simulated_store(files).start()


async def test_check_names_a_folder_without_a_journal(tmp_path):
    assert [finding.detail for finding in await check(tmp_path)] == [f"{tmp_path} holds no journal"]
    (finding,) = await check(tmp_path / "nowhere")
    assert "cannot be read" in finding.detail
    assert not (tmp_path / "nowhere").exists()


async def test_a_store_is_opened_with_another_segment_size(tmp_path):
    for size in (256 << 10, 512 << 10, 256 << 10):
        async with JournalStore(tmp_path, segment_bytes=size) as store:
            log = await store.open("a")
            for _ in range(200):
                log.append(bytes(3000))
            await log.flush()
            log.trim(log.last_confirmed)
            await log.flush()
    assert await check(tmp_path) == []
