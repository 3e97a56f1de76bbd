"""Logs in topics when processes stop or die, topics move, and the broker is killed: on stock Pulsar."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stock_pulsar import StockPulsar
from targets import Target
from topic_stores import LEASE_MS, TopicStores

from pulsar_txn.ledger.protocols import LedgerError
from pulsar_txn.ledger.testing import Recorder, all_entries
from pulsar_txn.tc_service.topic_ledger.log import TopicLog
from pulsar_txn.tc_service.topic_ledger.store import TopicStore

pytestmark = [pytest.mark.timeout(300)]

NAME = "a/log"
LONG_LEASE_MS = 30_000
"""Much longer than a slow machine takes for what does not wait for it."""
SUPPORT = Path(__file__).parents[1] / "support"


@asynccontextmanager
async def holder(stores: TopicStores, lease_ms: int = LEASE_MS) -> AsyncIterator[Process]:
    """A process that leads the log."""
    program = [sys.executable, str(SUPPORT / "log_holder.py"), stores.url, stores.prefix, str(lease_ms)]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE, env=environment)
    try:
        assert (await line_of(process)).startswith("leads")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_of(process: Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


async def say(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    await process.stdin.drain()


async def until_known(task: asyncio.Task[Any], stores: TopicStores) -> None:
    async with asyncio.timeout(30):
        while stores.made[-1].leader_of(NAME) != "pulsar://the-other-process":
            await asyncio.sleep(0.01)
            assert not task.done()


@pytest.fixture
async def stores(stock_pulsar: Target) -> AsyncIterator[TopicStores]:
    made = TopicStores(stock_pulsar.service_url)
    yield made
    await made.close()


async def test_a_leader_that_is_killed_is_followed_long_before_its_lease_is_over(stores: TopicStores) -> None:
    async with holder(stores, LONG_LEASE_MS) as leader:
        store = await stores.new(lease_ms=LONG_LEASE_MS)
        task = asyncio.ensure_future(store.open(NAME))
        await until_known(task, stores)
        await say(leader, "append before")
        assert await line_of(leader) == "confirmed 0"
        since = asyncio.get_running_loop().time()
        leader.kill()
        log = await task
        assert asyncio.get_running_loop().time() - since < LONG_LEASE_MS / 1000 / 2
        assert await all_entries(log) == [b"before"]


async def test_a_leader_that_was_stopped_past_its_lease_knows_that_it_is_stale(stores: TopicStores) -> None:
    async with holder(stores) as leader:
        store = await stores.new()
        task = asyncio.ensure_future(store.open(NAME))
        await until_known(task, stores)
        await say(leader, "append before")
        assert await line_of(leader) == "confirmed 0"
        leader.send_signal(signal.SIGSTOP)
        log = await task
        log.append(b"of the new leader")
        await log.flush()
        await say(leader, "fresh")
        await say(leader, "append of the old leader")
        leader.send_signal(signal.SIGCONT)
        heard = [await line_of(leader)]
        while heard[-1] not in ("lost LeaseLost", "refused LeaseLost"):
            heard.append(await line_of(leader))
        if "lost LeaseLost" in heard and "fresh NO" not in heard:
            heard.append(await line_of(leader))
        assert "fresh NO" in heard
        assert not any(line.startswith("confirmed") and int(line.split()[1]) > 0 for line in heard)
        log.append(b"more")
        await log.flush()
        assert await all_entries(log) == [b"before", b"of the new leader", b"more"]


def unload(pulsar: Target, topic: str) -> None:
    path = f"{pulsar.admin_url}/admin/v2/{topic.replace('://', '/')}/unload"
    urllib.request.urlopen(urllib.request.Request(path, method="PUT"), timeout=30).close()


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "somebody waits"])
async def test_nothing_is_lost_doubled_or_moved_when_its_topic_moves(
    stores: TopicStores, stock_pulsar: Target, waits: bool
) -> None:
    """10,000 records and an unload every 0.6 s. Where somebody waits, either may lead afterwards."""
    store = await stores.new()
    log = await store.open(NAME)
    log.listen(recorder := Recorder())
    other = asyncio.ensure_future((await stores.new()).open(NAME)) if waits else None
    topic = store.topic_of(NAME) or ""
    unloads = 0

    async def move() -> None:
        nonlocal unloads
        while True:
            await asyncio.sleep(0.6)
            unloads += 1
            await asyncio.to_thread(unload, stock_pulsar, topic)

    moving = asyncio.ensure_future(move())
    appended = 0
    try:
        while appended < 10_000:
            log.append(b"%d" % appended)
            appended += 1
            if appended % 10 == 0:
                await asyncio.sleep(0.002)
        await log.flush()
    except LedgerError:
        assert waits, "nobody else was there"
    moving.cancel()
    await asyncio.gather(moving, return_exceptions=True)
    assert unloads >= (1 if waits else 2)
    confirmed = recorder.confirmed[-1][1] + 1
    assert waits or confirmed == 10_000
    await store.close()
    async with asyncio.timeout(60):
        log = await other if other is not None else await (await stores.new()).open(NAME)
    kept = await all_entries(log)
    assert kept == [b"%d" % number for number in range(len(kept))]
    assert confirmed <= len(kept) <= appended


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.soak)])
async def test_a_broker_that_is_killed_keeps_every_confirmed_record_in_order(kills: int) -> None:
    """Records go on through kills and restarts; a log that gives up is opened again, and goes on."""
    with StockPulsar("4.2.4") as server:
        stores = TopicStores(server.service_url)
        store = await stores.new()
        log = await store.open(NAME)
        confirmed: list[bytes] = []
        sent = opened = 0

        async def write() -> None:
            nonlocal sent, log, opened
            while True:
                data = b"%d" % sent
                sent += 1
                try:
                    log.append(data)
                    await log.flush()
                    confirmed.append(data)
                except LedgerError:
                    log = await store.open(NAME)
                    opened += 1

        writing = asyncio.ensure_future(write())
        for _ in range(kills):
            have = len(confirmed)
            async with asyncio.timeout(120):
                while len(confirmed) < have + 200:  # noqa: ASYNC110 - the broker's time
                    await asyncio.sleep(0.01)
            server.kill()
            await asyncio.to_thread(server.start)
        have = len(confirmed)
        async with asyncio.timeout(120):
            while len(confirmed) < have + 200:  # noqa: ASYNC110 - the broker's time
                await asyncio.sleep(0.01)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        store = await stores.reopened(store)
        kept = await all_entries(await store.open(NAME))
        numbers = [int(data) for data in kept]
        assert numbers == sorted(set(numbers)), "in order, none twice"
        assert set(confirmed) <= set(kept), "none lost"
        await stores.close()


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.soak)])
async def test_of_several_that_send_the_leader_away_one_leads(stores: TopicStores, count: int) -> None:
    """All wait, and find the leader silent at about one moment; a stock broker may let two of them in.

    Then the one with the newer epoch leads on. The other one may have led for a moment, and says that it does not any more.
    """
    first, *others = [await stores.new() for _ in range(count)]
    log = await first.open(NAME)
    opening = {asyncio.ensure_future(store.open(NAME)): store for store in others}
    for round_ in range(count):
        log.append(b"%d" % round_)
        await log.flush()
        log._timer.cancel()  # hangs from here on
        hung = log
        async with asyncio.timeout(60):
            while log is hung or log.closed is not None:
                done, _ = await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    store, log = opening.pop(task), task.result()
                    opening[asyncio.ensure_future(again(store, log))] = store
                await asyncio.sleep(0.3)
    assert await all_entries(log) == [b"%d" % round_ for round_ in range(count)]
    for task in opening:
        task.cancel()
    await asyncio.gather(*opening, return_exceptions=True)


async def again(store: TopicStore, log: TopicLog) -> TopicLog:
    """Open a log once more when it was lost."""
    while log.closed is None:  # noqa: ASYNC110 - the broker's time
        await asyncio.sleep(0.05)
    return await store.open(NAME)
