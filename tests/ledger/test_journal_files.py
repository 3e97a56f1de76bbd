"""Few files are open however many segments there are; logs in old segments are read all the same."""

from journal_world import settled, simulated_store
from simulated_files import SimulatedFiles

from pulsar_txn.ledger.journal import segments
from pulsar_txn.ledger.testing import all_entries


async def test_segments_not_read_lately_are_closed_and_opened_again(monkeypatch):
    monkeypatch.setattr(segments, "MAX_OPEN_FILES", 5)
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    truth = []
    for number in range(150):
        truth.append(bytes([number]) * 9000)
        log.append(truth[-1])
        await store.durable()
        await settled(store, 10)
    log.tail.clear()
    for entry, data in enumerate(truth):
        assert (await log.read((log.ledger_id, entry), max_entries=1))[0][1] == data
    opened = store.segment_files.opened
    assert len(opened.segments) > 20
    assert sum(segment.fd >= 0 for segment in opened.segments.values()) <= 8
    log.append(b"goes on")
    await store.close()
    again = simulated_store(files)
    await again.start()
    log = await again.open("a")
    assert log.next_entry == 151
    assert sum(segment.fd >= 0 for segment in again.segment_files.opened.segments.values()) <= 8
    await again.close()
    assert all(name != "/data/LOCK" for name, _ in files._open.values())


async def test_reading_old_segments_closes_none_that_the_writer_has_or_will_take(monkeypatch):
    monkeypatch.setattr(segments, "MAX_OPEN_FILES", 3)
    files = SimulatedFiles()
    store = simulated_store(files)
    await store.start()
    log = await store.open("a")
    truth = []

    async def write(count):
        for _ in range(count):
            truth.append(bytes([len(truth)]) * 9000)
            log.append(truth[-1])
            await store.durable()

    await write(50)
    await settled(store)
    old = store.writer.planned_segment - 2
    log.tail.clear()
    for _ in range(3):
        for entry in range(20):
            assert (await log.read((log.ledger_id, entry), max_entries=1))[0][1] == truth[entry]
        assert store.writer.planned_segment - 2 == old, "nothing was read from the newest segments"
        await write(10)  # which rolls into the one that was prepared
        old = store.writer.planned_segment - 2
    log.tail.clear()
    assert await all_entries(log) == truth
    await store.close()
