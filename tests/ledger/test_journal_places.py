"""An entry is bound to its place: bytes that are right and lie where others belong are damage."""

import struct

import pytest
from crc32c import crc32c
from journal_world import simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.journal.frame import ALIGNMENT, HEADER, RUN
from pulsar_txn.ledger.protocols import LogDamaged


async def frames_of(clean, values=6):
    """A store's files, the segment's name, and where each frame of it begins."""
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    for number in range(values):
        await store.metadata.put(f"/{number}", b"value")
    if clean:
        await store.close()
    else:
        store.abandon()
    name = "/data/segment-0000000000.journal"
    content = files.files[name].content
    return files, content, [at for at in range(0, len(content), ALIGNMENT) if content[at : at + 4] == b"PTJ1"]


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
async def test_a_frame_written_over_another_is_never_taken_for_it_or_for_the_end(clean):
    """The whole frame is right, its segment too; only it lies where another one was, or would be."""
    _, _, places = await frames_of(clean)
    for source in places:
        for target in [*places[1:], places[-1] + ALIGNMENT]:
            if source == target:
                continue
            files, content, _ = await frames_of(clean)
            content[target : target + ALIGNMENT] = content[source : source + ALIGNMENT]
            assert any(each.fatal for each in await check("/data", files=files))
            with pytest.raises(LogDamaged, match="restore the whole folder"):
                await simulated_store(files).start()


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
async def test_a_file_that_was_cut_is_no_shorter_journal(clean):
    _, content, places = await frames_of(clean)
    for size in [*places, len(content) - ALIGNMENT]:
        files, content, _ = await frames_of(clean)
        del content[size:]
        if clean and size > places[-1]:  # what was closed has nothing behind its last frame
            assert await check("/data", files=files) == []
            continue
        with pytest.raises(LogDamaged, match="restore the whole folder"):
            await simulated_store(files).start()


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
    store.abandon()


def _fit_frame_again(content, at):
    """Checksums of a frame as if its bytes were as they were written: only those of the entries tell."""
    *fields, length, directory_length, runs, _, _ = HEADER.unpack_from(content, at)
    start = crc32c(bytes(content[at + 4 : at + 52]))
    end = at + HEADER.size + directory_length
    directory = crc32c(bytes(content[at + HEADER.size : end]), start)
    whole = crc32c(bytes(content[end : at + length]), directory)
    HEADER.pack_into(content, at, *fields, length, directory_length, runs, directory, whole)
