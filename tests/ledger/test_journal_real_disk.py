"""The real layer: what a process and its sync helpers did to real files, and every power loss in between.

The simulator says what is durable, and the tests of crashes believe it. Here the calls come from real processes, so a sync
that is not made, made on another file, or made too late, is seen.
"""

import random
import re
import subprocess
import sys
import textwrap

import pytest
from disk_trace import RENAME, Replay, build, calls, environment
from simulated_files import LOSSES

from pulsar_txn.ledger.journal import JournalStore
from pulsar_txn.ledger.journal.folder import read_format
from pulsar_txn.ledger.testing import all_entries

SEGMENT_BYTES = 256 << 10

WORK = textwrap.dedent(
    """
    import asyncio, os, random, sys
    from pulsar_txn.ledger.journal import JournalStore
    from pulsar_txn.ledger.protocols import StorageFailed

    folder, told, segment_bytes, rounds, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    rng, fd, at = random.Random(seed), os.open(told, os.O_WRONLY | os.O_CREAT), 0

    class Teller:
        def __init__(self, log): self.log = log
        def log_failed(self, error): pass
        def log_confirmed(self, position):
            global at
            line = b"%s %d;" % (self.log.name.encode(), position[1])
            at += os.pwrite(fd, line, at)

    async def main():
        store = JournalStore(folder, segment_bytes=segment_bytes)
        await store.start()
        logs = [await store.open(f"log-{n}") for n in range(3)]
        for log in logs:
            log.listen(Teller(log))
        for number in range(rounds):
            for log in logs:
                log.append(b"%s %d " % (log.name.encode(), log.next_entry) * rng.choice([3, 30, 300, 1500]))
            if number % 3 == 0:
                await store.durable()
            if number % 20 == 19:
                for log in logs[:2]:
                    log.trim((log.ledger_id, log.next_entry - 8))
            await asyncio.sleep(0)
        await store.durable()
        os._exit(0)

    try:
        asyncio.run(main())
    except StorageFailed:
        sys.exit(74)
    """
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("trace"))


class Traced:
    """A folder whose calls are written down, and what was confirmed after each of them."""

    def __init__(self, library, path):
        self.library, self.path = library, path
        self.data, self.trace = path / "data", path.with_suffix(".trace")
        self.runs = 0

    def run(self, rounds, seed, *, fail_sync=None):
        """The exit code of a process that worked there."""
        self.runs += 1
        arguments = [self.data, self.path / f"told-{self.runs}", SEGMENT_BYTES, rounds, seed]
        env = environment(self.library, self.path, self.trace, fail_sync=fail_sync)
        command = [sys.executable, "-c", WORK, *map(str, arguments)]
        return subprocess.run(command, env=env, check=False, timeout=60, capture_output=True).returncode

    def confirmed(self, files):
        """Per log the last entry that was said to be confirmed."""
        told = [files.files.get(str(self.path / f"told-{number + 1}")) for number in range(self.runs)]
        text = b"".join(bytes(file.content) for file in told if file is not None)
        return {name.decode(): int(last) for name, last in re.findall(rb"(\S+) (\d+);", text)}

    async def holds(self, files, confirmed):
        """A store from what a power loss left has everything confirmed, whole and in order."""
        store = JournalStore(self.data, segment_bytes=SEGMENT_BYTES, files=files)
        await store.start()
        assert store.findings == []
        for name, last in confirmed.items():
            log = await store.open(name, create=False)
            assert log.last_confirmed[1] >= last
            entry = log.first_entry
            for data in await all_entries(log):
                assert data.startswith(b"%s %d " % (name.encode(), entry))
                entry += 1
            assert entry == log.next_entry
        store.abandon()


@pytest.fixture
def traced(library, tmp_path):
    (tmp_path / "disk").mkdir()
    return Traced(library, tmp_path / "disk")


async def power_losses(traced, points=16):
    """Replay everything; after that many calls, and after the last one, the power goes."""
    rng, replay = random.Random(1), Replay()
    found = list(calls(traced.trace))
    chosen = {*rng.sample(range(len(found)), points), len(found) - 1}
    for number, call in enumerate(found):
        replay.apply(call)
        if number in chosen:
            for loss in LOSSES:
                await traced.holds(replay.files.after_power_loss(loss, rng), traced.confirmed(replay.files))
    assert len(traced.confirmed(replay.files)) == 3


async def test_a_power_loss_between_any_two_calls_of_a_real_process_leaves_everything_confirmed(traced):
    assert traced.run(150, 1) == 0
    await power_losses(traced)


@pytest.mark.parametrize("number", [9, 30])
async def test_a_sync_that_failed_and_a_process_that_works_on_lose_nothing_confirmed(traced, number):
    """The Nth sync of a helper fails as the kernel lets it fail: once, and the pages are clean from then on."""
    assert traced.run(150, 1, fail_sync=number) == 74
    assert traced.run(60, 2) == 0
    await power_losses(traced)


async def test_a_spare_is_named_so_only_when_its_zeros_are_on_the_disk(traced):
    assert traced.run(60, 1) == 0
    replay, spares = Replay(), 0
    for call in calls(traced.trace):
        replay.apply(call)
        if call.kind == RENAME and "/filling-" in call.path:
            file = replay.files.files[call.data.decode()]
            assert bytes(file.durable) == bytes(SEGMENT_BYTES)
            assert not file.unsynced
            spares += 1
    assert spares >= 2


async def test_the_folder_says_durably_that_it_was_started_before_anything_is_confirmed(traced):
    assert traced.run(30, 1) == 0
    replay = Replay()
    for call in calls(traced.trace):
        replay.apply(call)
        if traced.confirmed(replay.files):
            break
    left = replay.files.after_power_loss("all", random.Random(1))
    assert read_format(left, str(traced.data)).started
