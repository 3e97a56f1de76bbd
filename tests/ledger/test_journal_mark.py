"""The newest segment that was begun is known from outside of it: losing it is never taken for the end of the journal."""

import random

import pytest
from insides import logs_of
from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.journal.folder import marked_segment
from pulsar_txn.ledger.protocols import LogDamaged, StorageFailed
from pulsar_txn.ledger.testing import Recorder, all_entries


async def filled(store, upto):
    """Entries in one log, each confirmed, until the plan is in segment `upto`."""
    log, number = await store.open("a", create=True), 0
    while store.writer.planned_segment < upto:
        log.append(b"%d" % number + bytes(1500))
        await log.flush()
        number += 1
    return number


async def stopped(upto=3, clean=True):
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    entries = await filled(store, upto)
    if clean:
        await store.close()
    else:
        store.abandon()
    return files, entries


def copied(files):
    return files.after_power_loss("none", random.Random(0))


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("what", ["lost", "zeroed", "an older copy", "lost with the one prepared"])
async def test_the_newest_segment_lost_or_replaced_is_refused_and_reported(what, clean):
    files, _ = await stopped(clean=clean)
    number = marked_segment(files.names("/data"))
    assert number == 3
    name = f"/data/segment-{number:010d}.journal"
    if what == "zeroed":
        files.files[name].content[:] = bytes(len(files.files[name].content))
    elif what == "an older copy":  # the content of another segment: it names another number
        files.files[name].content[:] = files.files[f"/data/segment-{number - 1:010d}.journal"].content
    else:
        del files.files[name]
    if what == "lost with the one prepared":
        del files.files[f"/data/segment-{number + 1:010d}.journal"]
    (finding,) = [each for each in await check("/data", files=files) if each.fatal]
    assert (finding.kind, finding.segment, finding.unreadable) == ("segment", 3, False)
    before = {name: bytes(file.content) for name, file in files.files.items()}
    for _ in range(2):
        with pytest.raises(LogDamaged, match=r"segment 3 was begun and .*restore the whole folder from a copy"):
            await simulated_store(files).start()
    assert {name: bytes(file.content) for name, file in files.files.items()} == before, "a refused store is left alone"


async def test_any_segment_that_holds_something_is_missed():
    files, entries = await stopped()
    for name in [name for name in files.files if "/segment-" in name]:
        less = copied(files)
        del less.files[name]
        whole = await check("/data", files=less) == []
        assert whole == (int(name[-18:-8]) == 4), "only the one that is prepared is not missed"
        store = simulated_store(less)
        try:
            await store.start()
            assert len(await all_entries(await store.open("a"))) == entries
            assert whole
        except LogDamaged:
            assert not whole
        store.abandon()


async def test_a_missing_mark_is_refused_and_reported():
    files, _ = await stopped()
    del files.files["/data/begun-0000000003"]
    assert [each.kind for each in await check("/data", files=files)] == ["mark"]
    with pytest.raises(LogDamaged, match="begun-… is missing"):
        await simulated_store(files).start()


async def test_of_two_marks_of_copies_laid_over_each_other_the_newer_counts():
    files, entries = await stopped()
    files.files["/data/begun-0000000001"] = files.files["/data/begun-0000000003"].killed()
    store = simulated_store(files)
    await store.start()
    assert len(await all_entries(await store.open("a"))) == entries
    assert [name for name in files.names("/data") if name.startswith("begun-")] == ["begun-0000000003"]
    await store.close()


async def test_nothing_of_a_segment_is_confirmed_before_the_mark_names_it():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    log.listen(heard := Recorder())
    confirmed_in = set()

    def durable_mark():
        return marked_segment(name.removeprefix("/data/") for name in files.durable_names)

    def watch(position):
        confirmed_in.add(store._segment.number)
        assert store._segment.number == durable_mark()
        heard.confirmed.append(position)

    heard.log_confirmed = watch
    for _ in range(120):
        log.append(bytes(1500))
        await log.flush()
    assert len(heard.confirmed) == 120
    assert len(confirmed_in) > 3
    await store.close()


async def test_names_that_a_killed_process_left_unsynced_are_durable_before_anything_is_built_on_them():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    left = []

    def watch(operation):
        if operation == "sync" and any("begun-0000000002" in name for name, _, _ in files.renamed):
            left.append(files.after_power_loss("none", random.Random(0)))

    files.on_operation = watch
    await filled(store, 3)
    store.abandon()
    again = simulated_store(left[0])
    assert "/data/begun-0000000002" not in left[0].durable_names
    await again.start()
    assert "/data/begun-0000000002" in left[0].durable_names
    again.abandon()


async def test_a_roll_costs_no_sync_more_than_the_one_of_the_folder():
    """As before there was a mark: the frame, the seal, and the folder once."""
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    await filled(store, 2)
    await settled(store)
    before = store.writer.planned_segment
    operations = []
    files.on_operation = operations.append
    log, groups = logs_of(store)["a"], 0
    while store.writer.planned_segment == before:
        log.append(bytes(1500))
        await log.flush()
        groups += 1
    await settled(store)
    assert operations.count("sync") == groups + 1 + 1
    await store.close()


async def test_a_folder_sync_that_fails_at_a_roll_confirms_nothing_of_the_segment():
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    log.listen(heard := Recorder())
    await settled(store)

    def fail(operation):
        if operation == "sync" and any("begun-" in name for name, _, _ in files.renamed):
            raise OSError(5, "Input/output error")

    files.on_operation = fail
    with pytest.raises(StorageFailed, match="cannot sync /data"):
        while True:
            log.append(bytes(1500))
            await log.flush()
    store.abandon()
    for loss in ("all", "none"):
        again = simulated_store(files.after_power_loss(loss, random.Random(0)))
        await again.start()
        assert len(await all_entries(await again.open("a"))) >= len(heard.confirmed) > 5
        again.abandon()
