"""What reading costs: as much as is read, however long the run is that it is in."""

from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.journal.segments import OpenSegments


async def read_in_steps(log, step):
    position, count = (log.ledger_id, 0), 0
    while entries := await log.read(position, max_entries=step):
        assert all(data == b"%d" % entry for (_, entry), data in entries)
        count += len(entries)
        position = log.next_position(entries[-1][0])
    return count


async def test_a_long_run_read_in_small_steps_is_read_once(tmp_path, monkeypatch):
    sizes = []
    read = OpenSegments.read
    monkeypatch.setattr(OpenSegments, "read", lambda self, *where: sizes.append(where[1]) or read(self, *where))
    async with JournalStore(tmp_path, cache_bytes=0) as store:
        log = await store.open("a")
        for number in range(100_000):
            log.append(b"%d" % number)
        await log.flush()
        sizes.clear()
        assert await read_in_steps(log, 100) == 100_000
        content, tables, steps = 500_000, 8 * 100_000, 1_000
        assert sum(sizes) < content + tables + 100_000
        assert len(sizes) < steps + 10


async def test_kept_tables_are_bounded_and_go_with_their_segment(monkeypatch):
    monkeypatch.setattr("pulsar_txn.ledger.journal.segments._KEPT_ENTRIES", 1_000)
    async with simulated_store(SimulatedFiles(), cache_bytes=0) as store:
        logs = [await store.open(f"log {number}") for number in range(5)]
        for log in logs:
            for number in range(400):
                log.append(b"%d" % number)
            await log.flush()
        for _ in range(2):
            for log in logs:
                assert await read_in_steps(log, 50) == 400
        reader = store.reader
        assert sum(run.entries for run in reader._long.values()) == reader._long_entries <= 1_000
        for log in logs:
            log.trim((log.ledger_id, 400))
        for _ in range(30):
            logs[0].append(bytes(3_000))
            await logs[0].flush()
            logs[0].trim((logs[0].ledger_id, logs[0].next_entry))
        await settled(store, 100)
        assert not reader._long
        assert reader._long_entries == 0
