"""Journals on a hostile disk, a seed at a time. `python tests/support/hostile_disk.py FIRST LAST` runs many.

In the model: calls fail, once or for a while, syncs clean their pages, reads are cut short, descriptors run out,
processes are killed and the power goes, in any order. Nothing confirmed is lost, and nothing wrong is read.

Out of the model: after all that, one thing is done to the files that no journal can prevent (a file is lost, zeroed or
replaced, a block is zeroed, flipped, unreadable or written to a wrong place). It is detected or harmless: what
is served is right and complete, and `check` finds what is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import random
import sys

from insides import logs_of
from journal_world import Model, Workload, seen, settled, simulated_store
from simulated_files import LOSSES, SECTOR_BYTES, SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.protocols import LedgerError, LogDamaged, ReadFailed, StorageFailed, StoreTooNew, StoreUnsupported

BLOCK_BYTES = 4096
ACCESS_ERRORS = [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]
CHANGE_ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE]


class Faults:
    """Fails some of a disk's calls: `rate` of them, in fits, so that trying again does not always help."""

    def __init__(self, files: SimulatedFiles, rng: random.Random, rate: float) -> None:
        self.files, self.rng, self.rate = files, rng, rate
        self.left, self.code = 0, 0
        files.on_access, files.on_operation = self.access, self.change

    def stop(self) -> None:
        self.files.on_access = self.files.on_operation = self.files.short_read_bytes = None

    def access(self, operation: str) -> None:
        if self.left:
            self.left -= 1
        elif self.rng.random() < self.rate:
            self.left, self.code = self.rng.choice([0, 0, 1, 3, 8]), self.rng.choice(ACCESS_ERRORS)
        else:
            self.files.short_read_bytes = self.rng.randrange(1, 3000) if self.rng.random() < self.rate else None
            return
        raise OSError(self.code, os.strerror(self.code))

    def change(self, operation: str) -> None:
        if self.rng.random() < self.rate / 10:
            code = self.rng.choice(CHANGE_ERRORS)
            raise OSError(code, os.strerror(code))


async def one_life(files: SimulatedFiles, workload: Workload, rng: random.Random) -> SimulatedFiles:
    """Work under faults until it fails or stops, then a kill or a power loss, then recovery without faults."""
    faults = Faults(files, rng, rng.choice([0.0, 0.02, 0.2]))
    store = workload.store
    try:
        for _ in range(rng.randrange(60)):
            await workload.step()
            if rng.random() < 0.2:
                await read_something(workload, rng)
        if rng.random() < 0.3:
            await settled(store)
    except LedgerError:
        pass  # refused or failed: what was confirmed before counts
    faults.stop()
    left = files.after_power_loss(rng.choice(LOSSES), rng)
    store.abandon()
    if rng.random() < 0.3:
        left.evict(rng)
    await started_under_faults(left, rng)
    again = simulated_store(left)
    await again.start()
    assert again.findings == [], again.findings
    await workload.go_on(again)
    return left


async def started_under_faults(files: SimulatedFiles, rng: random.Random) -> None:
    """A start that fails, or is cut off, makes nothing worse."""
    if rng.random() < 0.5:
        return
    faults = Faults(files, rng, 0.05)
    store = simulated_store(files)
    with contextlib.suppress(LedgerError):
        await store.start()
    faults.stop()
    store.abandon()


async def read_something(workload: Workload, rng: random.Random) -> None:
    """Entries as the model has them, or an error that may pass; nothing else."""
    name = rng.choice(sorted(workload.handles))
    log, model = workload.handles[name], workload.model.logs[name]
    log.tail.clear() if rng.random() < 0.5 and log.confirmed_entry == log.next_entry - 1 else None
    try:
        found = await log.read((log.ledger_id, rng.randrange(log.next_entry + 1)), max_entries=5)
    except ReadFailed:
        return
    for (_, entry), data in found:
        assert model.entries[entry] == data


def spoil(files: SimulatedFiles, rng: random.Random) -> str:
    """One thing that no journal can prevent; what it was."""
    path = rng.choice([path for path in sorted(files.files) if not path.endswith("/LOCK")])
    file, others = files.files[path], [each for each in files.files.values() if len(each.content) > BLOCK_BYTES]
    blocks = max(1, len(file.content) // BLOCK_BYTES)
    at = rng.randrange(blocks) * BLOCK_BYTES
    what = rng.choice(["lost", "zeroed", "cut", "block zeroed", "bit", "unreadable", "misdirected", "moved"])
    match what:
        case "lost":
            del files.files[path]
        case "zeroed":
            file.content[:] = bytes(len(file.content))
        case "cut":
            del file.content[at:]
        case "block zeroed":
            file.content[at : at + BLOCK_BYTES] = bytes(len(file.content[at : at + BLOCK_BYTES]))
        case "bit":
            if file.content:
                file.content[rng.randrange(len(file.content))] ^= 1 << rng.randrange(8)
        case "unreadable":
            files.spoil(path, at, at + rng.choice([SECTOR_BYTES, BLOCK_BYTES]))
        case "misdirected" if others and len(file.content) > BLOCK_BYTES:
            source = rng.choice(others)
            begin = rng.randrange(len(source.content) // BLOCK_BYTES) * BLOCK_BYTES
            file.content[at : at + BLOCK_BYTES] = source.content[begin : begin + BLOCK_BYTES]
        case "moved" if others:
            file.content[:] = rng.choice(others).content
    return f"{what}: {path} at {at}"


async def detected_or_harmless(files: SimulatedFiles, truth: Model) -> str:
    """'refused', 'damaged' or 'whole'. AssertionError when something wrong is served, or less than there was."""
    try:
        findings = await check("/data", files=files)
    except StoreTooNew:  # the version in FORMAT was hit
        return "refused"
    store = simulated_store(files)
    try:
        await store.start()
    except (LogDamaged, ReadFailed, StorageFailed, StoreUnsupported):
        assert findings, "check finds what the start refuses"
        return "refused"
    outcome = "whole"
    assert {path: (value.data, value.version) for path, value in store.metadata.values.items()} == truth.values
    assert store.names() == sorted(truth.logs)
    for name in store.names():
        try:
            log = await store.open(name)
            expected = truth.logs[name]
            assert (log.first_entry, log.next_entry) == (expected.first, expected.next)
            await every_entry(log, expected.entries)
            snapshot = await log.latest_snapshot()
            assert (snapshot and (snapshot.covers[1], snapshot.data)) == expected.snapshot
        except (LogDamaged, ReadFailed) as error:
            refused = error.log
        else:
            continue
        assert refused == name, f"{name} is refused for {refused}"
        assert any(each.log == name for each in findings), f"check does not report what is wrong with {name}"
        outcome = "damaged"
    store.abandon()
    return outcome


async def every_entry(log: object, expected: dict[int, bytes]) -> None:
    position, entry = (log.ledger_id, 0), log.first_entry
    while step := await log.read(position, max_entries=50):
        for (_, found), data in step:
            assert (found, data) == (entry, expected[entry])
            entry += 1
        position = log.next_position(step[-1][0])
    assert entry == log.next_entry


async def run(seed: int) -> list[str]:
    """One seed; the outcomes of what was done to the files."""
    rng = random.Random(seed)
    files = SimulatedFiles()
    workload = Workload(simulated_store(files), seed, rich=rng.random() < 0.3)
    await workload.store.start()
    for _ in range(rng.randrange(1, 5)):
        files = await one_life(files, workload, rng)
    await settled(workload.store)
    truth = await closed(workload)
    outcomes = []
    for _ in range(6):
        left = files.after_power_loss("none", rng)
        what = spoil(left, rng)
        try:
            outcomes.append(await detected_or_harmless(left, truth))
        except Exception as error:
            error.add_note(what)
            raise
    return outcomes


async def closed(workload: Workload) -> Model:
    for log in list(logs_of(workload.store).values()):
        await log.close()
    truth = await seen(workload.store)
    await workload.store.close()
    return truth


def main(first: int, last: int) -> None:
    logging.disable()
    counts: dict[str, int] = {}
    for seed in range(first, last):
        try:
            for outcome in asyncio.run(asyncio.wait_for(run(seed), 60)):
                counts[outcome] = counts.get(outcome, 0) + 1
        except Exception as error:  # noqa: BLE001 - the next seed may show something else
            print(f"seed {seed}: {type(error).__name__}: {error} {getattr(error, '__notes__', '')}", flush=True)
    print(f"seeds {first} to {last - 1}: {counts}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
