"""From the build of febdd5f to this one: old folders are opened, old clients go on, and both builds work side by side.

The official client reads what is visible at the end, because neither build may judge the other.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from earlier_build import earlier_broker, start_current, start_earlier
from official_reading import produce_officially, read_officially
from our_broker import OurBroker

from pulsar_txn.client import AsyncClient, ConsumerType, InitialPosition

PATIENCE: Final = 60.0

LEAVE_OPEN: Final = """
import asyncio, json, sys
from pulsar_txn.client import AsyncClient, InitialPosition, ConsumerType

async def main(url, kind):
    client = AsyncClient(url)
    source = await client.create_producer("in", batching=False)
    for number in range(12):
        await source.send(b"in-%d" % number)
    consumer = await client.subscribe("in", "s", consumer_type=ConsumerType[kind], initial_position=InitialPosition.EARLIEST)
    sink = await client.create_producer("out")
    begun = {}
    for name in ("commits", "aborts", "decided-later", "prepared", "times-out"):
        txn = await client.begin_transaction(timeout=3600 if name != "times-out" else 4)
        for _ in range(2):
            message = await consumer.receive(timeout=20)
            await sink.send(name.encode() + b" " + message.data, txn=txn)
            await consumer.acknowledge(message, txn=txn)
        begun[name] = str(txn.id)
        if name == "commits":
            await txn.commit()
        if name == "aborts":
            await txn.abort()
        if name == "prepared":
            begun["token"] = str(await txn.prepare())
    print(json.dumps(begun), flush=True)
    sys.stdin.read()  # the broker is killed while this lives

asyncio.run(main(*sys.argv[1:]))
"""

WORK: Final = """
import asyncio, sys, threading
from pulsar_txn.client import AsyncClient, InitialPosition, ConsumerType

async def main(url, kind, every):
    loop, stop, turns = asyncio.get_running_loop(), asyncio.Event(), 0
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)), daemon=True).start()
    async with AsyncClient(url) as client:
        consumer = await client.subscribe(
            "in", "s", consumer_type=ConsumerType[kind], initial_position=InitialPosition.EARLIEST
        )
        sink = await client.create_producer("out")

        async def handler(batch):
            nonlocal turns
            turns += 1
            for message in batch:
                await sink.send(message.data, txn=batch.txn)
            if turns % int(every) == 0:
                raise ValueError("this attempt is to be made again")

        print("ready", flush=True)
        result = await client.pipeline(consumer, handler, max_messages=5, max_wait=0.05, timeout=30, stop=stop)
        print(result.messages, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def ready(process: subprocess.Popen[str], first_line: str = "") -> str:
    """The first line that `process` prints. Fails with what it wrote when it ends before."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line or (first_line and line != first_line):
        process.kill()
        raise AssertionError(f"the worker printed {line!r}: {process.communicate()[1][-3000:]}")
    return line


def upgraded(old: OurBroker) -> OurBroker:
    """This build's broker on the folder and the ports of `old`, which was killed."""
    new = OurBroker(data_dir=old.data_dir)
    new.take_ports_of(old)
    return new


@pytest.mark.parametrize("kind", ["EXCLUSIVE", "SHARED"])
def test_what_the_earlier_build_left_open_is_decided_after_the_upgrade(tmp_path: Path, kind: str) -> None:
    old = earlier_broker(data_dir=tmp_path / "data").start()
    worker = start_earlier(LEAVE_OPEN, old.service_url, kind)
    try:
        begun = json.loads(ready(worker))
    finally:
        old.kill()
        worker.kill()
        worker.communicate()

    async def decide(url: str) -> list[bytes]:
        async with AsyncClient(url) as client:
            later = client.attach_transaction(begun["decided-later"])
            await later.commit()
            await (await client.attach_prepared(begun["token"])).commit()
            left = await client.subscribe(
                "in", "s", consumer_type=ConsumerType[kind], initial_position=InitialPosition.EARLIEST
            )
            return sorted([(await left.receive(timeout=PATIENCE)).data for _ in range(6)], key=lambda data: int(data[3:]))

    with upgraded(old) as new:
        left = asyncio.run(decide(new.service_url))
        visible = read_officially(new.service_url, "out", 6)
    assert Counter(each.split()[0] for each in visible) == {b"commits": 2, b"decided-later": 2, b"prepared": 2}
    used = {each.split()[1] for each in visible}
    assert sorted({*used, *left}) == sorted(b"in-%d" % number for number in range(12))
    assert not used & set(left)


@pytest.mark.parametrize("kind", ["FAILOVER", "SHARED"])
def test_an_upgrade_under_load_loses_and_doubles_nothing_while_clients_of_both_builds_work(tmp_path: Path, kind: str) -> None:
    sent = [b"%d" % number for number in range(400)]
    old = earlier_broker(data_dir=tmp_path / "data").start()
    produce_officially(old.service_url, "in", sent)
    workers = [start_earlier(WORK, old.service_url, kind, "5"), start_current(WORK, old.service_url, kind, "7")]
    try:
        for worker in workers:
            ready(worker, "ready")
        before = len(read_officially(old.service_url, "out", 60, no_more=True))
        old.kill()
        assert before < len(sent) // 2
        with upgraded(old) as new:
            visible = read_officially(new.service_url, "out", len(sent))
            for worker in workers:
                _, err = worker.communicate("", timeout=PATIENCE)
                assert not worker.returncode, err[-3000:]
    finally:
        old.kill()
        for worker in workers:
            worker.kill()
    assert Counter(visible) == Counter(sent)


def test_a_client_of_this_build_works_on_the_earlier_broker(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(200)]
    with earlier_broker(data_dir=tmp_path / "data") as old:
        produce_officially(old.service_url, "in", sent)
        worker = start_current(WORK, old.service_url, "FAILOVER", "3")
        ready(worker, "ready")
        visible = read_officially(old.service_url, "out", len(sent), patience=PATIENCE)
        _, err = worker.communicate("", timeout=PATIENCE)
        assert not worker.returncode, err[-3000:]
    assert Counter(visible) == Counter(sent)


def test_the_earlier_build_goes_on_with_a_folder_that_this_one_has_used(tmp_path: Path) -> None:
    """Way back of an operator: acknowledgements with keys are in the logs, and fields that the earlier build does not know."""
    sent = [b"%d" % number for number in range(400)]
    new = OurBroker(data_dir=tmp_path / "data").start()
    produce_officially(new.service_url, "in", sent)
    worker = start_current(WORK, new.service_url, "FAILOVER", "3")
    try:
        ready(worker, "ready")
        before = len(read_officially(new.service_url, "out", 60, no_more=True))
    finally:
        new.kill()
        worker.kill()
        worker.communicate()
    assert before < len(sent) // 2
    with earlier_broker(data_dir=new.data_dir) as old:
        worker = start_earlier(WORK, old.service_url, "FAILOVER", "3")
        ready(worker, "ready")
        visible = read_officially(old.service_url, "out", len(sent), patience=PATIENCE)
        _, err = worker.communicate("", timeout=PATIENCE)
        assert not worker.returncode, err[-3000:]
    assert Counter(visible) == Counter(sent)
