"""A sync that failed: its pages are read as if they were on the disk, and nothing is built on that."""

import errno
import os
import random

import pytest
from journal_world import Workload, check_against, seen, simulated_store
from simulated_files import LOSSES, SimulatedFiles

from pulsar_txn.ledger.journal.frame import TRAILER, decode_trailer
from pulsar_txn.ledger.protocols import StorageFailed
from pulsar_txn.ledger.testing import all_entries

POWER_LOSSES = [loss for loss in LOSSES if loss != "none"]


def fails(operation, number=0):
    """Fail the operation of this name that comes after `number` others of the name, once."""
    left = [number]

    def hook(what):
        if what == operation:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    return hook


async def after_a_failed_sync(large=False):
    """Files of a process that ended because a sync failed; they hold one frame that is not on the disk."""
    files = SimulatedFiles()
    store = simulated_store(files, 1 << 20)
    await store.start()
    log = await store.open("a")
    log.append(b"confirmed")
    await log.flush()
    files.on_operation = fails("sync")
    log.append(bytes(200_000) if large else b"never confirmed")
    with pytest.raises(StorageFailed):
        await log.flush()
    store.abandon()
    return files.after_power_loss("none", random.Random(0))


@pytest.mark.parametrize("loss", POWER_LOSSES)
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_what_follows_a_failed_sync_survives_the_next_power_loss(loss, large):
    files = await after_a_failed_sync(large)
    store = simulated_store(files, 1 << 20)
    await store.start()
    log = await store.open("a")
    log.append(b"confirmed later")
    await log.flush()
    confirmed = await all_entries(log)
    again = simulated_store(files.after_power_loss(loss, random.Random(1)), 1 << 20)
    await again.start()
    assert await all_entries(await again.open("a")) == confirmed
    for each in (store, again):
        each.abandon()


async def test_recovery_makes_durable_what_it_accepts_before_it_serves():
    files = await after_a_failed_sync()
    store = simulated_store(files, 1 << 20)
    await store.start()
    left = files.after_power_loss("all", random.Random(1))
    log = await store.open("a")
    accepted = await all_entries(log)
    assert accepted[-1] == b"never confirmed"
    again = simulated_store(left, 1 << 20)
    await again.start()
    assert await all_entries(await again.open("a")) == accepted
    for each in (store, again):
        each.abandon()


async def test_a_seal_whose_sync_failed_is_written_again_with_its_trailer():
    for number in range(1, 60):
        files = SimulatedFiles()
        store = simulated_store(files)
        await store.start()
        log = await store.open("a")
        files.on_operation = fails("sync", number)
        with pytest.raises(StorageFailed):
            while True:
                log.append(bytes(2000))
                await log.flush()
        store.abandon()
        files = files.after_power_loss("none", random.Random(0))
        store = simulated_store(files)
        await store.start()
        sealed = store.segment_files.opened.segments[0]
        if store.writer.planned_segment == 1:
            break
        store.abandon()
    durable = files.files[sealed.path].durable
    assert decode_trailer(bytes(durable[-TRAILER.size :]), store._uuid, 0) is not None
    entries = len(await all_entries(await store.open("a")))
    again = simulated_store(files.after_power_loss("all", random.Random(1)))
    await again.start()
    assert len(await all_entries(await again.open("a"))) == entries
    for each in (store, again):
        each.abandon()


@pytest.mark.parametrize("seed", range(3))
async def test_any_failed_sync_then_work_then_power_loss_loses_nothing_confirmed(seed):
    """Every sync in turn fails; the next process works on, and then the power goes."""
    for number in range(1000):
        files = SimulatedFiles()
        workload = Workload(simulated_store(files), seed)
        files.on_operation = fails("sync", number)
        try:
            await workload.store.start()
            await workload.run(90)
        except StorageFailed:
            pass
        else:
            break
        workload.store.abandon()
        files = files.after_power_loss("none", random.Random(0))
        await _works_on_and_loses_power(files, workload, random.Random(number))
    assert number > 8


async def _works_on_and_loses_power(files, workload, rng):
    store = simulated_store(files)
    await store.start()
    found = await seen(store)
    await check_against(found, workload.states, workload.acknowledged)
    log = await store.open("another")
    for _ in range(rng.randint(1, 12)):
        log.append(rng.randbytes(rng.choice([10, 3000])))
        await log.flush()
    entries = await all_entries(log)
    left = files.after_power_loss(rng.choice(POWER_LOSSES), rng)
    store.abandon()
    again = simulated_store(left)
    await again.start()
    assert again.findings == []
    after = await seen(again)
    assert list(after.logs.pop("another").entries.values()) == entries
    assert after == found
    again.abandon()
