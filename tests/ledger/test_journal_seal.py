"""The last frame of a segment, its index, has room whatever the groups before it were made of."""

import random

import pytest
from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import check
from pulsar_txn.ledger.journal.frame import ALIGNMENT
from pulsar_txn.ledger.testing import all_entries


@pytest.mark.parametrize("pages", [5, 6])
async def test_a_group_is_placed_where_its_own_part_of_the_index_has_room_too(pages):
    """A group of 300 logs takes four pages, and its part of the index three: both do not fit into what is left."""
    files = SimulatedFiles()
    store = simulated_store(files, 256 << 10)
    await store.start()
    logs = [await store.open(f"{number:03d}") for number in range(300)]
    filler = await store.open("filler")

    async def fill():
        while store.writer.room >= pages * ALIGNMENT:
            filler.append(bytes(2000))
            await store.durable()

    first = store.writer.planned_segment
    await fill()
    while store.writer.planned_segment == first:  # into a segment whose index knows none of the logs
        filler.append(bytes(2000))
        await store.durable()
    await fill()
    for log in logs:
        log.append(b"x")
    await store.durable()
    while store.writer.planned_segment <= first + 1:
        filler.append(bytes(2000))
        await store.durable()
    await settled(store)
    await store.close()
    assert await check("/data", files=files) == []
    assert {len(file.content) for name, file in files.files.items() if "/segment-" in name} == {256 << 10}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", [b"%d", b"%.0a"], ids=["small", "empty"])
async def test_groups_of_many_runs_and_their_copies_leave_room_for_the_index(form, seed):
    """A group of many runs adds more to the frame and to the index than its entries' bytes say."""
    rng = random.Random(seed)
    files = SimulatedFiles()
    store = simulated_store(files, 96 << 10)
    await store.start()
    logs = [await store.open(f"{number:03d}") for number in range(150)]
    truth = {log.name: 0 for log in logs}
    for _ in range(40):
        for log in rng.sample(logs, rng.choice([1, 20, 100, 150])):
            log.append(form % truth[log.name])
            truth[log.name] += 1
        await store.durable()
    await settled(store)
    await store.close()
    sizes = [len(file.content) for name, file in files.files.items() if "/segment-" in name]
    assert set(sizes) == {96 << 10}, "nothing is written behind a segment's end"
    assert len(sizes) > 3
    assert await check("/data", files=files) == []
    again = simulated_store(files, 96 << 10)
    await again.start()
    for name, count in truth.items():
        assert await all_entries(await again.open(name)) == [form % number for number in range(count)]
    again.abandon()
