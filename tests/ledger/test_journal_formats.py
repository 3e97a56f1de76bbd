"""Stores that an older version wrote are opened, and go on in the format of today, which is the same to the byte."""

import hashlib
import tarfile
import uuid
from pathlib import Path

import pytest
from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore, check
from pulsar_txn.ledger.journal.folder import FORMAT_VERSION
from pulsar_txn.ledger.protocols import Snapshot
from pulsar_txn.ledger.testing import all_entries

DATA = Path(__file__).parent / "data"
NAME = "persistent://public/default/a"


def unpacked(version, folder):
    with tarfile.open(DATA / f"format-{version}.tgz") as archive:
        archive.extractall(folder, filter="data")
    return folder


async def check_contents(store):
    """What the program that wrote the stores of `data` put into them."""
    assert store.findings == []
    assert store.names() == ["empty", NAME]
    log = await store.open(NAME, create=False)
    assert await all_entries(log) == [b"%d " % number * 40 for number in range(100, 300)]
    assert await log.latest_snapshot() == Snapshot((log.ledger_id, 299), (b"second" * 50,))
    assert log.cursor_names() == ["plain", "sub"]
    sub, plain = await log.open_cursor("sub"), await log.open_cursor("plain")
    assert [entry for entry in range(300) if not sub.is_deleted((log.ledger_id, entry))] == list(range(0, 300, 3))
    assert (sub.ack_sets(), sub.properties) == ({(log.ledger_id, 3): 0b1010}, {"k": "v"})
    assert (plain.mark_delete, plain.backlog()) == ((log.ledger_id, 99), 200)
    value = await store.metadata.get("/x/y")
    assert value is not None
    assert (value.data, value.version) == (b"two", 1)
    assert await store.metadata.get("/z") is None
    assert store.state.next_ledger_id == 3
    return log


@pytest.mark.parametrize("version", [1])
async def test_a_store_of_an_older_format_opens_and_goes_on(version, tmp_path):
    folder = unpacked(version, tmp_path)
    assert await check(folder) == []
    for turn in range(2):
        async with JournalStore(folder, segment_bytes=64 << 10) as store:
            log = await check_contents(store)
            assert await store.metadata.increment("/n") == 1 + turn
            await log.close()
            assert f"version {FORMAT_VERSION}\n" in (folder / "FORMAT").read_text()
    async with JournalStore(folder, segment_bytes=64 << 10) as store:
        log = await check_contents(store)
        for _ in range(200):
            log.append(bytes(1000))
        await log.flush()
        log.put_snapshot(Snapshot(log.last_confirmed, (b"new", b"parts")))
        await log.flush()
        assert await log.latest_snapshot() == Snapshot(log.last_confirmed, (b"new", b"parts"))
    assert await check(folder) == []


async def work(store):
    """Calls of each kind, with some segments' worth of entries; nothing is called while something is under way."""
    kept, other, gone = [await store.open(name) for name in ("kept", "other", "gone")]
    cursor, plain = await kept.open_cursor("sub"), await kept.open_cursor("plain")
    for number in range(60):
        for log in (kept, other, gone):
            for size in (0, 1, 200, 5_000 + number):
                log.append(bytes([number]) * size)
        kept.append([b"in", bytearray(b"pieces"), memoryview(bytes(30_000))])
        cursor.delete([(kept.ledger_id, entry) for entry in range(number, 3 * number, 2)])
        cursor.delete_indexes((kept.ledger_id, 4 * number + 1), 0b101, 8)
        await store.durable()
        await settled(store, 400)
        if number % 20 == 10:
            cursor.put_properties({"number": str(number)})
            plain.mark_delete_to((kept.ledger_id, number))
            kept.put_snapshot(Snapshot(kept.last_confirmed, (b"first" * number, b"second")))
            other.write_snapshot(other.last_confirmed).write(b"never finished")
            other.trim((other.ledger_id, 4 * number))
            await store.metadata.put(f"/value/{number}", bytes(number))
            await settled(store, 400)
            await store.metadata.increment("/counter")
            await settled(store, 400)
    await store.metadata.delete("/value/10")
    await kept.delete_cursor("plain")
    await settled(store, 400)
    await store.delete("gone")
    await settled(store, 400)


async def test_the_same_calls_write_the_same_bytes_as_before(monkeypatch):
    """Whoever changes the format on purpose stores another digest, and what an older version wrote in `data`."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
    files, written = SimulatedFiles(), hashlib.sha256()
    write = files.write

    def noted(fd, buffers, offset):
        data = b"".join(buffers)
        written.update(b"%d %d " % (offset, len(data)) + data)
        return write(fd, buffers, offset)

    files.write = noted
    for _ in range(2):
        async with simulated_store(files, segment_bytes=256 << 10) as store:  # a checkpoint is one slice
            await settled(store, 400)
            await work(store)
    assert store.writer.planned_segment > 10
    assert written.hexdigest()[:32] == "6e29fa5853335b23df15d1b7ef608455"
