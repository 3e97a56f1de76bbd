"""A backup is the journal at one moment, whatever goes on meanwhile, and a restore gives back exactly that."""

from __future__ import annotations

import asyncio
import errno
import json
import random

import pytest
from journal_world import SEGMENT_BYTES, Workload, check_against, seen, settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.journal.backup import BackupRefused, back_up, cut_of_closed, read_backup, restore, verify
from pulsar_txn.ledger.journal.segments import MAX_HOLDS, TooManyHolds
from pulsar_txn.ledger.protocols import LogDamaged, StoreInUse

NOW = 1_700_000_000


async def no_step():
    """Nothing goes on while the copy is made."""


async def online(files, store, target="/backup", step=no_step):
    """A backup of a running store; the hold must have lasted."""
    name, cut = await store.hold(60)

    async def held():
        await step()
        if not store.holds.renew(name, 60):
            raise BackupRefused("the hold is over")

    try:
        return await back_up(files, "/data", target, cut, now=NOW, step=held, still_held=held)
    finally:
        store.holds.end(name)


async def restored(files, source="/backup", folder="/restored", *, replace=False):
    await restore(files, source, folder, replace=replace)
    async with JournalStore(folder, segment_bytes=SEGMENT_BYTES, files=files) as store:
        assert store.findings == []
        return await seen(store)


@pytest.mark.parametrize("seed", range(8))
async def test_a_backup_under_load_has_all_that_was_confirmed_before_it_and_is_one_moment(seed):
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        work = Workload(store, seed)
        await work.run(150 + 50 * seed)
        confirmed = work.acknowledged

        async def step():
            await work.run(30)

        holding = asyncio.ensure_future(store.hold(60))
        while not holding.done():
            await work.step()
        name, cut = holding.result()
        upto = len(work.states)
        await work.run(100)  # and much goes on before the copying begins

        async def held():
            await step()
            assert store.holds.renew(name, 60)

        await back_up(files, "/data", "/backup", cut, now=NOW, step=held, still_held=held)
        assert store.holds.end(name)
        await work.run(50)
    await check_against(await restored(files), work.states[:upto], confirmed)


async def test_segments_that_nobody_needs_keep_what_they_hold_until_the_hold_ends():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("log")
        name, cut = await store.hold(60)
        before = [path for path in files.files if "/segment-" in path]
        for _ in range(200):
            position = log.append(random.randbytes(2000))
            log.trim(position)
            await store.durable()
            await settled(store, 5)
        assert store.writer.durable_end[0] > cut.segment + 3
        assert set(before) <= set(files.files)
        assert store.holds.end(name)
        await settled(store)
        kept = [path for path in files.files if "/segment-" in path]
        assert len(kept) <= 4, "what was kept for the copy is recycled after it"
        assert not store.holds.end(name)


async def test_a_hold_that_nobody_renews_ends_and_a_copier_learns_it():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        await (await store.open("log")).open_cursor("c")
        with pytest.raises(BackupRefused, match="the hold is over"):
            await online(files, store, step=lambda: expire(store))
        assert not store.segment_files.held
    with pytest.raises(BackupRefused, match="no finished backup"):
        read_backup(files, "/backup")


async def expire(store):
    for name in list(store.holds._leases):
        store.holds.end(name)


async def test_one_of_two_holds_keeps_the_segments():
    async with simulated_store(SimulatedFiles()) as store:
        one, _ = await store.hold(60)
        two, _ = await store.hold(60)
        assert store.holds.end(one)
        assert store.segment_files.held
        assert store.holds.renew(two, 60)
        assert not store.holds.renew(one, 60)
        assert store.holds.end(two)
        assert not store.segment_files.held


async def test_holds_are_bounded_and_their_leases_run_out():
    async with simulated_store(SimulatedFiles()) as store:
        names = [(await store.hold(60))[0] for _ in range(MAX_HOLDS)]
        with pytest.raises(TooManyHolds, match="wait until one is finished"):
            await store.hold(60)
        for name in names:
            assert store.holds.renew(name, 0)
        await settled(store)
        assert not store.segment_files.held
        assert not any(store.holds.renew(name, 60) for name in names)
        assert store.holds.end((await store.hold(60))[0])


async def test_a_full_disk_ends_the_hold_before_it_ends_the_service():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("log")
        name, _ = await store.hold(60)
        files.free_bytes = 0
        for _ in range(200):
            if store.segment_files.scarce:
                break
            log.append(random.randbytes(5_000))
            await store.durable()
            await settled(store, 5)
        assert store.segment_files.scarce
        assert not store.segment_files.held
        assert not store.holds.renew(name, 60)
        await store.durable()


async def world(files, seed=3, calls=400):
    """A closed store with something in it, and what it shows."""
    async with simulated_store(files) as store:
        work = Workload(store, seed)
        await work.run(calls)
        await work.flush()
    async with simulated_store(files) as store:
        return await seen(store)


async def closed_backup(files):
    return await back_up(files, "/data", "/backup", cut_of_closed(files, "/data"), now=NOW, step=no_step, still_held=no_step)


@pytest.mark.parametrize("seed", range(5))
async def test_a_backup_of_a_closed_store_restores_to_the_same(seed):
    files = SimulatedFiles()
    found = await world(files, seed, 300 + 300 * seed)
    backup = await closed_backup(files)
    assert backup == read_backup(files, "/backup")
    assert await restored(files) == found


async def test_a_restored_store_goes_on_and_never_gives_a_position_again():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("log")
        last = [log.append(b"x" * 1000) for _ in range(30)][-1]
        await store.durable()
        await online(files, store)
    await restore(files, "/backup", "/restored", replace=False)
    async with JournalStore("/restored", segment_bytes=SEGMENT_BYTES, files=files) as store:
        log = await store.open("log")
        assert log.append(b"next") == (last[0], last[1] + 1)
        await store.durable()
        assert [data for _, data in await log.read((last[0], 0), max_entries=100)] == [b"x" * 1000] * 30 + [b"next"]


async def test_a_backup_never_goes_into_a_folder_with_something_in_it():
    files = SimulatedFiles()
    await world(files)
    files.open("/backup/notes.txt", create=True)
    with pytest.raises(BackupRefused, match="not empty"):
        await closed_backup(files)


async def test_a_damaged_store_gives_no_backup():
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("log")
        for _ in range(3):
            log.append(b"a" * 3000)
            await store.durable()
    path = min(path for path in files.files if "/segment-" in path)
    content = files.files[path].content
    content[content.index(b"a" * 3000) + 100] ^= 1
    with pytest.raises((BackupRefused, LogDamaged)):
        await closed_backup(files)
    with pytest.raises(BackupRefused, match="no finished backup"):
        read_backup(files, "/backup")


@pytest.mark.parametrize("victim", ["segment", "FORMAT", "BACKUP", "begun"])
async def test_every_flipped_byte_of_a_backup_is_found_before_anything_is_replaced(victim):
    files = SimulatedFiles()
    await world(files, calls=60)
    await closed_backup(files)
    path = next(path for path in files.files if path.startswith(f"/backup/{victim}"))
    content = files.files[path].content
    listed = {each.name: each.bytes for each in read_backup(files, "/backup").files}
    length = listed.get(path.rpartition("/")[2], len(content))
    rng = random.Random(1)
    for at in rng.sample(range(length), min(40, length)):
        before = dict(files.files)
        content[at] ^= 1 << rng.randrange(8)
        try:
            await restore(files, "/backup", "/restored", replace=False)
        except BackupRefused:
            assert {p for p in files.files if p.startswith("/restored/")} <= {"/restored/LOCK"}
        else:
            # Only the blanks and the title of the list may change without a loss; then what came in is right.
            assert victim == "BACKUP"
            assert before.keys() <= files.files.keys()
            for path_in in [p for p in files.files if p.startswith("/restored/")]:
                del files.files[path_in]
        await flip_back(files, "/backup", path, at)


async def flip_back(files, folder, path, at):
    """Take the backup again from the closed store, which is the same."""
    for name in [p for p in files.files if p.startswith(f"{folder}/")]:
        if name != path:
            del files.files[name]
    fresh = files.files.pop(path)
    await closed_backup(files)
    fresh.content[:] = files.files[path].content
    files.files[path] = fresh


@pytest.mark.parametrize("lost", ["segment", "FORMAT", "begun"])
async def test_a_backup_with_a_missing_file_is_refused(lost):
    files = SimulatedFiles()
    await world(files)
    await closed_backup(files)
    del files.files[next(path for path in files.files if path.startswith(f"/backup/{lost}"))]
    with pytest.raises(BackupRefused, match="missing"):
        await restore(files, "/backup", "/restored", replace=False)
    assert not [path for path in files.files if path.startswith("/restored/")]


async def test_an_unfinished_backup_is_never_restored():
    """Whichever call of the backup fails: what is there is no backup, or a whole one."""
    source = SimulatedFiles()
    found = await world(source, calls=60)
    for nth in range(10_000):
        files = source.after_power_loss("none", random.Random(nth))
        left = iter(range(nth))

        def fail(_, left=left):
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")

        files.on_operation = fail
        try:
            await closed_backup(files)
        except OSError:
            ended = True
        else:
            ended = False
        files.on_operation = None
        if "/backup/BACKUP" not in files.files:
            with pytest.raises(BackupRefused, match="no finished backup"):
                read_backup(files, "/backup")
            continue
        assert await restored(files) == found
        if not ended:
            break
    assert nth > 5


async def test_a_restore_never_touches_a_folder_in_use_or_one_with_something_in_it():
    files = SimulatedFiles()
    found = await world(files)
    await closed_backup(files)
    async with simulated_store(files):
        with pytest.raises(StoreInUse):
            await restore(files, "/backup", "/data", replace=True)
    with pytest.raises(BackupRefused, match="--replace moves it aside"):
        await restore(files, "/backup", "/data", replace=False)
    files.open("/other/notes.txt", create=True)
    with pytest.raises(BackupRefused, match=r"other files \(notes.txt"):
        await restore(files, "/backup", "/other", replace=True)
    async with simulated_store(files) as store:
        assert await seen(store) == found


async def test_a_replaced_journal_is_kept_whole_beside_the_restored_one():
    files = SimulatedFiles()
    old = await world(files)
    await closed_backup(files)
    async with simulated_store(files) as store:
        log = await store.open(store.names()[0])
        log.append(b"later")
    async with simulated_store(files) as store:
        new = await seen(store)
    assert await restored(files, folder="/data", replace=True) == old
    async with JournalStore("/data/replaced-1", segment_bytes=SEGMENT_BYTES, files=files) as store:
        assert await seen(store) == new
    await restore(files, "/backup", "/data", replace=True)
    assert [path for path in files.files if path.startswith("/data/replaced-2/FORMAT")]


@pytest.mark.parametrize("loss", ["none", "all", "prefix", "reordered"])
async def test_a_restore_that_ends_anywhere_leaves_the_old_the_new_or_a_refusal_and_can_be_repeated(loss):
    files = SimulatedFiles()
    old = await world(files, calls=80)
    await closed_backup(files)
    async with simulated_store(files) as store:
        log = await store.open(store.names()[0])
        log.append(b"later")
    async with simulated_store(files) as store:
        new = await seen(store)
    assert old != new
    states: list[SimulatedFiles] = []
    rng = random.Random(7)
    trial = files.after_power_loss("none", rng)
    trial.on_operation = lambda _: states.append(trial.after_power_loss(loss, rng))
    await restore(trial, "/backup", "/data", replace=True)
    outcomes = set()
    for left in states:
        store = simulated_store(left.after_power_loss("none", rng))
        try:
            await store.start()
        except LogDamaged:
            outcomes.add("refused")
        else:
            shown = await seen(store)  # what starts is whole: no log of it is refused
            await store.close()
            assert shown in (old, new)
            outcomes.add("old" if shown == old else "new")
        assert await restored(left, folder="/data", replace=True) == old
    assert {"new", "refused"} <= outcomes


async def test_the_list_of_a_newer_version_is_refused():
    files = SimulatedFiles()
    await world(files, calls=30)
    await closed_backup(files)
    content = files.files["/backup/BACKUP"].content
    told = json.loads(bytes(content))
    content[:] = json.dumps(told | {"version": 2}).encode()
    with pytest.raises(BackupRefused, match="newer version"):
        read_backup(files, "/backup")
    content[:] = json.dumps(told | {"files": [{"name": "../x", "bytes": 0, "crc": 0, "size": 0}]}).encode()
    with pytest.raises(BackupRefused, match="a file named"):
        read_backup(files, "/backup")


async def test_verify_reads_a_whole_backup():
    files = SimulatedFiles()
    await world(files)
    await verify(files, "/backup", await closed_backup(files))
