"""A disk that hangs: it fails nothing and confirms nothing. Broker and coordinator say so, and go on when it does."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from our_broker import OurBroker
from our_coordinator import OurCoordinator
from stock_pulsar import free_port

from pulsar_txn.broker.base.storage_watch import StorageWatch
from pulsar_txn.client import AsyncClient

STALL = {"storageStallTimeoutInSeconds": "1"}


def children(pid: int) -> list[int]:
    """The sync helpers of a process; it has others for a moment, for files that are synced before it serves."""
    found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return [each for each in found if b"sync_helper" in Path(f"/proc/{each}/cmdline").read_bytes()]


async def asked(url: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def until(url: str, status: int) -> str:
    """The answer, once it is this one."""
    async with asyncio.timeout(20):
        while (found := await asked(url))[0] != status:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    return found[1]


async def check(
    helper: int, url: str, log: Callable[[], str], write: Callable[[], Awaitable[Any]], paths: tuple[str, ...]
) -> None:
    """The sync helper stands still, and then goes on."""
    for path in paths:
        assert (await asked(url + path))[0] == 200
    os.kill(helper, signal.SIGSTOP)
    try:
        writing = asyncio.ensure_future(write())
        for path in paths:
            assert "the storage has confirmed nothing for" in await until(url + path, 503)
        (stalled,) = [
            line
            for line in (await asked(url + "/metrics"))[1].splitlines()
            if line.startswith("pulsar_txn_ledger_stalled_seconds")
        ]
        assert float(stalled.split()[-1]) >= 1
        assert not writing.done()
    finally:
        os.kill(helper, signal.SIGCONT)
    for path in paths:
        await until(url + path, 200)
    await asyncio.wait_for(writing, 20)
    async with asyncio.timeout(20):
        while "the storage confirms writes again" not in log():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
    assert log().count("the storage has confirmed nothing for") == 1
    assert "nothing is answered until the disk goes on: check it" in log()


async def test_a_broker_on_a_disk_that_hangs_is_not_healthy_and_says_so() -> None:
    with OurBroker(conf=STALL) as broker:
        async with AsyncClient(broker.service_url) as client:
            producer = await client.create_producer("t")
            await producer.send(b"before")
            async with asyncio.timeout(20):
                while len(helpers := children(broker.pid)) != 1:  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
            (helper,) = helpers
            paths = ("/admin/v2/brokers/health", "/admin/v2/brokers/ready")
            await check(helper, broker.admin_url, broker.log_tail, lambda: producer.send(b"x"), paths)


async def test_a_coordinator_on_a_disk_that_hangs_is_not_healthy_and_says_so() -> None:
    port = free_port()
    with OurCoordinator({"east": "pulsar://127.0.0.1:1"}, conf=STALL | {"webServicePort": str(port)}) as beside:
        async with AsyncClient("pulsar://127.0.0.1:1", coordinator=beside.service_url) as client:
            await client.begin_transaction()
            paths = ("/health", "/admin/v2/brokers/health")
            write: Callable[[], Awaitable[Any]] = client.begin_transaction
            await check(beside.pids[1], f"http://127.0.0.1:{port}", beside.log_tail, write, paths)


# ---- the watch alone


class Stalling:
    progress: object | None = None


class Time:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def watched() -> tuple[StorageWatch, Any, Any]:
    store: Any = Stalling()
    time: Any = Time()
    return StorageWatch(store, time, 10), store, time


async def lived(watch: StorageWatch, time: Any, seconds: int) -> None:
    for _ in range(seconds):
        time.now += 1
        await watch.look()


async def test_only_a_wait_without_any_confirmation_counts(watched: Any, caplog: pytest.LogCaptureFixture) -> None:
    watch, store, time = watched
    await lived(watch, time, 100)  # nothing waits
    assert watch.complaint() is None
    for step in range(100):  # slow, and it goes on
        store.progress = step // 8
        await lived(watch, time, 1)
        assert watch.complaint() is None
    await lived(watch, time, 9)
    assert "nothing for 1" in (watch.complaint() or "")
    await lived(watch, time, 30)
    store.progress = None
    await lived(watch, time, 1)
    assert watch.complaint() is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.WARNING]


async def test_a_process_that_stood_still_itself_does_not_blame_the_disk(watched: Any) -> None:
    watch, store, time = watched
    store.progress = 1
    await lived(watch, time, 3)
    time.now += 35
    await watch.look()
    assert watch.complaint() is None
    await lived(watch, time, 11)
    assert watch.complaint() is not None


async def test_without_a_bound_nothing_is_said(watched: Any) -> None:
    _, store, time = watched
    watch = StorageWatch(store, time, 0)
    store.progress = 1
    await lived(watch, time, 1000)
    assert watch.complaint() is None
    assert watch.stalled_seconds > 900
