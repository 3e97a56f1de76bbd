"""Stores that an older version wrote are opened, and go on in the format of today."""

import tarfile
from pathlib import Path

import pytest

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
