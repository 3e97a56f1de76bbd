"""Few files are open however many segments there are; logs in old segments are read all the same."""

from journal_world import settled, simulated_store

from pulsar_txn.ledger.journal import segments
from pulsar_txn.ledger.journal.simulated import SimulatedFiles


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
