"""`pulsar-txn transactions` and HTTP of a coordinator beside stock Pulsar, and ends that are repeated after it was killed."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from command_line import pulsar_txn
from late_writes import zombie
from official_reading import read_officially
from our_coordinator import OurCoordinator
from targets import Target

from pulsar_txn.client import AsyncClient

pytestmark = [pytest.mark.stock, pytest.mark.timeout(240)]

REPEAT_SECONDS = 6


def asked(url: str, path: str, method: str = "GET") -> str:
    with urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def http_of(coordinator: OurCoordinator) -> str:
    url: str = coordinator.facts()["webServiceUrl"]
    return url


def beside(stock: Target, **conf: str) -> OurCoordinator:
    return OurCoordinator({"east": stock.service_url}, conf={"webServicePort": "0", **conf})


async def test_an_operator_looks_at_a_transaction_aborts_it_and_reads_what_happened(stock_pulsar: Target, topic: str) -> None:
    with beside(stock_pulsar) as coordinator:
        url = http_of(coordinator)

        async def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
            done = await asyncio.to_thread(pulsar_txn, "transactions", "--admin-url", url, *arguments, stdin=stdin)
            return done.returncode, done.stdout, done.stderr

        async with AsyncClient(stock_pulsar.service_url, coordinator=coordinator.service_url) as client:
            producer = await client.create_producer(topic)
            async with client.transaction() as kept:
                await producer.send(b"committed", txn=kept)
            stuck = await client.begin_transaction(timeout=600)
            await producer.send(b"aborted", txn=stuck)
            assert stuck.id is not None
            assert kept.id is not None
            name = f"({stuck.id.most},{stuck.id.least})"
            code, listed, _ = await run("list")
            assert code == 0
            (line,) = listed.splitlines()
            assert line.startswith(f"{name}\tOPEN\t")
            assert line.endswith("timeout 600 s\t1 partitions, 0 subscriptions")
            shown = json.loads((await run("show", name))[1])
            assert shown["participants"] == [{"cluster": "east", "topic": topic}]
            code, _, said = await run("abort", name, stdin="n\n")
            assert (code, "is left as it is" in said) == (1, True)
            assert (await run("abort", name, stdin="y\n"))[:2] == (0, f"{name} is aborted\n")
            assert (await run("list"))[1] == ""
            code, text, _ = await run("timeline", name)
            assert code == 0
            steps = [line.split("\t")[-1] for line in text.splitlines()[1:-1]]
            assert steps == [
                "begun, timeout 600 s",
                f"registered east {topic}",
                "abort decided by operator",
                f"told east {topic}",
                "done",
            ]
            told = json.loads((await run("timeline", "--json", f"{kept.id.most}:{kept.id.least}"))[1])
            assert (told["state"], told["isWhole"]) == ("COMMITTED", True)
            code, _, said = await run("timeline", "5:5")
            assert (code, "nothing is known of" in said) == (1, True)
        assert await asyncio.to_thread(read_officially, stock_pulsar.service_url, topic, 1) == [b"committed"]
        assert asked(url, "/health") == asked(url, "/ready") == "ok"
        metrics = asked(url, "/metrics")
        assert 'pulsar_txn_service_ends_told_total{cluster="east"} 2.0' in metrics
        assert 'pulsar_txn_service_end_attempts_total{answer="ok",cluster="east"} 2.0' in metrics


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(90):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - the time of other processes
            await asyncio.sleep(0.2)


def held_back(stock: Target, topic: str) -> int:
    """Transactions that are open in the topic's buffer, as the broker says."""
    path = topic.removeprefix("persistent://")
    stats = json.loads(asked(stock.admin_url, f"/admin/v3/transactions/transactionBufferStats/{path}"))
    return int(stats["ongoingTxnSize"])


async def test_a_late_send_stored_while_the_coordinator_is_dead_is_cured_by_the_repeat_of_the_next_one(
    stock_pulsar: Target, topic: str
) -> None:
    with beside(stock_pulsar, transactionEndRepeatDelayInSeconds=str(REPEAT_SECONDS)) as coordinator:
        async with AsyncClient(stock_pulsar.service_url, coordinator=coordinator.service_url) as client:
            producer = await client.create_producer(topic)
            async with client.transaction() as txn:
                await producer.send(b"committed", txn=txn)
            assert txn.id is not None
            story = f"/admin/v3/transactions/timeline/{txn.id.most}/{txn.id.least}"
            await until(lambda: "done" in asked(http_of(coordinator), story))
        coordinator.kill()
        # The broker forgets the low watermark with the topic, so it stores what a zombie sends for the ended transaction.
        await asyncio.to_thread(asked, stock_pulsar.admin_url, f"/admin/v2/{topic.replace('://', '/')}/unload", "PUT")
        async with zombie(stock_pulsar) as dead:
            await dead.send(topic, b"too late", txn.id)
        async with AsyncClient(stock_pulsar.service_url) as client:
            await (await client.create_producer(topic)).send(b"after it")
        assert held_back(stock_pulsar, topic) == 1
        await asyncio.to_thread(coordinator.start)
        await until(lambda: held_back(stock_pulsar, topic) == 0)
        assert 'ends_repeated_total{cluster="east"} 1.0' in asked(http_of(coordinator), "/metrics")
    read = await asyncio.to_thread(read_officially, stock_pulsar.service_url, topic, 3)
    assert read == [b"committed", b"too late", b"after it"], "the outcome is repeated, which is a commit"
