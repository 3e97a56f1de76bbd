"""Damage is never served and never shortens a log; one log's damage keeps no other log from serving."""

import random

import pytest
from insides import logs_of
from journal_world import Workload, seen, settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.journal.frame import ALIGNMENT, HEADER, frame_prefix
from pulsar_txn.ledger.protocols import LogDamaged, Snapshot

NAMES = ["log-0", "log-1", "log-2"]


async def written(turns=60, segment_bytes=48 << 10, clean=True):
    """Three logs over several segments; the files, and what each log holds."""
    files = SimulatedFiles()
    store = simulated_store(files, segment_bytes)
    await store.start()
    truth = {name: [] for name in NAMES}
    logs = [await store.open(name) for name in NAMES]
    rng = random.Random(1)
    for _ in range(turns):
        for log in logs:
            truth[log.name].append(rng.randbytes(rng.choice([30, 200, 1000])))
            log.append(truth[log.name][-1])
        await store.durable()
    logs[0].put_snapshot(Snapshot(logs[0].last_confirmed, (b"state" * 100,)))
    await store.metadata.put("/a", b"value")
    await settled(store)
    if clean:
        await store.close()
    else:
        store.abandon()
    return files, truth


def copied(files):
    """The same files, for somebody else."""
    return files.after_power_loss("none", random.Random(0))


def segments(files):
    return sorted(name for name in files.files if "/segment-" in name)


async def read_all(store, name):
    log = await store.open(name, create=False)
    entries, position = [], (log.ledger_id, 0)
    while step := await log.read(position, max_entries=20):
        entries += [data for _, data in step]
        position = log.next_position(step[-1][0])
    return entries


async def outcomes(files, truth):
    """Per log: 'whole' or 'damaged'; anything else fails. 'refused' for all when the store does not start."""
    store = simulated_store(files)
    try:
        await store.start()
    except LogDamaged:
        return ["refused"]
    found = []
    for name, entries in truth.items():
        try:
            assert await read_all(store, name) == entries
            snapshot = await logs_of(store)[name].latest_snapshot()
            assert name != NAMES[0] or snapshot.data == b"state" * 100
            found.append("whole")
        except LogDamaged as error:
            found.append("damaged" if error.log == name else f"{name} is refused for {error.log}")
    assert (await store.metadata.get("/a")).data == b"value"
    store.abandon()
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_any_flipped_byte_is_reported_or_harmless(seed):
    files, truth = await written()
    rng = random.Random(seed)
    seen_outcomes = set()
    for _ in range(300):
        damaged = copied(files)
        content = damaged.files[rng.choice(segments(files))].content
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        seen_outcomes.update(await outcomes(damaged, truth))
    assert {"whole", "damaged"} <= seen_outcomes <= {"whole", "damaged", "refused"}


@pytest.mark.parametrize("seed", range(2))
async def test_any_zeroed_sector_is_reported_or_harmless(seed):
    files, truth = await written()
    rng = random.Random(seed)
    seen_outcomes = set()
    for _ in range(200):
        damaged = copied(files)
        content = damaged.files[rng.choice(segments(files))].content
        at = rng.randrange(len(content) // 512) * 512
        content[at : at + 512] = bytes(512)
        seen_outcomes.update(await outcomes(damaged, truth))
    assert {"whole", "damaged"} <= seen_outcomes <= {"whole", "damaged", "refused"}


async def test_a_wrong_byte_is_reported_with_its_position_and_other_logs_serve():
    files, truth = await written()
    name, entry = NAMES[1], 7
    where = next(n for n in segments(files) if truth[name][entry] in files.files[n].content)
    content = files.files[where].content
    content[content.index(truth[name][entry]) + 3] ^= 0x10
    findings = await check("/data", files=files)
    assert [(f.log, f.position[1]) for f in findings if f.log is not None] == [(name, entry)]
    store = simulated_store(files)
    await store.start()
    log = await store.open(name)
    assert [data for _, data in await log.read((log.ledger_id, 0), max_entries=100)] == truth[name][:entry]
    with pytest.raises(LogDamaged) as caught:
        await log.read((log.ledger_id, entry))
    assert (caught.value.log, caught.value.position) == (name, (log.ledger_id, entry))
    assert await read_all(store, NAMES[0]) == truth[NAMES[0]]
    assert await read_all(store, NAMES[2]) == truth[NAMES[2]]
    await log.close()
    with pytest.raises(LogDamaged):
        await store.open(name)
    await store.delete(name)
    assert store.names() == [NAMES[0], NAMES[2]]
    await store.close()


async def test_an_unreadable_frame_before_valid_ones_stops_the_store_and_is_not_cut_off():
    files, _ = await written(turns=4, clean=False)
    (name,) = [n for n in segments(files) if n.endswith("0000.journal")]
    content = files.files[name].content
    content[4 * ALIGNMENT + HEADER.size] ^= 0xFF
    before = bytes(content)
    with pytest.raises(LogDamaged, match=f"offset {4 * ALIGNMENT}"):
        await simulated_store(files).start()
    assert bytes(files.files[name].content) == before


async def test_a_bad_last_frame_is_a_torn_tail():
    files, truth = await written(turns=4, clean=False)
    content = files.files[segments(files)[0]].content
    content[content.rindex(b"value")] ^= 1
    store = simulated_store(files)
    await store.start()
    assert await store.metadata.get("/a") is None
    assert await read_all(store, NAMES[2]) == truth[NAMES[2]]
    store.abandon()


async def test_a_bad_last_frame_is_damage_after_a_clean_close():
    files, _ = await written(turns=4, clean=True)
    content = files.files[segments(files)[0]].content
    content[content.rindex(b"value")] ^= 1
    with pytest.raises(LogDamaged):
        await simulated_store(files).start()


async def test_a_missing_segment_is_named_and_only_its_logs_are_refused():
    files, truth = await written()
    store = simulated_store(files)
    await store.start()
    late = await store.open("late")
    late.append(b"here")
    await store.close()
    content = files.files.pop(segments(files)[0]).content
    store = simulated_store(files)
    await store.start()
    assert any("missing" in finding.detail for finding in store.findings)
    for name in NAMES:
        with pytest.raises(LogDamaged) as caught:
            await store.open(name)
        first = next(entry for entry, data in enumerate(truth[name]) if len(data) > 50 and data in content)
        assert caught.value.position[1] <= first
    assert await read_all(store, "late") == [b"here"]
    for name in NAMES:
        await store.delete(name)
    await store.close()
    assert truth.keys() == set(NAMES)


async def test_lost_segments_are_not_taken_for_a_new_store():
    files, _ = await written()
    for name in segments(files):
        del files.files[name]
    with pytest.raises(LogDamaged, match=r"was begun and is missing.*restore the whole folder"):
        await simulated_store(files).start()


async def test_a_damaged_snapshot_is_reported():
    files, _ = await written()
    for name in segments(files):
        content = files.files[name].content
        if (at := content.find(b"statestate")) >= 0:
            content[at] ^= 1
    store = simulated_store(files)
    await store.start()
    log = await store.open(NAMES[0])
    with pytest.raises(LogDamaged, match="snapshot"):
        await log.latest_snapshot()
    await store.close()
    assert {finding.log for finding in await check("/data", files=files)} - {None} == {NAMES[0]}


async def test_frames_of_an_earlier_life_of_a_file_are_not_taken_for_this_one():
    files, truth = await written(turns=4, clean=False)
    name = segments(files)[0]
    content = files.files[name].content
    end = max(at for at in range(0, len(content), ALIGNMENT) if content[at : at + 4] == b"PTJ1") + ALIGNMENT
    uuid = bytes(content[4:20])
    stale = bytearray(content[ALIGNMENT : 2 * ALIGNMENT])
    assert stale.startswith(frame_prefix(uuid))
    content[end + ALIGNMENT : end + 2 * ALIGNMENT] = stale  # an older sequence: no evidence of anything lost
    stale[20] ^= 1
    content[end : end + ALIGNMENT] = stale  # another segment number, right where the next frame would be
    store = simulated_store(files)
    await store.start()
    assert [await read_all(store, n) for n in NAMES] == [truth[n] for n in NAMES]
    store.abandon()


async def test_copies_of_damaged_entries_stay_damaged():
    files, truth = await written(turns=120, clean=True)
    store = simulated_store(files)
    await store.start()
    logs = [await store.open(name) for name in NAMES]
    await settled(store)  # what is being copied was read already
    segments_now = store.segment_files.opened.segments
    first = segments_now[min(segments_now)]
    content = files.files[first.path].content
    victim = max(e for e, data in enumerate(truth[NAMES[0]]) if len(data) > 50 and data in content)
    content[content.index(truth[NAMES[0]][victim])] ^= 1
    logs[0].trim((logs[0].ledger_id, victim))
    for log in logs[1:]:
        log.trim((log.ledger_id, log.next_entry))
    for _ in range(40):
        logs[1].append(bytes(1000))
    await store.durable()
    logs[1].trim((logs[1].ledger_id, logs[1].next_entry))
    for _ in range(5):
        await store.durable()
        await settled(store)
    assert first.number not in segments_now, "the segment was copied forward and dropped"
    with pytest.raises(LogDamaged) as caught:
        await logs[0].read((logs[0].ledger_id, victim))
    assert caught.value.position[1] == victim
    assert (await logs[0].read((logs[0].ledger_id, victim + 1)))[0][1] == truth[NAMES[0]][victim + 1]
    await store.close()


async def test_recovery_is_the_same_twice():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    await Workload(store, 99).run(150)
    store.abandon()
    first, second = copied(files), copied(files)
    states = []
    for left in (first, second):
        store = simulated_store(left)
        await store.start()
        states.append(await seen(store))
        store.abandon()
    assert states[0] == states[1]
