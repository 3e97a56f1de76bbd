"""No size of the state is fatal: it is written in slices, read again, bounded by a limit, and the space on disk follows."""

import asyncio
import itertools
import random

import pytest
from journal_world import SEGMENT_BYTES, settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore, check, checkpoint
from pulsar_txn.ledger.journal.checkpoint import SLICE_BYTES, Checkpoint
from pulsar_txn.ledger.journal.writer import JournalWriter
from pulsar_txn.ledger.protocols import EntryTooLarge, StateTooLarge
from pulsar_txn.ledger.testing import all_entries


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(checkpoint, "PAUSE_SECONDS", 0)


async def rolled(store, log, times=1):
    """The store went on to the next segment."""
    wanted = store.writer.planned_segment + times
    while store.writer.planned_segment < wanted:
        log.append(bytes(store.max_entry_bytes // 2))
        await log.flush()


async def test_acknowledgements_of_invented_batches_are_survived_by_a_roll_and_a_restart(tmp_path):
    """5,600 one-byte messages, and for each an ack set of 100,000 indexes: 70 MB of state."""
    async with JournalStore(tmp_path) as store:
        log = await store.open("a")
        for _ in range(5_600):
            log.append(b"x")
        await log.flush()
        cursor = await log.open_cursor("sub")
        for entry in range(5_600):
            cursor.delete_indexes((log.ledger_id, entry), 1 << 99_999, 100_000)
            if entry % 500 == 0:
                await log.flush()
        assert cursor.state_bytes() > 70_000_000
        await rolled(store, log, times=3)
    for turn in range(2):
        async with JournalStore(tmp_path) as store:
            log = await store.open("a")
            cursor = await log.open_cursor("sub")
            count = len(cursor.ack_sets())
            assert count == 5_600 - turn
            assert cursor.ack_set((log.ledger_id, 5_599)) == (1 << 99_999) - 1
            cursor.delete([(log.ledger_id, 0)])
    assert await check(tmp_path) == []


async def test_no_slice_is_much_larger_than_it_may_be_and_each_frame_of_a_checkpoint_carries_one(tmp_path, monkeypatch):
    slices = []
    take = Checkpoint.take

    def taken(self):
        slices.append(take(self))
        return slices[-1]

    monkeypatch.setattr(Checkpoint, "take", taken)
    async with JournalStore(tmp_path) as store:
        log = await store.open("a")
        for _ in range(200_000):
            log.append(b"")
        await log.flush()
        for number in range(3):
            cursor = await log.open_cursor(f"holes {number}")
            cursor.delete([(log.ledger_id, entry) for entry in range(1, 200_000, 2)])
        sets = await log.open_cursor("sets")
        for entry in range(1000):
            sets.delete_indexes((log.ledger_id, entry), 1, 40_000)
        for number in range(200):
            await log.open_cursor(f"{number}", initial=(log.ledger_id, 5))
        slices.clear()
        await rolled(store, log)
        for _ in range(200):
            await log.flush()
            await asyncio.sleep(0.001)
        assert sum(map(len, slices)) > 5_000_000
        largest = max(map(len, slices))
        assert largest < 2 * SLICE_BYTES
        assert store.state.usage.replay_from == store.writer.planned_segment


async def test_a_checkpoint_ends_while_every_frame_is_full_of_other_things_and_only_then_the_next_begins():
    files = SimulatedFiles()
    begun, ended = [], []
    async with simulated_store(files) as store:
        log = await store.open("a")
        for number in range(40):
            await store.metadata.put(f"/{number}", bytes(2_000))
        usage = store.state.usage
        usage.replay_begins = (lambda before: lambda number: ended.append(number) or before(number))(usage.replay_begins)
        plan = store.writer._plan

        def planned(flags, *arguments):
            if flags & checkpoint.CHECKPOINT:
                begun.append(store.writer.planned_segment)
                assert begun[:-1] == ended[: len(begun) - 1], "one at a time"
            plan(flags, *arguments)

        store.writer._plan = planned
        while len(ended) < 4:
            for _ in range(4):
                log.append(bytes(3_000))
            await log.flush()
            log.trim((log.ledger_id, log.next_entry))
            assert len(begun) < 10
        assert all(after - before >= 3 for before, after in itertools.pairwise(begun)), "it spans segments"
    async with simulated_store(files) as again:
        assert len(again.metadata.values) == 40


@pytest.mark.parametrize("what", ["logs", "cursors", "values", "counters", "properties"])
async def test_each_kind_of_state_is_counted_refused_at_the_limit_and_given_back(what):
    files = SimulatedFiles()
    async with simulated_store(files, max_state_bytes=60_000) as store:
        log = await store.open("a")
        cursor = await log.open_cursor("sub")
        before, made = store.state.tally.bytes, 0

        async def make(number):
            if what == "logs":
                await store.open(f"log {number}")
            elif what == "cursors":
                await log.open_cursor(f"cursor {number}")
            elif what == "values":
                await store.metadata.put(f"/{number}", bytes(500))
            elif what == "counters":
                await store.metadata.increment(f"/{number}")
            else:
                other = await log.open_cursor(f"cursor {number}")
                other.put_properties({"k": "v" * 2_000})

        with pytest.raises(StateTooLarge, match=r"at most 60000 are kept: delete .*raise maxStoreStateBytes"):
            while True:
                await make(made)
                made += 1
        assert made > 10
        held = store.state.tally.bytes
        assert held <= 60_000
        await log.flush()
    async with simulated_store(files, max_state_bytes=60_000) as store:
        assert store.state.tally.bytes == held, "the same after a restart"
        log = await store.open("a")
        cursor = await log.open_cursor("sub")
        assert not cursor.state_full()
        for number in range(made + 1):
            if store.exists(f"log {number}"):
                await store.delete(f"log {number}")
            await log.delete_cursor(f"cursor {number}")
            await store.metadata.delete(f"/{number}")
        if what != "counters":  # counters are never deleted
            assert store.state.tally.bytes == before


async def test_what_is_one_record_is_bounded_by_the_segment():
    async with simulated_store(SimulatedFiles()) as store:
        log = await store.open("a")
        log.append(b"x")
        cursor = await log.open_cursor("sub")
        most = SEGMENT_BYTES // 16
        with pytest.raises(EntryTooLarge, match=f"at most {most}"):
            await store.metadata.put("/a", bytes(most + 1))
        with pytest.raises(EntryTooLarge, match=f"at most {most}"):
            cursor.put_properties({"k": "v" * most})
        with pytest.raises(EntryTooLarge, match=f"1 to {8 * most} messages"):
            cursor.delete_indexes((log.ledger_id, 0), 1, 8 * most + 1)
        assert cursor.ticket == 0


async def test_a_turn_of_many_acknowledgements_is_several_groups(monkeypatch):
    sizes = []
    plan = JournalWriter._plan

    def planned(self, flags, group, runs, records, *more):
        sizes.append(len(records))
        plan(self, flags, group, runs, records, *more)

    monkeypatch.setattr(JournalWriter, "_plan", planned)
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        log = await store.open("a")
        for _ in range(300):
            log.append(b"")
        cursor = await log.open_cursor("sub")
        for entry in range(1, 300):
            cursor.delete_indexes((log.ledger_id, entry), 1 << 3999, 4000)
        await log.flush()
        assert max(sizes) < SEGMENT_BYTES // 4, "a group, and a slice of a checkpoint"
        assert store.bytes_in_flight == 0
        left = files.after_power_loss("all", random.Random(1))
    async with simulated_store(left) as again:
        assert len((await (await again.open("a")).open_cursor("sub")).ack_sets()) == 299


@pytest.mark.parametrize("seed", range(3))
async def test_space_on_disk_is_twice_what_is_needed_and_copying_writes_less_than_it_frees(seed):
    rng = random.Random(seed)
    files = SimulatedFiles()
    async with simulated_store(files) as store:
        logs = [await store.open(f"log {number}") for number in range(6)]
        appended = 0
        for _ in range(400):
            log = rng.choice(logs)
            log.append(bytes(2_000))
            appended += 2_000
            if rng.random() < 0.3:
                log.trim((log.ledger_id, rng.randrange(log.first_entry, log.next_entry + 1)))
            await log.flush()
        await settled(store, 2_000)
        usage = store.state.usage
        full = [use for use in usage.segments.values() if use.sealed and use.number < usage.replay_from]
        needed = sum(use.bytes for use in full) + store.writer.checkpoint_bytes
        assert len(full) * SEGMENT_BYTES <= 2 * needed + 2 * SEGMENT_BYTES
        written = store.writer.planned_segment * SEGMENT_BYTES
        assert written < 4 * appended, "frames of 4 KiB around entries of 2,000 bytes, and as much again for copies"
        before = store.sync_count
        await settled(store, 2_000)
        assert store.sync_count == before, "it comes to rest"
        for log in logs:
            assert len(await all_entries(log)) == log.next_entry - log.first_entry
