"""The outbox of asyncio on every kind of asynchronous connection; the rules themselves are in `test_outbox_blocks`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from outbox_fakes import FakeAsyncClient, FakeCoordinator, answer_of_commit_is_lost

from pulsar_txn.client import ConnectionLost, TransactionStateError
from pulsar_txn.client.errors import OutboxAborted, OutboxWrongDatabase
from pulsar_txn.client.outbox import AsyncOutbox, engine
from pulsar_txn.client.outbox.engine import Key
from pulsar_txn.wire.ids import TxnId

KINDS = (
    "psycopg",
    "asyncpg",
    "asyncpg-pool",
    "aiosqlite",
    "sqlite3",
    "sqlalchemy-asyncpg",
    "session-psycopg",
    "session-aiosqlite",
)


@attrs.define
class Database:
    table: str
    connect: Callable[[], Any]
    open: Callable[[], Awaitable[Any]]
    insert: Callable[[Any, int], Awaitable[Any]]
    close: Callable[[], Awaitable[Any]] | None = None


async def _database(kind: str, where: str, table: str) -> Database:
    orders = f"{table}_orders"
    if kind == "psycopg":
        import psycopg

        connect: Any = lambda: psycopg.AsyncConnection.connect(where)  # noqa: E731 - as a program writes it
        return Database(table, connect, connect, lambda c, n: c.execute(f"INSERT INTO {orders} VALUES (%s)", (n,)))
    if kind.startswith("asyncpg"):
        import asyncpg

        insert = lambda c, n: c.execute(f"INSERT INTO {orders} VALUES ($1)", n)  # noqa: E731 - as above
        if kind == "asyncpg":
            connect = lambda: asyncpg.connect(where)  # noqa: E731 - as above
            return Database(table, connect, connect, insert)
        pool = await asyncpg.create_pool(where, min_size=1, max_size=3)
        return Database(table, pool.acquire, pool.acquire, insert, pool.close)
    if kind == "aiosqlite":
        import aiosqlite

        connect = lambda: aiosqlite.connect(where, timeout=0.2)  # noqa: E731 - as above
        return Database(table, connect, connect, lambda c, n: c.execute(f"INSERT INTO {orders} VALUES (?)", (n,)))
    if kind == "sqlite3":
        made = lambda: sqlite3.connect(where, timeout=0.2)  # noqa: E731 - as above

        async def open_here() -> Any:
            return made()

        async def insert_here(connection: Any, number: int) -> None:
            connection.execute(f"INSERT INTO {orders} VALUES (?)", (number,))

        return Database(table, made, open_here, insert_here)
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    driver = kind.rpartition("-")[2]
    url = f"sqlite+aiosqlite:///{where}" if driver == "aiosqlite" else where.replace("postgresql:", f"postgresql+{driver}:")
    alchemy = create_async_engine(url)
    statement = sqlalchemy.text(f"INSERT INTO {orders} VALUES (:id)")

    async def session() -> Any:
        return AsyncSession(alchemy)

    async def connection() -> Any:
        return await alchemy.connect()

    return Database(
        table,
        alchemy,
        session if kind.startswith("session") else connection,
        lambda c, n: c.execute(statement, {"id": n}),
        alchemy.dispose,
    )


class World:
    def __init__(self, database: Database, kind: str = "") -> None:
        self.database = database
        self.kind = kind
        self.coordinator = FakeCoordinator()

    def outbox(self, database: Database | None = None) -> AsyncOutbox:
        connect = (database or self.database).connect
        return AsyncOutbox(FakeAsyncClient(self.coordinator), "orders", connect, table=self.database.table, trim_every=None)

    async def look(self) -> tuple[list[int], list[str], list[str]]:
        outbox = self.outbox()
        table = self.database.table

        async def read(port: Any) -> Any:
            await port.begin()
            orders = await port.rows(f"SELECT id FROM {table}_orders ORDER BY id", {}, 100)
            outcomes = await port.rows(f"SELECT outcome FROM {table}", {}, 100)
            await port.commit()
            return [row[0] for row in orders], [row[0] for row in outcomes]

        orders, outcomes = await outbox._engine.use(read)
        await outbox.close()
        return orders, self.coordinator.states(), outcomes


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path, table: str) -> AsyncIterator[World]:
    kind: str = request.param
    where = str(tmp_path / "orders.db") if "sqlite" in kind else request.getfixturevalue("postgres")
    database = await _database(kind, where, table)
    made = World(database, kind)
    await _create(made)
    yield made
    if database.close is not None:
        await database.close()


@pytest.fixture
async def other(request: pytest.FixtureRequest, world: World, tmp_path: Path, table: str) -> AsyncIterator[Database]:
    """Another database of the kind, with tables of the same names."""
    where = str(tmp_path / "other.db") if "sqlite" in world.kind else request.getfixturevalue("other_postgres")
    database = await _database(world.kind, where, table)
    await _create(World(database))
    yield database
    if database.close is not None:
        await database.close()


async def _create(world: World) -> None:
    outbox = world.outbox()
    await outbox.create_table()

    async def create(port: Any) -> None:
        await port.begin()
        await port.execute(f"CREATE TABLE {world.database.table}_orders (id INTEGER PRIMARY KEY)", {})
        await port.commit()

    await outbox._engine.use(create)
    await outbox.close()


async def _closed(connection: Any) -> None:
    result = connection.close()
    if asyncio.iscoroutine(result):
        await result


async def test_a_block_commits_both_and_an_exception_rolls_both_back(world: World) -> None:
    connection = await world.database.open()
    async with world.outbox() as outbox:
        async with outbox.transaction(connection) as txn:
            await world.database.insert(connection, 1)
        assert txn.state.value == "COMMITTED"
        with pytest.raises(ZeroDivisionError):
            async with outbox.transaction(connection):
                await world.database.insert(connection, 2)
                raise ZeroDivisionError
    await _closed(connection)
    assert await world.look() == ([1], ["COMMITTED", "ABORTED"], ["commit"])


async def test_a_lost_end_is_repaired_by_a_member_that_lives(world: World) -> None:
    def lost() -> None:
        raise ConnectionLost("cut")

    connection = await world.database.open()
    async with world.outbox() as outbox:
        world.coordinator.faults["commit"] = lost
        async with outbox.transaction(connection):
            await world.database.insert(connection, 1)
        world.coordinator.faults.clear()
    await _closed(connection)
    async with world.outbox():
        await world.coordinator.ask_all_async()
    assert await world.look() == ([1], ["COMMITTED"], ["commit"])


async def test_a_tombstone_that_is_there_first_aborts_the_block(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "secret_bytes", lambda count: bytes(count))
    connection = await world.database.open()
    outbox = world.outbox()
    await outbox._engine.decide(Key(bytes(16)), TxnId(0, 1))
    with pytest.raises(OutboxAborted):
        async with outbox.transaction(connection):
            await world.database.insert(connection, 1)
    await outbox.close()
    await _closed(connection)
    assert await world.look() == ([], ["ABORTED"], ["abort"])


async def test_a_commit_whose_answer_is_lost_is_asked_for(world: World) -> None:
    connection = await world.database.open()
    async with world.outbox() as outbox:
        block = outbox.transaction(connection)
        async with block:
            await world.database.insert(connection, 1)
            answer_of_commit_is_lost(block, comes_through=True)
    await _closed(connection)
    assert await world.look() == ([1], ["COMMITTED"], ["commit"])


async def test_a_block_that_is_cancelled_before_commit_rolls_both_back(world: World) -> None:
    connection = await world.database.open()
    outbox = world.outbox()
    inside = asyncio.Event()

    async def work() -> None:
        async with outbox.transaction(connection):
            await world.database.insert(connection, 1)
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await outbox.close()
    await _closed(connection)
    assert await world.look() == ([], ["ABORTED"], [])


async def test_a_connection_that_is_in_a_transaction_of_its_own(world: World) -> None:
    """asyncpg has only savepoints inside; all others join what is open."""
    connection = await world.database.open()
    if type(connection).__module__.startswith("asyncpg"):
        await connection.execute("BEGIN")
        with pytest.raises(TransactionStateError, match="which alone may commit"):
            async with world.outbox().transaction(connection):
                raise AssertionError
        await connection.execute("ROLLBACK")
        await _closed(connection)
        return
    await world.database.insert(connection, 1)
    async with world.outbox() as outbox, outbox.transaction(connection):
        await world.database.insert(connection, 2)
    await _closed(connection)
    assert (await world.look())[0] == [1, 2]


async def test_a_block_over_another_database_than_that_of_connect_is_refused(world: World, other: Database) -> None:
    connection = await world.database.open()
    async with world.outbox(other) as outbox:
        with pytest.raises(OutboxWrongDatabase, match="let `connect` lead to the same database"):
            async with outbox.transaction(connection):
                await world.database.insert(connection, 1)
    assert world.coordinator.states() == (["ABORTED"] if "alchemy" in world.kind or "session" in world.kind else [])
    async with world.outbox() as outbox, outbox.transaction(connection):
        await world.database.insert(connection, 2)
    await _closed(connection)
    assert (await world.look())[0] == [2]


async def test_a_check_that_asks_another_database_aborts_nothing_that_the_real_one_committed(
    world: World, other: Database
) -> None:
    def lost() -> None:
        raise ConnectionLost("cut")

    connection = await world.database.open()
    world.coordinator.faults["commit"] = lost
    async with world.outbox() as outbox, outbox.transaction(connection):
        await world.database.insert(connection, 1)
    world.coordinator.faults.clear()
    await _closed(connection)
    async with world.outbox(other):
        await world.coordinator.ask_all_async()
    assert await world.look() == ([1], ["PREPARED"], ["commit"])
    async with world.outbox():
        await world.coordinator.ask_all_async()
    assert await world.look() == ([1], ["COMMITTED"], ["commit"])
