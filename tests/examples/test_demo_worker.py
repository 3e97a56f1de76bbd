"""Publisher and worker as processes against a broker: killed in the middle, and every flight is settled once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import attrs
import pytest
from our_broker import OurBroker

pytest.importorskip("pandas")

import publisher
from checks import compare
from crash import POINTS, read_log
from data import read_flights
from demo import read_input
from processes import HERE
from topics import SUBSCRIPTION, Topics
from watch import read_topic

from pulsar_txn.client import AsyncClient, ConsumerType

SELECTION = "small"


@pytest.fixture(scope="module")
def broker() -> Iterator[OurBroker]:
    with OurBroker(conf={"brokerDeduplicationEnabled": "true"}) as broker:
        yield broker


async def publish_part(url: str, topics: Topics, count: int) -> None:
    async with AsyncClient(url) as client:
        await topics.prepare(client)
        producer = await client.create_producer(topics.flights, producer_name=publisher.NAME, batching_max_messages=40)
        for number, flight in enumerate(islice(read_flights(SELECTION), count)):
            producer.send_nowait(json.dumps(attrs.asdict(flight)).encode(), sequence_id=number)
        await producer.close()


async def test_a_publisher_that_was_cut_off_goes_on_behind_what_is_stored(broker: OurBroker) -> None:
    topics = Topics("published-")
    await publish_part(broker.service_url, topics, 777)
    assert await publisher.publish(broker.service_url, topics, SELECTION, 40) == 2000 - 777
    assert await publisher.publish(broker.service_url, topics, SELECTION, 40) == 0
    async with AsyncClient(broker.service_url) as client:
        ids = [seen.value["id"] for seen in await read_topic(client, topics.flights)]
    assert ids == list(range(2000))


async def run_worker(broker: OurBroker, topics: Topics, mode: str, folder: Path, *, flights: int) -> list[int]:
    """Publish, let a worker be killed in its third unit, and a second one finish; the exit codes."""
    await publish_part(broker.service_url, topics, flights)
    log = folder / "crashes.jsonl"
    environment = {"PULSAR_TXN_CRASH_POINT": POINTS[mode], "PULSAR_TXN_CRASH_LOG": str(log), "PULSAR_TXN_CRASH_NTH": "3=worker"}
    # An open transaction holds its messages for five seconds: the second worker waits longer for them.
    idle = "8" if mode == "transactional" else "2"
    command = [sys.executable, str(HERE / "worker.py"), "--url", broker.service_url, "--prefix", topics.prefix]
    command += ["--mode", mode, "--batch", "50", "--idle", idle, "--units", str(folder / "units.jsonl")]
    return [await asyncio.to_thread(subprocess.call, command, env=os.environ | environment, timeout=90) for _ in range(2)]


@pytest.mark.seed_rows("B08", "D03", "D14", "D15", "D16")
@pytest.mark.parametrize(
    ("mode", "lost", "doubled"), [("transactional", False, False), ("ack-first", True, False), ("send-first", False, True)]
)
async def test_a_worker_killed_in_a_unit_loses_or_doubles_it_only_without_transactions(
    broker: OurBroker, tmp_path: Path, mode: str, lost: bool, doubled: bool
) -> None:
    topics = Topics(f"{mode}-")
    assert await run_worker(broker, topics, mode, tmp_path, flights=400) == [-signal.SIGKILL, 0]
    (kill,) = read_log(tmp_path / "crashes.jsonl")
    assert not kill.nothing_in_flight()
    assert len(kill.flights) == 50
    known = read_input(SELECTION)
    truth = {number: known.truth[number] for number in range(400)}
    async with AsyncClient(broker.service_url) as client:
        rows = {topic: await read_topic(client, topic) for topic in (topics.settlements, topics.postings)}
        again = await client.subscribe(topics.flights, SUBSCRIPTION, consumer_type=ConsumerType.SHARED)
        assert await again.receive_many(1, max_wait=0.5) == []  # nothing is left over, in whichever mode
    for topic, seen in rows.items():
        found = compare(topic, [each.value for each in seen], truth)
        assert found.lost == (kill.flights if lost else ())
        assert found.doubled == (kill.flights if doubled else ())
        assert found.wrong == ()
        assert all((each.txn_id is not None) == (mode == "transactional") for each in seen)
        assert kill.txn_id not in {each.txn_id for each in seen} - {None}
