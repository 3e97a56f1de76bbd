"""Logs that are lost, restored, copied or moved beside a stock cluster: no id is given twice, and nothing committed is hidden.

The official client judges as a reader. Brokers keep the outcome of each id: a second transaction with the id of an aborted one
is committed without its messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as official
import pytest
from earlier_build import earlier_environment, start_earlier
from our_coordinator import OurCoordinator
from targets import Target

from pulsar_txn.client import AsyncClient
from pulsar_txn.client.errors import PulsarError

pytestmark = [pytest.mark.stock, pytest.mark.timeout(240)]

ABORTS, COMMITS = 5, 8


def name() -> str:
    return f"persistent://public/default/lost-{uuid.uuid4().hex[:10]}"


def judged(service_url: str, topic: str) -> list[bytes]:
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(bytes(reader.read_next(timeout_millis=20_000).data()))
        return found
    finally:
        client.close()


async def seen(stock: Target, topic: str) -> list[bytes]:
    return await asyncio.to_thread(judged, stock.service_url, topic)


async def unload(stock: Target, topic: str) -> None:
    """The topic forgets its watermarks, and keeps what was aborted."""
    path = topic.replace("://", "/")
    request = urllib.request.Request(f"{stock.admin_url}/admin/v2/{path}/unload", method="PUT")
    await asyncio.to_thread(urllib.request.urlopen, request)


async def transact(
    stock: Target, beside: OurCoordinator, topic: str, what: str, count: int, timeout: float = 60, **options: Any
) -> list[bytes]:
    """So many transactions with one message each, of clients with one transaction; those that were committed."""
    done = []
    async with AsyncClient(stock.service_url, coordinator=beside.service_url, **options) as client:
        producer = await client.create_producer(topic)
        for number in range(count):
            data = f"{what} {number}".encode()
            async with client.transaction(timeout=timeout) as txn:
                await producer.send(data, txn=txn)
                if what == "abort":
                    txn.rollback()
            if what != "abort":
                done.append(data)
    return done


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def copied_while_used(data: Path, copied: Path) -> None:
    """Files that are being made come and go meanwhile."""
    shutil.copytree(data, copied, ignore=shutil.ignore_patterns("*.tmp"))


def coordinator(stock: Target, data: Path, **conf: str) -> OurCoordinator:
    conf = {"numberOfTransactionCoordinators": "1", **conf}
    return OurCoordinator({"east": stock.service_url}, data_dir=data, conf=conf)


@pytest.fixture
def prefix() -> Iterator[str]:
    return f"lost-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("what", ["folder", "topics", "backup"])
async def test_commits_after_a_log_was_lost_moved_or_restored_are_seen(
    stock_pulsar: Target, data: Path, what: str, prefix: str
) -> None:
    topic, backup = name(), data.with_name("backup")
    if what == "backup":
        with coordinator(stock_pulsar, data) as beside:
            await transact(stock_pulsar, beside, topic, "abort", 1)
        shutil.copytree(data, backup)
    with coordinator(stock_pulsar, data) as beside:
        await transact(stock_pulsar, beside, topic, "abort", ABORTS)
    shutil.rmtree(data)
    if what == "backup":
        shutil.copytree(backup, data)
    await unload(stock_pulsar, topic)
    conf = {"ledgerProvider": "topic", "ledgerTopicPrefix": prefix} if what == "topics" else {}
    with coordinator(stock_pulsar, data, **conf) as beside:
        committed = await transact(stock_pulsar, beside, topic, "commit", COMMITS)
    assert await seen(stock_pulsar, topic) == committed


@pytest.mark.parametrize(
    "clusters",
    [(["east"], ["east"]), pytest.param((["east", "west"], ["west", "north"]), marks=pytest.mark.soak)],
    ids=["one", "shared"],
)
async def test_two_services_beside_one_cluster_give_no_id_twice(
    stock_pulsar: Target, data: Path, clusters: tuple[list[str], list[str]]
) -> None:
    topic, conf = name(), {"numberOfTransactionCoordinators": "1"}
    url, cluster = stock_pulsar.service_url, "west" if "west" in clusters[0] else "east"
    one, two = (
        OurCoordinator(dict.fromkeys(each, url), data_dir=data / str(number), conf=conf) for number, each in enumerate(clusters)
    )
    with one, two:
        committed = await transact(stock_pulsar, one, topic, "of one", COMMITS, cluster=cluster)
        await transact(stock_pulsar, two, topic, "abort", ABORTS, cluster=cluster)
        await unload(stock_pulsar, topic)
        committed += await transact(stock_pulsar, two, topic, "of two", COMMITS, cluster=cluster)
    assert await seen(stock_pulsar, topic) == committed


@pytest.mark.soak
async def test_a_copy_beside_its_original_takes_no_participants_and_holds_what_was_open(
    stock_pulsar: Target, data: Path, tmp_path: Path
) -> None:
    topic, copied = name(), tmp_path / "copied"
    original = coordinator(stock_pulsar, data)
    with original:
        async with AsyncClient(stock_pulsar.service_url, coordinator=original.service_url) as client:
            producer = await client.create_producer(topic)
            txn = await client.begin_transaction(timeout=50)
            begun = asyncio.get_running_loop().time()
            await producer.send(b"committed after the copy", txn=txn)
            await asyncio.to_thread(copied_while_used, data, copied)
            copy = coordinator(stock_pulsar, copied, webServicePort="0")
            with copy:
                with pytest.raises(PulsarError, match="another process has claimed the store"):
                    await transact(stock_pulsar, copy, topic, "commit", 1, timeout=2, operation_timeout=12)
                await txn.commit()
                assert await seen(stock_pulsar, topic) == [b"committed after the copy"]
                original.kill()
                committed = await until_taken(stock_pulsar, copy, topic)
                await asyncio.sleep(max(0.0, begun + 51 - asyncio.get_running_loop().time()))  # it has timed out
                assert await seen(stock_pulsar, topic) == [b"committed after the copy", *committed]
                held = listed(copy, "held=true")
                assert [(each["status"], each["heldBecause"]) for each in held.values()] == [("HELD", "restored log")]
                assert "was restored, rolled back or copied" in copy.log_tail()


async def until_taken(stock: Target, beside: OurCoordinator, topic: str) -> list[bytes]:
    """The broker gives the original up, and the copy claims the cluster."""
    for _ in range(60):
        try:
            return await transact(stock, beside, topic, "commit", 1, timeout=5)
        except PulsarError:
            await asyncio.sleep(0.5)
    raise AssertionError("the copy was never let in")


def listed(beside: OurCoordinator, query: str) -> dict[str, Any]:
    url = f"{beside.facts()['webServiceUrl']}/admin/v3/transactions/slowTransactions/0?{query}"
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


async def test_a_log_that_is_rolled_back_within_its_life_changes_no_end(
    stock_pulsar: Target, data: Path, tmp_path: Path
) -> None:
    topic, copied = name(), tmp_path / "copied"
    with coordinator(stock_pulsar, data) as beside:
        async with AsyncClient(stock_pulsar.service_url, coordinator=beside.service_url) as client:
            producer = await client.create_producer(topic)
            txn = await client.begin_transaction(timeout=3)
            await producer.send(b"committed", txn=txn)
            await asyncio.to_thread(copied_while_used, data, copied)
            await txn.commit()
            beside.kill()
    rolled_back = coordinator(stock_pulsar, copied)
    with rolled_back:
        committed = await until_taken(stock_pulsar, rolled_back, topic)
        await asyncio.sleep(4.0)
        assert await seen(stock_pulsar, topic) == [b"committed", *committed]


@pytest.mark.parametrize("where", ["folder", pytest.param("topics", marks=pytest.mark.soak)])
async def test_a_log_of_febdd5f_is_gone_on_with_and_what_was_open_in_it_is_ended(
    stock_pulsar: Target, data: Path, where: str, prefix: str
) -> None:
    """The old client as well: it goes on with the new coordinator."""
    topic = name()
    provider = {"ledgerProvider": "topic", "ledgerTopicPrefix": prefix} if where == "topics" else {}
    conf = {"numberOfTransactionCoordinators": "1", **provider}
    before = OurCoordinator({"east": stock_pulsar.service_url}, data_dir=data, conf=conf, environment=earlier_environment())
    before.start()
    aborted = "abort" if not await transact(stock_pulsar, before, topic, "abort", ABORTS) else ""
    client = AsyncClient(stock_pulsar.service_url, coordinator=before.service_url)
    producer = await client.create_producer(topic)
    left = await client.begin_transaction(timeout=5)
    await producer.send(b"left open", txn=left)
    before.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            await client.close()
    await unload(stock_pulsar, topic)
    with coordinator(stock_pulsar, data, **provider) as beside:
        committed = await transact(stock_pulsar, beside, topic, "commit", COMMITS)
        process = start_earlier(EARLIER_CLIENT, stock_pulsar.service_url, beside.service_url, topic)
        out, _ = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0, out
        await asyncio.sleep(5.0)
        assert await seen(stock_pulsar, topic) == [*committed, b"of the old client"]
    assert aborted


EARLIER_CLIENT = """
import asyncio, sys
from pulsar_txn.client import AsyncClient
async def main(url, coordinator, topic):
    async with AsyncClient(url, coordinator=coordinator) as client:
        producer = await client.create_producer(topic)
        async with client.transaction(timeout=30) as txn:
            await producer.send(b"of the old client", txn=txn)
asyncio.run(main(*sys.argv[1:]))
"""
