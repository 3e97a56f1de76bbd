"""An entry is bound to its place: bytes that are right and lie where others belong are damage."""

import struct

import pytest
from crc32c import crc32c
from journal_world import simulated_store

from pulsar_txn.ledger.journal.frame import ALIGNMENT, HEADER, RUN
from pulsar_txn.ledger.journal.simulated import SimulatedFiles
from pulsar_txn.ledger.protocols import LogDamaged


async def test_entries_that_changed_places_are_damage_though_each_is_whole():
    """A misdirected write: bytes, length and checksum of one entry where those of another belong."""
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    for number in range(4):
        log.append(bytes([number + 1]) * 100)
    log.append(b"x" * 9000)  # in another frame than the four
    await store.close()
    name = next(n for n in sorted(files.files) if bytes([1]) * 100 in files.files[n].content)
    content = files.files[name].content
    at = content.index(bytes([1]) * 100)
    run = at // ALIGNMENT * ALIGNMENT + HEADER.size
    _, first, count, _, tables_at, data_at, _ = RUN.unpack_from(content, run)
    assert (first, count, run + data_at) == (0, 4, at)
    tables = run + tables_at
    crcs = struct.unpack_from("<4I", content, tables + 16)
    struct.pack_into("<4I", content, tables + 16, crcs[0], crcs[2], crcs[1], crcs[3])
    content[at + 100 : at + 300] = content[at + 200 : at + 300] + content[at + 100 : at + 200]
    _fit_frame_again(content, run - HEADER.size)
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    assert [data for _, data in await log.read((log.ledger_id, 0))] == [bytes([1]) * 100]
    for entry in (1, 2):
        with pytest.raises(LogDamaged) as caught:
            await log.read((log.ledger_id, entry))
        assert caught.value.position == (log.ledger_id, entry)
    assert (await log.read((log.ledger_id, 3), max_entries=1))[0][1] == bytes([4]) * 100
    store._release()


def _fit_frame_again(content, at):
    """Checksums of a frame as if its bytes were as they were written: only those of the entries tell."""
    *fields, length, directory_length, runs, _, _ = HEADER.unpack_from(content, at)
    start = crc32c(bytes(content[at + 4 : at + 52]))
    end = at + HEADER.size + directory_length
    directory = crc32c(bytes(content[at + HEADER.size : end]), start)
    whole = crc32c(bytes(content[end : at + length]), directory)
    HEADER.pack_into(content, at, *fields, length, directory_length, runs, directory, whole)
