"""Two coordinator processes beside a stock cluster, under load: the leader is killed, or stopped past its lease and woken."""

from __future__ import annotations

import asyncio
import time
import uuid

import pulsar as official
import pytest
from instance_processes import InstanceProcesses, Load
from targets import Target

from pulsar_txn.client import AsyncClient

pytestmark = [pytest.mark.stock, pytest.mark.timeout(300)]


def names() -> tuple[str, str]:
    start = f"persistent://public/default/led-{uuid.uuid4().hex[:10]}"
    return f"{start}-a", f"{start}-b"


def read(service_url: str, topic: str) -> list[bytes]:
    """Every message that a new reader of the official client sees."""
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(bytes(reader.read_next(timeout_millis=20_000).data()))
        return found
    finally:
        client.close()


async def judge(service_url: str, topics: tuple[str, str], load: Load) -> None:
    """Both topics have what the client was told that is committed, once, and nothing else."""
    for topic in topics:
        found = await asyncio.to_thread(read, service_url, topic)
        assert len(found) == len(set(found)), "something is there twice"
        assert set(found) == load.committed


async def live(service_url: str, faults: list[str], each: int, *, coordinators: int = 4, first: int = 0) -> None:
    """A load over faults of the leader, so many outcomes around each of them, and `first` before all."""
    topics, seconds = names(), []
    with InstanceProcesses(service_url, conf={"numberOfTransactionCoordinators": str(coordinators)}) as instances:
        await instances.led()
        options = {"coordinator": instances.service_url, "operation_timeout": 60, "max_backoff": 0.5}
        async with AsyncClient(service_url, **options) as client:
            load = Load(client, topics)
            await load.start(64 if first else 16)
            await load.until(first or each, seconds=600)
            for fault in faults:
                leader = await instances.led()
                began = time.monotonic()
                await asyncio.to_thread(leader.kill if fault == "kill" else leader.pause)
                await instances.led(but=leader)
                seconds.append((fault, await load.first_commit_since(began)))
                await load.until(each)
                if fault == "kill":
                    await asyncio.to_thread(leader.start)
                else:
                    leader.wake()
                    await instances.parted(leader)
                await load.until(each)
            await load.stop()
            await judge(service_url, topics, load)
            print(f"{load.count} outcomes, {len(load.committed)} of them committed, {load.resolved} resolved;", seconds)


@pytest.mark.seed_rows("C04", "D34")
async def test_clients_go_on_by_themselves_and_no_decision_is_lost_or_changed(stock_pulsar: Target) -> None:
    await live(stock_pulsar.service_url, ["kill"] if stock_pulsar.version == "4.0.8" else ["kill", "stop"], 60)


@pytest.mark.soak
async def test_over_many_takeovers_no_decision_is_lost_or_changed(stock_pulsar: Target) -> None:
    await live(stock_pulsar.service_url, ["kill", "kill", "stop", "kill", "kill", "stop", "kill"], 200)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_leader_of_sixteen_coordinators_with_filled_logs_is_replaced(stock_pulsar: Target) -> None:
    """12,000 transactions are more records for each coordinator than one is folded from, with its snapshot."""
    await live(stock_pulsar.service_url, ["kill"] * 4, 500, coordinators=16, first=12_000)
