"""Blocks of the blocking outbox, on each kind of connection: both sides end alike, whatever happens in between."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from outbox_databases import Database
from outbox_fakes import FakeClient, FakeCoordinator, answer_of_commit_is_lost

from pulsar_txn.client import ConnectionLost, TransactionAborted, TransactionStateError, TxnId
from pulsar_txn.client.errors import OutboxAborted, OutboxDiverged, OutboxOutcomeUnknown
from pulsar_txn.client.outbox import Outbox, engine
from pulsar_txn.client.outbox.database import at_once
from pulsar_txn.client.outbox.engine import Key
from pulsar_txn.client.outbox.rows import Outcome

STYLES = {"?": "qmark", "%s": "format"}


class ProcessDied(BaseException):
    """Stands for a kill: nothing of the program runs after it."""


class World:
    """A coordinator, a database, and outboxes of several processes."""

    def __init__(self, database: Database) -> None:
        self.coordinator = FakeCoordinator()
        self.database = database

    def outbox(self, **options: Any) -> Outbox:
        if self.database.is_plain_dbapi:
            options.setdefault("paramstyle", STYLES[self.database.holes])
            options.setdefault("dialect", "generic")
        options.setdefault("trim_every", None)
        options.setdefault("connect", self.database.connect)
        return Outbox(FakeClient(self.coordinator), "orders", table=self.database.table, **options)

    def die_in(self, point: str, number: int = 1) -> None:
        """A process that is killed there: its database connection is closed by the system."""

        def die() -> None:
            raise ProcessDied

        connection, outbox = self.database.connect(), self.outbox()
        self.coordinator.faults[point] = die
        with outbox:
            life = outbox.transaction(connection)
            life.__enter__()
            self.database.insert(connection, number)
            try:
                _leave_and_die(life)
            finally:
                self.coordinator.faults.clear()
                connection.close()

    def look(self) -> tuple[list[int], list[str]]:
        return self.database.numbers(), self.coordinator.states()


def _leave_and_die(life: Any) -> None:
    """Leave the block; the code that would run after the fault is cut off, as a kill does."""
    work = life._life.leave(None)
    pulsar = life._life._pulsar
    pulsar.leave, kept = _dead(pulsar.leave), pulsar.leave
    with pytest.raises(ProcessDied):
        work.send(None)
    del kept


def _dead(leave: Any) -> Any:
    async def leave_unless_dead(error: BaseException | None) -> bool:
        if isinstance(error, ProcessDied):
            return False
        result: bool = await leave(error)
        return result

    return leave_unless_dead


@pytest.fixture
def world(database: Database) -> World:
    return World(database)


def test_a_block_commits_both(world: World) -> None:
    connection = world.database.open()
    with world.outbox() as outbox:
        for number in (1, 2):
            with outbox.transaction(connection) as txn:
                world.database.insert(connection, number)
                assert world.database.numbers() == list(range(1, number)), "committed too early"
        assert txn.state.value == "COMMITTED"
    assert world.look() == ([1, 2], ["COMMITTED", "COMMITTED"])
    assert world.database.outcomes() == ["commit", "commit"]


def test_an_exception_rolls_both_back(world: World) -> None:
    connection = world.database.open()
    outbox = world.outbox()
    with pytest.raises(ZeroDivisionError), outbox.transaction(connection):
        world.database.insert(connection, 1)
        raise ZeroDivisionError
    assert world.look() == ([], ["ABORTED"])
    with outbox.transaction(connection):
        world.database.insert(connection, 2)
    assert world.look() == ([2], ["ABORTED", "COMMITTED"])


def test_an_abort_inside_rolls_the_database_back(world: World) -> None:
    connection = world.database.open()
    with world.outbox().transaction(connection) as txn:
        world.database.insert(connection, 1)
        txn.abort()
    assert world.look() == ([], ["ABORTED"])
    assert world.database.outcomes() == []


def test_a_process_that_dies_before_prepare_leaves_an_open_transaction_that_no_check_decides(world: World) -> None:
    world.die_in("prepare")
    with world.outbox():
        world.coordinator.ask_all()
    assert world.look() == ([], ["OPEN"])  # its timeout aborts it
    assert world.database.outcomes() == []


def test_a_process_that_dies_after_prepare_is_aborted_by_a_tombstone(world: World) -> None:
    outbox, connection = world.outbox(), world.database.connect()
    outbox.start()
    block = outbox.transaction(connection)
    block.__enter__()
    world.database.insert(connection, 1)
    stopped = block._life.leave(None)
    block._life._block._port.commit = _never
    with pytest.raises(_Stopped):
        stopped.send(None)
    outbox.close()
    connection.close()  # what the system does for a process that was killed
    assert world.look() == ([], ["PREPARED"])
    with world.outbox():
        world.coordinator.ask_all()
    assert world.look() == ([], ["ABORTED"])
    assert world.database.outcomes() == ["abort"]


class _Stopped(BaseException):
    pass


async def _never() -> None:
    raise _Stopped


def test_a_process_that_dies_after_the_databases_commit_is_committed_by_its_row(world: World) -> None:
    world.die_in("commit")
    assert world.look() == ([1], ["PREPARED"])
    with world.outbox():
        world.coordinator.ask_all()
    assert world.look() == ([1], ["COMMITTED"])
    assert world.database.outcomes() == ["commit"]


def test_an_end_that_pulsar_does_not_answer_is_no_failure_of_the_block(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def lost() -> None:
        raise ConnectionLost("cut")

    connection = world.database.open()
    with world.outbox() as outbox:
        world.coordinator.faults["commit"] = lost
        with outbox.transaction(connection):
            world.database.insert(connection, 1)
        assert "is committed in the database" in caplog.text
        world.coordinator.faults.clear()
        world.coordinator.ask_all()
    assert world.look() == ([1], ["COMMITTED"])


def test_a_check_of_a_block_in_hand_is_not_answered(world: World) -> None:
    connection = world.database.open()
    with world.outbox() as outbox:
        world.coordinator.faults["commit"] = world.coordinator.ask_all
        with outbox.transaction(connection):
            world.database.insert(connection, 1)
            world.coordinator.ask_all()
        assert world.coordinator.asked == 2
    assert world.look() == ([1], ["COMMITTED"])


def test_a_tombstone_that_is_there_first_aborts_the_block(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "secret_bytes", lambda count: bytes(count))
    connection = world.database.open()
    outbox = world.outbox()
    assert at_once(outbox._engine.decide(Key(bytes(16)), TxnId(0, 1))) is Outcome.ABORT
    with pytest.raises(OutboxAborted) as raised, outbox.transaction(connection):
        world.database.insert(connection, 1)
    assert raised.value.requires_abort
    assert raised.value.__cause__ is not None
    assert world.look() == ([], ["ABORTED"])
    assert world.database.outcomes() == ["abort"]


def test_a_transaction_that_timed_out_rolls_the_database_back(world: World) -> None:
    connection = world.database.open()
    with pytest.raises(OutboxAborted), world.outbox().transaction(connection):
        world.database.insert(connection, 1)
        for held in world.coordinator.held.values():
            held.state = "ABORTED"
    assert world.look() == ([], ["ABORTED"])
    assert world.database.outcomes() == []


def test_a_program_that_commits_inside_is_told(world: World) -> None:
    if world.database.is_plain_dbapi:
        pytest.skip("DB-API 2.0 does not tell whether a transaction is open")
    connection = world.database.open()
    with pytest.raises(Exception, match=r"inside of the block|forbidden within"), world.outbox().transaction(connection):
        world.database.insert(connection, 1)
        if getattr(connection, "autocommit", None) is False and hasattr(connection, "in_transaction"):
            pytest.skip("with autocommit=False the driver begins the next one at once")
        if getattr(connection, "isolation_level", "") is None or getattr(connection, "autocommit", None) is True:
            connection.execute("COMMIT")
        else:
            connection.commit()
    assert world.coordinator.states() == ["ABORTED"]
    assert world.database.outcomes() == []


def test_a_commit_that_came_through_although_it_failed_is_found_by_the_check(world: World) -> None:
    connection = world.database.open()
    outbox = world.outbox()
    block = outbox.transaction(connection)
    with block:
        world.database.insert(connection, 1)
        answer_of_commit_is_lost(block, comes_through=True)
    assert world.look() == ([1], ["COMMITTED"])


def test_a_commit_that_did_not_come_through_aborts_both(world: World) -> None:
    connection = world.database.open()
    block = world.outbox().transaction(connection)
    with pytest.raises(ConnectionResetError, match="lost"), block:
        world.database.insert(connection, 1)
        answer_of_commit_is_lost(block, comes_through=False)
    assert world.look() == ([], ["ABORTED"])


def test_a_commit_that_nobody_can_ask_for_is_unknown_and_resolves(world: World) -> None:
    broken = [False]

    def connect() -> Any:
        if broken[0]:
            raise ConnectionRefusedError("down")
        return world.database.connect()

    tells = world.database.dialect == "sqlite" and not world.database.is_plain_dbapi
    told = tells and getattr(world.database.open(), "autocommit", None) is not False  # else the next one is open at once
    for comes_through in (True, False)[: 1 if told else 2]:  # a COMMIT of SQLite that fails has told that it did
        connection = world.database.connect()
        outbox = world.outbox(connect=connect)
        block = outbox.transaction(connection)
        with pytest.raises(OutboxOutcomeUnknown) as raised, block:
            world.database.insert(connection, int(comes_through))
            answer_of_commit_is_lost(block, comes_through=comes_through)
            broken[0] = True
        connection.close()
        broken[0] = False
        assert world.coordinator.states()[-1] == "PREPARED"
        assert raised.value.resolve().value == ("COMMITTED" if comes_through else "ABORTED")
    assert world.look() == ([1], ["COMMITTED", "ABORTED"][: 1 if told else 2])


def test_an_interrupt_during_commit_is_left_to_the_check(world: World) -> None:
    connection = world.database.connect()
    outbox = world.outbox()
    block = outbox.transaction(connection)
    with pytest.raises(KeyboardInterrupt) as raised, block:
        world.database.insert(connection, 1)
        port = block._life._block._port
        real = port.commit

        async def commit() -> None:
            await real()
            raise KeyboardInterrupt

        port.commit = commit
    assert "is not known" in raised.value.__notes__[0]
    connection.close()
    assert world.look() == ([1], ["PREPARED"])
    with outbox:
        world.coordinator.ask_all()
    assert world.look() == ([1], ["COMMITTED"])


def test_an_abort_by_force_is_a_divergence(world: World) -> None:
    def forced() -> None:
        for held in world.coordinator.held.values():
            held.state = "ABORTED"

    connection = world.database.open()
    world.coordinator.faults["commit"] = forced
    with pytest.raises(OutboxDiverged) as raised, world.outbox().transaction(connection):
        world.database.insert(connection, 1)
    assert isinstance(raised.value.__cause__, TransactionAborted)
    assert world.database.outcomes() == ["commit"]


def test_a_block_is_entered_once(world: World) -> None:
    connection = world.database.open()
    block = world.outbox().transaction(connection)
    with block:
        world.database.insert(connection, 1)
    with pytest.raises(TransactionStateError), block:
        pass


def test_a_check_during_the_commit_never_rolls_back_and_one_after_it_says_commit(world: World) -> None:
    """Slow commit: the row is written, and the check comes. In PostgreSQL the tombstone waits for the row.

    SQLite lets only one connection write. A check that meets its lock does not know yet, and is asked for again.
    """
    connection, asked, answers = world.database.open(), world.coordinator.questions, []
    with world.outbox(), world.outbox() as other:

        def ask() -> None:
            answers.extend((question, other._answer(question).name) for question in asked())

        asking = threading.Thread(target=ask)
        block = world.outbox().transaction(connection)
        with block:
            world.database.insert(connection, 1)
            port = block._life._block._port
            real = port.commit

            async def commit() -> None:
                asking.start()
                asking.join(0.15 if world.database.dialect == "postgresql" else 0.5)  # longer than SQLite waits for the lock
                await real()
                asking.join()

            port.commit = commit
        ((question, during),) = answers
        later = other._answer(question).name
    assert world.look() == ([1], ["COMMITTED"])
    assert during in (["COMMIT"] if world.database.dialect == "postgresql" else ["COMMIT", "UNKNOWN"])
    assert later == "COMMIT"
