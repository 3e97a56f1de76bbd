"""Bytes that cannot be read, or a trailer that is wrong: only what needs those bytes is refused."""

import errno
import os
import random
import struct

import pytest
from journal_world import settled, simulated_store
from simulated_files import SECTOR_BYTES, SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.journal.frame import ALIGNMENT, HEADER, SEAL, TRAILER, crc32c, encode_trailer
from pulsar_txn.ledger.protocols import LogDamaged, ReadFailed
from pulsar_txn.ledger.testing import all_entries

NAMES = ["a", "b", "c"]


async def written(turns=60, clean=True, segment_bytes=48 << 10):
    """Three logs over several segments; the files, and what each log holds."""
    files, rng = SimulatedFiles(), random.Random(1)
    store = simulated_store(files, segment_bytes)
    await store.start()
    truth = {name: [] for name in NAMES}
    logs = [await store.open(name) for name in NAMES]
    for turn in range(turns):
        for log in logs:
            if log.name != "c" or turn < 10:
                truth[log.name].append(rng.randbytes(rng.choice([30, 200, 1000])))
                log.append(truth[log.name][-1])
        await store.durable()
    await settled(store)
    if clean:
        await store.close()
    else:
        store.abandon()
    return files, truth


def segments(files):
    """Segments that hold frames, oldest first."""
    return [name for name in sorted(files.files) if "/segment-" in name and files.files[name].content.startswith(b"PTJ1")]


def frames(files, name):
    """(offset, length, flags) of each frame of a segment."""
    content, at = files.files[name].content, 0
    while content[at : at + 4] == b"PTJ1":
        _, _, _, _, flags, length, *_ = HEADER.unpack_from(content, at)
        yield at, length, flags
        at += -(-length // ALIGNMENT) * ALIGNMENT


def number_of(name):
    return int(name[-18:-8])


def copied(files):
    return files.after_power_loss("none", random.Random(0))


async def served(files, truth):
    """What each log does: 'whole', 'damaged' or 'unreadable'; wrong entries fail."""
    store, found = simulated_store(files), {}
    await store.start()
    for name, entries in truth.items():
        try:
            assert await all_entries(await store.open(name, create=False)) == entries
            found[name] = "whole"
        except LogDamaged:
            found[name] = "damaged"
        except ReadFailed:
            found[name] = "unreadable"
    store.abandon()
    return found


WHOLE = dict.fromkeys(NAMES, "whole")


async def test_any_flipped_bit_in_a_trailer_costs_nothing():
    files, truth = await written()
    name = segments(files)[0]
    for bit in range(TRAILER.size * 8):
        damaged = copied(files)
        damaged.files[name].content[-1 - bit // 8] ^= 1 << bit % 8
        assert await served(damaged, truth) == WHOLE
        assert [(each.kind, each.segment) for each in await check("/data", files=damaged)] == [("index", number_of(name))]


@pytest.mark.parametrize("offset", [0, 1, 4095, 47 << 10, 48 << 10, 1 << 31])
async def test_a_trailer_that_fits_its_checksum_and_leads_nowhere_costs_nothing(offset):
    files, truth = await written()
    name = segments(files)[0]
    content = files.files[name].content
    content[-TRAILER.size :] = encode_trailer(bytes(content[4:20]), number_of(name), offset)
    assert await served(files, truth) == WHOLE


async def test_a_trailer_without_a_checksum_as_earlier_versions_wrote_it_is_read():
    files, truth = await written()
    name = segments(files)[0]
    content = files.files[name].content
    _, offset, number, uuid, crc = TRAILER.unpack(content[-TRAILER.size :])
    assert crc == crc32c(content[-TRAILER.size : -4])
    content[-TRAILER.size :] = bytes(4) + struct.pack("<4sIQ16s", b"PTJE", offset, number, uuid)
    assert await check("/data", files=files) == []
    assert await served(files, truth) == WHOLE


async def test_an_unreadable_sector_in_the_trailer_costs_nothing():
    files, truth = await written()
    name = segments(files)[0]
    size = len(files.files[name].content)
    files.spoil(name, size - SECTOR_BYTES, size)
    assert await served(files, truth) == WHOLE
    assert [(each.kind, each.segment) for each in await check("/data", files=files)] == [("index", number_of(name))]


async def test_an_unreadable_sector_anywhere_in_an_old_segment_refuses_only_the_logs_that_need_it():
    files, truth = await written()
    name = segments(files)[0]
    outcomes = set()
    for sector in range(len(files.files[name].content) // SECTOR_BYTES):
        damaged = copied(files)
        damaged.spoil(name, sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        found = await served(damaged, truth)
        assert "damaged" not in found.values(), "what cannot be read is not damage"
        outcomes.add(tuple(found.values()))
    assert ("whole",) * 3 in outcomes
    assert any(outcome.count("unreadable") == 1 for outcome in outcomes)


async def test_check_reports_unreadable_entries_and_goes_on():
    files, truth = await written()
    name = segments(files)[0]
    content = files.files[name].content
    entry = next(entry for entry, data in enumerate(truth["a"]) if len(data) == 1000 and data in content)
    at = content.index(truth["a"][entry])
    files.spoil(name, at, at + 1)
    findings = await check("/data", files=files)
    assert ("a", entry) in [(each.log, each.position[1]) for each in findings]
    assert all(each.unreadable and not each.fatal for each in findings)
    last = next(files.files[name] for name in reversed(segments(files)) if truth["b"][-1] in files.files[name].content)
    last.content[last.content.index(truth["b"][-1])] ^= 1
    findings = await check("/data", files=files)
    assert ("b", len(truth["b"]) - 1, False) in [
        (each.log, each.position[1], each.unreadable) for each in findings if each.log is not None
    ]


async def test_unreadable_sectors_in_the_unused_end_keep_nothing_from_starting():
    files, truth = await written(turns=20, clean=False)
    name = segments(files)[-1]
    end = max(at + -(-length // ALIGNMENT) * ALIGNMENT for at, length, _ in frames(files, name))
    for sector in range((end + ALIGNMENT) // SECTOR_BYTES, len(files.files[name].content) // SECTOR_BYTES):
        damaged = copied(files)
        damaged.spoil(name, sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        assert [each.kind for each in await check("/data", files=damaged)] == ["unused"]
        assert await served(damaged, truth) == WHOLE
        store = simulated_store(damaged)
        await store.start()
        log = await store.open("a")
        log.append(b"goes on")
        await log.flush()
        assert store.writer.planned_segment > number_of(name), "nothing more is written to a bad segment"
        await store.close()
        again = simulated_store(damaged)
        await again.start()
        assert await all_entries(await again.open("a")) == [*truth["a"], b"goes on"]
        again.abandon()


@pytest.mark.parametrize("where", ["next", "last"])
async def test_an_unreadable_place_that_may_hold_a_confirmed_frame_is_not_taken_for_the_end(where):
    files, truth = await written(turns=4, clean=False)
    name = segments(files)[-1]
    at, length, _ = max(frames(files, name))
    if where == "next":
        at += -(-length // ALIGNMENT) * ALIGNMENT
    files.spoil(name, at, at + 1)
    with pytest.raises(ReadFailed, match=f"offset {at}.*cannot be known"):
        await simulated_store(files).start()
    (finding,) = [each for each in await check("/data", files=files) if each.fatal]
    assert (finding.segment, finding.offset, finding.unreadable) == (number_of(name), at, True)
    files.files[name].bad.clear()
    assert await served(files, truth) == WHOLE


async def test_the_last_frame_with_unreadable_entries_is_kept_and_its_other_logs_serve():
    files, truth = await written(turns=3, clean=False, segment_bytes=1 << 20)
    store = simulated_store(files, 1 << 20)
    await store.start()
    logs = [await store.open(name) for name in NAMES]
    for log in logs:
        truth[log.name].append(log.name.encode() * 9000)
        log.append(truth[log.name][-1])
    await store.durable()
    store.abandon()
    name = segments(files)[-1]
    at = files.files[name].content.index(b"b" * 9000)
    files.spoil(name, at + 5000, at + 5001)
    assert await served(copied(files), truth) == {"a": "whole", "b": "unreadable", "c": "whole"}
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    log.append(b"goes on")
    await log.flush()
    lost_power = files.after_power_loss("all", random.Random(1))
    truth["a"].append(b"goes on")
    assert await served(lost_power, truth) == {"a": "whole", "b": "unreadable", "c": "whole"}
    store.abandon()


async def test_a_segment_that_cannot_be_opened_refuses_only_its_logs():
    files, truth = await written()
    store = simulated_store(files)
    await store.start()
    late = await store.open("late")
    late.append(b"here")
    await store.close()

    class NotThis(SimulatedFiles):
        def open_to_read(self, path):
            if path == segments(files)[0]:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return super().open_to_read(path)

    hostile = NotThis()
    hostile.files, hostile.durable_names = files.files, files.durable_names
    assert (await served(hostile, truth | {"late": [b"here"]})) == dict.fromkeys(NAMES, "unreadable") | {"late": "whole"}
    assert any(
        each.unreadable and each.segment == number_of(segments(files)[0]) for each in await check("/data", files=hostile)
    )


async def test_a_lost_segment_is_one_finding_for_each_of_its_logs():
    files, truth = await written()
    name = segments(files)[0]
    del files.files[name]
    entries = [each for each in await check("/data", files=files) if each.kind == "entry"]
    logs = [each.log for each in entries]
    assert sorted(logs) == sorted(set(logs))
    missing = {each.log: (each.position[1], each.entries) for each in entries}
    assert all(first + count <= len(truth[log]) for log, (first, count) in missing.items())
    assert max(count for _, count in missing.values()) > 3
    assert "more after it" in entries[0].detail


@pytest.mark.parametrize("how", ["unreadable", "flipped"])
async def test_the_seal_of_a_segment_that_the_checkpoint_began_in_is_not_needed(how):
    """A checkpoint in slices over several segments: all their frames are, and their numbers show that none is missing."""
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    cursor = await log.open_cursor("sub")
    for number in range(200):
        cursor.delete_indexes(log.append(b"%d" % number), 1, 4000)
        await log.flush()
    while store.writer.planned_segment - store.writer._checkpoints.replay_from < 2:
        log.append(bytes(1000))
        await log.flush()
    sets = cursor.ack_sets()
    entries = await all_entries(log)
    first, newest = store.writer._checkpoints.replay_from, store.writer.planned_segment
    await store.close()
    for number in range(first, newest):
        name = f"/data/segment-{number:010d}.journal"
        at, _, flags = max(frames(files, name))
        assert flags & SEAL
        if how == "unreadable":
            files.spoil(name, at, at + 1)
        else:
            files.files[name].content[at + 100] ^= 1
    findings = await check("/data", files=files)
    assert not any(each.fatal for each in findings)
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    assert await all_entries(log) == entries
    assert (await log.open_cursor("sub")).ack_sets() == sets
    assert len(sets) == 200
    store.abandon()


async def test_a_segment_that_could_not_be_read_at_a_start_is_kept_and_serves_again():
    """Nothing seems to be needed in it, because nobody could see what is there."""
    files, truth = await written()
    name = segments(files)[0]
    files.spoil(name, 0, len(files.files[name].content))
    store = simulated_store(files)
    await store.start()
    other = await store.open("other")
    for _ in range(80):
        other.append(bytes(2000))
        other.trim((other.ledger_id, other.next_entry - 1))
        await store.durable()
        await settled(store, 5)
    await store.close()
    assert name in files.files
    files.files[name].bad.clear()
    assert await served(files, truth) == WHOLE
