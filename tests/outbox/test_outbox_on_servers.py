"""Orders in a real database, events in a real Pulsar: consume, write rows and produce in one block; crashes end by the check.

On our broker, and beside stock Pulsar 4.2.4 with a coordinator of ours. Stock's own coordinators have no checks, and say so.
"""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from official_reading import read_officially
from our_coordinator import OurCoordinator
from targets import Target

from pulsar_txn.client import AsyncClient, Client, InitialPosition
from pulsar_txn.client.errors import FeatureUnsupported, OutboxAborted
from pulsar_txn.client.outbox import AsyncOutbox, Outbox

SERVERS = ["ours", pytest.param("stock-4.2.4", marks=pytest.mark.stock)]
on_servers = pytest.mark.parametrize("pulsar", SERVERS, indirect=True)


class World:
    """A server, a coordinator where that needs one, and a database."""

    def __init__(self, target: Target, coordinator: str | None, connect: Callable[[], Any]) -> None:
        self.target = target
        self.coordinator = coordinator
        self.connect = connect
        self.name = uuid.uuid4().hex[:12]
        self.table = f"outbox_{self.name}"
        with self.client() as client:
            self.outbox(client).create_table()
        with self.connect() as connection:
            connection.execute(f"CREATE TABLE orders_{self.name} (id INTEGER PRIMARY KEY)")
            connection.commit()

    def client(self) -> Client:
        return Client(self.target.service_url, coordinator=self.coordinator)

    def outbox(self, client: Client) -> Outbox:
        return Outbox(client, self.name, self.connect, table=self.table, check_after=0.2)

    def insert(self, connection: Any, number: int) -> None:
        connection.execute(f"INSERT INTO orders_{self.name} VALUES ({int(number)})")

    def orders(self) -> list[int]:
        with self.connect() as connection:
            return [row[0] for row in connection.execute(f"SELECT id FROM orders_{self.name} ORDER BY id").fetchall()]

    def rows(self) -> list[str]:
        with self.connect() as connection:
            return [row[0] for row in connection.execute(f"SELECT outcome FROM {self.table}").fetchall()]

    def events(self, count: int) -> list[bytes]:
        return sorted(read_officially(self.target.service_url, f"events-{self.name}", count))


@pytest.fixture(scope="module")
def server(pulsar: Target) -> Iterator[tuple[Target, str | None]]:
    if pulsar.is_ours:
        yield pulsar, None
        return
    with OurCoordinator({"stock": pulsar.service_url}) as coordinator:
        yield pulsar, coordinator.service_url


@pytest.fixture(params=["postgres", "sqlite"])
def world(request: pytest.FixtureRequest, server: tuple[Target, str | None], tmp_path: Path) -> World:
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres")
        return World(*server, lambda: psycopg.connect(dsn))
    return World(*server, lambda: sqlite3.connect(tmp_path / "orders.db", timeout=5))


@on_servers
def test_a_block_consumes_writes_rows_and_produces_or_does_nothing(world: World) -> None:
    with world.client() as client, world.outbox(client) as outbox:
        requests = client.create_producer(f"requests-{world.name}")
        for number in (1, 2):
            requests.send(b"%d" % number)
        consumer = client.subscribe(f"requests-{world.name}", "service", initial_position=InitialPosition.EARLIEST)
        events = client.create_producer(f"events-{world.name}")
        connection = world.connect()
        with pytest.raises(ZeroDivisionError), outbox.transaction(connection) as txn:
            request = consumer.receive(timeout=10, txn=txn)
            world.insert(connection, int(request.data))
            events.send(request.data, txn=txn)
            raise ZeroDivisionError
        for _ in range(2):
            with outbox.transaction(connection) as txn:
                request = consumer.receive(timeout=10, txn=txn)
                world.insert(connection, int(request.data))
                events.send_nowait(request.data, txn=txn)
        connection.close()
        assert world.orders() == [1, 2]
        assert world.events(2) == [b"1", b"2"]
        assert sorted(world.rows()) == ["commit", "commit"]
    assert world.rows() == []  # closing the outbox removed those of ended transactions


@on_servers
def test_what_a_dead_process_left_prepared_is_ended_by_the_next_one_as_its_row_says(world: World) -> None:
    """Both kinds: the database has committed, or it has not. The client that prepared is closed, and nothing ends it."""
    for number, commits in ((1, True), (2, False)):
        with world.client() as client:
            outbox = world.outbox(client)
            events = client.create_producer(f"events-{world.name}")
            connection = world.connect()
            block = outbox.transaction(connection)
            txn = _entered_apart(block)
            world.insert(connection, number)
            events.send(b"%d" % number, txn=txn)
            _cut_off(block, after_commit=commits)
            connection.close()
    with world.client() as client, world.outbox(client):
        until = time.monotonic() + 60
        while len(world.rows()) < 2 and time.monotonic() < until:
            time.sleep(0.05)  # one is asked in vain if its client closes just then, and the next question comes after 30 s
        assert sorted(world.rows()) == ["abort", "commit"]
        assert world.orders() == [1]
        assert world.events(1) == [b"1"]


@on_servers
def test_a_member_whose_connect_leads_elsewhere_ends_nothing(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only one that is asked. Without the identity it aborts what the database has committed."""
    with world.client() as client:
        events = client.create_producer(f"events-{world.name}")
        connection = world.connect()
        block = world.outbox(client).transaction(connection)
        txn = _entered_apart(block)
        world.insert(connection, 1)
        events.send(b"1", txn=txn)
        _cut_off(block, after_commit=True)
        connection.close()
    with world.client() as client:
        stray = Outbox(client, world.name, lambda: sqlite3.connect(tmp_path / "other.db"), table=world.table)
        stray.create_table()
        with stray:
            until = time.monotonic() + 60
            while "nothing is written" not in caplog.text and time.monotonic() < until:
                time.sleep(0.05)  # one is asked in vain if its client closes just then, and the next question comes after 30 s
            assert "nothing is written" in caplog.text
        assert world.outbox(client).trim(older_than=0.001).removed == 1
        assert world.events(1) == [b"1"]
    assert world.orders() == [1]


def _entered_apart(block: Any) -> Any:
    """Enter a block that is never left: what is around the code of a dead process ends with it, and not with the tests'."""
    return contextvars.copy_context().run(block.__enter__)


class _Cut(BaseException):
    pass


def _cut_off(block: Any, *, after_commit: bool) -> None:
    """Leave the block up to COMMIT, or up to END_TXN; what follows never runs, as after a kill."""

    async def cut(*_: Any) -> None:
        raise _Cut

    if after_commit:
        block._life._pulsar.leave = cut
    else:
        block._life._block._port.commit = cut
    work = block._life.leave(None)
    with pytest.raises(_Cut):
        work.send(None)


@on_servers
def test_a_transaction_that_times_out_rolls_the_database_back(world: World) -> None:
    with world.client() as client, world.outbox(client) as outbox:
        events = client.create_producer(f"events-{world.name}")
        connection = world.connect()
        with pytest.raises(Exception, match=r"over|ended|ABORTED") as raised, outbox.transaction(connection, timeout=1) as txn:
            world.insert(connection, 1)
            events.send(b"1", txn=txn)
            time.sleep(1.5)
        assert getattr(raised.value, "requires_abort", False) or isinstance(raised.value, OutboxAborted)
        connection.close()
    assert world.orders() == []
    assert world.rows() == []


@on_servers
async def test_the_outbox_of_asyncio_does_the_same(world: World) -> None:
    def where() -> Any:
        return world.connect()

    async with (
        AsyncClient(world.target.service_url, coordinator=world.coordinator) as client,
        AsyncOutbox(client, world.name, where, table=world.table, check_after=0.2) as outbox,
    ):
        events = await client.create_producer(f"events-{world.name}")
        connection = where()
        async with outbox.transaction(connection) as txn:
            world.insert(connection, 0)
            await events.send(b"0", txn=txn)
        with pytest.raises(ZeroDivisionError):
            async with outbox.transaction(connection) as txn:
                world.insert(connection, 1)
                await events.send(b"1", txn=txn)
                raise ZeroDivisionError
        connection.close()
        assert await asyncio.to_thread(world.events, 1) == [b"0"]
        assert world.orders() == [0]


@pytest.mark.stock
def test_stock_pulsar_without_a_coordinator_of_ours_is_refused_before_anything_happens(
    stock_pulsar: Target, tmp_path: Path
) -> None:
    connect = lambda: sqlite3.connect(tmp_path / "orders.db")  # noqa: E731 - as a program writes it
    with Client(stock_pulsar.service_url) as client:
        outbox = Outbox(client, "orders", connect)
        outbox.create_table()
        connection = connect()
        with pytest.raises(FeatureUnsupported, match="coordinator"), outbox.transaction(connection):
            raise AssertionError
        assert not connection.in_transaction
        connection.close()
