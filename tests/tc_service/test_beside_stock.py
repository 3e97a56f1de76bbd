"""A coordinator beside stock clusters: whole stories, judged by the official client as a reader."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pulsar as official
import pytest
from crashing_coordinator import PROGRAM, environment
from our_coordinator import OurCoordinator
from stock_pulsar import StockPulsar, free_port
from targets import Target

from pulsar_txn.client import AsyncClient, AsyncCoordinator, Client, Coordinator, InitialPosition, InvalidConfiguration
from pulsar_txn.client.errors import NotAllowedError, ProducerFenced, PulsarError
from pulsar_txn.wire.ids import LANE_BIT

pytestmark = [pytest.mark.stock, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLED = 3
"""The number of the commit at which the coordinator kills itself, when all participants but one were told."""


def crashing(folder: Path, **clusters: str) -> OurCoordinator:
    return OurCoordinator(clusters, environment=environment(folder / "crash.log", KILLED), program=PROGRAM)


def name() -> str:
    return f"persistent://public/default/beside-{uuid.uuid4().hex[:10]}"


def judged(service_url: str, topic: str, most_s: float = 20.0) -> list[bytes]:
    """What a new reader of the official client sees, from the beginning."""
    client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, official.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(bytes(reader.read_next(timeout_millis=int(most_s * 1000)).data()))
        return found
    finally:
        client.close()


async def judged_later(service_url: str, topic: str) -> list[bytes]:
    return await asyncio.to_thread(judged, service_url, topic)


async def test_consume_process_produce_goes_on_by_itself_when_the_coordinator_is_killed_amid_a_commit(
    stock_pulsar: Target, tmp_path: Path
) -> None:
    before, after = name(), name()
    beside = crashing(tmp_path, east=stock_pulsar.service_url)
    with beside:
        async with AsyncClient(stock_pulsar.service_url, coordinator=beside.service_url, max_backoff=0.5) as client:
            consumer = await client.subscribe(before, "s", initial_position=InitialPosition.EARLIEST)
            source = await client.create_producer(before)
            output = await client.create_producer(after)
            for number in range(12):
                await source.send(b"%d" % number)
            restarted = asyncio.create_task(asyncio.to_thread(come_back, beside))
            committed: list[bytes] = []
            for round_ in range(14):
                aborts = round_ % 7 == 4
                try:
                    async with client.transaction(timeout=60) as txn:
                        (message,) = await consumer.receive_many(1, txn=txn)
                        await output.send(b"done " + message.data + (b" aborted" if aborts else b""), txn=txn)
                        if aborts:
                            txn.rollback()
                    assert txn.id is not None
                    assert txn.id.most & LANE_BIT
                finally:
                    if not aborts:
                        committed.append(message.data)
            await restarted
            assert client.stats().transactions.committed == 12
        assert json.loads((tmp_path / "crash.log").read_text())["not_told"]
        assert sorted(committed, key=int) == [b"%d" % number for number in range(12)]
        found = await judged_later(stock_pulsar.service_url, after)
        assert sorted(found) == sorted(b"done " + each for each in committed)
        async with AsyncClient(stock_pulsar.service_url) as client:
            rest = await client.subscribe(before, "s")
            assert await rest.receive_many(1, max_wait=0.5) == []


def come_back(beside: OurCoordinator) -> None:
    assert beside.wait_for_end(60) == -9
    beside.start()


async def test_names_of_a_participant_that_cannot_take_part_are_refused_and_the_client_says_why(stock_pulsar: Target) -> None:
    with OurCoordinator({"east": stock_pulsar.service_url}) as beside:
        async with AsyncClient(stock_pulsar.service_url, coordinator=beside.service_url, cluster="north") as client:
            producer = await client.create_producer(name())
            with pytest.raises(PulsarError, match="no cluster 'north' here"):
                async with client.transaction() as txn:
                    await producer.send(b"x", txn=txn)
        async with AsyncClient(beside.service_url) as wrong:
            with pytest.raises(NotAllowedError, match="has no topics; give the client the service URL of its cluster"):
                await wrong.create_producer("t")
        async with AsyncClient(stock_pulsar.service_url, coordinator=stock_pulsar.service_url) as wrong:
            with pytest.raises(InvalidConfiguration, match="is no coordinator beside clusters"):
                await wrong.begin_transaction()


def test_the_blocking_client_and_a_transactional_id_use_it_as_well(stock_pulsar: Target) -> None:
    topic = name()
    with (
        OurCoordinator({"east": stock_pulsar.service_url}) as beside,
        Client(stock_pulsar.service_url, coordinator=beside.service_url, transactional_id="worker") as old,
        Client(stock_pulsar.service_url, coordinator=beside.service_url, transactional_id="worker") as new,
    ):
        zombie = old.begin_transaction()
        old.create_producer(topic).send(b"of the zombie", txn=zombie)
        with new.transaction() as txn:
            new.create_producer(topic).send(b"of the successor", txn=txn)
        with pytest.raises(PulsarError):
            zombie.commit()
        assert judged(stock_pulsar.service_url, topic) == [b"of the successor"]


async def test_a_late_send_of_an_old_instance_is_fenced_where_the_broker_says_only_that_the_transaction_has_ended(
    stock_pulsar: Target,
) -> None:
    """It was NotAllowedError, as after a timeout: a worker that must stop could have gone on."""
    topic = name()
    with OurCoordinator({"east": stock_pulsar.service_url}) as beside:
        who: dict[str, Any] = {"coordinator": beside.service_url, "transactional_id": "worker"}
        async with AsyncClient(stock_pulsar.service_url, **who) as old, AsyncClient(stock_pulsar.service_url, **who) as new:
            before, after = await old.create_producer(topic), await new.create_producer(topic)
            zombie = await old.begin_transaction()
            await before.send(b"of the old one", txn=zombie)
            async with new.transaction() as txn:
                await after.send(b"of the new one", txn=txn)
            with pytest.raises(ProducerFenced, match="'worker' was taken over by a newer instance"):
                await before.send(b"late", txn=zombie)
            with pytest.raises(ProducerFenced):
                await old.begin_transaction()
        assert judged(stock_pulsar.service_url, topic) == [b"of the new one"]


async def test_the_timeline_of_a_commit_says_that_a_topic_of_it_was_deleted(stock_pulsar: Target) -> None:
    """The broker took the end, and did nothing; the transaction was committed without its message, and nothing said so."""
    lost, kept, port = name(), name(), free_port()
    with OurCoordinator({"east": stock_pulsar.service_url}, conf={"webServicePort": str(port)}) as beside:
        async with AsyncClient(stock_pulsar.service_url, coordinator=beside.service_url) as client:
            txn = await client.begin_transaction()
            for topic in (lost, kept):
                producer = await client.create_producer(topic)
                await producer.send(b"x", txn=txn)
                await producer.close()  # else it makes the topic again
            path = lost.replace("://", "/")
            async with aiohttp.ClientSession() as http:
                async with http.delete(f"{stock_pulsar.admin_url}/admin/v2/{path}?force=true") as answer:
                    assert answer.status == 204, await answer.text()
                await txn.commit()
                assert txn.id is not None
                timeline = f"http://127.0.0.1:{port}/admin/v3/transactions/timeline/{txn.id.most}/{txn.id.least}"
                async with http.get(timeline) as answer:
                    found = await answer.json()
    assert found["state"] == "COMMITTED"
    told = {event["topic"]: event.get("topicMissing", False) for event in found["events"] if event["event"] == "told"}
    assert told == {lost: True, kept: False}


@pytest.mark.soak  # the fault run on real clusters has two of them, and kills them as well
async def test_an_exactly_once_bridge_between_two_clusters_lives_through_kills_of_everything(tmp_path: Path) -> None:
    """The coordinator amid a commit, the bridge itself, and a whole cluster; the other cluster is never asked to wait."""
    topic, count = name(), 600
    with StockPulsar("4.0.8") as east, StockPulsar("4.2.4") as west:
        beside = crashing(tmp_path, east=east.service_url, west=west.service_url)
        with beside:
            program = Bridge(beside, east.service_url, west.service_url, topic)
            async with AsyncClient(east.service_url) as client:
                producer = await client.create_producer(topic)
                numbers = [b"%d" % number for number in range(count)]
                await asyncio.gather(*(producer.send(each) for each in numbers[: count // 2]))
                with program:
                    await asyncio.to_thread(come_back, beside)
                    program.kill()
                    program.start()
                    west.kill()
                    await asyncio.gather(*(producer.send(each) for each in numbers[count // 2 :]))
                    await asyncio.to_thread(west.start)
                    await until_all_are_there(west.service_url, topic, count)
            found = await judged_later(west.service_url, topic)
            assert sorted(found, key=int) == numbers
        assert json.loads((tmp_path / "crash.log").read_text().splitlines()[0])["not_told"]


async def until_all_are_there(service_url: str, topic: str, count: int) -> None:
    async with AsyncClient(service_url) as client:
        reader = await client.create_reader(topic)
        for _ in range(count):
            await reader.read_next(timeout=120)
        await reader.close()


class Bridge:
    """The example as a process."""

    def __init__(self, beside: OurCoordinator, source: str, target: str, topic: str) -> None:
        where = ["--from", source, "--to", target, "--coordinator", beside.service_url, "--batch", "20"]
        self._command = [sys.executable, str(EXAMPLES / "bridge"), *where, topic]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Bridge:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def start(self) -> Bridge:
        self._process = subprocess.Popen(self._command)
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)


async def test_clients_of_two_clusters_share_a_coordinator_and_either_begins_their_transaction(stock_pulsar: Target) -> None:
    """Both names are of one server here: what differs is the name that each client gives its cluster."""
    here, there = name(), name()
    urls = {"east": stock_pulsar.service_url, "west": stock_pulsar.service_url}
    with OurCoordinator(urls) as beside:
        async with (
            AsyncCoordinator(beside.service_url) as coordinator,
            AsyncClient(urls["east"], coordinator=coordinator, cluster="east") as east,
            AsyncClient(urls["west"], coordinator=coordinator, cluster="west") as west,
        ):
            first, second = await east.create_producer(here), await west.create_producer(there)
            for begins in (coordinator, east, west):
                async with begins.transaction() as txn:
                    await first.send(b"x", txn=txn)
                    await second.send(b"y", txn=txn)
                assert {each.topic for each in txn.stats().partitions} == {f"east|{here}", f"west|{there}"}
            async with west.transaction() as txn:
                await first.send(b"aborted", txn=txn)
                await second.send(b"aborted", txn=txn)
                txn.rollback()
        assert await judged_later(urls["east"], here) == [b"x"] * 3
        assert await judged_later(urls["west"], there) == [b"y"] * 3


def test_blocking_clients_of_two_clusters_share_a_coordinator(stock_pulsar: Target) -> None:
    """A bridge without `await`: both names are of one server here."""
    before, after = name(), name()
    url = stock_pulsar.service_url
    with (
        OurCoordinator({"east": url, "west": url}) as beside,
        Coordinator(beside.service_url) as coordinator,
        Client(url, coordinator=coordinator, cluster="east") as east,
        Client(url, coordinator=coordinator, cluster="west") as west,
    ):
        consumer = east.subscribe(before, "bridge", initial_position=InitialPosition.EARLIEST)
        source, output = east.create_producer(before), west.create_producer(after)
        for number in range(6):
            source.send(b"%d" % number)
        done: list[bytes] = []
        units = 0
        while len(done) < 6:
            units += 1
            aborts = units == 2
            with coordinator.transaction() as txn:
                messages = consumer.receive_many(2, txn=txn)
                for each in messages:
                    output.send(each.data, txn=txn)
                if aborts:
                    txn.rollback()
            done += [] if aborts else [each.data for each in messages]
        assert sorted(judged(url, after)) == sorted(done) == [b"%d" % number for number in range(6)]
