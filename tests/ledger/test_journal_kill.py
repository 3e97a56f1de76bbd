"""kill -9 of a real process at random moments: everything it saw confirmed is there, whole and in order."""

import asyncio
import random
import subprocess
import sys
import textwrap

import pytest

from pulsar_txn.ledger.journal import JournalStore, check

SEGMENT_BYTES = 512 << 10

WRITER = textwrap.dedent(
    """
    import asyncio, sys
    from pulsar_txn.ledger.journal import JournalStore
    from pulsar_txn.ledger.protocols import Snapshot

    class Teller:
        def __init__(self, log): self.log = log
        def log_confirmed(self, position): sys.stdout.write(f"{self.log.name} {position[1]}\\n"); sys.stdout.flush()
        def log_failed(self, error): raise SystemExit(1)

    async def main():
        store = JournalStore(sys.argv[1], segment_bytes=int(sys.argv[2]))
        await store.start()
        logs = [await store.open(f"log-{n}") for n in range(5)]
        for log in logs:
            log.listen(Teller(log))
            await log.open_cursor("sub")
        while True:
            for log in logs:
                entry = log.next_entry
                position = log.append(f"{log.name} {entry} ".encode() * 40)
                if entry % 3 == 0: log.cursors["sub"].delete([position])
                if entry % 50 == 49:
                    log.put_snapshot(Snapshot(log.last_confirmed, (b"s" * 100,)))
                    log.trim((log.ledger_id, entry - 40))
            await asyncio.sleep(0)

    asyncio.run(main())
    """
)


async def verify(folder, confirmed):
    async with JournalStore(folder, segment_bytes=SEGMENT_BYTES) as store:
        assert store.findings == []
        for name, entry in confirmed.items():
            log = await store.open(name, create=False)
            assert log.last_confirmed[1] >= entry
            position, expected = (log.ledger_id, 0), log.first_entry
            while step := await log.read(position, max_entries=500):
                for (_, found), data in step:
                    assert (found, data) == (expected, f"{name} {expected} ".encode() * 40)
                    expected += 1
                position = log.next_position(step[-1][0])
            assert expected == log.next_entry
            cursor = await log.open_cursor("sub")
            marked = cursor.mark_delete[1]
            for entry in range(log.first_entry, log.next_entry):
                assert cursor.is_deleted((log.ledger_id, entry)) == (entry % 3 == 0 or entry <= marked)


@pytest.mark.seed_rows("B06")
@pytest.mark.parametrize("seed", range(2))
async def test_a_process_killed_at_any_moment_loses_nothing_confirmed(tmp_path, seed):
    rng = random.Random(seed)
    confirmed = {}
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, str(tmp_path), str(SEGMENT_BYTES), stdout=subprocess.PIPE
        )
        first = await asyncio.wait_for(process.stdout.readline(), 30)
        await asyncio.sleep(rng.uniform(0.01, 0.25))
        process.kill()
        rest = await process.stdout.read()
        await process.wait()
        for line in (first + rest).decode().splitlines(keepends=True):
            if line.endswith("\n"):
                name, entry = line.split()
                confirmed[name] = max(confirmed.get(name, -1), int(entry))
        await verify(tmp_path, confirmed)
    assert await check(tmp_path) == []
    assert len(confirmed) == 5
