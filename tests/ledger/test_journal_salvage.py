"""A damaged journal serves again after a repair that said what it loses; what was not damaged is untouched."""

from __future__ import annotations

import errno
import random

import pytest
from journal_world import Workload, settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.journal.check import CannotSalvage, carry_out, plan_frame, plan_index, plan_reset, reset_log
from pulsar_txn.ledger.journal.frame import ALIGNMENT, HEADER, MAGIC, SEAL, TRAILER
from pulsar_txn.ledger.protocols import LogDamaged, Snapshot

NAMES = ["log-0", "log-1", "log-2"]


async def written(turns=30):
    """Three logs; log `n` gets an entry in each group that does not divide by `n + 2`."""
    files = SimulatedFiles()
    truth = {name: [] for name in NAMES}
    async with simulated_store(files) as store:
        logs = [await store.open(name) for name in NAMES]
        for log in logs:
            await log.open_cursor("sub")
        rng = random.Random(1)
        for turn in range(turns):
            for number, log in enumerate(logs):
                if turn % (number + 2):
                    truth[log.name].append(rng.randbytes(600))
                    log.append(truth[log.name][-1])
            await store.durable()
        logs[2].put_snapshot(Snapshot(logs[2].last_confirmed, (b"state" * 100,)))
        await settled(store)
    return files, truth


def copied(files):
    """The same files, for somebody else."""
    return files.after_power_loss("none", random.Random(0))


def segment_paths(files):
    return sorted(path for path in files.files if path.startswith("/data/segment-"))


def frames_of(files, path):
    """Offset, sequence and flags of the frames in a segment that was used."""
    content = files.files[path].content
    number = int(path[-18:-8])
    found = []
    for at in range(0, len(content) - HEADER.size, ALIGNMENT):
        magic, _, segment, sequence, flags, *_ = HEADER.unpack_from(content, at)
        if magic == MAGIC and segment == number:
            found.append((at, sequence, flags))
    return found


def newest(files):
    """The newest segment with frames, and its number."""
    path = [path for path in segment_paths(files) if frames_of(files, path)][-1]
    return path, int(path[-18:-8])


async def read_all(store, name):
    log = await store.open(name, create=False)
    entries, position = [], (log.ledger_id, 0)
    while step := await log.read(position, max_entries=20):
        entries += [data for _, data in step]
        position = log.next_position(step[-1][0])
    return entries


def spoil(files, path, offset, size=HEADER.size):
    content = files.files[path].content
    spoiled = bytes(byte ^ 0x55 for byte in content[offset : offset + size])
    content[offset : offset + size] = spoiled
    files.files[path].durable[offset : offset + size] = spoiled


def contents(files):
    return {path: bytes(file.content) for path, file in files.files.items()}


@pytest.mark.parametrize("broken", [1, 3])
async def test_a_damaged_frame_is_set_aside_and_the_logs_it_held_are_named_before_anything_changes(broken):
    files, truth = await written(42)
    path, number = newest(files)
    frames = frames_of(files, path)
    assert len(frames) >= 8
    offset = frames[2][0]
    for at, *_ in frames[2 : 2 + broken]:
        spoil(files, path, at)
    spoiled = bytes(files.files[path].content[offset : frames[2 + broken][0]])
    with pytest.raises(LogDamaged):
        await simulated_store(files).start()
    before = contents(files)
    plan = plan_frame(files, "/data", number, offset)
    assert contents(files) == before
    assert f"{broken} commit group" in plan.lost[0]
    hit = {finding.log for finding in plan.left if finding.log is not None}
    assert hit, "frames after these have entries of a log that is in them"
    assert not any(finding.fatal for finding in plan.left)

    carry_out(files, "/data", plan)
    kept = next(file for name, file in files.files.items() if name.startswith("/data/set-aside/"))
    assert bytes(kept.content) == spoiled
    async with simulated_store(files) as store:
        assert {finding.log for finding in store.findings if finding.log is not None} == hit
        for name in NAMES:
            if name in hit:
                with pytest.raises(LogDamaged):
                    await store.open(name)
            else:  # whole, or without newest entries that were in the frames
                found = await read_all(store, name)
                assert len(truth[name]) - broken <= len(found)
                assert found == truth[name][: len(found)]


async def test_a_reset_log_is_empty_keeps_its_cursors_and_never_gives_a_position_again():
    files, truth = await written()
    path, number = newest(files)
    offset = frames_of(files, path)[2][0]
    spoil(files, path, offset)
    carry_out(files, "/data", plan_frame(files, "/data", number, offset))
    async with simulated_store(files) as store:
        hit = {finding.log for finding in store.findings}
        for name in hit:
            loss = plan_reset(store, name)
            assert (loss.next_entry, loss.cursors) == (len(truth[name]), ("sub",))
            await reset_log(store, name)
    assert await check("/data", files=files) == []
    async with simulated_store(files) as store:
        for name in NAMES:
            if name not in hit:
                assert await read_all(store, name) == truth[name]
                continue
            log = await store.open(name)
            assert await log.latest_snapshot() is None
            cursor = await log.open_cursor("sub")
            assert cursor.mark_delete == (log.ledger_id, len(truth[name]) - 1)
            assert log.append(b"next")[1] == len(truth[name])
            await store.durable()
            assert [data for _, data in await log.read((log.ledger_id, 0))] == [b"next"]


async def plan_that_loses_the_end_of_a_segment():
    """A repair whose frame said that a segment is gone, and the files."""
    for turns in range(30, 60):
        files, _ = await written(turns)
        path, number = newest(files)
        for offset, *_ in frames_of(files, path)[1:-1]:
            spoiled = copied(files)
            spoil(spoiled, path, offset)
            plan = plan_frame(spoiled, "/data", number, offset)
            if any(finding.kind == "segment" for finding in plan.left):
                return spoiled, plan
    raise AssertionError("no frame says that a segment is gone")


async def test_a_segment_that_went_with_a_lost_frame_is_forgotten_with_the_next_checkpoint():
    """The lost frame said that the segment is gone: until the next checkpoint it seems to be missing."""
    files, plan = await plan_that_loses_the_end_of_a_segment()
    carry_out(files, "/data", plan)
    async with simulated_store(files) as store:
        for name in {finding.log for finding in store.findings} - {None}:
            await reset_log(store, name)
        log = await store.open("log-0")
        for _ in range(40):
            log.append(b"x" * 3000)
            await store.durable()
    assert await check("/data", files=files) == []


async def test_a_log_with_one_bad_entry_is_reset_and_the_others_stay():
    files, truth = await written()
    at = len(truth["log-1"]) // 2
    for file in files.files.values():
        place = file.content.find(truth["log-1"][at])
        if place >= 0:
            file.content[place + 7] ^= 4
    assert [finding.log for finding in await check("/data", files=files) if finding.kind == "entry"] == ["log-1"]
    async with simulated_store(files) as store:
        await reset_log(store, "log-1")
        assert await read_all(store, "log-0") == truth["log-0"]
    left = await check("/data", files=files)
    assert {finding.kind for finding in left} <= {"data"}, "the bytes stay where they are; nobody needs them"
    assert not any(finding.fatal or finding.log for finding in left)


async def test_the_index_of_a_full_segment_is_made_again_and_nothing_is_lost():
    for part in ("index", "trailer", "both"):
        files, truth = await written(80)
        path = next(p for p in segment_paths(files) if any(flags & SEAL for _, _, flags in frames_of(files, p)))
        content = files.files[path].content
        whole = bytes(content)
        if part != "trailer":
            spoil(files, path, next(at for at, _, flags in frames_of(files, path) if flags & SEAL))
        if part != "index":
            content[-TRAILER.size :] = bytes(TRAILER.size)
        found = await check("/data", files=files)
        assert [finding.kind for finding in found] in (["index"], []), part
        plan = plan_index(files, "/data", int(path[-18:-8]))
        assert "nothing" in plan.lost[0]
        carry_out(files, "/data", plan)
        assert bytes(content) == whole, part
        assert await check("/data", files=files) == []
        async with simulated_store(files) as store:
            for name in NAMES:
                assert await read_all(store, name) == truth[name]


async def test_a_damaged_frame_before_a_torn_one_is_set_aside():
    files, _ = await written(42)
    path, number = newest(files)
    frames = frames_of(files, path)
    spoil(files, path, frames[-1][0], ALIGNMENT)  # the frame of the clean end
    last = next(frame for frame in reversed(frames[:-1]) if files.files[path].content[frame[0] + 2000])
    spoil(files, path, last[0] + 2000, 1)  # its directory fits, its data does not
    before = frames[frames.index(last) - 1][0]
    spoil(files, path, before)
    for later, *_ in frames[frames.index(last) + 1 : -1]:
        spoil(files, path, later, ALIGNMENT)
    plan = plan_frame(files, "/data", number, before)
    assert not any(finding.fatal for finding in plan.left)
    carry_out(files, "/data", plan)
    async with simulated_store(files) as store:
        assert not any(finding.fatal for finding in store.findings)


async def test_an_index_is_made_again_around_a_sector_that_cannot_be_read():
    files, truth = await written(80)
    path = next(p for p in segment_paths(files) if any(flags & SEAL for _, _, flags in frames_of(files, p)))
    seal = next(at for at, _, flags in frames_of(files, path) if flags & SEAL)
    files.spoil(path, seal + ALIGNMENT, seal + 2 * ALIGNMENT)
    assert "index" in [finding.kind for finding in await check("/data", files=files)]
    carry_out(files, "/data", plan_index(files, "/data", int(path[-18:-8])))
    assert await check("/data", files=files) == []
    async with simulated_store(files) as store:
        for name in NAMES:
            assert await read_all(store, name) == truth[name]


async def test_a_reset_log_stays_whole_when_the_frames_with_the_gap_are_replayed_again():
    """The gap is before the reset, and recovery meets it first."""
    files, truth = await written(42)
    path, number = newest(files)
    frames = frames_of(files, path)
    spoil(files, path, frames[3][0])
    carry_out(files, "/data", plan_frame(files, "/data", number, frames[3][0]))
    for _ in range(3):
        async with simulated_store(files) as store:
            for name in {finding.log for finding in store.findings} - {None}:
                await reset_log(store, name)
    async with simulated_store(files) as store:
        assert store.findings == []
        left = [len(await read_all(store, name)) for name in NAMES]
        assert sum(left) < sum(map(len, truth.values()))


async def test_a_part_that_cannot_be_read_is_set_aside_at_the_end_of_the_newest_segment():
    files, truth = await written()
    path, number = newest(files)
    offset = frames_of(files, path)[-1][0]
    files.spoil(path, offset, offset + ALIGNMENT)
    findings = await check("/data", files=files)
    assert any(finding.fatal and finding.unreadable for finding in findings)
    carry_out(files, "/data", plan_frame(files, "/data", number, offset))
    async with simulated_store(files) as store:
        assert all(not finding.fatal for finding in store.findings)
        assert await read_all(store, "log-0") == truth["log-0"], "the last frame says only that the store was closed"


@pytest.mark.parametrize("nth", range(12))
async def test_a_repair_that_ends_anywhere_can_be_made_again(nth):
    files, _ = await written()
    path, number = newest(files)
    offset = frames_of(files, path)[2][0]
    spoil(files, path, offset)
    spoiled = bytes(files.files[path].content[offset : offset + ALIGNMENT])
    left = iter(range(nth))

    def fail(_):
        if next(left, None) is None:
            raise OSError(errno.EIO, "Input/output error")

    files.on_operation = fail
    plan = plan_frame(files, "/data", number, offset)
    try:
        carry_out(files, "/data", plan)
    except OSError:
        files = files.after_power_loss("reordered", random.Random(nth))
    files.on_operation = None
    try:
        carry_out(files, "/data", plan_frame(files, "/data", number, offset))
    except CannotSalvage as refusal:  # it was done
        done = str(refusal)
    else:
        done = "damaged frames: none"
    assert "damaged frames: none" in done
    kept = [bytes(file.content) for name, file in files.files.items() if name.endswith(f"-at-{offset}")]
    assert [data[:ALIGNMENT] for data in kept] == [spoiled]
    async with simulated_store(files) as store:
        assert all(finding.log is not None for finding in store.findings)


async def test_what_cannot_be_repaired_is_refused_with_a_reason():
    files, _ = await written(80)
    path, number = newest(files)
    with pytest.raises(CannotSalvage, match="no damaged frame is at"):
        plan_frame(files, "/data", number, ALIGNMENT)
    with pytest.raises(CannotSalvage, match="there is no segment 999"):
        plan_index(files, "/data", 999)
    with pytest.raises(CannotSalvage, match="the newest one, which has no index"):
        plan_index(files, "/data", number)
    async with simulated_store(files) as store:
        with pytest.raises(CannotSalvage, match="there is no log 'x'"):
            plan_reset(store, "x")
    path, number = newest(files)
    spoil(files, path, 0)
    spoil(files, path, frames_of(files, path)[0][0])
    with pytest.raises(CannotSalvage, match="only a backup helps"):
        plan_frame(files, "/data", number, 0)
    empty = SimulatedFiles()
    with pytest.raises(CannotSalvage, match="holds no journal"):
        plan_index(empty, "/data", 0)


async def repaired(files):
    """Make every repair that `check` suggests; False when one is refused or none is possible."""
    for _ in range(12):
        findings = await check("/data", files=files)
        frames = [finding for finding in findings if finding.kind == "frame" and finding.offset is not None]
        indexes = [finding for finding in findings if finding.kind == "index"]
        logs = {finding.log for finding in findings if finding.log is not None}
        try:
            if frames:
                carry_out(files, "/data", plan_frame(files, "/data", frames[0].segment, frames[0].offset))
            elif any(finding.fatal for finding in findings):
                return False
            elif indexes:
                carry_out(files, "/data", plan_index(files, "/data", indexes[0].segment))
            elif logs:
                async with simulated_store(files) as store:
                    for name in logs:
                        await reset_log(store, name)
            else:
                return True
        except CannotSalvage:
            return False
    raise AssertionError("the repairs do not come to an end")


async def damage_and_repair(seed):
    """Random work, random damage, all repairs; whether the store serves again. What it serves was written."""
    rng, files = random.Random(seed), SimulatedFiles()
    async with simulated_store(files) as store:
        work = Workload(store, seed)
        await work.run(rng.randint(50, 300))
        await work.flush()
    path = rng.choice([path for path in segment_paths(files) if frames_of(files, path)][-2:])
    frames = frames_of(files, path)
    first = rng.randrange(len(frames))
    for offset, *_ in frames[first : first + rng.randint(1, 3)]:
        if rng.random() < 0.3:
            files.spoil(path, offset, offset + ALIGNMENT)
        else:
            spoil(files, path, offset + rng.randrange(60), rng.choice([1, HEADER.size, 512]))
    if not await repaired(files):
        return False
    async with simulated_store(files) as store:
        for name in store.names():
            log = await store.open(name)
            entries = work.model.logs[name].entries if name in work.model.logs else {}
            position = (log.ledger_id, log.first_entry)
            while step := await log.read(position, max_entries=50):
                assert all(entries.get(entry, data) == data for (_, entry), data in step)
                position = log.next_position(step[-1][0])
            log.append(b"more")
        await store.durable()
    return True


async def test_random_damage_is_repaired_or_refused_and_no_wrong_byte_is_served():
    served = [await damage_and_repair(seed) for seed in range(25)]
    assert sum(served) > len(served) // 2
