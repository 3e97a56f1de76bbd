"""Two databases where there should be one: a block is refused, and a check decides nothing. On every kind of connection."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from outbox_databases import BLOCKING, Database, PlainConnection, plain_sqlite
from outbox_fakes import FakeClient, FakeCoordinator, answer_of_commit_is_lost

from pulsar_txn.client.errors import OutboxOutcomeUnknown, OutboxWrongDatabase
from pulsar_txn.client.outbox import Outbox, identity_sql, table_sql
from pulsar_txn.client.outbox.database import at_once, identity_table
from pulsar_txn.client.outbox.engine import Key, check_data_of, key_of
from pulsar_txn.client.txn.check_groups import CheckQuestion

STYLES = {"?": "qmark", "%s": "format"}
ASKED_BEFORE_BEGIN = {
    "psycopg",
    "psycopg-autocommit",
    "psycopg-repeatable-read",
    "psycopg-serializable",
    "sqlite",
    "sqlite-rollback-journal",
    "sqlite-no-isolation-level",
    "sqlite-immediate",
    "sqlite-autocommit-true",
}
"""The kinds whose blocks are refused before anything begins; the others compare after the row, and before PREPARE."""


class World:
    """One coordinator, the database of the program, and another one with tables of the same names."""

    def __init__(self, kind: str, database: Database, other: Database) -> None:
        self.kind = kind
        self.database = database
        self.other = other
        self.coordinator = FakeCoordinator()

    def outbox(self, connect: Callable[[], Any] | None = None, **options: Any) -> Outbox:
        if self.database.is_plain_dbapi:
            options |= {"paramstyle": STYLES[self.database.holes], "dialect": "generic"}
        options.setdefault("trim_every", None)
        connect = connect or self.database.connect
        return Outbox(FakeClient(self.coordinator), "orders", connect, table=self.database.table, **options)  # type: ignore[arg-type]  # a fake

    def identity(self, database: Database) -> list[str]:
        return [row[0] for row in database.query(f"SELECT database_identity FROM {identity_table(database.table)}")]

    def die_after_commit(self, number: int) -> None:
        """A process of the right database that is killed between COMMIT and END_TXN."""

        class Killed(BaseException):
            pass

        async def die(error: BaseException | None) -> bool:
            raise Killed

        outbox, connection = self.outbox(), self.database.connect()
        life = outbox.transaction(connection)
        life.__enter__()
        self.database.insert(connection, number)
        assert life._life._pulsar is not None
        life._life._pulsar.leave = die  # type: ignore[method-assign]  # the kill
        with pytest.raises(Killed):
            life._life.leave(None).send(None)
        outbox.close()
        connection.close()


def _world(request: pytest.FixtureRequest, kind: str, tmp_path: Path, table: str) -> World:
    if "sqlite" in kind:
        return World(kind, *(BLOCKING[kind](str(tmp_path / name), table) for name in ("orders.db", "other.db")))
    places = (request.getfixturevalue(name) for name in ("postgres", "other_postgres"))
    return World(kind, *(BLOCKING[kind](place, table) for place in places))


@pytest.fixture(params=list(BLOCKING))
def world(request: pytest.FixtureRequest, tmp_path: Path, table: str) -> Iterator[World]:
    made = _world(request, request.param, tmp_path, table)
    for each in (made.database, made.other):
        each.create()
        made.outbox(each.connect).create_table()
    yield made
    made.database.close()
    made.other.close()


def on(*kinds: str) -> pytest.MarkDecorator:
    """Only on these kinds, as far as this Python has them."""
    return pytest.mark.parametrize("world", [kind for kind in kinds if kind in BLOCKING], indirect=True)


# --- checks -----------------------------------------------------------------------------------------------------------


def test_a_check_that_asks_another_database_aborts_nothing_that_the_real_one_committed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its `connect` leads elsewhere: it found no row there, wrote a tombstone, and Pulsar aborted what was committed."""
    world.die_after_commit(1)
    with world.outbox(world.other.connect):
        world.coordinator.ask_all()
    assert world.coordinator.states() == ["PREPARED"]
    assert world.other.outcomes() == []
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    for named in (*world.identity(world.database), *world.identity(world.other), "nothing is written", "`connect`"):
        assert named in record.getMessage()
    with world.outbox():
        world.coordinator.ask_all()
    assert world.coordinator.states() == ["COMMITTED"]
    assert world.database.numbers() == [1]


@on("psycopg", "psycopg-plain-dbapi", "sqlite", "sqlite-session")
def test_a_check_that_asks_a_database_without_identities_writes_nothing(world: World) -> None:
    world.die_after_commit(1)
    with contextlib.closing(world.other.plain()) as connection:
        connection.execute(f"DROP TABLE {identity_table(world.other.table)}")
    with world.outbox(world.other.connect):
        world.coordinator.ask_all()
    assert world.coordinator.states() == ["PREPARED"]
    assert world.other.outcomes() == []


@on("psycopg", "sqlite")
def test_a_tombstone_of_an_earlier_version_in_another_database_decides_nothing(world: World) -> None:
    world.die_after_commit(1)
    (held,) = world.coordinator.held.values()
    stray = world.outbox(world.other.connect)
    asked = CheckQuestion(held.txn_id, "orders", b"outbox1:" + held.secret, 1, 15, True)
    assert stray._answer(asked).name == "ROLLBACK"
    assert world.other.outcomes() == ["abort"]
    with stray:
        world.coordinator.ask_all()
    assert world.coordinator.states() == ["PREPARED"]


@on("psycopg", "sqlite")
def test_check_data_of_an_earlier_version_is_answered_as_before(world: World) -> None:
    outbox = world.outbox()
    world.die_after_commit(1)
    (held,) = world.coordinator.held.values()
    for key, answer in ((held.secret, "COMMIT"), (bytes(16), "ROLLBACK")):
        question = CheckQuestion(held.txn_id, "orders", b"outbox1:" + key, 1, 15, True)
        assert outbox._answer(question).name == answer
    assert sorted(world.database.outcomes()) == ["abort", "commit"]


def test_check_data_names_the_key_and_the_identity() -> None:
    old, new = Key(bytes(range(16))), Key(bytes(range(16)), "ab" * 16)
    assert key_of(check_data_of(old)) == old
    assert check_data_of(old) == b"outbox1:" + bytes(range(16))
    assert key_of(check_data_of(new)) == new
    assert key_of(check_data_of(new)[:-1]) is None
    assert key_of(check_data_of(old) + b"x") is None
    assert key_of(b"outbox3:" + bytes(32)) is None


@on("psycopg", "sqlite-autocommit-true", "psycopg-sqlalchemy")
def test_a_lost_commit_is_not_asked_for_in_another_database(world: World) -> None:
    places = [world.database.connect]
    connection = world.database.open()
    with world.outbox(lambda: places[0]()) as outbox:
        block = outbox.transaction(connection)
        with pytest.raises(OutboxOutcomeUnknown) as raised, block:
            world.database.insert(connection, 1)
            answer_of_commit_is_lost(block, comes_through=True)
            places[0] = world.other.connect
        assert isinstance(raised.value.__cause__, OutboxWrongDatabase)
        with pytest.raises(OutboxWrongDatabase):
            raised.value.resolve()
        assert world.coordinator.states() == ["PREPARED"]
        assert world.other.outcomes() == []
        places[0] = world.database.connect
        assert raised.value.resolve().value == "COMMITTED"


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_a_block_over_another_database_than_that_of_connect_is_refused(world: World) -> None:
    connection = world.database.open()
    outbox = world.outbox(world.other.connect)
    with (
        pytest.raises(OutboxWrongDatabase, match="let `connect` lead to the same database") as raised,
        outbox.transaction(connection),
    ):
        world.database.insert(connection, 1)
    for named in (*world.identity(world.database), *world.identity(world.other)):
        assert named in str(raised.value)
    assert world.coordinator.states() == ([] if world.kind in ASKED_BEFORE_BEGIN else ["ABORTED"])
    for each in (world.database, world.other):
        assert (each.numbers(), each.outcomes()) == ([], [])
    with world.outbox().transaction(connection):  # which is as good as before
        world.database.insert(connection, 2)
    assert world.database.numbers() == [2]
    assert world.database.outcomes() == ["commit"]


def test_a_transaction_that_is_joined_is_compared_at_the_end(world: World) -> None:
    connection = world.database.open()
    if world.kind in ("sqlite-no-isolation-level", "sqlite-autocommit-true", "psycopg-autocommit"):
        connection.execute("BEGIN")
    world.database.insert(connection, 1)
    with pytest.raises(OutboxWrongDatabase), world.outbox(world.other.connect).transaction(connection):
        world.database.insert(connection, 2)
    assert world.coordinator.states() == ["ABORTED"]
    assert world.database.numbers() == []


def test_a_table_of_an_earlier_version_gets_an_identity_by_create_table(world: World) -> None:
    with contextlib.closing(world.database.plain()) as connection:
        connection.execute(f"DROP TABLE {identity_table(world.database.table)}")
    connection, outbox = world.database.open(), world.outbox()
    with pytest.raises(OutboxWrongDatabase, match=r"call outbox\.create_table\(\) once"), outbox.transaction(connection):
        raise AssertionError
    assert world.coordinator.states() == []
    outbox.create_table()
    with outbox.transaction(connection):
        world.database.insert(connection, 1)
    assert world.database.outcomes() == ["commit"]


def test_a_database_without_identity_beside_that_of_connect_is_told(world: World) -> None:
    with contextlib.closing(world.database.plain()) as connection:
        connection.execute(f"DELETE FROM {identity_table(world.database.table)}")
    connection = world.database.open()
    with (
        pytest.raises(OutboxWrongDatabase, match="the block's connection has no identity"),
        world.outbox(world.other.connect).transaction(connection),
    ):
        world.database.insert(connection, 1)
    assert "COMMITTED" not in world.coordinator.states()
    assert world.database.numbers() == []
    assert world.identity(world.database) == [], "written in a program's transaction"


@on("psycopg", "sqlite", "psycopg-plain-dbapi")
def test_a_connect_that_is_put_right_is_believed_at_the_next_block(world: World) -> None:
    places = [world.other.connect]
    connection = world.database.open()
    with world.outbox(lambda: places[0]()) as outbox:
        with pytest.raises(OutboxWrongDatabase), outbox.transaction(connection):
            pass
        places[0] = world.database.connect
        with outbox.transaction(connection):
            world.database.insert(connection, 1)
    assert world.database.numbers() == [1]


# --- what the comparison must not change ------------------------------------------------------------------------------


def test_what_is_committed_between_entry_and_first_statement_does_no_harm(world: World) -> None:
    """SQLite in WAL mode refuses a write in a snapshot that is older; REPEATABLE READ does not see what came after it."""
    if world.kind == "sqlite-immediate":
        pytest.skip("its block has the lock for writing from the entry on")
    connection, beside = world.database.open(), world.database.connect()
    with world.outbox().transaction(connection):
        world.database.insert(beside, 1)
        beside.commit()
        world.database.insert(connection, 2)
        if not world.database.is_plain_dbapi:
            statement: Any = f"SELECT count(*) FROM {world.database.orders}"
            if "sqlalchemy" in world.kind or "session" in world.kind:
                import sqlalchemy

                statement = sqlalchemy.text(statement)
            assert connection.execute(statement).fetchone()[0] == 2
    beside.close()
    assert world.database.numbers() == [1, 2]


@on("psycopg", "psycopg-autocommit")
def test_the_first_statement_of_a_block_may_set_its_isolation_level(world: World) -> None:
    connection = world.database.open()
    kept = connection.autocommit
    with world.outbox().transaction(connection):
        connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        world.database.insert(connection, 1)
    assert connection.autocommit is kept
    assert world.database.numbers() == [1]


@on("psycopg")
def test_a_block_that_goes_to_another_schema_is_refused_at_its_end(world: World) -> None:
    """As programs do that have a schema per customer: with SET LOCAL search_path as the first statement."""
    schema = f"customer_{uuid.uuid4().hex[:8]}"
    with contextlib.closing(world.database.plain()) as look:
        look.execute(f"CREATE SCHEMA {schema}")
        look.execute(f"SET search_path = {schema}")
        world.outbox().create_table(look)
        connection = world.database.open()
        with pytest.raises(OutboxWrongDatabase), world.outbox().transaction(connection):
            connection.execute(f"SET LOCAL search_path = {schema}, public")
            world.database.insert(connection, 1)
        assert world.coordinator.states() == ["ABORTED"]
        assert look.execute(f"SELECT * FROM {world.database.table}").fetchall() == []


@on("psycopg")
def test_a_connect_that_leads_to_another_schema_is_refused(world: World) -> None:
    import psycopg

    schema, dsn = f"customer_{uuid.uuid4().hex[:8]}", world.database.connect().info.dsn

    def connect() -> Any:
        return psycopg.connect(dsn, options=f"-c search_path={schema}")

    with contextlib.closing(world.database.plain()) as look:
        look.execute(f"CREATE SCHEMA {schema}")
    outbox = world.outbox(connect)
    outbox.create_table()
    with pytest.raises(OutboxWrongDatabase), outbox.transaction(world.database.open()):
        raise AssertionError
    world.die_after_commit(1)
    with outbox:
        world.coordinator.ask_all()
    assert world.coordinator.states() == ["PREPARED"]


@on("sqlite", "sqlite-autocommit-true")
def test_a_sqlite_connection_may_have_rows_and_text_of_its_own_kind(world: World) -> None:
    connection = world.database.open()
    connection.row_factory = lambda cursor, row: {"rows": row}
    connection.text_factory = bytes
    with world.outbox().transaction(connection):
        world.database.insert(connection, 1)
    assert world.database.numbers() == [1]


def test_a_generic_connection_may_have_rows_that_are_dictionaries(tmp_path: Path, table: str) -> None:
    made = plain_sqlite(str(tmp_path / "orders.db"), table)
    made.create()

    def connect() -> Any:
        connection = sqlite3.connect(tmp_path / "orders.db")
        connection.row_factory = lambda cursor, row: dict(zip([each[0] for each in cursor.description], row, strict=True))
        return PlainConnection(connection)

    world = World("sqlite-plain-dbapi", made, made)
    connection = connect()
    with world.outbox(connect) as outbox:
        with outbox.transaction(connection):
            made.insert(connection, 1)
        assert outbox.trim(older_than=0.001).kept == 0
    connection.close()
    assert made.numbers() == [1]


# --- the row ----------------------------------------------------------------------------------------------------------


def test_the_identity_stays_through_trims_and_whatever_creates_it_again(world: World) -> None:
    (identity,) = world.identity(world.database)
    assert len(bytes.fromhex(identity)) == 16
    connection = world.database.open()
    with world.outbox(trim_every=1) as outbox:
        for number in range(3):
            with outbox.transaction(connection):
                world.database.insert(connection, number)
        outbox.create_table()
        assert outbox.trim(older_than=0.001).kept == 0
    assert world.database.outcomes() == []
    assert world.identity(world.database) == [identity]
    assert world.identity(world.other) != [identity]


@on("psycopg", "psycopg-serializable", "sqlite", "psycopg-plain-dbapi")
def test_a_migration_needs_no_row(world: World) -> None:
    """`table_sql` and `identity_sql` are in it; the outbox writes the row over `connect`, and its first block can use it."""
    with contextlib.closing(world.database.plain()) as connection:
        connection.execute(f"DELETE FROM {identity_table(world.database.table)}")
    connection = world.database.open()
    with world.outbox().transaction(connection):
        world.database.insert(connection, 1)
    assert len(world.identity(world.database)) == 1
    assert world.database.numbers() == [1]


@on("psycopg", "psycopg-serializable", "sqlite", "psycopg-plain-dbapi")
def test_two_processes_that_write_the_identity_at_once_read_the_same(world: World) -> None:
    with contextlib.closing(world.database.plain()) as connection:
        connection.execute(f"DELETE FROM {identity_table(world.database.table)}")
    first, second = world.outbox(), world.outbox()
    identity = first._engine.rows.identity
    insert, found = identity.insert, []

    async def later(port: Any) -> None:
        identity.insert = insert  # type: ignore[method-assign]  # the other process is faster
        found.append(await second._engine.identity())
        await insert(port)

    identity.insert = later  # type: ignore[method-assign]  # as above
    assert [at_once(first._engine.identity())] == found == world.identity(world.database)


def test_a_pool_is_asked_for_the_identity_before_the_blocks_have_its_connections(tmp_path: Path, table: str) -> None:
    made = BLOCKING["sqlite"](str(tmp_path / "orders.db"), table)
    made.create()
    free = [made.connect()]

    @contextlib.contextmanager
    def pool() -> Iterator[Any]:
        connection = free.pop()  # fails when there is none, where a pool would wait
        yield connection
        free.append(connection)

    with World("sqlite", made, made).outbox(pool) as outbox, pool() as connection, outbox.transaction(connection):
        made.insert(connection, 1)
    assert made.numbers() == [1]
    free.pop().close()


@pytest.mark.parametrize("length", [5, 54, 55, 63])
def test_the_table_of_the_identity_has_a_name_that_postgresql_does_not_cut(length: int) -> None:
    name = identity_table("s." + "t" * length)
    assert name.startswith("s.t")
    assert len(name) - 2 <= 63
    assert name != "s." + "t" * length
    assert name in identity_sql("s." + "t" * length)
    assert name not in table_sql("s." + "t" * length)
