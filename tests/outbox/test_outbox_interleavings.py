"""All orders in which a block, checkers, trims and the coordinator's timeout can act, with a crash after every step.

The code under test is the real one: `Block.leave`, `Rows.decide`, `Checking.answer`, `trim`. Database and coordinator are
models of a few lines. One checker may ask another database, in which nobody else writes. Each step of a database or of the
coordinator is one scheduling point. States that were seen are not looked at again. Two kinds of databases: the insert waits
for a key in flight (PostgreSQL), or is refused (SQLite).

What holds at each end: the database has the program's rows if and only if the coordinator has committed.
"""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Final

import attrs
import pytest

from pulsar_txn.client.errors import (
    ConnectionLost,
    InvalidTransactionStatus,
    OutboxOutcomeUnknown,
    TransactionAborted,
    TransactionNotFound,
)
from pulsar_txn.client.outbox.database import GENERIC, POSTGRESQL
from pulsar_txn.client.outbox.engine import Block, Checking, Key, check_data_of
from pulsar_txn.client.outbox.rows import Outcome, Row, Rows, trim
from pulsar_txn.client.txn.check_groups import CheckQuestion, LocalOutcome
from pulsar_txn.wire.ids import TxnId

TXN: Final = TxnId(0, 1)
HERE: Final = "0" * 32
ELSEWHERE: Final = "1" * 32
KEY: Final = Key(bytes(range(16)), HERE)
PROGRAM: Final = "program"
STRAY: Final = "stray"
"""The checker that asks another database."""
GONE: Final = ""
"""What a DELETE writes."""


class IntegrityError(Exception):
    """By its name, as a driver's."""


class Busy(Exception):  # noqa: N818 - SQLite's word
    """The lock of the database is held by another one."""


class Killed(BaseException):
    """Nothing of the process runs after it."""


@types.coroutine
def point(name: str) -> Generator[str, None, None]:
    """Another actor may act here."""
    yield name


@attrs.define
class Database:
    """Rows of the outbox by key, and whether the program's row is committed; each connection has its own open writes."""

    waits: bool
    identity: str = HERE
    committed: dict[str, str] = attrs.Factory(dict)
    program: bool = False
    open: dict[str, dict[str, str]] = attrs.Factory(dict)
    killed: set[str] = attrs.Factory(set)
    faults: dict[str, str] = attrs.Factory(dict)
    """What the next COMMIT of a connection does; the program's PREPARE has the name `prepare`."""

    def check_alive(self, name: str) -> None:
        if name in self.killed:
            raise Killed

    def holder(self, key: str, but: str) -> str | None:
        return next((name for name, writes in self.open.items() if name != but and key in writes), None)

    def commit(self, name: str) -> None:
        self.committed |= self.open.pop(name)
        self.committed = {key: outcome for key, outcome in self.committed.items() if outcome != GONE}
        self.program = self.program or name == PROGRAM

    def state(self) -> Any:
        return (tuple(self.committed.items()), self.program, tuple((n, tuple(w.items())) for n, w in sorted(self.open.items())))


class DatabasePort:
    """One connection of the model."""

    blocking = False

    def __init__(self, database: Database, name: str, keep_first: bool) -> None:
        self._database = database
        self._name = name
        self.dialect = POSTGRESQL if keep_first else GENERIC

    async def begin(self) -> None:
        self._database.open[self._name] = {}

    async def settle(self) -> None:
        pass

    async def execute(self, statement: str, values: Any) -> int:
        if statement.startswith("SET"):
            return 0
        await point(statement.split()[0])
        database, key = self._database, values["key"]
        if statement.startswith("DELETE"):
            database.open[self._name][key] = GONE
            return 1
        while database.holder(key, self._name) is not None:
            if not database.waits:
                raise Busy
            await point("wait")
        if key in database.committed:
            if self.dialect.keep_first and "ON CONFLICT" in statement:
                return 0
            raise IntegrityError(key)
        database.open[self._name][key] = values["outcome"]
        return 1

    async def rows(self, statement: str, values: Any, limit: int) -> list[Any]:
        if "database_identity" in statement:
            return [(self._database.identity,)]  # it never changes, so it makes no difference when it is read
        await point("SELECT")
        committed = self._database.committed
        if "created_at_ms <" in statement:
            return [(key, str(TXN), outcome) for key, outcome in committed.items() if key > values["after"]]
        found = committed.get(values["key"])
        return [] if found is None else [(found,)]

    async def commit(self) -> None:
        await point("COMMIT")
        fault = self._database.faults.pop(self._name, "")
        if fault != "without effect":
            self._database.commit(self._name)
        if fault:
            raise ConnectionError(fault)

    async def rollback(self) -> None:
        self._database.check_alive(self._name)
        self._database.open.pop(self._name, None)

    async def close(self) -> None:
        pass

    def in_transaction(self) -> bool:
        return self._name in self._database.open


@attrs.define
class Coordinator:
    """The state of the one transaction."""

    status: str = "OPEN"
    secret: bytes = b""

    def end(self, outcome: str, secret: bytes | None = None) -> None:
        if secret is not None and secret != self.secret:
            raise TransactionNotFound("not with this secret")
        if self.status in ("OPEN", "PREPARED"):
            self.status = outcome
        elif self.status != outcome:
            raise (TransactionAborted if outcome == "COMMITTED" else InvalidTransactionStatus)(self.status)

    def state(self) -> Any:
        return (self.status, self.secret)


@attrs.define
class Pulsar:
    """The program's side of it."""

    coordinator: Coordinator
    database: Database
    txn_id: TxnId = TXN
    was_aborted: bool = False
    was_committed: bool = False

    async def prepare(self, secret: bytes) -> None:
        await point("prepare")
        fault = self.database.faults.pop("prepare", "")
        if fault != "without effect":
            if self.coordinator.status != "OPEN":
                raise InvalidTransactionStatus(self.coordinator.status)
            self.coordinator.status, self.coordinator.secret = "PREPARED", secret
        if fault:
            raise ConnectionLost(fault)

    async def leave(self, error: BaseException | None) -> bool:
        self.database.check_alive(PROGRAM)
        await point(f"end after {type(error).__name__}")
        if error is None:
            self.coordinator.end("COMMITTED")
        else:
            try:
                self.coordinator.end("ABORTED")
            except InvalidTransactionStatus as failed:
                error.add_note(str(failed))
                self.was_committed = self.coordinator.status == "COMMITTED"
        return False


class World:
    """Everything at one moment of a run. Actors are coroutines of the real code; a run is a list of choices."""

    def __init__(self, *, waits: bool, keep_first: bool, checkers: int, trims: int, stray: bool = False) -> None:
        self.database = Database(waits)
        self.elsewhere = Database(waits, ELSEWHERE)
        self.coordinator = Coordinator()
        self._keep_first = keep_first
        self._rows = Rows("outbox", "orders", None, lambda: 0)
        self._lefts = {"trim": trims}
        self._commit_sent = False
        self.crashed = False
        self.actors: dict[str, Coroutine[Any, Any, Any]] = {PROGRAM: self._program()}
        self.at: dict[str, list[str]] = {}
        self._free = [f"checker{number}" for number in range(checkers)] + [STRAY] * stray
        self._step(PROGRAM)

    # --- actors -------------------------------------------------------------------------------------------------------

    async def _program(self) -> None:
        port = DatabasePort(self.database, PROGRAM, self._keep_first)
        await port.begin()
        block = Block(KEY, self._rows, port, Pulsar(self.coordinator, self.database), self._own_check)
        try:
            await block.leave(None)
        except OutboxOutcomeUnknown:
            pass  # which is true of either
        except Exception:  # noqa: BLE001 - whatever it is
            assert not self.database.program, "the block failed, and the database committed"
        else:
            assert self.database.program, "the block succeeded, and the database did not commit"

    async def _own_check(self) -> Outcome | None:
        return await self._rows.decide(DatabasePort(self.database, "own", self._keep_first), KEY.text, TXN, KEY.identity)

    async def _check(self, name: str) -> None:
        database = self.elsewhere if name == STRAY else self.database
        question = CheckQuestion(TXN, "orders", check_data_of(KEY), 1, 15, self.coordinator.status == "PREPARED")
        await point(f"asked, prepared={question.prepared}")
        port = DatabasePort(database, name, self._keep_first)
        checking = Checking(lambda key, txn_id: self._rows.decide(port, key.text, txn_id, key.identity))
        try:
            answer = await checking.answer(question)
        except Busy:
            answer = LocalOutcome.UNKNOWN
        await point(f"answer {answer.name}")
        if self.coordinator.status in ("OPEN", "PREPARED") and answer is not LocalOutcome.UNKNOWN:
            self.coordinator.status = "COMMITTED" if answer is LocalOutcome.COMMIT else "ABORTED"

    async def _trim(self) -> None:
        port, rows, coordinator = DatabasePort(self.database, "trimmer", self._keep_first), self._rows, self.coordinator

        class Store:
            async def older(self, before_ms: int, after: str) -> list[Row]:
                return await rows.older(port, before_ms, after)

            async def remove(self, keys: Any) -> None:
                await rows.remove(port, keys)

        async def end(row: Row) -> None:
            await point(f"trim ends with {row.outcome}")
            coordinator.end("COMMITTED" if row.outcome is Outcome.COMMIT else "ABORTED", KEY.data)

        try:
            await trim(Store(), end, 1)
        except Busy:
            await port.rollback()

    # --- what can happen next -----------------------------------------------------------------------------------------

    def choices(self) -> list[str]:
        found = [name for name in self.actors if not self._blocked(name)]
        if PROGRAM in self.actors:
            found.append("crash")
            if self.at[PROGRAM][-1] in ("prepare", "COMMIT"):
                found += ["no answer, with effect", "no answer, without effect"]
        if self.crashed and PROGRAM in self.database.open:
            found.append("the database notices the crash")
            if self._commit_sent:
                found.append("the COMMIT in flight arrives")
        if self.coordinator.status in ("OPEN", "PREPARED") and self._free:
            found.append("ask")
        if self.coordinator.status == "OPEN":
            found.append("timeout")
        if self._lefts["trim"] and "trim" not in self.actors and self.database.committed:
            found.append("start trim")
        return found

    def _committing(self) -> str:
        """Whose COMMIT the program waits for: that of its block, or of its own check."""
        return PROGRAM if PROGRAM in self.database.open else "own"

    def _blocked(self, name: str) -> bool:
        return self.at[name][-1] == "wait" and self.database.holder(KEY.text, name) is not None

    def take(self, choice: str) -> None:
        if choice in self.actors:
            self._step(choice)
        elif choice.startswith("no answer"):
            place = "prepare" if self.at[PROGRAM][-1] == "prepare" else self._committing()
            self.database.faults[place] = choice.removeprefix("no answer, ")
            self._step(PROGRAM)
        elif choice == "crash":
            self.crashed = True
            self._commit_sent = self.at[PROGRAM][-1] == "COMMIT" and PROGRAM in self.database.open
            self._kill(PROGRAM)
        elif choice == "the database notices the crash":
            self.database.open.pop(PROGRAM)
        elif choice == "the COMMIT in flight arrives":
            self.database.commit(PROGRAM)
        elif choice == "timeout":
            self.coordinator.status = "ABORTED"
        elif choice == "ask":
            name = self._free.pop(0)
            self.actors[name] = self._check(name)
            self._step(name)
        else:
            self._lefts["trim"] -= 1
            self.actors["trim"] = self._trim()
            self._step("trim")

    def _step(self, name: str) -> None:
        try:
            self.at.setdefault(name, []).append(self.actors[name].send(None))
        except StopIteration:
            del self.actors[name]
            self.at[name].append("done")

    def _kill(self, name: str) -> None:
        self.database.killed.add(name)
        with contextlib.suppress(Killed, RuntimeError):  # the latter for one that failed in the midst of a step
            self.actors.pop(name).throw(Killed())

    def state(self) -> Any:
        places = tuple((name, tuple(self.at.get(name, ()))) for name in sorted(self.actors))
        return (
            self.database.state(),
            self.elsewhere.state(),
            self.coordinator.state(),
            places,
            tuple(self._free),
            self._lefts["trim"],
            self.crashed,
            self._commit_sent,
        )

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.coordinator.status == "COMMITTED":
            assert self.database.program, "committed in Pulsar, not in the database"
        if self.coordinator.status == "ABORTED":
            assert not self.database.program, "aborted in Pulsar, committed in the database"

        assert not self.elsewhere.committed, "a check has written in another database"

    def close(self) -> None:
        self.database.killed |= {"own", "trimmer"}
        for name in list(self.actors):
            self._kill(name)


def explore(make: Callable[[], World]) -> tuple[int, int]:
    """Every state that can be reached, by runs from the beginning. How many states, and how many ends."""
    seen: set[Any] = set()
    ends = 0
    todo: list[list[str]] = [[]]
    while todo:
        run = todo.pop()
        world = make()
        try:
            for choice in run:
                world.take(choice)
            world.check()
            state = world.state()
            if state in seen:
                continue
            seen.add(state)
            choices = world.choices()
        except AssertionError as error:
            raise AssertionError(f"{error}: {' → '.join(run)}") from None
        finally:
            world.close()
        ends += not choices
        todo += [[*run, choice] for choice in choices]
    return len(seen), ends


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of runs log what they find."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("keep_first", [True, False], ids=["on conflict do nothing", "plain insert"])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "busy"])
def test_no_interleaving_lets_the_two_sides_differ(waits: bool, keep_first: bool) -> None:
    states, ends = explore(lambda: World(waits=waits, keep_first=keep_first, checkers=1, trims=1))
    assert states > 500
    assert ends > 5


@pytest.mark.parametrize("keep_first", [True, False], ids=["on conflict do nothing", "plain insert"])
def test_no_interleaving_lets_a_check_in_another_database_decide(keep_first: bool) -> None:
    states, ends = explore(lambda: World(waits=True, keep_first=keep_first, checkers=0, trims=0, stray=True))
    assert states > 50
    assert ends > 3


@pytest.mark.soak
@pytest.mark.parametrize("keep_first", [True, False], ids=["on conflict do nothing", "plain insert"])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "busy"])
def test_no_interleaving_of_two_checkers_and_two_trims_lets_the_sides_differ(waits: bool, keep_first: bool) -> None:
    states, _ = explore(lambda: World(waits=waits, keep_first=keep_first, checkers=2, trims=2))
    assert states > 10_000
