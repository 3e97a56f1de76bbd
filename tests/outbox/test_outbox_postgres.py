"""What only a real PostgreSQL shows: constraints and conflicts at COMMIT, sessions that end, waiting for a row in flight."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from outbox_fakes import FakeClient, FakeCoordinator
from psycopg.rows import dict_row

from pulsar_txn.client import InvalidConfiguration, TransactionStateError
from pulsar_txn.client.errors import OutboxOutcomeUnknown
from pulsar_txn.client.outbox import Outbox


class World:
    def __init__(self, dsn: str, table: str) -> None:
        self.dsn = dsn
        self.table = table
        self.coordinator = FakeCoordinator()
        self.client = FakeClient(self.coordinator)
        self.look = psycopg.connect(dsn, autocommit=True)
        self.outbox().create_table()
        self.outbox().create_table()  # which keeps it
        self.look.execute(f"CREATE TABLE {table}_orders (id INTEGER PRIMARY KEY, total INTEGER)")

    def connect(self, **options: Any) -> Any:
        return psycopg.connect(self.dsn, **options)

    def outbox(self, connect: Any = None) -> Outbox:
        return Outbox(self.client, "orders", connect or self.connect, table=self.table, trim_every=None)

    def outcomes(self) -> list[str]:
        return [row[0] for row in self.look.execute(f"SELECT outcome FROM {self.table}").fetchall()]

    def numbers(self) -> list[int]:
        return [row[0] for row in self.look.execute(f"SELECT id FROM {self.table}_orders ORDER BY id").fetchall()]


@pytest.fixture
def world(postgres: str, table: str) -> Iterator[World]:
    made = World(postgres, table)
    yield made
    made.look.close()


def test_a_constraint_that_fails_at_commit_rolls_both_back_without_a_question(world: World) -> None:
    orders = f"{world.table}_orders"
    reference = f"FOREIGN KEY (total) REFERENCES {orders} (id) DEFERRABLE INITIALLY DEFERRED"
    world.look.execute(f"ALTER TABLE {orders} ADD {reference}")
    with (
        world.connect() as connection,
        pytest.raises(psycopg.errors.ForeignKeyViolation),
        world.outbox().transaction(connection),
    ):
        connection.execute(f"INSERT INTO {world.table}_orders VALUES (1, 99)")
    assert world.coordinator.states() == ["ABORTED"]
    assert world.outcomes() == []  # no tombstone: the database has said what it did


def test_a_conflict_of_serializable_transactions_at_commit_rolls_both_back(world: World) -> None:
    first, second = world.connect(), world.connect()
    first.isolation_level = second.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    total = f"SELECT coalesce(sum(total), 0) FROM {world.table}_orders"
    with pytest.raises(psycopg.errors.SerializationFailure), world.outbox().transaction(first):
        first.execute(total)
        first.execute(f"INSERT INTO {world.table}_orders VALUES (1, 1)")
        with world.outbox().transaction(second):
            second.execute(total)
            second.execute(f"INSERT INTO {world.table}_orders VALUES (2, 2)")
    assert world.coordinator.states() == ["ABORTED", "COMMITTED"]
    assert world.numbers() == [2]
    first.close()
    second.close()


def test_blocks_that_touch_nothing_of_each_other_do_not_conflict_by_their_outbox_rows(world: World) -> None:
    connections = [world.connect() for _ in range(4)]
    with contextlib.ExitStack() as blocks:
        for number, connection in enumerate(connections):
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            blocks.enter_context(world.outbox().transaction(connection))
            connection.execute(f"INSERT INTO {world.table}_orders VALUES (%s, 0)", (number,))
    assert world.coordinator.states() == ["COMMITTED"] * 4
    for connection in connections:
        connection.close()


def test_a_session_that_the_server_ends_before_commit_aborts_both(world: World) -> None:
    connection = world.connect()

    def terminate() -> None:
        world.look.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    block = world.outbox().transaction(connection)
    with pytest.raises(psycopg.OperationalError), block:
        connection.execute(f"INSERT INTO {world.table}_orders VALUES (1, 1)")
        world.coordinator.faults["prepare"] = terminate
    assert world.coordinator.states() == ["ABORTED"]
    assert world.numbers() == []
    assert world.outcomes() == ["abort"]


def test_a_check_gives_up_waiting_for_a_row_in_flight_and_finds_it_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.outbox() as checker:
        questions: list[Any] = []
        answers: list[str] = []
        block = world.outbox().transaction(connection := world.connect())
        with block:
            connection.execute(f"INSERT INTO {world.table}_orders VALUES (1, 1)")
            assert block._life._block is not None
            port = block._life._block._port
            real = port.commit

            async def commit() -> None:
                questions.extend(world.coordinator.questions())
                answers.append(checker._answer(questions[0]).name)
                await real()

            port.commit = commit  # type: ignore[method-assign]  # where it is slow
        answers.append(checker._answer(questions[0]).name)
        connection.close()
    assert answers == ["UNKNOWN", "COMMIT"]
    assert "LockNotAvailable" in caplog.text
    assert world.outcomes() == ["commit"]


def test_checks_of_several_members_at_once_agree(world: World) -> None:
    from pulsar_txn.client.txn.check_groups import CheckQuestion
    from pulsar_txn.wire.ids import TxnId

    outbox = world.outbox()
    answers: list[str] = []
    question = CheckQuestion(TxnId(0, 7), "orders", b"outbox1:" + bytes(16), 1, 15, True)
    threads = [threading.Thread(target=lambda: answers.append(outbox._answer(question).name)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["ROLLBACK"] * 6
    assert world.outcomes() == ["abort"]


def test_a_block_inside_of_the_drivers_own_block_is_refused(world: World) -> None:
    with world.connect() as connection:
        with (
            connection.transaction(),
            pytest.raises(TransactionStateError, match="outside of it"),
            world.outbox().transaction(connection),
        ):
            raise AssertionError
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT 1/0")
        with pytest.raises(TransactionStateError, match="INERROR"), world.outbox().transaction(connection):
            raise AssertionError
    assert world.coordinator.states() == []


def test_rows_of_any_shape_are_read(world: World) -> None:
    with world.outbox(lambda: world.connect(row_factory=dict_row)) as outbox, world.connect() as connection:
        with outbox.transaction(connection):
            connection.execute(f"INSERT INTO {world.table}_orders VALUES (1, 1)")
        assert outbox.trim(older_than=0.001).kept == 0


def test_connections_of_a_pool_are_given_back(world: World) -> None:
    taken: list[str] = []

    @contextlib.contextmanager
    def from_pool() -> Iterator[Any]:
        taken.append("taken")
        with world.connect() as connection:
            yield connection
        taken.append("given back")

    assert world.outbox(from_pool).trim().removed == 0
    assert taken == ["taken", "given back"]


@pytest.mark.parametrize("level", ["AUTOCOMMIT"])
def test_a_connection_that_commits_each_statement_is_refused(world: World, level: str) -> None:
    engine = sqlalchemy.create_engine(world.dsn.replace("postgresql:", "postgresql+psycopg:"), isolation_level=level)
    with (
        engine.connect() as connection,
        pytest.raises(TransactionStateError, match="autocommit"),
        world.outbox().transaction(connection),
    ):
        pass
    engine.dispose()
    assert world.coordinator.states() == ["ABORTED"]
    assert world.outcomes() == []  # the row that was committed at once is removed again


def test_a_plain_connection_in_autocommit_mode_is_refused(world: World) -> None:
    class Plain:
        autocommit = True
        paramstyle = "format"

        def __init__(self, inner: Any) -> None:
            self.cursor, self.commit, self.rollback, self.close = inner.cursor, inner.commit, inner.rollback, inner.close

    outbox = Outbox(world.client, "orders", world.connect, table=world.table, paramstyle="format")
    with (
        world.connect() as connection,
        pytest.raises(InvalidConfiguration, match="autocommit"),
        outbox.transaction(Plain(connection)),
    ):
        raise AssertionError


def test_a_database_that_is_gone_leaves_the_outcome_unknown_until_it_is_back(world: World) -> None:
    down = [False]

    def connect() -> Any:
        return psycopg.connect("postgresql://postgres@127.0.0.1:1/none") if down[0] else world.connect()

    connection = world.connect()

    def terminate() -> None:
        world.look.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        down[0] = True

    world.coordinator.faults["prepare"] = terminate
    outbox = world.outbox(connect)
    with pytest.raises(OutboxOutcomeUnknown) as raised, outbox.transaction(connection):
        connection.execute(f"INSERT INTO {world.table}_orders VALUES (1, 1)")
    assert world.coordinator.states() == ["PREPARED"]
    with outbox:
        world.coordinator.ask_all()
        assert world.coordinator.states() == ["PREPARED"]
        down[0] = False
        assert raised.value.resolve().value == "ABORTED"
    assert world.coordinator.states() == ["ABORTED"]
