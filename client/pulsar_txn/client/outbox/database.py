"""A program's database connection as an outbox uses it: the few things that it does with one, and the SQL of its tables.

No driver is imported by this room: a connection of one is only given where the program has imported it. The methods of a port
are coroutines. Those of a blocking driver never wait, so that one text serves both kinds (`at_once`).

The outbox has a table, in the words of each database and with the placeholders of each driver. Beside it is a table with one
row, the identity of the database; `rows` says what for. It is a table of its own because each
block reads it: SERIALIZABLE transactions that read where others insert their outcome rows would conflict with each other.

One row per transaction. Its primary key makes the outcome single: whoever inserts first decides.

| column | what it has |
|---|---|
| `txn_key` | 32 hexadecimal digits, chosen at random when the transaction begins; the coordinator has them as check data |
| `txn_group` | the group of the outbox |
| `txn_id` | the transaction's id, `(3,42)` |
| `outcome` | `commit`, written in the program's database transaction, or `abort`, the tombstone that a check writes |
| `created_at_ms` | milliseconds since the epoch, by the clock of the writer |
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import attrs

from pulsar_txn.client._validation import refused
from pulsar_txn.client.errors import InvalidConfiguration, TransactionStateError

DEFAULT_TABLE: Final = "pulsar_txn_outbox"
LOCK_WAIT_MS: Final = 2000
"""Time that a check waits for a database transaction that has written the row and has not ended. The next check waits again."""

_MAX_NAME: Final = 63
_SUFFIX: Final = "_identity"
_TABLE: Final = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)
_NAME: Final = re.compile(r":(\w+)")
_POSITIONAL: Final = {"qmark": "?", "format": "%s"}
_NUMBERED: Final = {"numeric": ":{}", "dollar": "${}"}
_NAMED: Final = {"named": ":{}", "pyformat": "%({})s"}
PARAMSTYLES: Final = frozenset(_POSITIONAL) | frozenset(_NUMBERED) | frozenset(_NAMED)
"""Parameter styles of PEP 249, and `dollar`, which is asyncpg's."""


@attrs.frozen
class Dialect:
    """Differences between databases."""

    name: str
    if_not_exists: str = " IF NOT EXISTS"
    keep_first: str = " ON CONFLICT (txn_key) DO NOTHING"
    """Clause by which the insert of a tombstone changes no row when there is one; without it the insert fails."""
    keep_identity: str = " ON CONFLICT (id) DO NOTHING"
    """The same for the insert of the identity."""
    before_check: tuple[str, ...] = ()
    """Statements at the beginning of a check's transaction."""


POSTGRESQL: Final = Dialect("postgresql", before_check=(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}",))
"""The insert of a tombstone waits for a database transaction in flight that has inserted the row."""

SQLITE: Final = Dialect("sqlite")
"""One writer at a time: the insert of a tombstone fails with SQLITE_BUSY while another transaction writes."""

GENERIC: Final = Dialect("generic", if_not_exists="", keep_first="", keep_identity="")
"""Standard SQL only, for any other database with DB-API 2.0."""

DIALECTS: Final[Mapping[str, Dialect]] = {each.name: each for each in (POSTGRESQL, SQLITE, GENERIC)}


def dialect_of(name: str) -> Dialect:
    """The dialect of a database's name, as SQLAlchemy says it; the generic one for those that have none of their own."""
    return DIALECTS.get(name, GENERIC)


@attrs.frozen
class Statements:
    """The statements of one table in one dialect, with `:name` placeholders."""

    insert: str
    tombstone: str
    outcome: str
    older: str
    delete: str
    create: str
    identity: str
    insert_identity: str
    create_identity: str
    before_check: tuple[str, ...]


def statements_of(table: str, dialect: Dialect) -> Statements:
    """All that is said to the database. `table` was checked by `check_table`."""
    row = "(txn_key, txn_group, txn_id, outcome, created_at_ms) VALUES (:key, :group, :txn_id, :outcome, :created_at_ms)"
    insert = f"INSERT INTO {table} {row}"
    return Statements(
        insert=insert,
        tombstone=insert + dialect.keep_first,
        outcome=f"SELECT outcome FROM {table} WHERE txn_key = :key",  # noqa: S608 - as above
        older=f"SELECT txn_key, txn_id, outcome FROM {table} "  # noqa: S608 - as above
        "WHERE txn_group = :group AND created_at_ms < :before_ms AND txn_key > :after ORDER BY txn_key",
        delete=f"DELETE FROM {table} WHERE txn_key = :key",  # noqa: S608 - as above
        create=create_table_sql(table, dialect),
        identity=f"SELECT database_identity FROM {identity_table(table)} WHERE id = 1",  # noqa: S608 - as above
        insert_identity=f"INSERT INTO {identity_table(table)} (id, database_identity) "  # noqa: S608 - as above
        f"VALUES (1, :identity){dialect.keep_identity}",
        create_identity=identity_table_sql(table, dialect),
        before_check=dialect.before_check,
    )


def create_table_sql(table: str, dialect: Dialect) -> str:
    """The DDL of the table, for a migration."""
    return (
        f"CREATE TABLE{dialect.if_not_exists} {table} (\n"
        "  txn_key VARCHAR(32) NOT NULL PRIMARY KEY,\n"
        "  txn_group VARCHAR(255) NOT NULL,\n"
        "  txn_id VARCHAR(64) NOT NULL,\n"
        "  outcome VARCHAR(8) NOT NULL CHECK (outcome IN ('commit', 'abort')),\n"
        "  created_at_ms BIGINT NOT NULL\n"
        ")"
    )


def identity_table(table: str) -> str:
    """The table of the identity. PostgreSQL cuts names off at 63 characters, so a long one is cut here, before the suffix.

    Two outboxes may come to share it in this way. That does no harm: the identity is that of their common database.
    """
    schema, dot, name = table.rpartition(".")
    return f"{schema}{dot}{name[: _MAX_NAME - len(_SUFFIX)]}{_SUFFIX}"


def identity_table_sql(table: str, dialect: Dialect) -> str:
    """The DDL of that table, for a migration."""
    return (
        f"CREATE TABLE{dialect.if_not_exists} {identity_table(table)} (\n"
        "  id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),\n"
        "  database_identity VARCHAR(32) NOT NULL\n"
        ")"
    )


def check_table(table: object) -> str:
    """The name of a table, with or without that of a schema. InvalidConfiguration: it stands in the SQL as it is."""
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise refused("table", table, "the name of a table: letters, digits and _, with or without a schema before it")
    return table


def check_paramstyle(paramstyle: object) -> str:
    """InvalidConfiguration unless PEP 249 or asyncpg has it."""
    if paramstyle not in PARAMSTYLES:
        raise refused("paramstyle", paramstyle, f"one of {', '.join(sorted(PARAMSTYLES))}")
    return str(paramstyle)


def rendered(statement: str, values: Mapping[str, Any], paramstyle: str) -> tuple[str, Any]:
    """The statement with the placeholders of a driver, and the values in the form that goes with them."""
    if paramstyle in _NAMED:
        return _NAME.sub(lambda name: _NAMED[paramstyle].format(name[1]), statement), dict(values)
    order = _NAME.findall(statement)
    if paramstyle in _POSITIONAL:
        return _NAME.sub(_POSITIONAL[paramstyle], statement), _in_order(values, order)
    numbers = iter(range(1, len(order) + 1))
    return _NAME.sub(lambda _: _NUMBERED[paramstyle].format(next(numbers)), statement), _in_order(values, order)


def _in_order(values: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(values[name] for name in names)


def chosen_dialect(name: str | None) -> Dialect | None:
    """That of an outbox's option; None when the connection is to say it. InvalidConfiguration."""
    if name is None:
        return None
    if name not in DIALECTS:
        raise InvalidConfiguration(f"dialect={name!r} is not known", hint=f"one of {', '.join(DIALECTS)}, or leave it out")
    return DIALECTS[name]


T = TypeVar("T")

IN_TRANSACTION: Final = 2
"""TRANSACTION_STATUS_INTRANS of libpq, for psycopg and psycopg2."""
_CONFLICT: Final = "40"
"""The class of SQLSTATE of serialization failures and deadlocks."""
_ACCESS: Final = "42"
"""SQLSTATE class of syntax errors and access rule violations, which has undefined tables."""
_CONSTRAINT: Final = "23"
"""SQLSTATE class of violated constraints; at COMMIT, of those that were deferred."""


class DatabasePort(Protocol):
    """One connection. All but `dialect` and `blocking` may raise whatever the driver raises."""

    dialect: Dialect
    blocking: bool
    """True if its calls block the thread."""

    async def rows_before(self, statement: str, limit: int) -> Sequence[Sequence[Any]] | None:
        """Rows of a query before `begin`, in no transaction; None when one is open, or the driver always begins one.

        It has no effect on the program's transaction. A query inside of it has: it takes the snapshot before the program's
        first statement does (SQLite, REPEATABLE READ), and PostgreSQL refuses SET TRANSACTION after it.
        """
        ...

    async def begin(self) -> None:
        """Begin a transaction, or join the one that is open. Raises TransactionStateError when neither can be."""
        ...

    async def settle(self) -> None:
        """Send what is not sent yet; TransactionStateError when the transaction that was begun is not open any more."""
        ...

    async def execute(self, statement: str, values: Mapping[str, Any]) -> int:
        """Execute a statement with `:name` placeholders; how many rows it changed."""
        ...

    async def rows(self, statement: str, values: Mapping[str, Any], limit: int) -> Sequence[Sequence[Any]]:
        """The first rows of a query."""
        ...

    async def commit(self) -> None:
        """Commit."""
        ...

    async def rollback(self) -> None:
        """Roll back what is open; without effect when nothing is."""
        ...

    async def close(self) -> None:
        """Close the connection, or give it back to its pool."""
        ...

    def in_transaction(self) -> bool | None:
        """True if the driver says that a transaction is open; None when it does not tell."""
        ...


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits: the code of a block over a blocking driver and a blocking client."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise InvalidConfiguration(
        "this connection is asynchronous, and the outbox is a blocking one", hint="use AsyncOutbox with an AsyncClient"
    )


async def had(value: Any) -> Any:
    """The value, awaited if it is to be awaited: drivers that are blocking and asyncio have the same names in both."""
    return await value if inspect.isawaitable(value) else value


def driver_in_transaction(connection: Any) -> bool | None:
    """True if a driver's connection says that a transaction is open; None when it does not tell."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if status is not None:
        return int(status) == IN_TRANSACTION
    told = getattr(connection, "in_transaction", None)
    if isinstance(told, bool):
        return told
    asked = getattr(connection, "is_in_transaction", None)
    if callable(asked):
        return bool(asked())
    return False if getattr(connection, "autocommit", None) is True else None


def is_refusal(error: BaseException, port: DatabasePort) -> bool:
    """True if the database says with this error that it has not committed. Not when the answer was not waited for.

    SQLite's COMMIT runs in the process: when it fails, and the transaction is still open, nothing has been committed.
    """
    if not isinstance(error, Exception):
        return False
    if port.dialect is SQLITE:
        return port.in_transaction() is True
    return _class_of(error) in (_CONFLICT, _CONSTRAINT)


def is_conflict(error: BaseException) -> bool:
    """True if a transaction was rolled back because of another one, and may be run again."""
    return _class_of(error) == _CONFLICT


def _class_of(error: BaseException) -> str:
    """The class of the SQLSTATE; nothing for drivers that do not tell it."""
    cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state[:2] if isinstance(state, str) else ""


def is_access_error(error: BaseException) -> bool:
    """True if a table is not there, or not for this user; PEP 249 has one class for them and for other mistakes in SQL."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return _class_of(error) == _ACCESS or "ProgrammingError" in names or "no such table" in str(error)  # SQLite has no code


def is_integrity_error(error: BaseException) -> bool:
    """True if a constraint was violated, by the names of PEP 249, SQLAlchemy and asyncpg."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"IntegrityError", "IntegrityConstraintViolationError"})


def check_still_open(port: DatabasePort) -> None:
    """TransactionStateError when the driver says that no transaction is open."""
    if port.in_transaction() is False:
        raise ended_inside()


def ended_inside() -> TransactionStateError:
    """The error of a program that commits, or rolls back, by itself."""
    return TransactionStateError(
        "the database transaction was ended inside of the block", hint="leave commit and rollback to outbox.transaction()"
    )
