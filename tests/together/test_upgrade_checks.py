"""Check groups between the build of febdd5f and this one: old logs, old members, and both builds in one group."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from earlier_build import earlier_broker, start_current, start_earlier
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient, InitialPosition
from pulsar_txn.client.half_messages import LocalOutcome

QUICK: Final = {
    "transactionCheckAfterInSeconds": "1",
    "transactionCheckIntervalInSeconds": "1",
    "numberOfTransactionCoordinators": "2",
}
PATIENCE: Final = 60.0
HALVES: Final = 40

BEGIN: Final = """
import asyncio, sys
from pulsar_txn.client import AsyncClient

async def main(url, halves):
    async with AsyncClient(url) as client:
        producer = await client.create_producer("orders")
        for number in range(int(halves)):
            txn = await client.begin_transaction(check_group="g", check_data=b"%d" % number, timeout=600)
            await producer.send(b"%d" % number, txn=txn)
            await txn.leave_to_check()
    print("begun", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

MEMBER: Final = """
import asyncio, sys, threading
from pulsar_txn.client import AsyncClient

try:
    from pulsar_txn.client.half_messages import LocalOutcome
except ImportError:  # an earlier build
    from pulsar_txn.client import LocalOutcome

async def check(question):
    await asyncio.sleep(float(sys.argv[2]))
    return LocalOutcome.COMMIT if sys.argv[3] == "commit" else LocalOutcome.UNKNOWN

async def main():
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)), daemon=True).start()
    async with AsyncClient(sys.argv[1], max_backoff=0.5) as client, await client.join_check_group("g", check, concurrency=2):
        print("ready", flush=True)
        await stop.wait()

asyncio.run(main())
"""


def ready(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if said != line:
        process.kill()
        raise AssertionError(f"it printed {said!r}: {process.communicate()[1][-3000:]}")


async def visible(url: str, count: int) -> list[int]:
    async with AsyncClient(url) as client:
        reader = await client.subscribe("orders", "reader", initial_position=InitialPosition.EARLIEST)
        async with asyncio.timeout(PATIENCE):
            return sorted([int((await reader.receive()).data) for _ in range(count)])


@pytest.mark.parametrize("members", [("earlier",), ("earlier", "current")], ids="-".join)
def test_halves_of_an_old_folder_are_asked_for_at_members_of_both_builds_and_none_is_lost(
    tmp_path: Path, members: tuple[str, ...]
) -> None:
    """The old build counted what it had asked; the new one parks what has used up its questions, and loses nothing."""
    old = earlier_broker(data_dir=tmp_path / "data", conf=QUICK).start()
    workers = [start_earlier(MEMBER, old.service_url, "0.2", "unknown")]
    try:
        beginner = start_earlier(BEGIN, old.service_url, str(HALVES))
        ready(workers[0], "ready")
        ready(beginner, "begun")
        beginner.communicate()
        workers.pop().kill()
        old.kill()
        new = OurBroker(data_dir=old.data_dir, conf=QUICK)
        new.take_ports_of(old)
        with new:
            start = {"earlier": start_earlier, "current": start_current}
            workers = [start[each](MEMBER, new.service_url, "0.1", "commit") for each in members]
            for worker in workers:
                ready(worker, "ready")
            assert asyncio.run(visible(new.service_url, HALVES)) == list(range(HALVES))
    finally:
        old.kill()
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_an_old_member_outlives_the_upgrade_and_is_asked_only_as_much_as_it_works_on(tmp_path: Path) -> None:
    old = earlier_broker(data_dir=tmp_path / "data", conf=QUICK).start()
    member = start_earlier(MEMBER, old.service_url, "0.3", "commit")
    try:
        ready(member, "ready")
        old.kill()
        conf = {**QUICK, "transactionCheckMax": "2", "transactionCheckPolicy": "abort"}
        new = OurBroker(data_dir=old.data_dir, conf=conf)
        new.take_ports_of(old)
        with new:
            beginner = start_current(BEGIN, new.service_url, str(HALVES))
            ready(beginner, "begun")
            beginner.communicate()
            assert asyncio.run(visible(new.service_url, HALVES)) == list(range(HALVES))
    finally:
        old.kill()
        member.kill()
        member.communicate()


def test_a_member_of_this_build_answers_a_coordinator_of_the_earlier_one(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def check(question: object) -> LocalOutcome:
        asked.append(question.data)  # type: ignore[attr-defined]  # a CheckQuestion
        return LocalOutcome.COMMIT

    async def story(url: str) -> None:
        async with AsyncClient(url) as client, await client.join_check_group("g", check):
            assert await visible(url, 5) == list(range(5))

    with earlier_broker(data_dir=tmp_path / "data", conf=QUICK) as old:
        beginner = start_earlier(BEGIN, old.service_url, "5")
        ready(beginner, "begun")
        beginner.communicate()
        asyncio.run(story(old.service_url))
    assert sorted(asked) == [b"%d" % number for number in range(5)]


def test_an_old_build_refuses_a_log_with_parked_transactions_with_a_sentence(tmp_path: Path) -> None:
    async def park(url: str) -> None:
        async def unknown(_question: object) -> LocalOutcome:
            return LocalOutcome.UNKNOWN

        async with AsyncClient(url) as client, await client.join_check_group("g", unknown):
            txn = await client.begin_transaction(check_group="g")
            await (await client.create_producer("orders")).send(b"half", txn=txn)
            await txn.leave_to_check()
            await asyncio.sleep(5)

    new = OurBroker(data_dir=tmp_path / "data", conf={**QUICK, "transactionCheckMax": "1"}).start()
    asyncio.run(park(new.service_url))
    new.stop()
    old = earlier_broker(data_dir=new.data_dir, conf=QUICK)
    old.take_ports_of(new)
    try:
        old.start()
        assert "record of version 7; this version reads up to 5" in old.log_tail(100_000)
    finally:
        old.kill()
    print(old.log_tail(2_000), file=sys.stderr)
