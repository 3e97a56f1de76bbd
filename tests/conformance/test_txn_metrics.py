"""What the metrics page counts of transactions, under Pulsar's names.

A stock server needs seconds for its page when it has thousands of topics: a story reads it once, or before and after.
"""

from __future__ import annotations

import asyncio
import urllib.request
from functools import partial
from typing import Final

from admin import eventually
from coordinators import begun_at, id_of, is_known
from differences import Observed
from rows import row
from targets import Target
from transactions import received

from pulsar_txn.client import AsyncClient

MEASURED: Final = (
    "pulsar_txn_execution_latency_le_10",
    "pulsar_txn_tb_client_commit_latency_count",
    "pulsar_txn_tp_commit_latency_count",
    "pulsar_txn_tc_bufferedwriter_batch_records_count",
    "pulsar_txn_pending_ack_store_bufferedwriter_batch_records_count",
)


class Page:
    """The samples of transactions on the metrics page, at one moment."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def __contains__(self, name: str) -> bool:
        return any(line.startswith((name + "{", name + " ")) for line in self._lines)

    def value(self, name: str, **labels: object) -> float:
        """Of the only series of this name with these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        (found,) = [line for line in self._lines if line.startswith(name + "{") and all(each in line for each in wanted)]
        return float(found.rpartition("}")[2].split()[0])


async def page_of(pulsar: Target) -> Page:
    """The page now."""

    def read() -> list[str]:
        with urllib.request.urlopen(pulsar.admin_url + "/metrics/", timeout=60) as page:
            return [line.decode() for line in page if line.startswith(b"pulsar_txn_")]

    return Page(await asyncio.to_thread(read))


@row(124)
async def test_a_coordinator_counts_what_it_began_and_how_it_ended(pulsar: Target, client: AsyncClient) -> None:
    """Servers are shared with other stories: counts grow by what this one does, at least."""
    first = await client.begin_transaction()
    tc_id = id_of(first).most
    of_tc = {"coordinator_id": tc_id}
    before = await page_of(pulsar)
    assert before.value("pulsar_txn_active_count", **of_tc) >= 1
    await first.commit()
    await (await begun_at(client, tc_id)).abort()
    forgotten = id_of(await begun_at(client, tc_id, timeout=0.5))
    assert await eventually(partial(is_known, pulsar, forgotten), lambda known: not known) is False
    least = {"created": 2, "committed": 1, "aborted": 2, "timeout": 1, "append_log": 8}

    def grown(page: Page) -> dict[str, float]:
        totals = {name: f"pulsar_txn_{name}_total" for name in least}
        return {name: page.value(total, **of_tc) - before.value(total, **of_tc) for name, total in totals.items()}

    after = await eventually(partial(page_of, pulsar), lambda page: grown(page)["aborted"] >= least["aborted"])
    assert [name for name, growth in grown(after).items() if growth < least[name]] == []


@row(106, 124)
async def test_ends_at_topics_and_subscriptions_are_counted(pulsar: Target, client: AsyncClient, topic: str) -> None:
    producer = await client.create_producer(topic, batching=False)
    consumer = await client.subscribe(topic, "s")
    for _ in range(3):
        await producer.send(b"x")
    for _ in range(2):
        txn = await client.begin_transaction()
        await consumer.acknowledge(await received(consumer, 3), txn=txn)
        await txn.abort()
    for message in await received(consumer, 3):
        async with client.transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
    committed, aborted, is_open = [await client.begin_transaction() for _ in range(3)]
    for txn in (committed, aborted, is_open):
        await producer.send(b"x", txn=txn)
    await committed.commit()
    await aborted.abort()
    page = await page_of(pulsar)
    of_topic = [page.value(f"pulsar_txn_tb_{kind}_total", topic=topic) for kind in ("committed", "aborted", "active")]
    assert of_topic == [1, 1, 1]
    labels = {"topic": topic, "subscription": "s", "status": "succeed"}
    assert page.value("pulsar_txn_tp_aborted_count_total", **labels) == 2
    assert page.value("pulsar_txn_tp_committed_count_total", **labels) == 3
    await is_open.abort()


@row(124)
async def test_times_and_batches_are_measured(pulsar: Target, client: AsyncClient, topic: str, observed: Observed) -> None:
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s")
    await producer.send(b"x")
    async with client.transaction() as txn:
        await consumer.acknowledge((await received(consumer, 1))[0], txn=txn)
        await producer.send(b"x", txn=txn)
    page = await page_of(pulsar)
    assert "pulsar_txn_tb_client_pending_requests" in page
    for name in MEASURED:
        observed(pulsar, 124, f"metric {name}", "there" if name in page else "absent")
