"""Power loss at every operation: what is recovered is a prefix of the calls that holds everything acknowledged."""

import asyncio
import random

import pytest
from insides import logs_of, syncer_of
from journal_world import Workload, check_against, seen, simulated_store
from simulated_files import LOSSES, SimulatedFiles

from pulsar_txn.ledger.journal import check, checkpoint
from pulsar_txn.ledger.protocols import LogDamaged


def seeds(count, sample):
    """The first `sample` of them, and the others in `make soak`."""
    return pytest.mark.parametrize(
        "seed", [*range(sample), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(sample, count))]
    )


class Crashes:
    """Collects what each operation of a run might leave behind, to be recovered between two calls."""

    def __init__(self, files, workload, seed):
        self.files = files
        self.workload = workload
        self.rng = random.Random(seed)
        self.left = []
        self.count = 0

    def before_operation(self, operation):
        for loss in LOSSES:
            if operation in ("create", "truncate") and loss not in ("all", "none"):
                continue
            left = self.files.after_power_loss(loss, self.rng)
            self.left.append((left, self.workload.acknowledged, len(self.workload.states), f"{loss} before {operation}"))

    async def recover_all(self):
        for left, acknowledged, calls, what in self.left:
            self.count += 1
            try:
                await self.recover(left, acknowledged, calls)
            except Exception as error:
                error.add_note(f"unsynced lost: {what}, operation {self.files.operations}")
                raise
        self.left.clear()

    async def recover(self, left, acknowledged, calls):
        store = simulated_store(left)
        await store.start()
        assert store.findings == []
        lost_again = left.after_power_loss("all", self.rng)
        found = await seen(store)
        await check_against(found, self.workload.states[:calls], acknowledged)
        if self.count % 4 == 1:
            await self.shows(lost_again, found)
        if self.count % 4 == 0:
            await self.goes_on(store, left)
        store.abandon()

    async def shows(self, left, found):
        """What a recovered store is about to show is on the disk."""
        again = simulated_store(left)
        await again.start()
        assert await seen(again) == found
        again.abandon()

    async def goes_on(self, store, left):
        """The recovered store takes calls, and is the same after a clean restart."""
        log = await store.open("another")
        log.append(b"x")
        await log.close()
        await store.delete("another")
        for name in store.names():
            await logs_of(store)[name].close()
        before = await seen(store)
        await store.close()
        assert await check("/data", files=left) == []
        again = simulated_store(left)
        await again.start()
        assert await seen(again) == before
        again.abandon()


@seeds(5, sample=2)
async def test_power_loss_at_any_operation_leaves_a_prefix_with_everything_acknowledged(seed):
    files = SimulatedFiles()
    store = simulated_store(files)
    workload = Workload(store, seed)
    crashes = Crashes(files, workload, seed)
    files.on_operation = crashes.before_operation
    await store.start()
    await crashes.recover_all()
    for _ in range(110):
        await workload.step()
        await crashes.recover_all()
    await workload.flush()
    await crashes.recover_all()
    assert crashes.count > 200
    await store.close()


@seeds(6, sample=1)
async def test_power_loss_at_any_operation_of_checkpoints_in_many_slices_leaves_a_prefix(seed, monkeypatch):
    monkeypatch.setattr(checkpoint, "PAUSE_SECONDS", 0)
    slices = []
    take = checkpoint.Checkpoint.take
    monkeypatch.setattr(checkpoint.Checkpoint, "take", lambda self: slices.append(self) or take(self))
    files = SimulatedFiles()
    store = simulated_store(files)
    workload = Workload(store, seed, rich=True)
    await store.start()
    await workload.run(150)
    crashes = Crashes(files, workload, seed)
    files.on_operation = crashes.before_operation
    for _ in range(60):
        await workload.step()
        await crashes.recover_all()
    await workload.flush()
    await crashes.recover_all()
    assert crashes.count > 200
    assert max(slices.count(each) for each in slices) > 3, "checkpoints of many slices"
    await store.close()


async def first_loss(prepare, seed=1, calls=60):
    """Run as above with a journal that `prepare` broke; the first promise that did not hold, None if all held."""
    files = SimulatedFiles()
    store = simulated_store(files)
    workload = Workload(store, seed)
    crashes = Crashes(files, workload, seed)
    await store.start()
    prepare(store, files)
    files.on_operation = crashes.before_operation
    try:
        for _ in range(calls):
            await workload.step()
            await crashes.recover_all()
    except (AssertionError, LogDamaged) as error:
        return error
    finally:
        store.abandon()
    return None


def confirm_before_the_sync(store, files):
    syncer_of(store).request = lambda command, fd, done: asyncio.get_running_loop().call_soon(done, 0)


def forget_folder_syncs(store, files):
    files.forget_folder_syncs = True


@pytest.mark.parametrize("mistake", [confirm_before_the_sync, forget_folder_syncs], ids=lambda mistake: mistake.__name__)
async def test_these_tests_notice(mistake):
    assert await first_loss(lambda store, files: None) is None
    assert await first_loss(mistake) is not None
